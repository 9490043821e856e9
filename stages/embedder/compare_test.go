package embedder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/devicetest"
	"contraflow/stages/loss"
	"contraflow/testdata/goldens"
)

// A text is embedded before the first of its pairs, once, and gone behind the last; what is embedded for a block is no more than fits, unless it is of one pair.
func TestPairBlocks(t *testing.T) {
	for _, c := range []struct {
		pairs  [][2]int
		tokens []int
		want   []pairBlock
	}{
		{nil, nil, nil},
		{[][2]int{{0, 0}}, []int{9}, []pairBlock{{pairs: [][2]int{{0, 0}}, fresh: []int{0}, gone: []int{0}}}},
		// The second pair of text 1 comes right behind its first, and text 3 is needed again.
		{[][2]int{{0, 3}, {1, 3}, {2, 4}, {1, 5}, {0, 3}}, []int{2, 2, 2, 2, 2, 2}, []pairBlock{
			{pairs: [][2]int{{0, 3}}, fresh: []int{0, 3}, stay: []int{3}, gone: []int{0}},
			{pairs: [][2]int{{1, 3}, {1, 5}}, fresh: []int{1, 5}, gone: []int{3, 1, 5}},
			{pairs: [][2]int{{2, 4}}, fresh: []int{2, 4}, gone: []int{2, 4}},
		}},
	} {
		if got := pairBlocks(c.pairs, c.tokens, 5); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%v: %v, want %v", c.pairs, got, c.want)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		tokens, pairs, distinct := make([]int, 12), make([][2]int, rng.IntN(30)), map[[2]int]bool{}
		for k := range tokens {
			tokens[k] = 1 + rng.IntN(9)
		}
		for i := range pairs {
			pairs[i] = [2]int{rng.IntN(12), rng.IntN(12)}
			distinct[pairs[i]] = true
		}
		there, had := map[int]bool{}, map[int]bool{}
		given := slices.Clone(pairs)
		for _, b := range pairBlocks(pairs, tokens, 20) {
			sum, stay := 0, []int{}
			for _, k := range b.fresh {
				if had[k] {
					t.Fatalf("%v: text %d is embedded twice", pairs, k)
				}
				there[k], had[k], sum = true, true, sum+tokens[k]
			}
			for _, p := range b.pairs {
				if !distinct[p] || !there[p[0]] || !there[p[1]] {
					t.Fatalf("%v: pair %v in %+v, there are the texts %v", pairs, p, b, there)
				}
				delete(distinct, p)
			}
			for _, k := range b.gone {
				delete(there, k)
			}
			for k := range there {
				needed := slices.ContainsFunc(slices.Collect(maps.Keys(distinct)), func(p [2]int) bool { return p[0] == k || p[1] == k })
				if !needed {
					t.Fatalf("%v: text %d is still there behind %+v", pairs, k, b)
				}
				if slices.Contains(b.fresh, k) {
					stay = append(stay, k)
				}
			}
			if slices.Sort(stay); !slices.Equal(stay, slices.Sorted(slices.Values(b.stay))) || sum > 20 && len(b.pairs) > 1 {
				t.Fatalf("%v: %d tokens, and %v stay of %+v", pairs, sum, stay, b)
			}
		}
		if len(distinct)+len(there) > 0 || !slices.Equal(given, pairs) {
			t.Fatalf("%v: not scored are %v, and still there %v", given, distinct, there)
		}
	}
}

// counting is ranks that are one, and count the tokens that it embeds.
type counting struct {
	tokens, largest int
	began           func() // if not nil, told of each pass
}

func (*counting) Rank() int { return 0 }
func (*counting) Size() int { return 1 }
func (c *counting) Begin(_ gpustage.Stream, passes [][]int32) error {
	c.tokens, c.largest = c.tokens+len(passes[0]), max(c.largest, len(passes[0]))
	if c.began != nil {
		c.began()
	}
	return nil
}
func (*counting) Skip(gpustage.Stream)                                        {}
func (*counting) Gather(s gpustage.Stream, dst, src gpustage.Tensor, _ []int) { s.Copy(dst, src) }

