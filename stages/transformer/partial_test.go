package transformer

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/devicetest"
	"contraflow/gpustage/ref"
	"contraflow/testdata/harness"
)

// feed gives a model the parameters of another one that has them all, in memory that holds nothing else.
type feed struct {
	from  *Model
	ids   []int32 // of the pass
	asked []int
	mem   gpustage.Tensor
}

func (f *feed) Layer(s gpustage.Stream, l int) gpustage.Tensor {
	if n := len(f.asked); n == 0 || f.asked[n-1] != l {
		f.asked = append(f.asked, l)
	}
	layout := f.from.Layout
	frozen, end := layout.SpanFrozen(l)
	from, to := layout.Span(l)
	still := end - frozen
	s.Fill(f.mem, 1e30) // what was asked for before is gone
	s.Copy(f.mem.Columns(0, still), f.from.Params.Columns(frozen, end))
	s.Copy(f.mem.Columns(still, still+to-from), f.from.Trained().Columns(from, to))
	return f.mem.Columns(0, still+to-from)
}

func (f *feed) Words(s gpustage.Stream) (table, index gpustage.Tensor) {
	f.asked = append(f.asked, VisitWords)
	rows := slices.Clone(f.ids)
	slices.Sort(rows)
	rows = slices.Compact(rows)
	at := make([]int32, len(f.ids))
	for i, id := range f.ids {
		k, _ := slices.BinarySearch(rows, id)
		at[i] = int32(k)
	}
	ints := func(vs []int32) gpustage.Tensor {
		t, _ := gpustage.NewTensor(s.Device(), gpustage.I32, 1, len(vs))
		s.CopyIn(t, gpustage.Bytes(vs))
		return t
	}
	table, _ = gpustage.NewTensor(s.Device(), f.from.DType, len(rows), f.from.Config.WordDim())
	s.Gather(table, f.from.w.word, ints(rows), false)
	return table, ints(at)
}

