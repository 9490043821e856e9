package embedder

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages/evaluate"
	"contraflow/testdata/goldens"
)

// several is a task of more texts than a text has neighbours, some of which say the same.
func several() *dataset.Retrieval {
	r := &dataset.Retrieval{}
	words := []string{"a", "cat", "dog", "river", "the", "stone", "house", "tree", "light", "sees"}
	for i := range evaluate.Neighbours + 20 {
		r.Docs = append(r.Docs, fmt.Sprint(words[i%10], " ", words[i/10%10], " ", words[(i*7+i/100)%10]))
		r.DocIDs = append(r.DocIDs, fmt.Sprint(i))
		r.Judgements = append(r.Judgements, dataset.Judgement{Query: i, Doc: (i * 13) % (evaluate.Neighbours + 20), Relevance: 1})
	}
	r.Queries, r.QueryIDs = r.Docs, r.DocIDs
	return r
}

// By several numbers of dimensions texts are embedded once, and what is found by each is to the bit what it alone finds, and an embedder of so many.
func TestCuts(t *testing.T) {
	dot := copyFolder(t, goldens.Path(t, "bert/minilm-tiny"))
	file := filepath.Join(dot, "config_sentence_transformers.json")
	config, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(config), "cosine", "dot", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	data := several()
	for name, folder := range map[string]string{"cosine": goldens.Path(t, "bert/minilm-tiny"), "dot": dot} {
		open := func(opts ...Option) (*Embedder, *Task) {
			e, err := Load(folder, opts...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { e.Close() })
			task, err := e.NewTask(t.Context(), data, "", "")
			if err != nil {
				t.Fatal(err)
			}
			return e, task
		}
		e, task := open()
		if e.engine.Model.Head.Dot != (name == "dot") {
			t.Fatalf("%s: the folder says otherwise", name)
		}
		vecs, err := e.Embed(t.Context(), data.Docs)
		if err != nil {
			t.Fatal(err)
		}
		score := map[string]func(a, b []float32) float64{"cosine": cosine, "dot": evaluate.Product}[name]
		cuts := []int{5, 0, 1, 9}
		x := Text{Tokenizer: e.tok, QueryLength: e.maxLength, DocumentLength: e.maxLength}
		count := func(do func() error) int {
			c := &counting{}
			e.engine.Ranks = c
			defer func() { e.engine.Ranks = nil }()
			if err := do(); err != nil {
				t.Fatal(err)
			}
			return c.tokens
		}
		var runs []evaluate.Run
		var found []*evaluate.Paraphrases
		var alike, asked [][]float64
		a, b := data.Docs[:40], data.Docs[30:70]
		kinds := map[string]func(cuts []int) error{
			"ranked": func(cuts []int) (err error) { runs, err = task.RankCut(t.Context(), &e.engine, 7, cuts...); return err },
			"paraphrases": func(cuts []int) (err error) {
				found, err = task.Paraphrases(t.Context(), &e.engine, cuts...)
				return err
			},
			"similarity": func(cuts []int) (err error) {
				alike, err = x.Similarity(t.Context(), &e.engine, a, b, cuts...)
				return err
			},
			"relevance": func(cuts []int) (err error) {
				asked, err = x.Relevance(t.Context(), &e.engine, a, b, cuts...)
				return err
			},
		}
		for kind, by := range kinds {
			if once, all := count(func() error { return by([]int{0}) }), count(func() error { return by(cuts) }); once != all || once == 0 {
				t.Errorf("%s, %s: by %v %d tokens are embedded, by one of them %d", name, kind, cuts, all, once)
			}
		}
		together := []any{runs, found, alike, asked}
		for i, cut := range cuts {
			for kind, by := range kinds {
				if err := by([]int{cut}); err != nil {
					t.Fatal(kind, err)
				}
			}
			for k, alone := range []any{runs, found, alike, asked} {
				if got, want := reflect.ValueOf(together[k]).Index(i).Interface(), reflect.ValueOf(alone).Index(0).Interface(); !reflect.DeepEqual(got, want) {
					t.Errorf("%s, %d dimensions among others: %v, alone %v", name, cut, got, want)
				}
			}
			for q, hits := range runs[0] {
				for _, h := range hits {
					n := cmp.Or(cut, e.Size())
					if want := score(vecs[q][:n], vecs[h.Doc][:n]); !(math.Abs(float64(h.Score)-want) <= 1e-6) {
						t.Fatalf("%s, %d dimensions: texts %d and %d are ranked by %v, want %v", name, cut, q, h.Doc, h.Score, want)
					}
				}
			}
			short, same := open(Dimensions(cut))
			run, err := short.Rank(t.Context(), same, 7)
			if err != nil || !reflect.DeepEqual(run, runs[0]) {
				t.Errorf("%s, %d dimensions: an embedder of so many ranks otherwise (%v)", name, cut, err)
			}
			pairs, err := short.Similarity(t.Context(), "", a, b)
			if err != nil || !slices.Equal(pairs, alike[0]) {
				t.Errorf("%s, %d dimensions: an embedder of so many compares otherwise (%v)", name, cut, err)
			}
			if cut == 0 {
				continue
			}
			// What the embedder cuts already may be cut further, and 0 is what it yields.
			longer, same := open(Dimensions(cut + 2))
			all, err := longer.RankCut(t.Context(), same, 7, cut, 0)
			if err != nil || !reflect.DeepEqual(all[0], run) || len(all[1][0]) != 7 || reflect.DeepEqual(all[1], run) {
				t.Errorf("%s, %d of %d dimensions: %v", name, cut, cut+2, err)
			}
		}
	}
}

