package transformer

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
	"contraflow/testdata/harness"
)

// In bf16, the error against the truth is at most 1.5 times that of torch's bf16 autocast: of the embeddings, of the
// median tensor's gradient and of the worst one's.
func TestBF16Error(t *testing.T) {
	harness.Thorough(t)
	torch := autocast(t, "bert")
	fast := fastDevice(t)
	for name, want := range torch {
		for _, d := range []gpustage.Device{ref.New(), fast} {
			t.Run(fmt.Sprint(name, "/", d.Info().Kind), func(t *testing.T) {
				g := goldens.Load(t, "bert/"+name)
				pool, normalized := strings.CutSuffix(want.Output, "_normalized")
				m, s := loadGolden(t, name, d, Head{Pooling: poolings[pool], Normalize: normalized}, Options{BF16: true})
				checkBF16(t, m, s, g, want.Output+"/", want)
			})
		}
	}
}

// With LoRA likewise, and every product of a linear layer and its factors is one of bf16: an error that is smaller than torch's would
// not tell one that is not.
func TestLoRABF16Error(t *testing.T) {
	fast := fastDevice(t)
	for name, want := range autocast(t, "lora") {
		for _, d := range []gpustage.Device{ref.New(), fast} {
			t.Run(fmt.Sprint(name, "/", d.Info().Kind), func(t *testing.T) {
				m, s, g := loadLoRA(t, name, d, Options{BF16: true})
				products := &productSpy{Stream: s}
				checkBF16(t, m, products, g, "", want)
				if products.rounded == 0 || products.exact != 0 {
					t.Errorf("%d products in bf16, %d are not", products.rounded, products.exact)
				}
			})
		}
	}
}

// productSpy counts matrix products.
type productSpy struct {
	gpustage.Stream
	rounded, exact int
}

func (s *productSpy) MatMul(c, a, b gpustage.Tensor, o gpustage.MatMul) {
	if o.BF16 {
		s.rounded++
	} else {
		s.exact++
	}
	s.Stream.MatMul(c, a, b, o)
}

// autocastErrors are those of a model under torch's bf16 autocast.
type autocastErrors struct {
	Output    string
	Embedding float64
	Gradients map[string]float64
}

// autocast reads a folder's bf16.json.
func autocast(t *testing.T, folder string) map[string]autocastErrors {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(goldens.Path(t, folder), "bf16.json"))
	if err != nil {
		t.Fatal(err)
	}
	var torch struct{ Models map[string]autocastErrors }
	if err := json.Unmarshal(raw, &torch); err != nil || len(torch.Models) == 0 {
		t.Fatal(err, torch)
	}
	return torch.Models
}

// checkBF16 compares with a golden, whose tensors have the prefix.
func checkBF16(t *testing.T, m *Model, s gpustage.Stream, g *goldens.Golden, prefix string, want autocastErrors) {
	t.Helper()
	rows := goldenRows(t, g, "")
	grads, err := m.NewGradients()
	if err != nil {
		t.Fatal(err)
	}
	p := m.Forward(s, newArena(t, s.Device()), rows, true, true)
	embeddings := floats(t, s, p.Embeddings())
	p.Backward(upload64(t, s, m.DType, rows.Len(), m.EmbeddingSize(), g.F64(t, "r")), grads)
	largest := 0.0
	for _, p := range m.Layout.Training() {
		for _, v := range g.F64(t, prefix+"grad/"+p.Name) {
			largest = max(largest, math.Abs(v))
		}
	}
	var ours, theirs []float64
	for _, p := range m.Layout.Training() {
		if strings.HasSuffix(p.Name, "key.bias") { // zero; torch's is noise
			continue
		}
		ours = append(ours, relative(floats(t, s, m.Layout.View(grads, p)), g.F64(t, prefix+"grad/"+p.Name), largest))
		theirs = append(theirs, want.Gradients[p.Name])
	}
	sort.Float64s(ours)
	sort.Float64s(theirs)
	n := len(ours)
	for _, c := range []struct {
		what         string
		ours, theirs float64
	}{
		{"embeddings", relative(embeddings, g.F64(t, prefix+"embedding"), 0), want.Embedding},
		{"the median gradient", ours[n/2], theirs[n/2]},
		{"the worst gradient", ours[n-1], theirs[n-1]},
	} {
		if !(c.ours <= 1.5*c.theirs) {
			t.Errorf("%s: error %.3g, torch's %.3g", c.what, c.ours, c.theirs)
		}
		if c.ours < c.theirs/100 {
			t.Errorf("%s: error %.3g, torch's %.3g: was anything rounded?", c.what, c.ours, c.theirs)
		}
		t.Logf("%s: error %.3g, torch's %.3g", c.what, c.ours, c.theirs)
	}
}
