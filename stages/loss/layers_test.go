package loss

import (
	"cmp"
	"math"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
)

// layerBatch is groupBatch with so many scores for each document, row-major.
func layerBatch(t *testing.T, s gpustage.Stream, dtype gpustage.DType, sizes []int, layers int, scores, labels []float64) (b *Batch, place []int) {
	t.Helper()
	b, place = groupBatch(t, s, dtype, sizes, make([]float64, len(labels)), labels)
	n := b.N()
	flat := make([]float64, n*layers)
	for i, to := range place {
		copy(flat[to*layers:], scores[i*layers:(i+1)*layers])
	}
	wide, err := gpustage.NewTensor(s.Device(), gpustage.F64, n, layers)
	if err != nil {
		t.Fatal(err)
	}
	s.CopyIn(wide, gpustage.Bytes(flat))
	for _, x := range []*gpustage.Tensor{&b.Embeddings, &b.Gradient} {
		if *x, err = gpustage.NewTensor(s.Device(), dtype, n, layers); err != nil {
			t.Fatal(err)
		}
	}
	s.Copy(b.Embeddings, wide)
	b.Layers = layers
	return b, place
}

func computeGroups(t *testing.T, s gpustage.Stream, l Groups, b *Batch) (Result, []float64, error) {
	t.Helper()
	a, err := gpustage.NewArena(s.Device(), l.Memory(b.Size()))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Free()
	r, err := l.Compute(s, a, b)
	grad, failed := download(s, b.Gradient)
	if failed != nil {
		t.Fatal(failed)
	}
	return r, grad, err
}

// Against FlagEmbedding's loss of all layers: its own last layer teaches those below, or a teacher all of them. Limits are eps of the type times what a
// sum of exponentials takes.
func TestLayersGolden(t *testing.T) {
	fast, err := cpu.New(cpu.Threads(2))
	if err != nil {
		t.Fatal(err)
	}
	defer fast.Close()
	for _, name := range []string{"minicpm-train", "minicpm-shared"} {
		g := goldens.Load(t, "rerank/"+name)
		for kind, l := range map[string]Groups{"alone": {Name: GroupCrossEntropy, SelfDistill: true}, "taught": {Name: GroupDistill}} {
			if err := l.Check(); err != nil {
				t.Fatal(err)
			}
			for _, x := range []struct {
				d     gpustage.Device
				dtype gpustage.DType
				limit float64
			}{{ref.New(), gpustage.F64, 1e-13}, {fast, gpustage.F32, 2e-6}} {
				s, err := x.d.OpenStream()
				if err != nil {
					t.Fatal(err)
				}
				b, place := layerBatch(t, s, x.dtype, []int{3, 3}, 3, g.F64(t, "scores"), g.F64(t, "teacher"))
				r, got, err := computeGroups(t, s, l, b)
				if err != nil {
					t.Fatal(err)
				}
				if got, want := r.Sum/r.Weight, g.F64(t, kind+"/loss")[0]; !(math.Abs(got-want) <= x.limit*math.Abs(want)) {
					t.Errorf("%s, %s in %v: %v, want %v", name, kind, x.dtype, got, want)
				}
				want := g.F64(t, kind+"/dscores")
				worst, top := 0.0, 0.0
				for i, to := range place {
					for j := range 3 {
						worst, top = max(worst, math.Abs(got[3*to+j]/r.Weight-want[3*i+j])), max(top, math.Abs(want[3*i+j]))
					}
				}
				if !(worst <= x.limit*top) {
					t.Errorf("%s, %s in %v: gradient is off by %.3g of %.3g", name, kind, x.dtype, worst, top)
				}
			}
		}
	}
}

// The loss of several layers is the sum of those of one, with each one's gradient, and counts as one does: of every loss, rows with weights among them.
func TestLayersAreSums(t *testing.T) {
	s, err := ref.New().OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	sizes, labels := []int{2, 3}, []float64{1, 0, 1, 0, 0.5}
	scores := []float64{1, 0.3, -1, 0.2, 0.5, 1.5, 2, -0.7, 0, 0.9}
	for _, name := range GroupLosses {
		l := Groups{Name: name}
		change := func(b *Batch) *Batch { b.Weights = []float64{1, 3}; return b }
		both, place := layerBatch(t, s, gpustage.F64, sizes, 2, scores, labels)
		r, got, err := computeGroups(t, s, l, change(both))
		if err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		for j := range 2 {
			var own []float64
			for i := range labels {
				own = append(own, scores[2*i+j])
			}
			b, _ := groupBatch(t, s, gpustage.F64, sizes, own, labels)
			one, grad, err := computeGroups(t, s, l, change(b))
			if err != nil {
				t.Fatal(err)
			}
			if one.Weight != r.Weight {
				t.Errorf("%s: a weight of %v, of one layer %v", name, r.Weight, one.Weight)
			}
			sum += one.Sum
			for _, to := range place {
				if got[2*to+j] != grad[to] {
					t.Errorf("%s: layer %d: gradient %v, alone %v", name, j, got[2*to+j], grad[to])
				}
			}
		}
		if !(math.Abs(sum-r.Sum) <= 1e-14*math.Abs(sum)) {
			t.Errorf("%s: %v, layers alone %v", name, r.Sum, sum)
		}
	}
	plain, _ := layerBatch(t, s, gpustage.F64, sizes, 2, scores, labels)
	taught, _ := layerBatch(t, s, gpustage.F64, sizes, 2, scores, labels)
	a, da, _ := computeGroups(t, s, Groups{Name: GroupKL}, plain)
	b, db, err := computeGroups(t, s, Groups{Name: GroupKL, SelfDistill: true}, taught)
	if err != nil || !(b.Sum > a.Sum) {
		t.Errorf("%v with self-distillation, %v without, %v", b, a, err)
	}
	for i := range da {
		if same := da[i] == db[i]; same != (i%2 == 0 || i < 4) { // the last layer's, and queries'
			t.Errorf("the gradient of number %d is %v with self-distillation, %v without", i, db[i], da[i])
		}
	}
}

func TestLayersErrors(t *testing.T) {
	s, err := ref.New().OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]struct {
		l      Groups
		layers int
	}{
		"this model scores by one layer":     {Groups{Name: GroupCrossEntropy, SelfDistill: true}, 1},
		"k is for a reranker with one score": {Groups{Name: GroupLambda, K: 2}, 2},
		"self_distill is of cross_entropy":   {Groups{Name: GroupRankNet, SelfDistill: true}, 2},
		"this model gives 2 numbers":         {Groups{Name: GroupMSE}, 0}, // an embedder
	} {
		b, _ := layerBatch(t, s, gpustage.F64, []int{2, 3}, cmp.Or(c.layers, 2), make([]float64, 10), make([]float64, 5))
		b.Layers = c.layers
		if _, _, err := computeGroups(t, s, c.l, b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c.l, err, want)
		}
	}
}

// Scores of many layers fit into what Memory says.
func TestLayersMemory(t *testing.T) {
	s, err := ref.New().OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	b, _ := layerBatch(t, s, gpustage.F32, []int{20, 20}, 16, make([]float64, 640), make([]float64, 40))
	if _, _, err := computeGroups(t, s, Groups{Name: GroupCrossEntropy}, b); err != nil {
		t.Error(err)
	}
}