// Each text's nearest ones are looked at besides itself, which is among what a search finds of it.
func TestParaphraseNeighbours(t *testing.T) {
	e, err := Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	data := several()
	if err := CheckParaphrases(&dataset.Retrieval{Docs: data.Docs, Judgements: []dataset.Judgement{{Query: 0, Doc: 1, Relevance: 0}}}); err == nil {
		t.Error("texts that are said not to be paraphrases count as such")
	}
	task, err := e.NewTask(t.Context(), data, "", "")
	if err != nil {
		t.Fatal(err)
	}
	got, err := task.Paraphrases(t.Context(), &e.engine)
	if err != nil {
		t.Fatal(err)
	}
	vecs, err := e.Embed(t.Context(), data.Docs)
	if err != nil {
		t.Fatal(err)
	}
	found := map[[2]int]bool{}
	for i, v := range vecs {
		var others []int
		for k := range vecs {
			if k != i {
				others = append(others, k)
			}
		}
		score := func(k int) float64 { return cosine(v, vecs[k]) }
		slices.SortFunc(others, func(a, b int) int { return int(math.Copysign(1, score(b)-score(a))) })
		for _, k := range others[:evaluate.Neighbours] {
			found[[2]int{min(i, k), max(i, k)}] = true
		}
	}
	if got[0].Pairs != len(found) {
		t.Errorf("%d pairs are found, want %d", got[0].Pairs, len(found))
	}
}

// What can't be cut so is an error before anything is embedded.
func TestCutsRefused(t *testing.T) {
	for _, c := range []struct {
		folder string
		fusion map[string]float64
		cut    int
		want   string
	}{
		{"bert/minilm-tiny", nil, 33, "embeddings of 32 dimensions can't be cut to 33"},
		{"bert/minilm-tiny", nil, -1, "embeddings of 32 dimensions can't be cut to -1"},
		{"bert/minilm-tiny", map[string]float64{"dense": 1}, 3, "compared beside other parts are not cut, to 3 dimensions"},
		{"splade/encoder", nil, 3, "are not cut, to 3 dimensions"},
	} {
		e, err := Load(goldens.Path(t, c.folder))
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		task, err := e.NewTask(t.Context(), several(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		count := &counting{}
		e.engine.Ranks, task.Fusion = count, c.fusion
		_, err = task.RankCut(t.Context(), &e.engine, 3, 0, c.cut)
		x := Text{Tokenizer: e.tok, Fusion: c.fusion}
		_, pairs := x.Similarity(t.Context(), &e.engine, []string{"a"}, []string{"a"}, 0, c.cut)
		for _, err := range []error{err, pairs} {
			if err == nil || !strings.Contains(err.Error(), c.want) || count.tokens > 0 {
				t.Errorf("%s: %v after %d tokens, want %q", c.folder, err, count.tokens, c.want)
			}
		}
	}
}

// Texts are tokenized some at a time, which changes none of their tokens, and who asks is told how many are.
func TestTokenizing(t *testing.T) {
	e, err := Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	texts := []string{"wind and rain", "a road", "the cat reads a file of rows", "", "rain"}
	x := Text{Tokenizer: e.tok, DocumentPrompt: "bread ", DocumentLength: 6}
	want, err := x.tokens(t.Context(), Document, texts)
	if err != nil {
		t.Fatal(err)
	}
	usual := tokenizedAtOnce
	tokenizedAtOnce = 2
	t.Cleanup(func() { tokenizedAtOnce = usual })
	var told []int
	got, err := x.tokens(dataset.WithReading(t.Context(), func(what string, texts int) { told = append(told, texts) }), Document, texts)
	if err != nil || !slices.EqualFunc(got, want, slices.Equal[[]int32]) || !slices.Equal(told, []int{2, 4}) {
		t.Errorf("%v, want %v; told %v; %v", got, want, told, err)
	}
}