// Pairs have the scores that the definition gives of their parts, in blocks of whatever size, and each text is embedded once for each way in which it is read.
// Pairs of which nobody says which is the query are two queries of an m3, and of vectors of tokens alone a query and a document.
func TestPairsByParts(t *testing.T) {
	texts := []string{"a river", "the stone", "a house and the tree , a river , some light and a house", "light", "the river", "what is a tree ?", "a fish", ",", "the cat sees a river"}
	rng := rand.New(rand.NewPCG(4, 5))
	var a, b []string
	for range 40 {
		a, b = append(a, texts[rng.IntN(5)]), append(b, texts[rng.IntN(len(texts))])
	}
	a, b = append(a, texts[0], texts[0]), append(b, texts[0], texts[7])
	at := func(text string) int { return slices.Index(texts, text) }
	const ask, read = "the ", "a "
	maxSim := func(mean bool) func(q, d *Parts, i, j int) float64 {
		return func(q, d *Parts, i, j int) (sum float64) {
			if d.Cu[j] == d.Cu[j+1] {
				return -1e9
			}
			for x := q.Cu[i]; x < q.Cu[i+1]; x++ {
				best := math.Inf(-1)
				for y := d.Cu[j]; y < d.Cu[j+1]; y++ {
					best = max(best, dot(vector(q, x), vector(d, y)))
				}
				sum += best
			}
			if mean {
				return sum / float64(q.Cu[i+1]-q.Cu[i])
			}
			return sum
		}
	}
	weighted := func(weights map[string]float64) func(q, d *Parts, i, j int) float64 {
		return func(q, d *Parts, i, j int) float64 { return score(q, d, i, j, weights) }
	}
	m3, colbert := m3Folder(t), colbertFolder(t, "bert/minilm-tiny", `{"strategy": "min", "length": 16, "attend": true}`)
	for name, c := range map[string]struct {
		folder  string
		weights map[string]float64
		prompts [2]string
		mean    bool
		sts     bool // nobody says which is the query
		want    func(q, d *Parts, i, j int) float64
	}{
		"m3":                       {m3, loss.Fusion, [2]string{ask, read}, false, false, weighted(loss.Fusion)},
		"m3, scores":               {m3, loss.Fusion, [2]string{ask, read}, false, true, weighted(loss.Fusion)},
		"m3, without prompts":      {m3, loss.Fusion, [2]string{}, false, false, weighted(loss.Fusion)},
		"words":                    {m3, map[string]float64{loss.SparsePart: 1}, [2]string{}, false, true, weighted(map[string]float64{loss.SparsePart: 1})},
		"vectors":                  {m3, map[string]float64{loss.VectorsPart: 1}, [2]string{}, false, true, weighted(map[string]float64{loss.VectorsPart: 1})},
		"late interaction":         {colbert, nil, [2]string{ask, read}, false, false, maxSim(false)},
		"late interaction, scores": {colbert, nil, [2]string{ask, read}, false, true, maxSim(false)},
		"without prompts, mean":    {colbert, nil, [2]string{}, true, true, maxSim(true)},
	} {
		e, err := Load(c.folder, Prompt("query", c.prompts[0]), Prompt("document", c.prompts[1]))
		if err != nil {
			t.Fatal(err)
		}
		h := &e.model.Config.Tokens
		h.Mean = c.mean
		if h.Alone {
			h.Document.Skip = e.tok.Encode(",", 0)
		}
		role := func(r Role) (*Parts, []int) { // of texts, and how many tokens they have
			p, _, err := e.EmbedParts(t.Context(), [2]string{"document", "query"}[r], texts, nil)
			if err != nil {
				t.Fatal(err)
			}
			ids, err := e.text(c.prompts[0], c.prompts[1]).tokens(t.Context(), r, texts)
			if err != nil {
				t.Fatal(err)
			}
			var n []int
			for _, x := range ids {
				if n = append(n, len(x)); r == Query {
					n[len(n)-1] = max(len(x), h.Query.Length)
				}
			}
			return p, n
		}
		second := Document
		if c.sts && !h.Alone {
			second = Query
		}
		shared := !h.Alone && (second == Query || c.prompts[0] == c.prompts[1]) // a text on both sides is read as it was on the first
		q, nq := role(Query)
		d, nd := role(second)
		pair := 40 // tokens at most; queries and documents go through apart
		if h.Alone {
			pair = 22
		}
		once := 0
		for k, text := range texts {
			if slices.Contains(a, text) {
				once += nq[k]
			}
			if slices.Contains(b, text) && !(shared && slices.Contains(a, text)) {
				once += nd[k]
			}
		}
		x := e.text(c.prompts[0], c.prompts[1])
		x.Fusion = c.weights
		compare := x.Relevance
		if c.sts {
			compare = x.Similarity
		}
		for _, blocks := range [][2]int{{blockTokens, partTokens}, {blockTokens, 20}, {30, 20}, {1, 1}} {
			restore := [2]int{blockTokens, partTokens}
			blockTokens, partTokens = blocks[0], blocks[1]
			count := &counting{}
			e.engine.Ranks = count
			got, err := only(compare(t.Context(), &e.engine, a, b))
			blockTokens, partTokens, e.engine.Ranks = restore[0], restore[1], nil
			if err != nil || len(got) != len(a) {
				t.Fatalf("%s: %d scores, %v", name, len(got), err)
			}
			seen, odd := map[string]float64{}, false
			for i := range a {
				if w := c.want(q, d, at(a[i]), at(b[i])); !(math.Abs(got[i]-w) <= 1e-5*(1+math.Abs(w))) {
					t.Errorf("%s, blocks of %v: %q and %q have the score %v, want %v", name, blocks, a[i], b[i], got[i], w)
				} else if w == -1e9 {
					odd = true
				}
				if v, ok := seen[a[i]+"|"+b[i]]; ok && v != got[i] {
					t.Errorf("%s: %q and %q have the scores %v and %v", name, a[i], b[i], v, got[i])
				}
				seen[a[i]+"|"+b[i]] = got[i]
			}
			if count.tokens != once || count.largest > max(blocks[0], pair) || odd != h.Alone && c.prompts[1] == "" {
				t.Errorf("%s, blocks of %v: %d tokens are embedded, %d at once, want %d; without a vector: %t", name, blocks, count.tokens, count.largest, once, odd)
			}
		}
		if err := e.engine.freeAll(); err != nil {
			t.Error(err)
		}
		e.Close()
	}
}

