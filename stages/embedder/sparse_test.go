package embedder

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage/ref"
	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/mine"
	"contraflow/stages/transformer"
	"contraflow/testdata/goldens"
)

func sparseGolden(t testing.TB) (dir string, g *goldens.Golden, texts []string) {
	var meta struct{ Texts []string }
	g = goldens.Load(t, "splade/encoder")
	g.Meta(t, &meta)
	return goldens.Path(t, "splade/encoder"), g, meta.Texts
}

// near compares embeddings with sentence-transformers', both in f32: 2e-5 of the largest.
func near(t *testing.T, what string, got [][]float32, want []float32) {
	t.Helper()
	largest, off := 0.0, 0.0
	for _, v := range want {
		largest = max(largest, math.Abs(float64(v)))
	}
	for i, vec := range got {
		for j, v := range vec {
			off = max(off, math.Abs(float64(v)-float64(want[i*len(vec)+j])))
		}
	}
	if len(got)*len(got[0]) != len(want) || !(off <= 2e-5*largest) {
		t.Errorf("%s: %d embeddings are off by %.3g of %.3g", what, len(got), off, largest)
	}
}

// A SparseEncoder's folder embeds as sentence-transformers does, with and without a prompt, and what is saved of it is such a folder, with the same bits.
func TestSparse(t *testing.T) {
	ctx := context.Background()
	dir, g, texts := sparseGolden(t)
	e, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	embed := func(e *Embedder, prompt string) [][]float32 {
		out, err := e.EmbedPrompt(ctx, prompt, texts)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	first := embed(e, "")
	near(t, "texts", first, g.F32(t, "embeddings"))
	near(t, "queries", embed(e, "query"), g.F32(t, "queries"))
	if e.Size() != 120 || !e.Sparse() {
		t.Errorf("%d features, sparse: %v", e.Size(), e.Sparse())
	}
	for i, vec := range first {
		ids, weights := Active(vec)
		back := make([]float32, len(vec))
		for k, id := range ids {
			back[id] = weights[k]
		}
		if !slices.Equal(back, vec) || slices.Contains(weights, 0) || !slices.IsSorted(ids) {
			t.Errorf("the active features of text %d are not its embedding", i)
		}
	}

	m := trainable(t, dir)
	saved := filepath.Join(t.TempDir(), "m")
	if err := m.Save(saved, Saving{}); err != nil {
		t.Fatal(err)
	}
	again, err := Load(saved)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if !slices.EqualFunc(first, embed(again, ""), slices.Equal[[]float32]) {
		t.Error("what was saved embeds otherwise")
	}
	var was, is []string // tensors
	for folder, names := range map[string]*[]string{dir: &was, saved: &is} {
		f, err := safetensors.Open(filepath.Join(folder, "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		*names = f.Names()
		slices.Sort(*names)
		f.Close()
	}
	if !slices.Equal(was, is) {
		t.Errorf("saved are %v, transformers saves %v", is, was)
	}
	for name, want := range map[string]string{
		"modules.json":                      `"sentence_transformers.sparse_encoder.models.SpladePooling"`,
		"config.json":                       `"BertForMaskedLM"`,
		"config_sentence_transformers.json": `"model_type": "SparseEncoder"`,
		"1_SpladePooling/config.json":       `"pooling_strategy": "max"`,
		"README.md":                         "SparseEncoder(",
	} {
		data, err := os.ReadFile(filepath.Join(saved, name))
		if err != nil || !bytes.Contains(data, []byte(want)) {
			t.Errorf("%s: %v\n%s\nwant %s", name, err, data, want)
		}
	}
	if _, err := os.Stat(filepath.Join(saved, "1_Pooling")); err == nil {
		t.Error("the folder has a 1_Pooling besides")
	}
}

// Documents are ranked by products of embeddings as they are, in blocks as well as at once, and pairs are compared by them.
func TestSparseSearch(t *testing.T) {
	ctx := context.Background()
	dir, _, texts := sparseGolden(t)
	e, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	docs, queries := texts, texts[:5]
	vecs, err := e.EmbedPrompt(ctx, "", docs)
	if err != nil {
		t.Fatal(err)
	}
	r := &dataset.Retrieval{Queries: queries, Docs: docs}
	for i := range docs {
		r.DocIDs = append(r.DocIDs, string(rune('a'+i/26))+string(rune('a'+i%26)))
	}
	for i := range queries {
		r.QueryIDs = append(r.QueryIDs, r.DocIDs[i])
		r.Judgements = append(r.Judgements, dataset.Judgement{Query: i, Doc: i, Relevance: 1})
	}
	usual := sparseBlock
	defer func() { sparseBlock = usual }()
	for _, sparseBlock = range []int{1, 3 * 120, usual} {
		task, err := e.NewTask(ctx, r, "", "")
		if err != nil {
			t.Fatal(err)
		}
		run, err := e.Rank(ctx, task, 4)
		if err != nil {
			t.Fatal(err)
		}
		for q, hits := range run {
			scores := make([]float64, len(docs))
			for d := range docs {
				scores[d] = product(vecs[q], vecs[d])
			}
			want := slices.Clone(scores)
			slices.Sort(want)
			for k, h := range hits {
				if v := want[len(want)-1-k]; !(math.Abs(float64(h.Score)-v) <= 1e-5*v) || !(math.Abs(scores[h.Doc]-v) <= 1e-5*v) {
					t.Errorf("blocks of %d: query %d has document %d with %v in place %d, want %v", sparseBlock, q, h.Doc, h.Score, k, v)
				}
			}
		}
	}
	sims, err := e.Similarity(ctx, "", docs[:2], docs[2:4])
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range sims {
		if want := product(vecs[i], vecs[i+2]); !(math.Abs(s-want) <= 1e-5*want) {
			t.Errorf("pair %d: %v, want %v", i, s, want)
		}
	}
}

func TestStrongest(t *testing.T) {
	vec := []float32{0, 1, -3, 2, 0, 3, 2}
	strongest(3, vec)
	if !slices.Equal(vec, []float32{0, 0, -3, 2, 0, 3, 0}) {
		t.Errorf("%v", vec)
	}
}

// A folder says with max_active_dims how many features embeddings keep, and a caller otherwise; of queries too that are weights of tokens.
func TestMaxActive(t *testing.T) {
	ctx := t.Context()
	weighed, _ := weighedFolder(t, true)
	for _, from := range []string{goldens.Path(t, "splade/encoder"), weighed} {
		dir := copyFolder(t, from)
		file := filepath.Join(dir, "config_sentence_transformers.json")
		config, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(strings.Replace(string(config), "{", `{"max_active_dims": 2,`, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		embed := func(dir string, role Role, opts ...Option) []float32 {
			e, err := Load(dir, append(opts, OnDevice(ref.New()))...)
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			out := make([]float32, e.Size())
			if _, err := e.EmbedAs(ctx, role, "", []string{"the cat reads a file of rows"}, out); err != nil {
				t.Fatal(err)
			}
			return out
		}
		for _, role := range []Role{Document, Query} {
			all := embed(from, role)
			for n, got := range map[int][]float32{2: embed(dir, role), 3: embed(dir, role, MaxActive(3))} {
				want := slices.Clone(all)
				strongest(n, want)
				if ids, _ := Active(want); len(ids) != n || !slices.Equal(got, want) {
					t.Errorf("%s, at most %d: %v, want %v of %v", role, n, got, want, all)
				}
			}
		}
		if _, err := LoadTrainable(dir, ref.New()); err == nil || !strings.Contains(err.Error(), "remove max_active_dims") {
			t.Errorf("trained: %v", err)
		}
	}
}

func TestSparseErrors(t *testing.T) {
	dir, _, _ := sparseGolden(t)
	change := func(file string, to func(map[string]any)) string {
		out := filepath.Join(t.TempDir(), "m")
		if err := os.CopyFS(out, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		file = filepath.Join(out, file)
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var o map[string]any
		if err := json.Unmarshal(data, &o); err != nil {
			t.Fatal(err)
		}
		to(o)
		if data, err = json.Marshal(o); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, data, 0o666); err != nil {
			t.Fatal(err)
		}
		return out
	}
	pooling := "1_SpladePooling/config.json"
	headless := change(pooling, func(o map[string]any) { delete(o, "embedding_dimension") })
	for _, name := range []string{"model.safetensors", "config.json"} {
		if err := copyFile(filepath.Join(goldens.Path(t, "bert/minilm-tiny"), name), filepath.Join(headless, name)); err != nil {
			t.Fatal(err)
		}
	}
	other := change(pooling, func(o map[string]any) { o["embedding_dimension"] = 400 })
	for name, x := range map[string]struct {
		dir   string
		opts  []Option
		wants []string
	}{
		"another strategy":   {change(pooling, func(o map[string]any) { o["pooling_strategy"] = "sum" }), nil, []string{pooling, `"sum"`, "max is"}},
		"another activation": {change(pooling, func(o map[string]any) { o["activation_function"] = "gelu" }), nil, []string{pooling, `"gelu"`, "log1p_relu"}},
		"another size":       {other, nil, []string{pooling, "vocab_size 120", "400"}},
		"a task":             {change("sentence_bert_config.json", func(o map[string]any) { o["transformer_task"] = "feature-extraction" }), nil, []string{"sentence_bert_config.json", "fill-mask"}},
		"a pooling":          {dir, []Option{Pooling("cls")}, []string{"SpladePooling", `"cls"`}},
		"cut":                {dir, []Option{Dimensions(5)}, []string{"sparse", "first 5"}},
	} {
		_, err := Load(x.dir, x.opts...)
		for _, want := range x.wants {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
	for _, kind := range []string{"sparse_encoder.modules.sparse_static_embedding.SparseStaticEmbedding", "sparse_encoder.modules.sparse_auto_encoder.SparseAutoEncoder"} {
		other := change(pooling, func(map[string]any) {})
		list := fmt.Sprintf(`[{"path": "", "type": "sentence_transformers.%s"}, {"path": "1_SpladePooling", "type": "sentence_transformers.sparse_encoder.modules.SpladePooling"}]`, kind)
		if err := os.WriteFile(filepath.Join(other, "modules.json"), []byte(list), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(other); err == nil || !strings.Contains(err.Error(), kind[strings.LastIndexByte(kind, '.')+1:]+" modules are not supported") {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if _, err := Load(headless); !errors.Is(err, safetensors.ErrNoTensor) || !strings.Contains(err.Error(), "cls.predictions.transform.dense.weight") {
		t.Errorf("without the head: %v", err)
	}
}

// Negatives of a sparse encoder are the documents of the largest products of embeddings as they are, whatever is embedded and compared at a time, and margins are
// of products.
func TestMineSparse(t *testing.T) {
	dir, _, _ := sparseGolden(t)
	weighed, _ := weighedFolder(t, true)
	for name, dir := range map[string]string{"queries as documents": dir, "queries of weights": weighed} {
		t.Run(name, func(t *testing.T) { testMineSparse(t, dir) })
	}
}

func testMineSparse(t *testing.T, dir string) {
	defer func(n int) { sparseBlock = n }(sparseBlock)
	e, err := Load(dir, OnDevice(ref.New()))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	words := strings.Fields("river stone house light water paper green small night field")
	var queries, positives, corpus []string
	for i, w := range words {
		queries, positives = append(queries, "the "+w), append(positives, w+" and "+words[(i+3)%len(words)])
		corpus = append(corpus, "a "+w, words[(i+1)%len(words)]+" of "+w)
	}
	p := mine.Pair(queries, positives, corpus)
	prompts := [2]string{"q ", "d "}
	vecs := map[string][]float32{}
	for k, texts := range [][]string{p.Queries, p.Corpus} {
		for _, text := range texts {
			vec := make([]float32, e.Size())
			if _, err := e.EmbedAs(t.Context(), []Role{Query, Document}[k], "", []string{prompts[k] + text}, vec); err != nil {
				t.Fatal(err)
			}
			vecs[prompts[k]+text] = vec
		}
	}
	margin, rows := 0.02, 0
	for _, block := range []int{1, 7 * e.Size(), 1 << 30} {
		for _, relative := range []*float64{nil, &margin} {
			sparseBlock = block
			o := mine.Options{Negatives: 3, RangeMax: 100, Fewest: 1, RelativeMargin: relative}
			told := map[string]int64{}
			tell := func(what string, done, total int64) {
				if want := map[string]int{"queries": len(p.Queries), "documents": len(p.Corpus), "searched": len(p.Queries) * len(p.Corpus)}[what]; total != int64(want) || done <= told[what] {
					t.Errorf("%s: told %d of %d after %d, want %d in all", what, done, total, told[what], want)
				}
				told[what] = done
			}
			got, short, err := e.Mine(t.Context(), p, Mining{Options: o, Prompts: &prompts, Progress: tell})
			if told["queries"] != int64(len(p.Queries)) || told["documents"] != int64(len(p.Corpus)) || told["searched"] != told["queries"]*told["documents"] {
				t.Errorf("told %v in the end", told)
			}
			if err != nil || len(got)+short != len(p.Rows) {
				t.Fatalf("%d rows and %d too short of %d: %v", len(got), short, len(p.Rows), err)
			}
			rows += len(got)
			for _, r := range got {
				q := vecs[prompts[0]+p.Queries[r.Query]]
				own := product(q, vecs[prompts[1]+p.Corpus[r.Positive]])
				if !(math.Abs(own-float64(r.Score)) <= 1e-5*own) {
					t.Errorf("a positive scores %v, want %v", r.Score, own)
				}
				var want []float64
				for d, text := range p.Corpus {
					s := product(q, vecs[prompts[1]+text])
					if d != r.Positive && (relative == nil || s <= own*(1-margin)) {
						want = append(want, s)
					}
				}
				slices.SortFunc(want, func(a, b float64) int { return cmp.Compare(b, a) })
				if want = want[:min(3, len(want))]; len(want) != len(r.Negatives) {
					t.Fatalf("%d negatives, want %v", len(r.Negatives), want)
				}
				for i, h := range r.Negatives {
					if s := product(q, vecs[prompts[1]+p.Corpus[h.Doc]]); !(math.Abs(s-want[i]) <= 1e-5*want[i]) || !(math.Abs(float64(h.Score)-s) <= 1e-5*s) {
						t.Errorf("blocks of %d: negative %d scores %v by its embedding %v, want %v", block, i, h.Score, s, want[i])
					}
				}
			}
		}
	}
	if rows < 30 {
		t.Errorf("%d rows of all", rows)
	}
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o666)
}

func product(a, b []float32) (sum float64) {
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

// A sparse encoder with LoRA is saved whole, which SparseEncoder loads, with the factors merged.
func TestSparseLoRA(t *testing.T) {
	m, err := LoadTrainable(goldens.Path(t, "splade/encoder"), ref.New(), ModelOptions(transformer.Options{Tuning: transformer.Tuning{LoRA: &transformer.LoRA{Rank: 2, Alpha: 4, Targets: []string{"query"}, Seed: 1}}}))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	dir := filepath.Join(t.TempDir(), "out")
	if err := m.Save(dir, Saving{}); err != nil {
		t.Fatal(err)
	}
	f, err := hfmodel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Splade == nil || f.Adapter != nil {
		t.Errorf("a sparse encoder: %t, an adapter: %t", f.Splade != nil, f.Adapter != nil)
	}
}
