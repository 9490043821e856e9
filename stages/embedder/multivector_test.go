package embedder

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/hfmodel"
	"contraflow/stages/transformer"
	"contraflow/testdata/goldens"
	"contraflow/tokenize"
)

// Queries have the length of a fixed expansion, whatever is asked for, and what is asked for in vain is told; a least length leaves longer ones.
func TestLengthsOf(t *testing.T) {
	f, c := &hfmodel.Folder{MaxSeqLength: 40}, transformer.Config{MaxPositions: 64}
	fixed, least := &hfmodel.Expansion{Strategy: "fixed", Length: 12}, &hfmodel.Expansion{Strategy: "min", Length: 12}
	for _, x := range []struct {
		m                       *hfmodel.MultiVector
		query, document         int
		wantQuery, wantDocument int
		note, err               string
	}{
		{nil, 0, 0, 40, 40, "", ""},
		{&hfmodel.MultiVector{QueryLength: 20, DocumentLength: 30}, 0, 0, 20, 30, "", ""},
		{&hfmodel.MultiVector{QueryLength: 20, DocumentLength: 30}, 9, 10, 9, 10, "", ""},
		{&hfmodel.MultiVector{Expansion: fixed}, 0, 0, 12, 40, "", ""},
		{&hfmodel.MultiVector{Expansion: fixed, QueryLength: 20}, 0, 10, 12, 10, "", ""},
		{&hfmodel.MultiVector{Expansion: fixed}, 12, 10, 12, 10, "", ""},
		{&hfmodel.MultiVector{Expansion: fixed}, 30, 10, 12, 10, "a maximum length of 30 tokens is asked for, but query_expansion, whose length is fixed, makes all of them 12", ""},
		{&hfmodel.MultiVector{Expansion: fixed}, 5, 0, 0, 0, "makes all of them 12", "a maximum length of 5 tokens, and query_expansion fills them up to 12"},
		{&hfmodel.MultiVector{Expansion: least}, 0, 0, 40, 40, "", ""},
		{&hfmodel.MultiVector{Expansion: least}, 30, 0, 30, 40, "", ""},
		{&hfmodel.MultiVector{Expansion: &hfmodel.Expansion{Strategy: "fixed", Length: 65}}, 0, 0, 0, 0, "", "queries: a maximum length of 65 tokens is beyond"},
		{&hfmodel.MultiVector{Expansion: &hfmodel.Expansion{Strategy: "min", Length: 41}}, 0, 0, 0, 0, "", "queries: query_expansion has 41 tokens, and at most 40 can be read"},
		{&hfmodel.MultiVector{Expansion: &hfmodel.Expansion{Strategy: "min", Length: 40}}, 0, 0, 40, 40, "", ""},
	} {
		q, d, err := LengthsOf(f, x.m, c, x.query, x.document)
		switch {
		case x.err != "":
			if err == nil || !strings.Contains(err.Error(), x.err) {
				t.Errorf("%+v: %v, want %q", x, err, x.err)
			}
		case err != nil || q != x.wantQuery || d != x.wantDocument:
			t.Errorf("%+v: %d and %d, %v", x, q, d, err)
		}
		if note := ExpansionNote(x.m, x.query); !strings.Contains(note, x.note) || (note == "") != (x.note == "") {
			t.Errorf("%+v: the note is %q", x, note)
		}
	}
}