// A block's parts are gone when the next is embedded, but for those of texts that a later pair has, and with these nothing of the texts beside them.
func TestPairsHeld(t *testing.T) {
	e, err := Load(colbertFolder(t, "bert/minilm-tiny", "null"))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	long := strings.Repeat("a river of stone ", 12)
	var a, b []string
	for i := range 300 { // each query has a long text of its own, and a short one that the last query has too
		query, short := fmt.Sprint("what ", i), fmt.Sprint("the ", i)
		a, b = append(a, query, query), append(b, fmt.Sprint(long, i), short)
	}
	for i := range 300 {
		a, b = append(a, "who"), append(b, fmt.Sprint("the ", i))
	}
	defer func(n int) { blockTokens = n }(blockTokens)
	blockTokens = 1500
	var held []uint64
	e.engine.Ranks = &counting{began: func() {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		held = append(held, m.HeapAlloc)
	}}
	if _, err := e.Relevance(t.Context(), "", "", a, b); err != nil {
		t.Fatal(err)
	}
	if grown := slices.Max(held) - held[1]; len(held) < 10 || grown > 1<<19 { // long texts' parts are 2 MiB, short ones' 150 KiB
		t.Errorf("%d bytes more are held at last: %v", grown, held)
	}
}

// Scores wait for their turn, and end with their context, as what is embedded does.
func TestPairsTurns(t *testing.T) {
	e, err := Load(colbertFolder(t, "bert/minilm-tiny", "null"))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	boom := errors.New("boom")
	ctx, cancel := context.WithCancelCause(t.Context())
	mine, give, err := e.engine.Turns.Take(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer give()
	passes := 0
	e.engine.Ranks = &counting{began: func() {
		if passes++; passes == 2 { // documents', after which there is nothing to embed
			cancel(boom)
		}
	}}
	if _, err := e.Relevance(mine, "", "", []string{"a"}, []string{"b"}); err != boom || passes != 2 {
		t.Errorf("behind pass %d: %v, want %v", passes, err, boom)
	}
	cancel(boom)
	if err := scoreBlock(ctx, &e.engine, nil, nil, onlyVectors, nil); err != boom {
		t.Errorf("while somebody else has the turn: %v, want %v", err, boom)
	}
}

// What parts can't be compared by is an error before anything is embedded.
func TestPairsByPartsErrors(t *testing.T) {
	load := func(folder string) *Embedder {
		e, err := Load(folder)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		return e
	}
	m3, alone, dense := load(m3Folder(t)), load(colbertFolder(t, "bert/minilm-tiny", "null")), load(goldens.Path(t, "bert/minilm-tiny"))
	for want, c := range map[string]struct {
		e       *Embedder
		weights map[string]float64
		asked   bool
	}{
		"all weights are 0": {m3, map[string]float64{}, true},
		"none of the parts": {m3, map[string]float64{"lexical": 1}, false},
		"only models of kind m3 and multi_vector give tokens'": {dense, loss.Fusion, true},
		"the model gives vectors of tokens alone":              {alone, loss.Fusion, true},
		"Relevance, which tells one from the other":            {alone, nil, false},
	} {
		_, err := c.e.PartRelevance(t.Context(), c.weights, "", "", []string{"a"}, []string{"b"})
		if !c.asked {
			_, err = c.e.PartSimilarity(t.Context(), c.weights, "", []string{"a"}, []string{"b"})
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := alone.Similarity(t.Context(), "", []string{"a"}, []string{"b"}); !errors.Is(err, errNoRoles) {
		t.Error(err)
	}
	if err := alone.Close(); err != nil {
		t.Error(err)
	}
	if _, err := alone.Relevance(t.Context(), "", "", []string{"a"}, []string{"b"}); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// onDevice is a stream of a counted device: what is scored on it is counted too.
type onDevice struct {
	gpustage.Stream
	device gpustage.Device
}

func (s onDevice) Device() gpustage.Device { return s.device }

// The scores of a query with many documents take no more of the device than Memory says, but for what allocations are rounded up by, and not much less.
func TestPairMemory(t *testing.T) {
	defer func(n int) { partTokens = n }(partTokens)
	partTokens = 1 << 12 // fewer than the documents have
	var a, b []string
	for i := range 700 {
		a, b = append(a, "what is a river"), append(b, fmt.Sprintf("the stone %d of a tree", i))
	}
	for name, c := range map[string]struct {
		folder  string
		weights map[string]float64
	}{
		"m3": {m3Folder(t), loss.Fusion}, "words": {m3Folder(t), map[string]float64{loss.SparsePart: 1}}, "multi_vector": {colbertFolder(t, "bert/minilm-tiny", "null"), nil},
	} {
		d, err := cpu.New(cpu.Threads(1))
		if err != nil {
			t.Fatal(err)
		}
		counted := &devicetest.Counted{Device: d}
		e, err := Load(c.folder, OnDevice(counted), PassTokens(64))
		if err != nil {
			t.Fatal(err)
		}
		e.engine.Stream = onDevice{e.engine.Stream, counted}
		x := e.text("", "")
		x.Fusion = c.weights
		if _, err := x.Relevance(t.Context(), &e.engine, a[:40], b[:40]); err != nil { // what passes take
			t.Fatal(err)
		}
		longest := 0
		for _, text := range b {
			longest = max(longest, len(e.tok.Encode(text, 0)))
		}
		before := counted.Held()
		if _, err := x.Relevance(t.Context(), &e.engine, a, b); err != nil {
			t.Fatal(err)
		}
		held, planned := int64(counted.Peak()-before), x.Memory(e.model, a, len(e.tok.Encode(a[0], 0)), longest)
		if t.Logf("%s: %d held, %d planned", name, held, planned); held > planned+256 || float64(held) < 0.8*float64(planned) {
			t.Errorf("%s: %d bytes are held, %d planned", name, held, planned)
		}
		if asked, read := x.Memory(e.model, a[:3], 50, 8), x.Memory(e.model, a[:3], 8, 50); asked < read { // second texts may be queries too
			t.Errorf("%s: of long queries %d bytes are planned, of long documents %d", name, asked, read)
		}
		if x.Fusion = nil; cmp.Or(x.Memory(e.model, a, 8, 8), 1) == 1 == e.VectorsAlone() {
			t.Errorf("%s: without weights %d bytes", name, x.Memory(e.model, a, 8, 8))
		}
		if err := errors.Join(e.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	}
}
