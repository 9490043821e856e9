package embedder

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage/cpu"
	"contraflow/io/dataset"
	"contraflow/stages/evaluate"
	"contraflow/testdata/goldens"
)

// Embeddings cut to fewer dimensions, by the caller or by the folder, are the first numbers of the whole ones, and texts are ranked by the
// cosines of what is left.
func TestCut(t *testing.T) {
	texts := []string{"a cat on a mat", "the dog", "read a file", "write", "one two three four"}
	embed := func(folder string, opts ...Option) (*Embedder, [][]float32) {
		t.Helper()
		e, err := Load(folder, opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		vecs, err := e.Embed(t.Context(), texts)
		if err != nil {
			t.Fatal(err)
		}
		return e, vecs
	}
	plain := copyFolder(t, goldens.Path(t, "bert/minilm-tiny"))
	whole, all := embed(plain)
	if !whole.model.Head.Normalize {
		t.Fatal("the model's embeddings are not unit vectors: that cut ones are none would not show")
	}
	says := func(truncate string) string {
		dir := copyFolder(t, plain)
		file := filepath.Join(dir, "config_sentence_transformers.json")
		config, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, []byte(strings.Replace(string(config), "{", `{"truncate_dim": `+truncate+`,`, 1)), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	cut := says("7")

	for _, c := range []struct {
		folder string
		opts   []Option
		want   int
	}{
		{plain, []Option{Dimensions(5)}, 5}, {cut, nil, 7}, {cut, []Option{Dimensions(9)}, 9}, {plain, []Option{Dimensions(whole.Size())}, whole.Size()}, {plain, []Option{Dimensions(1)}, 1},
		{says("1000"), nil, whole.Size()}, // more than there are, which sentence-transformers passes over
	} {
		e, vecs := embed(c.folder, c.opts...)
		if e.Size() != c.want {
			t.Errorf("%d dimensions, want %d", e.Size(), c.want)
		}
		for i := range texts {
			if !slices.Equal(vecs[i], all[i][:c.want]) {
				t.Errorf("%d dimensions of text %d: %v of %v", c.want, i, vecs[i], all[i])
			}
		}
		data := &dataset.Retrieval{Queries: texts, Docs: texts}
		for i := range texts {
			data.QueryIDs, data.DocIDs = append(data.QueryIDs, fmt.Sprint("q", i)), append(data.DocIDs, fmt.Sprint("d", i))
		}
		task, err := e.NewTask(t.Context(), data, "", "")
		if err != nil {
			t.Fatal(err)
		}
		run, err := e.Rank(t.Context(), task, len(texts))
		if err != nil {
			t.Fatal(err)
		}
		for q, hits := range run {
			for _, hit := range hits {
				if want := cosine(vecs[q], vecs[hit.Doc]); !(math.Abs(float64(hit.Score)-want) <= 1e-6) {
					t.Errorf("%d dimensions: texts %d and %d are ranked by %v, their cosine is %v", c.want, q, hit.Doc, hit.Score, want)
				}
			}
		}
		same, err := Text{Tokenizer: e.tok, QueryLength: e.maxLength}.Similarity(t.Context(), &e.engine, texts[:1], texts[1:2])
		if want := cosine(vecs[0], vecs[1]); err != nil || same[0][0] != want {
			t.Errorf("%d dimensions: similarity %v, %v, want %v", c.want, same, err, want)
		}
	}

	for _, n := range []int{-1, whole.Size() + 1} {
		if _, err := Load(plain, Dimensions(n)); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("can't be cut to %d", n)) {
			t.Errorf("cut to %d: %v", n, err)
		}
	}
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := LoadTrainable(cut, d); err == nil || !strings.Contains(err.Error(), "remove truncate_dim") {
		t.Errorf("training what is cut: %v", err)
	}
}

// A run in TREC's format has the best first, equal scores in trec_eval's order, and scores that are read back as they were.
func TestWriteRun(t *testing.T) {
	r := &dataset.Retrieval{QueryIDs: []string{"q", "p"}, Queries: []string{"a", "b"}, DocIDs: []string{"x", "z", "y"}, Docs: []string{"a", "b", "c"}, Judgements: []dataset.Judgement{{Relevance: 1}}}
	task, err := NewTask(t.Context(), r, Text{})
	if err != nil {
		t.Fatal(err)
	}
	run := evaluate.Run{{{Doc: 0, Score: 0.25}, {Doc: 1, Score: 0.25}, {Doc: 2, Score: 1. / 3}}, {{Doc: 1, Score: -1e-9}}}
	var b strings.Builder
	if err := task.WriteRun(&b, run, "mine"); err != nil || b.String() != "q Q0 y 1 0.33333334 mine\nq Q0 z 2 0.25 mine\nq Q0 x 3 0.25 mine\np Q0 z 1 -1e-09 mine\n" {
		t.Errorf("%v: %s", err, b.String())
	}
	for _, bad := range []string{"a b", "", "a\tb", "a\n"} {
		r.DocIDs[2] = bad
		if err := task.WriteRun(&b, run, "mine"); err == nil || !strings.Contains(err.Error(), "can't stand in a run of TREC") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// Documents with equal scores stand in trec_eval's order, or where data says so in that of ids: in a search, where it ends among them, and in what is measured.
func TestTies(t *testing.T) {
	e, err := Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	r := &dataset.Retrieval{QueryIDs: []string{"q"}, Queries: []string{"a cat"}, DocIDs: []string{"b", "a", "c"}, Docs: []string{"a cat", "a cat", "a cat"}, Judgements: []dataset.Judgement{{Doc: 1, Relevance: 1}}}
	for ascending, want := range map[bool]struct {
		first int32
		mrr   float64
	}{false: {2, 1. / 3}, true: {1, 1}} {
		r.Ascending = ascending
		task, err := e.NewTask(t.Context(), r, "", "")
		if err != nil {
			t.Fatal(err)
		}
		first, err := e.Rank(t.Context(), task, 1)
		if err != nil {
			t.Fatal(err)
		}
		all, err := e.Rank(t.Context(), task, 3)
		if err != nil {
			t.Fatal(err)
		}
		m, err := task.Measure(all, evaluate.MRR(0))
		if err != nil || m.Means[0] != want.mrr || first[0][0].Doc != want.first {
			t.Errorf("ascending %t: first %v, reciprocal rank %v (%v), want %+v", ascending, first, m.Means, err, want)
		}
	}
}