// What fills queries up comes behind their own tokens, and others attend to it or not; what sentence-transformers would do otherwise is refused.
func TestReadings(t *testing.T) {
	tok, err := tokenize.Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	mask, _ := tok.ID("[MASK]")
	blind := transformer.Config{Family: "deberta-v2", UnseenBlind: true}
	left, right := `{"padding_side": "left"}`, `{"padding_side": "right"}`
	fast := `{"version": "1.0", "padding": {"strategy": "BatchLongest", "direction": "Left"}}`
	for name, x := range map[string]struct {
		files  map[string]string
		attend bool
		config transformer.Config
		err    string
	}{
		"not attended to":        {nil, false, transformer.Config{}, ""},
		"attended to":            {nil, true, blind, ""},
		"not in DeBERTa":         {nil, false, blind, "are not supported in a model of family deberta-v2. Train the model with model.query_expansion: {length: N, attend: true}"},
		"from the left":          {map[string]string{"tokenizer_config.json": left}, true, transformer.Config{}, "the tokenizer pads on the left"},
		"from the left, fast":    {map[string]string{"tokenizer.json": fast}, false, transformer.Config{}, "\"padding_side\": \"right\" in tokenizer_config.json"},
		"from the left, unsaid":  {map[string]string{"tokenizer_config.json": `{"tokenizer_class": "GemmaTokenizerFast"}`}, false, transformer.Config{}, "the tokenizer pads on the left"},
		"from the right":         {map[string]string{"tokenizer_config.json": right, "tokenizer.json": fast}, false, transformer.Config{}, ""},
		"on neither":             {map[string]string{"tokenizer_config.json": "{}", "tokenizer.json": `{"padding": null}`}, false, transformer.Config{}, ""},
		"no tokenizer_config":    {map[string]string{"tokenizer_config.json": "{"}, false, transformer.Config{}, "tokenizer_config.json: line 1"},
		"no expansion from left": {map[string]string{"tokenizer_config.json": left}, false, transformer.Config{}, "-"},
	} {
		dir := t.TempDir()
		for file, text := range x.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		m := &hfmodel.MultiVector{Expansion: &hfmodel.Expansion{Strategy: "fixed", Length: 9, Attend: x.attend}}
		want := transformer.Reading{Length: 9, Fill: mask, Unseen: !x.attend}
		if x.err == "-" {
			m.Expansion, x.err, want = nil, "", transformer.Reading{}
		}
		query, document, err := Readings(&hfmodel.Folder{Dir: dir, TokenizerDir: dir}, m, x.config, tok)
		switch {
		case x.err != "":
			if err == nil || !strings.Contains(err.Error(), x.err) || x.config.UnseenBlind && !errors.Is(err, transformer.ErrUnsupported) {
				t.Errorf("%s: %v, want %q", name, err, x.err)
			}
		case err != nil || query.Length != want.Length || query.Fill != want.Fill || query.Unseen != want.Unseen || document.Unseen || document.Length != 0:
			t.Errorf("%s: %+v, %+v, %v", name, query, document, err)
		}
	}
}

// Words of the skiplist that are tokens leave out those of the roles that it is for, with an expansion and without; others are named in a note.
func TestReadingsSkip(t *testing.T) {
	dir := goldens.Path(t, "bert/minilm-tiny")
	tok, err := tokenize.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	stop, _ := tok.ID(".")
	comma, _ := tok.ID(",")
	words := []int32{stop, comma}
	for _, e := range []*hfmodel.Expansion{nil, {Strategy: "min", Length: 9}} {
		for _, c := range []struct {
			tasks           []string
			query, document []int32
		}{{[]string{"query"}, words, nil}, {[]string{"document"}, nil, words}, {[]string{"query", "document"}, words, words}, {nil, nil, nil}} {
			m := &hfmodel.MultiVector{Skiplist: []string{".", "no token", ","}, SkipTasks: c.tasks, Expansion: e}
			query, document, err := Readings(&hfmodel.Folder{Dir: dir, TokenizerDir: dir}, m, transformer.Config{}, tok)
			if err != nil || !slices.Equal(query.Skip, c.query) || !slices.Equal(document.Skip, c.document) {
				t.Errorf("%q: queries without %v, documents without %v, %v; want %v and %v", c.tasks, query.Skip, document.Skip, err, c.query, c.document)
			}
		}
	}
	for note, skiplist := range map[string][]string{
		"": {".", ","}, `the skiplist has ["no token" "another"], which the vocabulary does not have as tokens: they leave nothing out`: {"no token", ".", "another"},
	} {
		if got := SkipNote(&hfmodel.MultiVector{Skiplist: skiplist}, tok); got != note {
			t.Errorf("%q: the note is %q, want %q", skiplist, got, note)
		}
	}
	for _, similarity := range []string{MaxSim, MeanMaxSim} {
		f := &hfmodel.Folder{Dir: dir, TokenizerDir: dir, Similarity: similarity, MultiVector: &hfmodel.MultiVector{Skiplist: []string{"."}, SkipTasks: []string{"document"}}}
		h, err := Completed(transformer.Config{Tokens: transformer.TokenHeads{Alone: true, Dim: 8}}, f, tok)
		if err != nil || h.Mean != (similarity == MeanMaxSim) || !slices.Equal(h.Document.Skip, words[:1]) {
			t.Errorf("%s: %+v, %v", similarity, h, err)
		}
	}
	if query, document, err := Readings(&hfmodel.Folder{Dir: dir, TokenizerDir: dir}, nil, transformer.Config{}, tok); err != nil || query.Skip != nil || document.Skip != nil {
		t.Errorf("of a folder that says nothing: %+v, %+v, %v", query, document, err)
	}
}

