package embedder

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage/cpu"
	"contraflow/io/dataset"
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
	cut := copyFolder(t, plain)
	file := filepath.Join(cut, "config_sentence_transformers.json")
	config, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(config), "{", `{"truncate_dim": 7,`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		folder string
		opts   []Option
		want   int
	}{
		{plain, []Option{Dimensions(5)}, 5}, {cut, nil, 7}, {cut, []Option{Dimensions(9)}, 9}, {plain, []Option{Dimensions(whole.Size())}, whole.Size()}, {plain, []Option{Dimensions(1)}, 1},
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
				if want := cosine(vecs[q], vecs[hit.Doc]); float64(hit.Score) > want+1e-6 || float64(hit.Score) < want-1e-6 {
					t.Errorf("%d dimensions: texts %d and %d are ranked by %v, their cosine is %v", c.want, q, hit.Doc, hit.Score, want)
				}
			}
		}
		same, err := Text{Tokenizer: e.tok, QueryLength: e.maxLength}.Similarity(t.Context(), &e.engine, texts[:1], texts[1:2])
		if want := cosine(vecs[0], vecs[1]); err != nil || same[0] != want {
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
