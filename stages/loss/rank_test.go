package loss

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/testdata/goldens"
)

// groupBatch lays groups out as a batch: scores of the rows' first documents, then of the others, row by row.
func groupBatch(t *testing.T, s gpustage.Stream, dtype gpustage.DType, sizes []int, scores, labels []float64) (b *Batch, place []int) {
	t.Helper()
	rows := len(sizes)
	n := rows
	for _, k := range sizes {
		n += k
	}
	b = &Batch{Rows: rows, Texts: make([]TextID, n), Scores: make([]float64, n-rows)}
	flat := make([]float64, n)
	at, next := 0, 2*rows
	for i, k := range sizes {
		for j := range k {
			to := rows + i
			if j > 0 {
				to, next = next, next+1
				b.Owner = append(b.Owner, int32(i))
			}
			flat[to], b.Scores[to-rows] = scores[at], labels[at]
			place = append(place, to)
			at++
		}
	}
	wide, err := gpustage.NewTensor(s.Device(), gpustage.F64, n, 1)
	if err != nil {
		t.Fatal(err)
	}
	s.CopyIn(wide, gpustage.Bytes(flat))
	for _, x := range []*gpustage.Tensor{&b.Embeddings, &b.Gradient} {
		if *x, err = gpustage.NewTensor(s.Device(), dtype, n, 1); err != nil {
			t.Fatal(err)
		}
	}
	s.Copy(b.Embeddings, wide)
	return b, place
}

// Against sentence-transformers and FlagEmbedding, groups of one to seven documents.
func TestGroupsGolden(t *testing.T) {
	g := goldens.Load(t, "loss/rank")
	var meta struct{ Cases map[string]Groups }
	g.Meta(t, &meta)
	fast, err := cpu.New(cpu.Threads(2))
	if err != nil {
		t.Fatal(err)
	}
	defer fast.Close()
	scores := g.F64(t, "scores")
	seen, activated := map[GroupLoss]bool{}, map[GroupLoss]bool{}
	for name, l := range meta.Cases {
		if err := l.Check(); err != nil {
			t.Fatal(err)
		}
		seen[l.Name] = true
		activated[l.Name] = activated[l.Name] || l.Activation == Sigmoid
		sizes := g.Ints(t, name+"/sizes")
		for _, x := range []struct {
			d     gpustage.Device
			dtype gpustage.DType
			limit float64
		}{{ref.New(), gpustage.F64, 1e-9}, {fast, gpustage.F32, 1e-5}} {
			s, err := x.d.OpenStream()
			if err != nil {
				t.Fatal(err)
			}
			b, place := groupBatch(t, s, x.dtype, sizes, scores, g.F64(t, name+"/labels"))
			a, err := gpustage.NewArena(x.d, l.Memory(b.Size()))
			if err != nil {
				t.Fatal(err)
			}
			r, err := l.Compute(s, a, b)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := r.Sum/r.Weight, g.F64(t, name+"/value")[0]; !(math.Abs(got-want) <= x.limit*math.Abs(want)) {
				t.Errorf("%s in %v: %v, want %v", name, x.dtype, got, want)
			}
			got, err := download(s, b.Gradient)
			if err != nil {
				t.Fatal(err)
			}
			want := g.F64(t, name+"/grad")
			worst, top := 0.0, 0.0
			for i, to := range place {
				worst, top = max(worst, math.Abs(got[to]/r.Weight-want[i])), max(top, math.Abs(want[i]))
			}
			if !(worst <= x.limit*top) {
				t.Errorf("%s in %v: gradient is off by %.3g of %.3g", name, x.dtype, worst, top)
			}
			a.Free()
		}
	}
	for _, name := range GroupLosses {
		if !seen[name] {
			t.Errorf("%s has no golden", name)
		}
		if slices.Contains(Activating, name) != activated[name] {
			t.Errorf("%s of sigmoids has a golden: %t", name, activated[name])
		}
	}
}

