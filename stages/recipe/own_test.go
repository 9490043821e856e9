package recipe

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/loss"
	"contraflow/testdata/harness"
	"contraflow/tokenize"
)

// A loss of a program's own and what it does to rows take part in a run as the recipe's do: on several ranks, and when it goes on.
func TestOwn(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	j := newJob(t, 60)
	sets := []string{"optimizer.lr=1e-2", "save.every=1", "model.dropout=0"}
	run := func(out string, stopAt int, resume bool, more ...string) outcome {
		t.Helper()
		o, err := j.run(t, out, nil, stopAt, resume, append(append([]string{}, sets...), more...)...)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	same := func(what string, got, want outcome, tolerance float64) bool {
		t.Helper()
		if len(got.losses) != len(want.losses) || len(got.losses) < 3 {
			t.Fatalf("%s: %d steps, want %d", what, len(got.losses), len(want.losses))
		}
		for i, l := range want.losses {
			if !(math.Abs(got.losses[i]-l) <= tolerance*l) {
				return false
			}
		}
		return true
	}
	plain := run("plain", 0, false)
	colder, err := j.run(t, "colder", nil, 0, false, append(sets, "loss.scale=5")...)
	if err != nil {
		t.Fatal(err)
	}
	reversed := func(e *dataset.Example) error {
		for i, text := range e.Texts {
			words := strings.Fields(text)
			for a, b := 0, len(words)-1; a < b; a, b = a+1, b-1 {
				words[a], words[b] = words[b], words[a]
			}
			e.Texts[i] = strings.Join(words, " ")
		}
		return nil
	}
	masked := loss.InfoNCE{Scale: 5, MaskDuplicates: true}

	j.opts = []TrainOption{WithLoss(masked), WithRow(func(*dataset.Example) error { return nil })}
	if !same("as the recipe's", run("own loss", 0, false), colder, 0) {
		t.Error("the loss of the recipe, as one's own, has other values")
	}
	card, err := os.ReadFile(filepath.Join(j.dir, "own loss", "model", "README.md"))
	if err != nil || !strings.Contains(string(card), "Its loss was a program's own, `loss.InfoNCE`") {
		t.Errorf("%v: the card does not say whose the loss was: %s", err, card)
	}
	text, err := os.ReadFile(filepath.Join(j.dir, "own loss", "recipe.yaml"))
	if want := "# The program has changed rows (recipe.WithRow).\n# The program's own loss has trained (recipe.WithLoss): loss.InfoNCE{Scale: 5, MaskDuplicates: true}. What follows says what rows must have.\nloss:"; err != nil || !strings.Contains(string(text), want) {
		t.Errorf("%v: the recipe does not say whose the loss was: %s", err, text)
	}
	if _, err := Parse("recipe.yaml", text, nil); err != nil {
		t.Error(err)
	}
	j.opts = []TrainOption{WithRow(reversed)}
	want := run("reversed", 0, false)
	if same("reversed", want, plain, 1e-3) {
		t.Error("what is done to rows changes nothing")
	}
	if !same("two ranks", run("two", 0, false, "mesh.replicate=2"), want, 1e-4) {
		t.Error("two ranks have other losses")
	}
	run("stopped", 2, false)
	again := run("stopped", 0, true)
	for i, l := range again.losses {
		if l != want.losses[i] {
			t.Errorf("going on, step %d has a loss of %v, want %v", i, l, want.losses[i])
		}
	}

	run("rows", 1, false)
	j.opts = []TrainOption{WithRow(reversed), WithLoss(masked)}
	run("loss", 1, false)
	for _, c := range []struct {
		out, want string
		opts      []TrainOption
	}{
		{"rows", "began with the recipe's loss, with recipe.WithRow, and is to go on with the recipe's loss, without recipe.WithRow", nil},
		{"rows", "is to go on with recipe.WithLoss of a loss.InfoNCE{Scale: 5, MaskDuplicates: true}, with", j.opts},
		{"loss", "began with recipe.WithLoss of a loss.InfoNCE{Scale: 5, MaskDuplicates: true}, with recipe.WithRow, and is to go on with the recipe's loss, with recipe.WithRow", j.opts[:1]},
		{"loss", "to go on with recipe.WithLoss of a loss.CoSENT", []TrainOption{WithRow(reversed), WithLoss(loss.CoSENT{})}},
		{"loss", "of a loss.InfoNCE{Scale: 5, MaskDuplicates: true}, with recipe.WithRow, and is to go on with recipe.WithLoss of a loss.InfoNCE{Scale: 6,",
			[]TrainOption{WithRow(reversed), WithLoss(loss.InfoNCE{Scale: 6, MaskDuplicates: true})}},
	} {
		j.opts = c.opts
		if _, err := j.run(t, c.out, nil, 0, true, sets...); !errors.Is(err, ErrRecipeChanged) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("going on otherwise: %v, want %q", err, c.want)
		}
	}

	for want, f := range map[string]func(*dataset.Example) error{
		"data.jsonl:1: boom":             func(*dataset.Example) error { return errors.New("boom") },
		"data.jsonl:1: of row 0 with 2 ": func(e *dataset.Example) error { e.Texts = e.Texts[:1]; return nil },
		"has been made row 7 with 2":     func(e *dataset.Example) error { e.Row = 7; return nil },
	} {
		j.opts = []TrainOption{WithRow(f)}
		if _, err := j.run(t, "fails", nil, 0, false, append(sets, "data.shuffle=false")...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A checkpoint from before settings were written says which loss it was alone.
func TestOwnMarkWithoutSettings(t *testing.T) {
	now := own{loss: loss.InfoNCE{Scale: 5}}.mark()
	for _, c := range []struct {
		began ownMark
		same  bool
	}{{*now, true}, {ownMark{Loss: "loss.InfoNCE"}, true}, {ownMark{Loss: "loss.CoSENT"}, false}, {ownMark{}, false}, {ownMark{Loss: "loss.InfoNCE", Settings: "loss.InfoNCE{}"}, false}} {
		if err := now.check(&c.began); (err == nil) != c.same {
			t.Errorf("after %+v: %v", c.began, err)
		}
	}
}

// Columns that a recipe names and its loss does not read are told of; those that it reads are not, nor what a program's own loss may.
func TestNoteUnread(t *testing.T) {
	for _, c := range []struct {
		kind, loss, columns, want string
		own                       bool
	}{
		{"embedder", "mnrl", "label", "data.train[0].label is not read: loss.name: mnrl has no use for it", false},
		{"embedder", "mnrl", "label", "", true},
		{"embedder", "triplet", "scores teacher", "data.train[0].scores is not read: loss.name: triplet has no use for it data.train[0].teacher is not read: loss.name: triplet has no use for it", false},
		{"embedder", "cosent", "label", "", false},
		{"embedder", "angle", "label", "", false},
		{"embedder", "margin_mse", "label scores", "", false},
		{"embedder", "distill_kl", "scores", "", false},
		{"embedder", "mse", "teacher", "", false},
		{"m3", "m3", "scores", "data.train[0].scores is not read: loss.name: m3 has no use for it", false},
		{"reranker", "cross_entropy", "scores", "data.train[0].scores is not read: loss.name: cross_entropy has no use for it", false},
		{"reranker", "mnrl", "scores", "data.train[0].scores is not read: loss.name: mnrl has no use for it", false},
		{"reranker", "bce", "label", "", false},
		{"reranker", "kl", "scores", "", false},
		{"reranker", "margin_mse", "label", "", false},
		{"reranker", "margin_mse", "scores", "", false},
		{"reranker", "lambda", "label", "data.train[0].label is not read: loss.name: lambda has no use for it", false},
	} {
		var notes []string
		x := &Run{obs: Observer{Note: func(n string) { notes = append(notes, n) }}}
		if c.own {
			x.own.loss = loss.InfoNCE{}
		}
		x.Recipe.Loss = Loss{Name: c.loss, reranker: c.kind == "reranker"}
		s := Source{}
		for _, name := range strings.Fields(c.columns) {
			switch name {
			case "label":
				s.Label = "l"
			case "scores":
				s.Scores = []string{"s"}
			case "teacher":
				s.Teacher = "t"
			}
		}
		x.Recipe.Data.Train = []Source{s}
		x.noteUnread()
		if got := strings.Join(notes, " "); got != c.want {
			t.Errorf("%s with %s: %q, want %q", c.loss, c.columns, got, c.want)
		}
	}
}

// Labels, and scores, that the loss has no meaning for make rows that can't be used: an error with the row, or left out with data.on_error: skip.
func TestLabelsOutOfRange(t *testing.T) {
	j := newJob(t, 60)
	if err := os.WriteFile(filepath.Join(j.dir, "data.jsonl"), []byte(strings.Repeat(`{"q": "one two", "p": "two three", "label": 1}`+"\n"+`{"q": "three", "p": "four", "label": 0}`+"\n", 15)+`{"q": "five", "p": "six", "label": 3}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sets := []string{"loss=contrastive", "data.train.0.label=label", "train.epochs=1", "batch.no_duplicates=false", "data.shuffle=false", "batch.drop_last=false"}
	want := "the label is 3: contrastive takes 1 (alike), 0 (not alike)"
	if _, err := j.run(t, "stops", nil, 0, false, sets...); !errors.Is(err, dataset.ErrBadRow) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), ":31") {
		t.Error(err)
	}
	o, err := j.run(t, "skips", nil, 0, false, append(sets, "data.on_error=skip")...)
	if err != nil || o.summary.Skipped != 1 {
		t.Errorf("%v: %+v", err, o.summary)
	}
	if err := os.WriteFile(filepath.Join(j.dir, "data.jsonl"), []byte(strings.Repeat(`{"q": "one", "p": "two", "n": ["four"], "s": [1, 0]}`+"\n", 30)+`{"q": "one", "p": "two", "n": ["four"], "s": [0.5, 1.5]}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sets = append(sets[2:], fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, negatives: n, scores: s}]", filepath.Join(j.dir, "data.jsonl")), "model.kind=reranker", "loss=bce")
	if _, err := j.run(t, "scores", nil, 0, false, sets...); !errors.Is(err, dataset.ErrBadRow) || !strings.Contains(err.Error(), "bce takes labels from 0 to 1") || !strings.Contains(err.Error(), ":31") {
		t.Error(err)
	}
}

// A program's own stages see what the recipe's do, on each rank, and change nothing of it; what they measure is the model between two steps.
func TestWithStages(t *testing.T) {
	j := newJob(t, 60)
	sets := []string{"optimizer.lr=1e-2", "train.max_steps=3", "batch.accumulate=1", "batch.drop_last=true", j.sts(t), "eval.every=2"}
	plain, err := j.run(t, "plain", nil, 0, false, sets...)
	if err != nil {
		t.Fatal(err)
	}
	judged := &dataset.Retrieval{QueryIDs: []string{"1"}, Queries: j.words[:1], DocIDs: []string{"a", "b"}, Docs: j.words[:2], Judgements: []dataset.Judgement{{Query: 0, Doc: 0, Relevance: 1}}}
	tok, err := tokenize.Load(filepath.Join(j.dir, "model"))
	if err != nil {
		t.Fatal(err)
	}
	for _, replicate := range []int{1, 2} {
		var mu sync.Mutex
		var rows, steps, evaluations, measured int
		var losses []float64
		add := func(g *pipeline.Graph, p Ports) error {
			count := func(n *int, by int) error {
				mu.Lock()
				defer mu.Unlock()
				*n += by
				return nil
			}
			task, err := embedder.NewTask(t.Context(), judged, embedder.Text{Tokenizer: tok})
			if err != nil {
				return err
			}
			pipeline.Sink(g, "rows", p.Batches, func(_ *pipeline.Task, b *stages.Batch) error { return count(&rows, len(b.Rows)) })
			pipeline.Sink(g, "chunks", p.Chunks, func(*pipeline.Task, *stages.Chunk) error { return nil })
			pipeline.Sink(g, "losses", p.Results, func(_ *pipeline.Task, r stages.StepResult) error {
				mu.Lock()
				losses = append(losses, r.Loss)
				mu.Unlock()
				return count(&steps, 1)
			})
			pipeline.Sink(g, "evaluations", p.Evaluations, func(_ *pipeline.Task, e *Evaluation) error {
				if e == nil {
					return nil
				}
				return count(&evaluations, 1)
			})
			mine := stages.Evaluate(g, p.Results, p.Encoder, task, func(step int) bool { return step == 1 }, evaluate.MRR(10))
			pipeline.Sink(g, "measured", mine, func(_ *pipeline.Task, r *evaluate.Result) error {
				if r == nil {
					return nil
				}
				if r.Means[0] != 1 {
					t.Errorf("the model does not find a text by itself: %v", r.Means)
				}
				return count(&measured, 1)
			})
			return nil
		}
		j.opts = []TrainOption{WithStages(add)}
		o, err := j.run(t, fmt.Sprint("with stages", replicate), nil, 0, false, append(sets, fmt.Sprint("mesh.replicate=", replicate))...)
		if err != nil {
			t.Fatal(err)
		}
		if rows != 3*13 || steps != 3*replicate || evaluations != 2 || measured != 1 || len(o.losses) != 3 {
			t.Errorf("%d ranks: %d rows, %d steps, %d evaluations, %d of one's own", replicate, rows, steps, evaluations, measured)
		}
		for i, l := range o.losses {
			if d := math.Abs(l - plain.losses[i]); !(d <= 1e-4*l) || replicate == 1 && (d != 0 || losses[i] != l) {
				t.Errorf("%d ranks, step %d: loss %v, without stages %v, seen %v", replicate, i, l, plain.losses[i], losses)
			}
		}
	}
	j.opts = []TrainOption{WithStages(func(*pipeline.Graph, Ports) error { return errors.New("boom") })}
	if _, err := j.run(t, "fails", nil, 0, false, sets...); err == nil || !strings.Contains(err.Error(), "recipe.WithStages: boom") {
		t.Error(err)
	}
}

// decoupled is the decoupled contrastive loss (Yeh et al., arXiv 2110.06848) of embeddings of length 1: a row's own positive is not among what it
// is told from. forgets is a gradient that forgets how documents change it.
func decoupled(scale float64, forgets bool) loss.Host {
	return func(b *loss.Batch, emb, grad [][]float32) (r loss.Result, err error) {
		dot := func(x, y []float32) (sum float64) {
			for k := range x {
				sum += float64(x[k]) * float64(y[k])
			}
			return sum
		}
		add := func(i, j int, by float64) {
			for k := range emb[i] {
				grad[i][k] += float32(by * float64(emb[j][k]))
				if !forgets {
					grad[j][k] += float32(by * float64(emb[i][k]))
				}
			}
		}
		for i := range b.Rows {
			own, sum := scale*dot(emb[i], emb[b.Rows+i]), 0.0
			others := make([]float64, b.N())
			for j := b.Rows; j < b.N(); j++ {
				if j != b.Rows+i {
					others[j] = math.Exp(scale * dot(emb[i], emb[j]))
					sum += others[j]
				}
			}
			w := b.Weight(i)
			r.Sum, r.Weight = r.Sum+w*(math.Log(sum)-own), r.Weight+w
			add(i, b.Rows+i, -w*scale)
			for j, e := range others {
				if e > 0 {
					add(i, j, w*scale*e/sum)
				}
			}
		}
		return r, nil
	}
}

// The gradient of a program's own loss is verified, one on the host as well, on one rank and on several: a right one agrees, a wrong one and a fault that
// is planted do not. What WithRow does comes first.
func TestVerifyOwn(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	j := newJob(t, 40)
	x := j.opened(t, []string{"save.dir=" + filepath.Join(j.dir, "out"), "model.dropout=0.1"})
	rows := 0
	seen := WithRow(func(*dataset.Example) error { rows++; return nil })
	var report []VerifyRow
	verify := func(plant Fault, replicas int, opts ...TrainOption) (bool, error) {
		o := VerifyOptions{Rows: 6, SubBatches: []int{5}, Accumulate: []int{2}, Replicas: []int{replicas}, Shards: []int{1}, Plant: plant}
		report = nil
		o.Report = func(r VerifyRow) { report = append(report, r) }
		return x.Verify(t.Context(), o, opts...)
	}
	for _, c := range []struct {
		name     string
		loss     loss.Loss
		plant    Fault
		replicas int
		limit    float64
		ok       bool
	}{
		{"right, on the host", decoupled(20, false), "", 2, ownLimit, true},
		{"of a large scale", decoupled(50, false), "", 1, ownLimit, true},
		{"without the documents'", decoupled(20, true), "", 1, ownLimit, false},
		{"twice", decoupled(20, false), FaultFactor, 1, ownLimit, false},
		{"package loss's", loss.InfoNCE{Scale: 5, MaskDuplicates: true}, "", 1, derivativeLimit, true},
		{"package loss's, detached", loss.InfoNCE{Scale: 5, MaskDuplicates: true}, FaultRemote, 1, derivativeLimit, false},
	} {
		if testing.Short() && c.replicas == 1 {
			continue
		}
		ok, err := verify(c.plant, c.replicas, WithLoss(c.loss), seen)
		if err != nil || ok != c.ok || len(report) < 3 || report[0].Limit != c.limit {
			t.Errorf("%s: %t, %v: %+v", c.name, ok, err, report)
		}
	}
	if rows == 0 {
		t.Error("rows have not been changed")
	}
	for plant, want := range map[Fault]string{FaultMask: "masks what it does", FaultRemote: "is no loss.RowSplitter"} {
		if _, err := verify(plant, 1, WithLoss(decoupled(20, false))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", plant, err)
		}
	}
	if testing.Short() {
		return
	}
	if ok, err := verify("", 1); err != nil || !ok || x.own.loss != nil {
		t.Errorf("the recipe's own loss afterwards: %t, %v", ok, err)
	}
}

// A loss that is a function is told of by the function's name: its type says nothing of what has trained.
func TestOwnFunction(t *testing.T) {
	if got, want := string(own{loss: loss.Host(noLoss)}.says([]byte("a: b\nloss: x\n"))), "(recipe.WithLoss): loss.Host (contraflow/stages/recipe.noLoss). What follows"; !strings.Contains(got, want) {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func noLoss(*loss.Batch, [][]float32, [][]float32) (loss.Result, error) { return loss.Result{}, nil }
