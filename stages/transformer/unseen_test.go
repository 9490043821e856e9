package transformer

import (
	"slices"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
)

// In every kind of attention, causal ones and those with a bias by distance and with windows too, tokens that the others do not attend to leave the
// hidden states of these, and of each other, as they are without them, to the bit; attended to, at least by themselves, they are others.
func TestUnseenFamilies(t *testing.T) {
	const text = 5
	filled := []int32{3, 11, 12, 13, 4, 20, 20, 20, 20}
	another := func(at int) []int32 {
		ids := slices.Clone(filled)
		ids[at] = 21
		return ids
	}
	for _, name := range []string{"mpnet", "t5", "qwen3", "ministral", "gemma2", "gemma3", "nomic-bert"} {
		d := ref.New()
		m, s := loadFamily(t, name, nil, d, Options{DType: gpustage.F64})
		m.Config.Tokens.Query = Reading{Length: 1, Unseen: true}
		size := m.Config.Hidden
		hidden := func(ids []int32, seen ...int32) []float64 {
			rows := Rows{IDs: ids, Cu: []int32{0, int32(len(ids))}, Seen: seen}
			if err := m.Check(rows); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			sp := &spy{Stream: s, t: t}
			m.Forward(sp, newArena(t, d), rows, false, false).Release()
			return sp.hidden
		}
		got := hidden(filled, text)
		for what, x := range map[string]struct {
			hidden []float64
			differ func(token int) bool
		}{
			"without them":       {hidden(filled[:text]), func(int) bool { return false }},
			"another before":     {hidden(another(text), text), func(token int) bool { return token == text }},
			"another at the end": {hidden(another(len(filled)-1), text), func(token int) bool { return token == len(filled)-1 }},
		} {
			for token := range len(x.hidden) / size {
				if differ := !slices.Equal(got[token*size:(token+1)*size], x.hidden[token*size:(token+1)*size]); differ != x.differ(token) {
					t.Errorf("%s, %s: token %d is another: %v", name, what, token, differ)
				}
			}
		}
		all := hidden(filled)
		for token := text; token < len(filled); token++ {
			if slices.Equal(got[token*size:(token+1)*size], all[token*size:(token+1)*size]) {
				t.Errorf("%s: token %d is the same where it is attended to", name, token)
			}
		}
	}
}

// Attention hears of tokens that are not attended to only where a sub-batch has some: on a GPU it takes slower kernels for them.
func TestUnseenOnlyWhereSome(t *testing.T) {
	d := ref.New()
	m, s, rows := loadColBERT(t, d, Options{}, Head{}, true)
	m = unseen(m)
	var all []int32
	for b := range rows.Len() {
		all = append(all, rows.Cu[b+1]-rows.Cu[b])
	}
	last := slices.Clone(all)
	last[len(last)-1]--
	for what, x := range map[string]struct {
		seen []int32
		some bool
	}{"of documents": {nil, false}, "of long queries": {all, false}, "of one row": {last, true}} {
		rows.Seen = x.seen
		p := m.Forward(s, newArena(t, d), rows, false, false)
		for l := range m.Config.Layers {
			if some := !p.attention(l, gpustage.Positions{}).Seen.IsZero(); some != x.some {
				t.Errorf("%s: attention of layer %d hears of some: %v", what, l, some)
			}
		}
		p.Release()
	}
}
