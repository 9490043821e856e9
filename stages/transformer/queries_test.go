package transformer

import (
	"math"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
)

// weighedModel has queries that are weights of tokens, in f64.
func weighedModel(t *testing.T, normalize bool, q QueryWeights) (*Model, gpustage.Stream) {
	t.Helper()
	c, err := ParseConfig([]byte(`{"model_type":"bert","vocab_size":9,"hidden_size":8,"num_hidden_layers":1,"num_attention_heads":2,"intermediate_size":8,"max_position_embeddings":8}`))
	if err != nil {
		t.Fatal(err)
	}
	if c.MLMHead, err = c.MLM([]byte("{}"), false); err != nil {
		t.Fatal(err)
	}
	c.Queries = q
	d := ref.New()
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(d, c, Head{Normalize: normalize}, Options{DType: gpustage.F64})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Init(s, 1); err != nil {
		t.Fatal(err)
	}
	return m, s
}

// A query has the weight of each of its tokens, and the weights' gradient is that of the features of the queries that have them, by their formulas and by
// differences, whatever the blocks of rows; it takes the memory that is foreseen.
func TestWeighed(t *testing.T) {
	defer func(n int) { weighedFeatures = n }(weighedFeatures)
	rows := Rows{IDs: []int32{1, 4, 8, 4, 0, 4, 5}, Cu: []int32{0, 3, 3, 4, 7}, Weighed: true}
	const v = 9
	weights := []float64{0.5, 1.5, 2, -1, 0.25, 3, 1, 1, 0.75}
	d := make([]float64, rows.Len()*v)
	for i := range d {
		d[i] = math.Sin(float64(i) + 1)
	}
	for _, normalize := range []bool{false, true} {
		embed := func(w []float64) []float64 {
			out := make([]float64, rows.Len()*v)
			for b := range rows.Len() {
				sum := 0.0
				for _, id := range rows.IDs[rows.Cu[b]:rows.Cu[b+1]] {
					out[b*v+int(id)] = w[id]
					sum += w[id] * w[id]
				}
				for i := range v {
					if normalize && sum > 0 {
						out[b*v+i] /= math.Sqrt(sum)
					}
				}
			}
			return out
		}
		loss := func(w []float64) (sum float64) {
			for i, e := range embed(w) {
				sum += e * d[i]
			}
			return sum
		}
		for _, weighedFeatures = range []int{math.MaxInt32, 2 * v, 1} {
			m, s := weighedModel(t, normalize, QueryWeights{There: true})
			p, _ := m.Layout.Find(QueryWeight)
			s.CopyIn(m.Layout.View(m.Params, p), gpustage.Bytes(weights))
			if err := m.Check(rows); err != nil {
				t.Fatal(err)
			}
			mem := m.WeighedMemory([]int{3, 0, 1, 3})
			a, err := gpustage.NewArena(m.Device, mem.Backward)
			if err != nil {
				t.Fatal(err)
			}
			pass := m.Forward(s, a, rows, true, true)
			if a.Used() != mem.Kept {
				t.Errorf("a kept pass takes %d bytes, and %d were foreseen", a.Used(), mem.Kept)
			}
			got := make([]float64, len(d))
			s.CopyOut(gpustage.Bytes(got), pass.Embeddings())
			grads, err := m.NewGradients()
			if err != nil {
				t.Fatal(err)
			}
			s.Fill(grads, 0)
			dEmb, err := gpustage.NewTensor(m.Device, gpustage.F64, rows.Len(), v)
			if err != nil {
				t.Fatal(err)
			}
			s.CopyIn(dEmb, gpustage.Bytes(d))
			var done []int
			pass.BackwardTo([]gpustage.Tensor{dEmb}, Gradients{Flat: grads, Done: func(mark int) { done = append(done, mark) }})
			all := make([]float64, grads.Len())
			s.CopyOut(gpustage.Bytes(all), grads)
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(done, m.Layout.Marks()) {
				t.Errorf("complete are %v, want %v", done, m.Layout.Marks())
			}
			for i, want := range embed(weights) {
				if !(math.Abs(got[i]-want) <= 1e-15) {
					t.Errorf("normalized %t, blocks of %d: feature %d is %v, want %v", normalize, weighedFeatures, i, got[i], want)
				}
			}
			at := m.Layout.At(p)
			for id := range v {
				const h = 1e-5
				up, down := slices.Clone(weights), slices.Clone(weights)
				up[id], down[id] = up[id]+h, down[id]-h
				if want := (loss(up) - loss(down)) / (2 * h); !(math.Abs(all[at+id]-want) <= 1e-8) {
					t.Errorf("normalized %t, blocks of %d: the gradient of weight %d is %v, want %v", normalize, weighedFeatures, id, all[at+id], want)
				}
			}
			clear(all[at : at+v])
			if slices.ContainsFunc(all, func(g float64) bool { return g != 0 }) {
				t.Error("queries of weights give other parameters a gradient")
			}
		}
	}
}

func TestWeighedOptions(t *testing.T) {
	m, _ := weighedModel(t, false, QueryWeights{There: true, Frozen: true})
	if p, ok := m.Layout.Find(QueryWeight); !ok || m.Layout.Trains(p) || len(p.Shape()) != 1 || !p.Decay() {
		t.Errorf("frozen weights are %+v", p)
	}
	for want, r := range map[string]Rows{
		"tokens of queries that are weights are distinct": {IDs: []int32{3, 3}, Cu: []int32{0, 2}, Weighed: true},
		"the vocabulary has 9":                            {IDs: []int32{9}, Cu: []int32{0, 1}, Weighed: true},
	} {
		if err := m.Check(r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", r, err, want)
		}
	}
	plain, _ := weighedModel(t, false, QueryWeights{})
	if err := plain.Check(Rows{Cu: []int32{0}, Weighed: true}); err == nil || !strings.Contains(err.Error(), "for a model with QueryWeights") {
		t.Error(err)
	}
	c := plain.Config
	c.MLMHead, c.Queries.There = MLMHead{}, true
	if _, err := New(plain.Device, c, Head{}, Options{}); err == nil || !strings.Contains(err.Error(), "queries of weights alone are sparse") {
		t.Error(err)
	}
	o := Options{Tuning: Tuning{LoRA: &LoRA{Rank: 2, Alpha: 2, Targets: []string{"query"}}}}
	c = plain.Config
	for _, frozen := range []bool{false, true} {
		c.Queries = QueryWeights{There: true, Frozen: frozen}
		m, err := New(plain.Device, c, Head{}, o)
		if err != nil {
			t.Fatal(err)
		}
		if p, _ := m.Layout.Find(QueryWeight); m.Layout.Trains(p) == frozen {
			t.Errorf("with LoRA, frozen %t: the weights train %t", frozen, !frozen == m.Layout.Trains(p))
		}
	}
	if got := Distinct([]int32{7, 5, 1, 5, 1}, 1); !slices.Equal(got, []int32{7, 1, 5}) {
		t.Errorf("distinct are %v", got)
	}
}