// Weights of rows, and what the data leaves out: the first document is the relevant one, a row's label is its one document's.
func TestGroupsRows(t *testing.T) {
	s, err := ref.New().OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	run := func(l Groups, change func(b *Batch)) (Result, []float64, error) {
		b, _ := groupBatch(t, s, gpustage.F64, []int{2, 3}, []float64{1, -1, 0.5, 2, 0}, []float64{1, 0, 1, 0, 0})
		change(b)
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
	for _, name := range []GroupLoss{GroupBCE, GroupADRMSE, GroupRankNet, GroupLambda} {
		said, dSaid, err := run(Groups{Name: name}, func(*Batch) {})
		if err != nil {
			t.Fatal(err)
		}
		left, dLeft, err := run(Groups{Name: name}, func(b *Batch) { b.Scores = nil })
		if err != nil || said != left || fmt.Sprint(dSaid) != fmt.Sprint(dLeft) {
			t.Errorf("%s: %v with labels 1, 0, 0, %v without, %v", name, said, left, err)
		}
		one, d1, _ := run(Groups{Name: name}, func(b *Batch) { b.Only = &Rows{1, 2} })
		two, d2, _ := run(Groups{Name: name}, func(b *Batch) { b.Only, b.Weights = &Rows{0, 2}, []float64{0, 2} })
		if !(math.Abs(two.Sum-2*one.Sum) <= 1e-15) || two.Weight != 2*one.Weight {
			t.Errorf("%s: %v for row 1, %v with weight 2 of it and 0 of the other", name, one, two)
		}
		for i := range d1 {
			if !(math.Abs(d2[i]-2*d1[i]) <= 1e-15) {
				t.Errorf("%s: gradients %v and %v", name, d1, d2)
			}
		}
	}
	if _, _, err := run(Groups{Name: "bce"}, func(b *Batch) { b.Scores, b.Labels = nil, []float64{1, 0} }); err == nil || !strings.Contains(err.Error(), "labels are for rows of one") {
		t.Errorf("%v", err)
	}
	for _, label := range []float64{-1, 7} {
		var bad *LabelError
		if _, _, err := run(Groups{Name: "bce"}, func(b *Batch) { b.Scores[1] = label }); !errors.As(err, &bad) || bad.Row != 1 || !strings.Contains(err.Error(), "the label is "+fmt.Sprint(label)+": bce takes labels from 0 to 1") {
			t.Errorf("label %v: %v", label, err)
		}
	}
	if _, _, err := run(Groups{Name: "mse"}, func(b *Batch) { b.Scores[0] = 1e308; b.Weights = []float64{1e10, 1} }); err == nil || !strings.Contains(err.Error(), "not finite") {
		t.Errorf("%v", err)
	}
	for _, l := range []Groups{{}, {Name: "lisst_mle"}, {Name: GroupLambda, Scheme: "ndcg_loss3"}, {Name: GroupRankNet, Sigma: math.NaN()}, {Name: GroupRankNet, Sigma: -1}, {Name: GroupRankNet, K: -1},
		{Name: GroupADRMSE, Alpha: -1}, {Name: GroupADRMSE, Alpha: math.NaN()}, {Name: GroupLambda, Mu: -1}, {Name: GroupBCE, PosWeight: -1}, {Name: GroupBCE, PosWeight: math.Inf(1)}, {Name: GroupMNRL, Scale: -1}, {Name: GroupCrossEntropy, Activation: Sigmoid},
		{Name: GroupListNet, Activation: Sigmoid, SelfDistill: true}, {Name: GroupBCE, Activation: "tanh"}} {
		said := l.Check()
		if _, grad, err := run(l, func(*Batch) {}); said == nil || err == nil || err.Error() != said.Error() || slices.Max(grad) != 0 || slices.Min(grad) != 0 {
			t.Errorf("%+v: gradient %v, %v; Check says %v", l, grad, err, said)
		}
	}
}