// Where memory is short, New says so, has nothing and holds nothing: whichever allocation it is that fails.
func TestNewOutOfMemory(t *testing.T) {
	d := &devicetest.Counted{Device: ref.New()}
	c, err := ParseConfig(configAt(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	half := func(l *Layout) [][2]int { return [][2]int{{0, l.Len / 2}} }
	for want, own := range map[int]func(*Layout) [][2]int{1: nil, 3: half} {
		n := devicetest.OutOfMemory(t, d, func() (func() error, error) {
			m, err := New(d, c, Head{}, Options{Own: own})
			if err != nil {
				if m != nil {
					t.Error("there is a model beside an error")
				}
				return nil, err
			}
			return m.Free, nil
		})
		if n != want {
			t.Errorf("%d allocations, want %d", n, want)
		}
	}
}

// A model that holds every third parameter and is fed the rest computes what the whole model computes, to the bit, and asks for
// what Visits says; so do gradients that go layer by layer to memory of their own: whatever of it trains.
func TestPartial(t *testing.T) {
	tunings := []Tuning{
		{},
		{FreezeEmbeddings: true, FreezeLayers: 1},
		{FreezeLayers: 1},
		{FreezeEmbeddings: true},
		{LoRA: &LoRA{Rank: 2, Alpha: 3, Targets: []string{AllLinear}}},
		{LoRA: &LoRA{Rank: 2, Alpha: 3, Dropout: 0.2, Targets: []string{AllLinear}}, FreezeLayers: 1},
	}
	for i, name := range familyGoldens(t) {
		for k, tuning := range harness.Few(tunings, 2) {
			every := k % 3
			if k == 0 {
				every = i % 3
			}
			o := Options{CheckpointEvery: every, Tuning: tuning, BF16: (i+k)%2 == 1}
			whole, s := loadFamily(t, name, nil, ref.New(), o)
			folder, name := name, fmt.Sprintf("%s, %+v", name, tuning)
			o.Own = func(l *Layout) (out [][2]int) {
				for at := 0; at < l.Len; at += 300 {
					out = append(out, [2]int{at, min(l.Len, at+100)})
				}
				return out
			}
			part, _ := loadFamily(t, folder, nil, ref.New(), o)
			for _, m := range []*Model{whole, part} {
				anyFactors(t, m, s)
			}
			at := 0
			for _, r := range part.own {
				if n := r[1] - r[0]; !bytes.Equal(hostBytes(part.Params.Columns(at, at+n)), hostBytes(whole.Params.Columns(r[0], r[1]))) {
					t.Fatalf("%s: the model does not hold what it owns from %d on", name, r[0])
				}
				at += r[1] - r[0]
			}
			rows := Rows{IDs: []int32{3, 4, 5, 4, 7}, Cu: []int32{0, 2, 5}, Keys: []uint64{1, 2}}
			longest := 0
			for l := range whole.Config.Layers {
				longest = max(longest, whole.Layout.Part(l).Len)
			}
			f := &feed{from: whole, ids: rows.IDs, mem: tensor(t, 1, longest)}
			part.Feed = f
			d := tensor(t, 2, whole.Config.Hidden)
			for i, vs := 0, gpustage.Slice[float32](d); i < len(vs); i++ {
				vs[i] = float32(i%7) - 3
			}
			run := func(m *Model, replay bool, to Gradients) []byte {
				a, err := gpustage.NewArena(m.Device, whole.Memory([]int{2, 3}).Backward)
				if err != nil {
					t.Fatal(err)
				}
				var p *Pass
				if replay {
					p = m.Replay(s, a, rows)
				} else {
					p = m.Forward(s, a, rows, true, true)
					if m == part && !slices.Equal(f.asked, m.Visits(true, false)) {
						t.Errorf("%s: a kept pass asks for %v, Visits says %v", name, f.asked, m.Visits(true, false))
					}
					f.asked = nil
				}
				out := bytes.Clone(hostBytes(p.Embeddings()))
				p.BackwardTo([]gpustage.Tensor{d}, to)
				if err := s.Sync(); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				return out
			}
			flat, _ := whole.NewGradients()
			want := run(whole, false, Gradients{Flat: flat})
			word := whole.Layout.Word()
			index, _ := gpustage.NewTensor(whole.Device, gpustage.I32, 1, len(rows.IDs))
			s.CopyIn(index, gpustage.Bytes(rows.IDs))
			from, to := whole.Layout.Span(Outside)
			for _, replay := range []bool{false, true} {
				apart, _ := whole.NewGradients()
				f.asked = nil
				apartFrom := Gradients{
					WordRows: whole.Layout.View(apart, word), WordIndex: index,
					Layer: func(l int) gpustage.Tensor {
						from, to := whole.Layout.Span(l)
						if from == to {
							t.Errorf("%s: memory is wanted for gradients of layer %d, in which nothing trains", name, l)
						}
						return apart.Columns(from, to)
					},
				}
				if from < to {
					apartFrom.Rest = apart.Columns(from, to)
				}
				got := run(part, replay, apartFrom)
				if !bytes.Equal(got, want) {
					t.Errorf("%s: embeddings differ", name)
				}
				if !bytes.Equal(hostBytes(apart), hostBytes(flat)) {
					t.Errorf("%s: gradients differ", name)
				}
				if visits := part.Visits(replay, true); !slices.Equal(f.asked, visits) {
					t.Errorf("%s, activation checkpointing every %d, replayed %v: the passes ask for %v, Visits says %v", name, every, replay, f.asked, visits)
				}
			}
			f.asked = nil
			a, _ := gpustage.NewArena(part.Device, whole.Memory([]int{2, 3}).Forward)
			part.Forward(s, a, rows, true, false)
			if visits := part.Visits(true, false); !slices.Equal(f.asked, visits) {
				t.Errorf("%s: a forward pass asks for %v, Visits says %v", name, f.asked, visits)
			}
			if a, b := part.Memory([]int{2, 3}), whole.Memory([]int{2, 3}); a != b {
				t.Errorf("%s: a sub-batch takes %+v, in the whole model %+v", name, a, b)
			}
		}
	}
}

func tensor(t *testing.T, rows, cols int) gpustage.Tensor {
	t.Helper()
	x, err := gpustage.NewTensor(ref.New(), gpustage.F32, rows, cols)
	if err != nil {
		t.Fatal(err)
	}
	return x
}
