package transformer

import (
	"fmt"
	"math"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/testdata/harness"
)

// longModel is a small random model of a family with room for 8,192 tokens.
func longModel(t testing.TB, config string, d gpustage.Device, o Options) (*Model, gpustage.Stream) {
	t.Helper()
	c, err := ParseConfig([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	c.InitRange = 0.3
	m, err := New(d, c, Head{Pooling: gpustage.MeanPooling, Normalize: true}, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Init(s, 3); err != nil {
		t.Fatal(err)
	}
	return m, s
}

const (
	longCausal = `{"model_type":"qwen3","vocab_size":100,"hidden_size":32,"num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":1,
		"head_dim":16,"intermediate_size":48,"max_position_embeddings":8192}`
	longLocal = `{"model_type":"modernbert","vocab_size":100,"hidden_size":32,"num_hidden_layers":2,"num_attention_heads":2,"intermediate_size":48,
		"layer_types":["sliding_attention","sliding_attention"]}`
	longGlobal = `{"model_type":"modernbert","vocab_size":100,"hidden_size":32,"num_hidden_layers":3,"num_attention_heads":2,"intermediate_size":48}`
)

func longRows(n int) Rows {
	r := Rows{Cu: []int32{0, int32(n)}, IDs: make([]int32, n)}
	for i := range r.IDs {
		r.IDs[i] = int32((i*i + i/7) % 100)
	}
	return r
}

// hidden is every token's hidden state, [T*C].
func hidden(t testing.TB, m *Model, s gpustage.Stream, r Rows) []float64 {
	t.Helper()
	a, err := gpustage.NewArena(m.Device, m.Memory([]int{len(r.IDs)}).Forward)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Free()
	watch := &spy{Stream: s, t: t}
	m.Forward(watch, a, r, false, false)
	return watch.hidden
}

// 8,192 tokens on the processor are right where something shorter says what is right: tokens of a causal model do not see what
// follows them, and those of a local one not what is far away, wherever they are, since rotary positions are relative.
func TestLongInputs(t *testing.T) {
	harness.Thorough(t)
	fast, err := cpu.New(cpu.Threads(2))
	if err != nil {
		t.Fatal(err)
	}
	defer fast.Close()
	const n, short = 8192, 400
	for _, x := range []struct {
		name, config string
		from, skip   int // where the short input begins in the long one, and how many of its tokens miss something
	}{
		{"causal", longCausal, 0, 0},
		{"local, the beginning", longLocal, 0, -130},
		{"local, the middle", longLocal, 4000, 130},
		{"local, the end", longLocal, n - short, 130},
	} {
		m, s := longModel(t, x.config, fast, Options{})
		all := longRows(n)
		got := hidden(t, m, s, all)
		exact, es := longModel(t, x.config, ref.New(), Options{DType: gpustage.F64})
		part := Rows{Cu: []int32{0, short}, IDs: all.IDs[x.from : x.from+short]}
		want := hidden(t, exact, es, part)
		lo, hi := max(0, x.skip), short+min(0, x.skip)
		if x.from > 0 && x.from+short < n {
			hi -= x.skip
		}
		c := m.Config.Hidden
		if e := relative(got[(x.from+lo)*c:(x.from+hi)*c], want[lo*c:hi*c], 0); !(e <= 1e-5) {
			t.Errorf("%s: error %.3g", x.name, e)
		}
	}
}

// What 8,192 tokens take is eight times what 1,024 take: nothing grows with the square.
func TestLongMemory(t *testing.T) {
	for _, config := range []string{longCausal, longLocal, longGlobal} {
		for _, every := range []int{0, 1} {
			m, _ := longModel(t, config, ref.New(), Options{CheckpointEvery: every})
			short, long := m.Memory([]int{1024}), m.Memory([]int{8192})
			for name, x := range map[string][2]int{"forward": {short.Forward, long.Forward}, "kept": {short.Kept, long.Kept}, "backward": {short.Backward, long.Backward}} {
				if r := float64(x[1]) / float64(x[0]); !(math.Abs(r-8) <= 0.05) {
					t.Errorf("%s: %d bytes for 1,024 tokens, %d for 8,192: %.2f times as much", name, x[0], x[1], r)
				}
			}
			if square := 8192 * 8192 * 4; long.Backward > square/4 {
				t.Errorf("%d bytes for 8,192 tokens of a tiny model", long.Backward)
			}
		}
	}
}

// BenchmarkLong is one text of 8,192 tokens through 3 layers of 128, in training and for its embedding alone: as ModernBERT with
// every third layer global, and with all of them. With -short, which only shows that it runs, the text is of 512 tokens.
func BenchmarkLong(b *testing.B) {
	d, err := cpu.New()
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	tokens := 8192
	if testing.Short() {
		tokens = 512
	}
	for name, every := range map[string]int{"every third layer global": 3, "all layers global": 1} {
		config := fmt.Sprintf(`{"model_type":"modernbert","vocab_size":1000,"hidden_size":128,"num_hidden_layers":3,"num_attention_heads":2,
			"intermediate_size":192,"global_attn_every_n_layers":%d}`, every)
		m, s := longModel(b, config, d, Options{CheckpointEvery: 1})
		r := longRows(tokens)
		mem := m.Memory([]int{tokens})
		a, err := gpustage.NewArena(d, mem.Backward)
		if err != nil {
			b.Fatal(err)
		}
		grads, err := m.NewGradients()
		if err != nil {
			b.Fatal(err)
		}
		report := func(what string, bytes int, f func()) {
			b.Run(name+"/"+what, func(b *testing.B) {
				for b.Loop() {
					f()
				}
				if err := s.Sync(); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(tokens)*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
				b.ReportMetric(float64(bytes)/(1<<20), "arena-MiB")
			})
		}
		report("embed", mem.Forward, func() { m.Forward(s, a, r, false, false).Release() })
		report("train", mem.Backward, func() {
			p := m.Forward(s, a, r, true, true)
			p.Backward(p.Embeddings(), grads)
			p.Release()
		})
		a.Free()
	}
}
