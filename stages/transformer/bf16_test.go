package transformer

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/onhost"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
	"contraflow/testdata/harness"
)

// In bf16, the error against the truth is at most 1.5 times that of torch's bf16 autocast: of the embeddings, of the
// median tensor's gradient and of the worst one's.
func TestBF16Error(t *testing.T) {
	harness.Thorough(t)
	devices := bf16Devices(t)
	for name, want := range autocast(t, "bert") {
		for _, d := range devices {
			t.Run(fmt.Sprint(name, "/", d.Name()), func(t *testing.T) {
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
	devices := bf16Devices(t)
	for name, want := range autocast(t, "lora") {
		for _, d := range devices {
			t.Run(fmt.Sprint(name, "/", d.Name()), func(t *testing.T) {
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

// bf16Devices compute in bf16 in three ways: plainly, with copies that wait for the backward pass (KeepsBF16), and with operands that are of bf16 in
// memory (TakesBF16), as the GPU's kernels have them. Who names a device wants that one alone.
func bf16Devices(t *testing.T) []gpustage.Device {
	devices := []gpustage.Device{fastDevice(t)}
	if os.Getenv("CONTRAFLOW_TEST_DEVICE") != "" {
		return devices
	}
	devices = append(devices, ref.New())
	if onhost.Here && !testing.Short() {
		devices = append(devices, onhost.OpenUnchecked(t, onhost.Plain))
	}
	return devices
}

func TestBF16Devices(t *testing.T) {
	t.Setenv("CONTRAFLOW_TEST_DEVICE", "cpu")
	if ds := bf16Devices(t); len(ds) != 1 || !strings.HasPrefix(ds[0].Name(), "cpu:") {
		t.Errorf("%d devices where one is named, %v first", len(ds), ds[0].Name())
	}
}

// In TF32 so is every one of TF32, forward and backward.
func TestTF32Products(t *testing.T) {
	for name := range autocast(t, "lora") {
		m, s, g := loadLoRA(t, name, fastDevice(t), Options{TF32: true})
		grads, err := m.NewGradients()
		if err != nil {
			t.Fatal(err)
		}
		products, rows := &productSpy{Stream: s}, goldenRows(t, g, "")
		p := m.Forward(products, newArena(t, s.Device()), rows, true, true)
		forward := products.tf32
		p.Backward(upload64(t, s, m.DType, rows.Len(), m.EmbeddingSize(), g.F64(t, "r")), grads)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		if forward == 0 || products.tf32 < 2*forward || products.exact+products.rounded != 0 {
			t.Errorf("%s: %d products in TF32, %d of them forward, %d are not", name, products.tf32, forward, products.exact+products.rounded)
		}
		return
	}
}

// rounder is a device that copies what it multiplies.
type rounder struct{ gpustage.Device }

func (rounder) RoundedCols(cols int) int { return cols + 1 }

// roundingSpy remembers what products found in matrices that they share.
type roundingSpy struct {
	gpustage.Stream
	t      *testing.T
	found  map[*gpustage.Rounded][]float64
	shared int
}

func (s *roundingSpy) MatMul(c, a, b gpustage.Tensor, o gpustage.MatMul) {
	if r := o.Rounded; r != nil {
		now := floats(s.t, s.Stream, a)
		if !r.Full {
			s.found[r], r.Full = now, true
		} else if s.shared++; !slices.Equal(now, s.found[r]) {
			s.t.Errorf("a %v is shared by products and was written between them", a)
		}
	}
	s.Stream.MatMul(c, a, b, o)
}

// What is rounded for several products of a backward pass is the same for all of them, in every family: nothing writes to it between them.
func TestSharedRounding(t *testing.T) {
	for _, name := range familyGoldens(t) {
		m, s := loadFamily(t, name, nil, rounder{fastDevice(t)}, Options{BF16: true})
		m.Config.HiddenDropout = 0.1
		grads, err := m.NewGradients()
		if err != nil {
			t.Fatal(err)
		}
		for _, train := range []bool{false, true} {
			spy := &roundingSpy{Stream: s, t: t, found: map[*gpustage.Rounded][]float64{}}
			a, err := gpustage.NewArena(m.Device, m.Memory([]int{3, 4}).Backward) // which counts the room
			if err != nil {
				t.Fatal(err)
			}
			p := m.Forward(spy, a, Rows{IDs: []int32{5, 6, 7, 8, 9, 10, 11}, Cu: []int32{0, 3, 7}, Keys: []uint64{1, 2}}, train, true)
			d := make([]float64, 2*m.EmbeddingSize())
			for i := range d {
				d[i] = 1 / float64(1+i)
			}
			p.Backward(upload64(t, s, m.DType, 2, m.EmbeddingSize(), d), grads)
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
			if err := a.Free(); err != nil {
				t.Fatal(err)
			}
			want := 4 * m.Config.Layers
			if m.Config.projects() {
				want++
			}
			if m.Config.Disentangled != nil {
				want += m.Config.Layers // what distances have comes of a product, too
			}
			if spy.shared != want {
				t.Errorf("%s: %d products take what another one has rounded, want the %d of its layers, and of a projection of embeddings", name, spy.shared, want)
			}
		}
	}
}

// keepsAll is a device on which activations wait as they are.
type keepsAll struct{ gpustage.Device }

// remembering is a stream whose copies in bf16 lose nothing.
type remembering struct {
	gpustage.Stream
	t     *testing.T
	whole map[int][]float64 // what was copied, by its place
}

func (s *remembering) Copy(dst, src gpustage.Tensor) {
	s.Stream.Copy(dst, src)
	switch {
	case dst.DType == gpustage.BF16:
		s.whole[dst.Off] = floats(s.t, s.Stream, src)
	case src.DType == gpustage.BF16:
		gpustage.Upload(s.Stream, dst, s.whole[src.Off])
	}
}

// What waits for the backward pass in bf16 takes half the memory. If its copies lost nothing it would give the very gradients of what waits
// as it is, with LoRA and activation checkpointing too; as they are it does so where only products and attention read them, and of pre its
// sign alone.
func TestKeptInBF16(t *testing.T) {
	type loader func(d gpustage.Device, o Options) (*Model, gpustage.Stream)
	models := map[string]loader{}
	for _, name := range []string{"minilm-tiny", "relu-one-head", "odd-sizes"} {
		models[name] = func(d gpustage.Device, o Options) (*Model, gpustage.Stream) {
			return loadGolden(t, name, d, Head{Normalize: true}, o)
		}
	}
	for _, name := range familyGoldens(t) {
		models[name] = func(d gpustage.Device, o Options) (*Model, gpustage.Stream) { return loadFamily(t, name, nil, d, o) }
	}
	fast := fastDevice(t)
	if !gpustage.KeepsBF16(fast) {
		t.Skip("on this device activations wait as they are")
	}
	rows := Rows{IDs: []int32{5, 6, 7, 8, 9, 10, 11}, Cu: []int32{0, 3, 7}, Keys: []uint64{1, 2}}
	lora := Tuning{FreezeLayers: 1, LoRA: &LoRA{Rank: 2, Alpha: 3, Dropout: 0.2, Targets: []string{AllLinear}}}
	for name, load := range models {
		for i, o := range []Options{{}, {CheckpointEvery: 2}, {Tuning: lora}, {Tuning: lora, CheckpointEvery: 1}} {
			o.BF16 = true
			t.Run(fmt.Sprint(name, "/", i), func(t *testing.T) {
				run := func(d gpustage.Device, lossless bool) ([]float64, *Model) {
					m, s := load(d, o)
					m.Config.HiddenDropout, m.Config.AttentionDropout = 0.1, 0.1
					anyFactors(t, m, s)
					if lossless {
						s = &remembering{s, t, map[int][]float64{}}
					}
					grads, err := m.NewGradients()
					if err != nil {
						t.Fatal(err)
					}
					a, err := gpustage.NewArena(d, m.Memory([]int{3, 4}).Backward)
					if err != nil {
						t.Fatal(err)
					}
					p := m.Forward(s, a, rows, true, true)
					r := make([]float64, 2*m.EmbeddingSize())
					for k := range r {
						r[k] = 1 / float64(1+k)
					}
					p.Backward(upload64(t, s, m.DType, 2, m.EmbeddingSize(), r), grads)
					return floats(t, s, grads), m
				}
				want, whole := run(keepsAll{fast}, false)
				if got, _ := run(fast, true); !slices.Equal(got, want) {
					t.Error("gradients differ although nothing is lost")
				}
				got, m := run(fast, false)
				c := m.Config
				reluAlone := !c.Gated && c.Activation == gpustage.ReLU && c.dropout(gpustage.SiteActivation) == 0 && o.Tuning.LoRA == nil
				if slices.Equal(got, want) != reluAlone {
					t.Errorf("the same gradients: %t, want %t", !reluAlone, reluAlone)
				}
				if o.CheckpointEvery > 0 {
					return
				}
				less := func(cols int) int { return (7*cols*4+63)/64*64 - (7*cols*2+63)/64*64 }
				up := c.FeedForward
				if c.Gated {
					up *= 2
				}
				saved := (c.Layers - m.Lowest()) * (less(c.queries()) + less(c.queries()+2*c.keys()) + less(up))
				if kept, all := m.Memory([]int{3, 4}).Kept, whole.Memory([]int{3, 4}).Kept; all-kept != saved {
					t.Errorf("it keeps %d bytes, %d as they are: want %d less", kept, all, saved)
				}
			})
		}
	}
}

// What embeds alone writes no activation's input; what goes backward does, and what it is replayed for.
func TestPreAct(t *testing.T) {
	m, s := loadGolden(t, "minilm-tiny", ref.New(), Head{}, Options{})
	for _, c := range []struct{ train, keep bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		spy, want := &productSpy{Stream: s}, 0
		if c.train || c.keep {
			want = m.Config.Layers
		}
		m.Forward(spy, newArena(t, s.Device()), Rows{IDs: []int32{5, 6}, Cu: []int32{0, 2}, Keys: []uint64{1}}, c.train, c.keep)
		if err := s.Sync(); err != nil || spy.pre != want {
			t.Errorf("train %t, keep %t: %d layers write it, want %d; %v", c.train, c.keep, spy.pre, want, err)
		}
	}
}

// productSpy counts matrix products.
type productSpy struct {
	gpustage.Stream
	rounded, tf32, exact int
	pre                  int // that write an activation's input
}

func (s *productSpy) MatMul(c, a, b gpustage.Tensor, o gpustage.MatMul) {
	if !o.PreAct.IsZero() {
		s.pre++
	}
	switch {
	case o.BF16:
		s.rounded++
	case o.TF32:
		s.tf32++
	default:
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
		if !(c.ours >= c.theirs/100) {
			t.Errorf("%s: error %.3g, torch's %.3g: was anything rounded?", c.what, c.ours, c.theirs)
		}
		t.Logf("%s: error %.3g, torch's %.3g", c.what, c.ours, c.theirs)
	}
}
