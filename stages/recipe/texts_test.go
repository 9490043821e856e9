package recipe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"contraflow/collective"
	"contraflow/collective/local"
	"contraflow/gpustage"
	"contraflow/io/dataset"
)

// byIDs writes a job's rows as judgements, some of them of what is not relevant, with queries and a corpus, and returns what names them.
func (j *job) byIDs(t *testing.T) (columns string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(j.dir, "data.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]*bytes.Buffer{"queries.jsonl": {}, "corpus.jsonl": {}, "qrels.tsv": bytes.NewBufferString("query-id\tcorpus-id\tscore\n")}
	ids := map[string]int{}
	id := func(file, text string) int {
		n, there := ids[file+text]
		if !there {
			n = len(ids)
			ids[file+text] = n
			if err := json.NewEncoder(files[file]).Encode(map[string]any{"_id": n, "text": text}); err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	for line := range bytes.Lines(raw) {
		var row struct{ Q, P string }
		if err := json.Unmarshal(line, &row); err != nil {
			t.Fatal(err)
		}
		q, p := id("queries.jsonl", row.Q), id("corpus.jsonl", row.P)
		fmt.Fprintf(files["qrels.tsv"], "%d\t%d\t%d\n", q, p, 1+q%2)
		if q%3 == 0 {
			fmt.Fprintf(files["qrels.tsv"], "%d\tnone\t0\n", q)
		}
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(j.dir, name), b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("path: %q, queries: %q, corpus: %q", filepath.Join(j.dir, "qrels.tsv"), filepath.Join(j.dir, "queries.jsonl"), filepath.Join(j.dir, "corpus.jsonl"))
}

// Rows that name texts by ids train as rows that have them, and so are measured, bit by bit, on one rank and on two.
func TestTrainByIDs(t *testing.T) {
	j := newJob(t, 60)
	ids := j.byIDs(t)
	raw, err := os.ReadFile(filepath.Join(j.dir, "qrels.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	_, rows, _ := strings.Cut(string(raw), "\n")
	if err := os.WriteFile(filepath.Join(j.dir, "named.tsv"), []byte("a\tb\tgrade\n"+rows), 0o600); err != nil {
		t.Fatal(err)
	}
	named := strings.Replace(ids, "qrels.tsv", "named.tsv", 1) + ", query: a, positive: b, relevance: grade"
	texts := fmt.Sprintf("path: %q, query: q, positive: p", filepath.Join(j.dir, "data.jsonl"))
	for _, ranks := range []int{1, 2} {
		train := func(name, source, heldOut string) ([]float64, []byte) {
			name = fmt.Sprint(name, ranks)
			if _, err := j.run(t, name, nil, 0, false, "data.train=[{"+source+"}]", "eval.loss={"+heldOut+"}", "train.max_steps=4", "batch.no_duplicates=true", "batch.by_length=true", fmt.Sprint("mesh.replicate=", ranks)); err != nil {
				t.Fatal(err)
			}
			var losses []float64
			for _, line := range j.lines(t, name) {
				if v, ok := line["loss"].(float64); ok {
					losses = append(losses, v)
				}
			}
			return losses, j.model(t, name)
		}
		want, model := train("texts", texts, texts)
		got, same := train("ids", named, []string{ids, named}[ranks-1])
		record, err := ReadRecord(filepath.Join(j.dir, fmt.Sprint("ids", ranks)))
		if err != nil || len(record.Data) != 3 || filepath.Base(record.Data[2]) != "corpus.jsonl" {
			t.Errorf("the record's data %q, %v", record.Data, err)
		}
		card, err := os.ReadFile(filepath.Join(j.dir, fmt.Sprint("ids", ranks), "model", "README.md"))
		if err != nil || !strings.Contains(string(card), "| named.tsv, queries.jsonl, corpus.jsonl | a, b | 60 |") {
			t.Errorf("the card has other data: %v\n%s", err, card)
		}
		if len(want) != 5 || !slices.Equal(got, want) || !bytes.Equal(model, same) {
			t.Errorf("%d ranks: losses %v by ids, %v of texts, the weights are equal: %v", ranks, got, want, bytes.Equal(model, same))
		}
	}
}

// A run goes on where its texts are found elsewhere, and not with others, and says which have changed.
func TestResumeByIDs(t *testing.T) {
	j := newJob(t, 60)
	source := j.byIDs(t)
	train := "data.train=[{" + source + "}]"
	if _, err := j.run(t, "whole", nil, 0, false, train); err != nil {
		t.Fatal(err)
	}
	if _, err := j.run(t, "run", nil, 5, false, train); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(j.dir, "corpus.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	moved := strings.NewReplacer("corpus.jsonl", "moved.jsonl", "queries.jsonl", "questions.jsonl").Replace(train)
	if err := os.Rename(filepath.Join(j.dir, "queries.jsonl"), filepath.Join(j.dir, "questions.jsonl")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ content, want string }{
		{strings.Replace(string(raw), `"text":"`, `"text":"other `, 1), "data.train[0]: corpus has other rows"},
		{string(raw) + `{"_id": "more", "text": "one"}` + "\n", " rows and has "},
		{string(raw), ""},
	} {
		if err := os.WriteFile(filepath.Join(j.dir, "moved.jsonl"), []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := j.run(t, "run", nil, 0, true, moved); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Fatalf("%v, want %q", err, c.want)
		}
	}
	if !bytes.Equal(j.model(t, "run"), j.model(t, "whole")) {
		t.Error("the weights differ from those of a run that was not stopped")
	}
}

// What looks at data without training knows of texts by ids: check names each bad row once, plans and verify-grads read them. What they take is given back.
func TestLookAtIDs(t *testing.T) {
	t.Parallel()
	j := newJob(t, 60)
	source := j.byIDs(t)
	qrels := filepath.Join(j.dir, "qrels.tsv")
	raw, err := os.ReadFile(qrels)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(raw), "\n")
	at := slices.IndexFunc(lines, func(line string) bool { return strings.HasSuffix(line, "\t0\n") }) + 1 // behind one that is left out
	sets := []string{"data.train=[{" + source + "}]", "eval.loss={" + source + "}", "batch.global_size=8"}
	r, err := Parse("job", []byte(j.text), append(sets, "save.dir="+filepath.Join(j.dir, "run")))
	if err != nil {
		t.Fatal(err)
	}
	device, err := gpustage.Open("cpu")
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	x, err := OpenOnPaper(t.Context(), r, Target{Mesh: collective.Mesh{Replicate: 1, Shard: 1}, Device: device}, Observer{})
	if err != nil || x.rows() != 60 {
		t.Fatalf("planned: %d rows, %v", x.rows(), err)
	}
	opened := x.shared.texts
	if len(opened) != 2 { // what trains and what is measured have them in common
		t.Errorf("%d files of texts were opened, want 2", len(opened))
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	for _, s := range opened {
		if s.texts.Len() != 0 {
			t.Error("texts are there after the run")
		}
	}
	two := r
	two.Mesh.Replicate = 2
	var common *shared
	err = OnRanks(t.Context(), two, Place{}, Observer{}, func(x *Run) error {
		if x.Main() {
			common = x.shared
		}
		if n := x.data[0].Rows(); n != 60 {
			return fmt.Errorf("%d rows", n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range common.texts {
		if s.texts.Len() != 0 {
			t.Error("texts are there after the ranks")
		}
	}
	if x, err = Open(t.Context(), r, Observer{}); err != nil {
		t.Fatal(err)
	}
	ok, err := x.Verify(t.Context(), DefaultVerify())
	if err = errors.Join(err, x.Close()); err != nil || !ok {
		t.Errorf("verify-grads: %v, %v", ok, err)
	}

	lines[at] = strings.Replace(lines[at], "\t", "\tnowhere", 1)
	if err := os.WriteFile(qrels, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	l, notes := j.lookOver(t, sets...)
	for _, p := range l.Parts {
		if p.byID {
			if p.Bad != nil || p.Errs != nil {
				t.Errorf("%s: %v, %v", p.Key, p.Bad, p.Errs)
			}
			continue
		}
		if len(p.Bad) != 1 || p.Bad[0].Location.Line != int64(at+1) || p.Errs != nil || !strings.Contains(p.Bad[0].Error(), `column "corpus-id": no text has the id "nowhere`) {
			t.Errorf("%s: %v, %v, want the row of line %d", p.Key, p.Bad, p.Errs, at+1)
		}
	}
	if !slices.ContainsFunc(notes, func(n string) bool {
		return strings.Contains(n, "rows are left out, whose \"score\" is 0 or less; 60 remain")
	}) {
		t.Errorf("notes: %q", notes)
	}
	bad := []string{`{"_id": "1", "text": "a"}`, `{"_id": "1", "text": "b"}`, `{"text": "of none"}`, `{"_id": "", "text": "c"}`, `{"_id": "1", "text": "a"}`, `{"_id": "2", "text": 3}`}
	if err := os.WriteFile(filepath.Join(j.dir, "corpus.jsonl"), []byte(strings.Join(bad, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), r, Observer{}); !errors.Is(err, dataset.ErrBadRow) || !strings.HasSuffix(err.Error(), "no row of it is left out: it has to be put right, or taken out") {
		t.Errorf("an id that comes twice: %v", err)
	}
	if err := os.WriteFile(filepath.Join(j.dir, "more.tsv"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	l, _ = j.lookOver(t, append(sets, fmt.Sprintf("data.train.0.path=[%q, %q]", qrels, filepath.Join(j.dir, "more.tsv")))...)
	for _, key := range []string{"data.train[0]", "eval.loss"} { // of texts that both name the first hears, and neither loses the rows that have some
		at := slices.IndexFunc(l.Parts, func(p LookoverPart) bool { return p.Key == key+".corpus" })
		rows := slices.IndexFunc(l.Parts, func(p LookoverPart) bool { return p.Key == key })
		if at < 0 || rows != at+1 || !strings.HasPrefix(l.Parts[at].Said, "6 texts") {
			t.Errorf("%s.corpus: %+v", key, l.Parts)
		} else if at == 1 {
			var got []string
			for _, row := range l.Parts[at].Bad {
				got = append(got, fmt.Sprintf("%d %s", row.Location.Line, row.Reason))
			}
			slices.Sort(got)
			want := []string{`2 the id "1" comes a second time, with another text than in`, "3 the id is null or missing", "4 the id is empty", "6 it is a number, want a string"}
			if !slices.EqualFunc(got, want, strings.HasPrefix) {
				t.Errorf("bad rows of the corpus: %q, want %q", got, want)
			}
		}
	}
	if err := l.Err(); err == nil || !strings.Contains(err.Error(), "4 rows of texts that others name by ids can't be used") {
		t.Errorf("what check ends with: %v", err)
	}
}

// The texts that ranks have in common are read by the first, once, and waited for no longer than the job lasts.
func TestSharedTexts(t *testing.T) {
	s := newShared(0, 2)
	end := errors.New("rank 0 has failed")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(end)
	if _, err := s.open(ctx, false, Texts{}, nil); err != end {
		t.Errorf("of a job that is over: %v", err)
	}
	read, texts := 0, new(dataset.Texts)
	one := func() (*dataset.Texts, error) { read++; return texts, nil }
	for _, first := range []bool{true, false, true} {
		if got, err := s.open(t.Context(), first, Texts{}, one); got != texts || err != nil {
			t.Errorf("%p: %v", got, err)
		}
	}
	other := Texts{Text: "body"}
	if _, err := s.open(t.Context(), true, other, func() (*dataset.Texts, error) { return nil, end }); err != end {
		t.Errorf("%v, want an error", err)
	}
	if _, err := s.open(t.Context(), false, other, one); err != end || read != 1 {
		t.Errorf("%v, want the error of rank 0; read %d times", err, read)
	}
	s.close()
}

func TestTextsKeys(t *testing.T) {
	const text = "model: {path: m}\ndata:\n  train:\n    - {path: d, %s}\nsave: {dir: s}\n"
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ source, want string }{ // an error, or how it is resolved
		{"query: q, positive: p, corpus: c.jsonl", "query: q\n    positive: p\n    corpus:\n      path:\n      - c.jsonl\n"},
		{"query: q, positive: p, queries: [~/a, b]", "queries:\n      path:\n      - " + home + "/a\n      - b\n"},
		{"query: q, positive: p, relevance: r, queries: {path: ~/a, id: i, text: '{t} {u}'}", "queries:\n      path:\n      - " + home + "/a\n      id: i\n      text: \"{t} {u}\"\n    relevance: r\n"},
		{"queries: a, corpus: c", "query: query-id\n    positive: corpus-id\n"},
		{"queries: a, corpus: c, positive: p", "data.train[0].query: is missing"},
		{"queries: a", "data.train[0].query: is missing"},
		{"query: q, corpus: c", "data.train[0].corpus: has the texts of documents, and no column has their ids: data.train[0].positive names one"},
		{"query: q, positive: p, corpus: {id: i}", "data.train[0].corpus.path: is missing"},
		{"query: q, positive: p, queries: {path: a, txt: i}", "data.train[0].queries.txt: unknown key; did you mean data.train[0].queries.text?"},
		{"query: q, positive: p, queries: a, ids: true", "data.train[0].ids: are not of texts that rows name by ids"},
	} {
		r, err := Parse("recipe", []byte(fmt.Sprintf(text, c.source)), nil)
		got := fmt.Sprint(err)
		if err == nil {
			resolved, err := r.YAML()
			if err != nil {
				t.Fatal(err)
			}
			if again, err := Parse("again", resolved, nil); err != nil || fmt.Sprint(again.Data.Train[0].paths()) != fmt.Sprint(r.Data.Train[0].paths()) {
				t.Errorf("%s: resolved, it is %v: %s", c.source, err, resolved)
			}
			got = string(resolved)
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %q", c.source, got, c.want)
		}
	}
}

// Ranks of several processes agree on texts by what they are: their files may lie in another place on each machine, and not have others.
func TestAgreeOnTexts(t *testing.T) {
	j := newJob(t, 60)
	here := j.byIDs(t)
	raw, err := os.ReadFile(filepath.Join(j.dir, "corpus.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	there := strings.Replace(here, "corpus.jsonl", "there.jsonl", 1)
	for content, want := range map[string]string{string(raw): "", string(raw) + `{"_id": "more", "text": "one"}` + "\n": "ranks disagree: the dataset is "} {
		if err := os.WriteFile(filepath.Join(j.dir, "there.jsonl"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		err := local.Run(2, func(w collective.World) error {
			r, err := Parse("job", []byte(j.text), []string{"save.dir=" + filepath.Join(j.dir, "out"), "mesh.replicate=2", "data.train=[{" + []string{here, there}[w.Rank()] + "}]"})
			if err != nil {
				return err
			}
			d, err := asRank(t.Context(), r, Place{w, gpustage.Share{Rank: w.Rank(), Ranks: 2}}, Observer{}, new(atomic.Pointer[ending]), nil, func(x *Run) error {
				if len(x.shared.texts) != 2 {
					return errors.New("texts are shared with another process")
				}
				return nil
			})
			if d != nil {
				err = errors.Join(err, d.Close())
			}
			return err
		})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