// colbertFolder makes a folder that gives vectors of tokens, of a golden's config and weights, and a tokenizer; queries are filled up so.
func colbertFolder(t *testing.T, model, expansion string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(goldens.Path(t, "bert/minilm-tiny"))); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"modules.json":                      `[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}]`,
		"config_sentence_transformers.json": `{"model_type": "MultiVectorEncoder"}`,
		"sentence_bert_config.json":         `{"query_expansion": ` + expansion + `}`,
	}
	for _, name := range []string{"config.json", "model.safetensors"} {
		data, err := os.ReadFile(filepath.Join(goldens.Path(t, model), name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(data)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A folder of a model for which that is not supported is refused where it is opened.
func TestUnseenRefused(t *testing.T) {
	e, err := Load(colbertFolder(t, "families/deberta-v2", `{"strategy": "min", "length": 12, "attend": false}`))
	if err == nil {
		e.Close()
	}
	if !errors.Is(err, transformer.ErrUnsupported) || !strings.Contains(err.Error(), "are not supported in a model of family deberta-v2") {
		t.Error(err)
	}
}

// Queries of such a model have to come with the number of their own tokens; documents need none.
func TestPartsOfUnseen(t *testing.T) {
	e, err := Load(colbertFolder(t, "bert/minilm-tiny", `{"strategy": "min", "length": 12, "attend": false}`))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	texts := [][]int32{{2, 7, 3}, {2, 8, 3, 4, 4}}
	for _, c := range []struct {
		queries int
		seen    []int32
		want    string
	}{{0, nil, ""}, {1, []int32{3, 5}, ""}, {2, []int32{3, 3}, ""}, {1, nil, "text 0 is a query"}, {2, nil, "seen, which is nil, says how many of its tokens come before that"}} {
		_, err := e.engine.PartsOf(t.Context(), texts, func(i int) bool { return i < c.queries }, c.seen, nil)
		if got := fmt.Sprint(err); c.want == "" && err != nil || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// What fills queries up and is not attended to leaves the vectors of their own tokens as they are without it, in texts of several lengths at once.
func TestUnseenParts(t *testing.T) {
	texts := []string{"a river", "the stone , the house and the tree , a river , some light and a house", "", "light"}
	parts := func(expansion string) *Parts {
		e, err := Load(colbertFolder(t, "bert/minilm-tiny", expansion))
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		p, _, err := e.EmbedParts(t.Context(), "query", texts, nil)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	without, unseen, seen := parts("null"), parts(`{"strategy": "min", "length": 12, "attend": false}`), parts(`{"strategy": "min", "length": 12, "attend": true}`)
	for i, text := range texts {
		own := without.TokenVectors(i)
		off := func(p *Parts) (most float64) {
			for k, v := range p.TokenVectors(i)[:len(own)] {
				most = max(most, math.Abs(float64(v-own[k])))
			}
			return most
		}
		if n := len(unseen.TokenVectors(i)) / unseen.VectorSize; n < 12 || !(off(unseen) <= 1e-5) {
			t.Errorf("%q: %d vectors, and those of its tokens are off by %.3g", text, n, off(unseen))
		}
		if len(own) < 12*without.VectorSize && !(off(seen) >= 1e-3) {
			t.Errorf("%q: where the others attend to what fills it up, its vectors are as without, but for %.3g", text, off(seen))
		}
	}
}
