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
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
)

// In bf16, the error against the truth is at most 1.5 times that of torch's bf16 autocast: of the embeddings, of the
// median tensor's gradient and of the worst one's.
func TestBF16Error(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(goldens.Path(t, "bert"), "bf16.json"))
	if err != nil {
		t.Fatal(err)
	}
	var torch struct {
		Models map[string]struct {
			Output    string
			Embedding float64
			Gradients map[string]float64
		}
	}
	if err := json.Unmarshal(raw, &torch); err != nil {
		t.Fatal(err)
	}
	fast, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer fast.Close()
	for name, want := range torch.Models {
		for _, d := range []gpustage.Device{ref.New(), fast} {
			t.Run(fmt.Sprint(name, "/", d.Info().Kind), func(t *testing.T) {
				g := goldens.Load(t, "bert/"+name)
				pool, normalized := strings.CutSuffix(want.Output, "_normalized")
				m, s := loadGolden(t, name, d, Head{Pooling: poolings[pool], Normalize: normalized}, Options{BF16: true})
				rows := goldenRows(t, g, "")
				grads, err := m.NewGradients()
				if err != nil {
					t.Fatal(err)
				}
				p := m.Forward(s, newArena(t, d), rows, true, true)
				embeddings := floats(t, s, p.Embeddings())
				p.Backward(upload64(t, s, m.DType, rows.Len(), m.EmbeddingSize(), g.F64(t, "r")), grads)
				largest := 0.0
				for _, p := range m.Layout.Params {
					for _, v := range g.F64(t, want.Output+"/grad/"+p.Name) {
						largest = max(largest, math.Abs(v))
					}
				}
				var ours, theirs []float64
				for _, p := range m.Layout.Params {
					if strings.HasSuffix(p.Name, "key.bias") { // zero; torch's is noise
						continue
					}
					ours = append(ours, relative(floats(t, s, m.Layout.View(grads, p)), g.F64(t, want.Output+"/grad/"+p.Name), largest))
					theirs = append(theirs, want.Gradients[p.Name])
				}
				sort.Float64s(ours)
				sort.Float64s(theirs)
				n := len(ours)
				for _, c := range []struct {
					what         string
					ours, theirs float64
				}{
					{"embeddings", relative(embeddings, g.F64(t, want.Output+"/embedding"), 0), want.Embedding},
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
			})
		}
	}
}
