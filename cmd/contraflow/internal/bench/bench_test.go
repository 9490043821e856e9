package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"contraflow/gpustage"
	"contraflow/stages/recipe"
	"contraflow/stages/transformer"
)

// Work counts what BERT's formula says.
func TestWork(t *testing.T) {
	const layers, hidden, forward = 3, 48, 80
	c := transformer.Config{Family: "bert", Vocab: 30, Hidden: hidden, Layers: layers, Heads: 4, FeedForward: forward, MaxPositions: 20, TypeVocab: 2, NormEps: 1e-12, HiddenDropout: 0.1}
	w, err := NewWork(c)
	if err != nil {
		t.Fatal(err)
	}
	want := 0.0
	lengths := []int{7, 1, 20, 7}
	for _, n := range lengths {
		want += float64(6*layers*(4*hidden*hidden+2*hidden*forward)*n + 12*layers*hidden*n*n)
	}
	if got := w.Step(lengths); got != want {
		t.Errorf("a step is %v, want %v", got, want)
	}
	if got := w.Forward(lengths); got != want/3 {
		t.Errorf("a forward pass is %v, want %v", got, want/3)
	}
}

// The activations that a pass takes are those predicted, with checkpointing fewer of them, and with LoRA.
func TestMeasureLayers(t *testing.T) {
	for _, rank := range []int{0, 2} {
		r, err := MeasureLayers(t.Context(), LayersOptions{Layers: []int{2, 9}, Rows: 2, Tokens: 16, Hidden: 64, LoRA: rank, Rounds: 1})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Depths) != 2 || r.Depths[1].Segment != 3 {
			t.Fatalf("%+v", r)
		}
		for _, d := range r.Depths {
			for _, p := range []DeepPass{d.Plain, d.Saving} {
				// A replayed pass with checkpointing carries the last segment's input on: one hidden state fewer than predicted.
				if over := p.PredictedBytes - p.PeakBytes; over < 0 || over > 2*16*64*4 || p.PeakBytes == 0 || !(p.Seconds > 0) {
					t.Errorf("rank %d, %d layers: %+v", rank, d.Layers, p)
				}
			}
		}
		if deep := r.Depths[1]; deep.Saving.PeakBytes > deep.Plain.PeakBytes*3/4 || deep.Saving.KeptBytes >= deep.Plain.KeptBytes {
			t.Errorf("rank %d: checkpointing saves too little: %+v", rank, deep)
		}
	}
}

// Pairs of tokens that don't see each other don't count.
func TestWorkOfMasks(t *testing.T) {
	o := gpustage.Attention{Seqs: gpustage.Sequences{MaxLen: 5}, Heads: 2, HeadDim: 3}
	for _, c := range []struct {
		causal bool
		window int
		pairs  float64
	}{{false, 0, 25}, {true, 0, 15}, {false, 1, 13}, {true, 1, 9}, {false, 9, 25}} {
		o.Causal, o.Window = c.causal, c.window
		if got, want := attention(o), 4*c.pairs*6; got != want {
			t.Errorf("causal %t, window %d: %v, want %v", c.causal, c.window, got, want)
		}
	}
}

func TestSpread(t *testing.T) {
	if s := SpreadOf([]float64{3}); s != (Spread{3, 3, 3}) {
		t.Errorf("%+v", s)
	}
	if s := SpreadOf([]float64{5, 1, 4}); s != (Spread{4, 1, 5}) {
		t.Errorf("%+v", s)
	}
	if s := SpreadOf(nil); s != (Spread{}) {
		t.Errorf("%+v", s)
	}
}

// Paced answers each line, ends with its input, with its context, and with the first error.
func TestPaced(t *testing.T) {
	var out bytes.Buffer
	n := 0
	round := func() (any, error) {
		n++
		return map[string]int{"round": n}, nil
	}
	if err := Paced(t.Context(), strings.NewReader("\n\n\n"), &out, round); err != nil {
		t.Fatal(err)
	}
	if want := "{\"ready\":true}\n{\"round\":1}\n{\"round\":2}\n{\"round\":3}\n"; out.String() != want {
		t.Errorf("got %s", out.String())
	}
	bad := errors.New("bad")
	if err := Paced(t.Context(), strings.NewReader("\n\n"), io.Discard, func() (any, error) { return nil, bad }); err != bad {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	open, _ := io.Pipe() // nothing ever comes
	defer open.Close()
	if err := Paced(ctx, open, io.Discard, round); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}

// tiny makes the model that is made where none is given a small one.
func tiny(t *testing.T) {
	shape := miniLM
	t.Cleanup(func() { miniLM = shape })
	miniLM.Hidden, miniLM.Layers, miniLM.Heads, miniLM.Vocab, miniLM.MaxLength = 32, 2, 4, 300, 32
}

// pairs writes n pairs of short texts, and then whatever comes after as it is.
func pairs(t *testing.T, n int, after string) string {
	t.Helper()
	var b strings.Builder
	for i := range n {
		words := strings.Fields("the quick brown fox jumps over a lazy dog near some old river bank today")
		json.NewEncoder(&b).Encode(map[string]string{"q": words[i%7] + " " + words[i%5], "p": strings.Join(words[i%6:], " ")})
	}
	path := filepath.Join(t.TempDir(), "pairs.jsonl")
	if err := os.WriteFile(path, []byte(b.String()+after), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func prepared(t *testing.T, data string) *Input {
	t.Helper()
	in := &Input{Data: data, Query: "q", Positive: "p"}
	if err := in.Prepare(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.Clean(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(in.Model); !os.IsNotExist(err) {
			t.Errorf("the made model is still there: %v", err)
		}
	})
	return in
}

func training(t *testing.T, in *Input, batch int, change func(*recipe.Recipe)) *Training {
	t.Helper()
	r := recipe.Default()
	r.Batch.GlobalSize, r.Train.Precision = batch, "f32"
	if change != nil {
		change(&r)
	}
	x, err := NewTraining(t.Context(), TrainingOptions{Input: in, Recipe: r})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

// Where the budget holds every pass lean and none whole, all sub-batches are kept, all of them lean, and a part of their tokens' way is gone again.
func TestTrainingLean(t *testing.T) {
	tiny(t)
	x := training(t, prepared(t, pairs(t, 25, "")), 10, func(r *recipe.Recipe) { r.Batch.SubBatch = recipe.SubBatch{Tokens: 40} })
	x.enc.BudgetOf = func(subs []transformer.Memory) (budget int64) {
		for _, m := range subs {
			budget += int64(m.Lean)
		}
		return budget
	}
	steps, err := Measure(t.Context(), 0, 1, x.Step)
	if err != nil {
		t.Fatal(err)
	}
	if s := steps[0]; s.SubBatches < 2 || s.Kept != s.SubBatches || s.Lean != s.SubBatches || s.Replayed == 0 || s.Replayed >= s.Tokens {
		t.Errorf("%+v", s)
	}
	if r, err := x.Report(steps); err != nil || r.KeptPercent != 100 || r.LeanPercent != 100 {
		t.Errorf("%v %% kept, %v %% lean, %v", r.KeptPercent, r.LeanPercent, err)
	}
}

// Steps take the rows in the files' order, begin again at the end, learn, and are counted right, cached or not.
func TestTraining(t *testing.T) {
	tiny(t)
	in := prepared(t, pairs(t, 25, ""))
	var first []Step
	for name, change := range map[string]func(*recipe.Recipe){
		"kept":   nil,
		"cached": func(r *recipe.Recipe) { r.Batch.Cache, r.Batch.SubBatch = "always", recipe.SubBatch{Tokens: 40} },
	} {
		t.Run(name, func(t *testing.T) {
			x := training(t, in, 10, change)
			steps, err := Measure(t.Context(), 1, 3, x.Step)
			if err != nil {
				t.Fatal(err)
			}
			for i, s := range steps {
				replayed := 0 // tokens, of what was not kept
				if s.Kept == 0 {
					replayed = s.Tokens
				}
				if s.SubBatches < 1 || s.Kept != 0 && s.Kept != s.SubBatches || s.Replayed != replayed || s.Pairs != 10 || s.Texts != 20 || !(s.Loss > 0) || !(s.Seconds > 0) || !(s.PeakGFLOPS > 0) {
					t.Errorf("step %d: %+v", i, s)
				}
			}
			// Two batches to an epoch: the second of the three is the first batch again.
			if steps[0].Tokens != steps[2].Tokens || steps[0].Tokens == steps[1].Tokens {
				t.Errorf("tokens %d, %d, %d", steps[0].Tokens, steps[1].Tokens, steps[2].Tokens)
			}
			if first == nil {
				first = steps
			}
			for i := range steps {
				if e := math.Abs(steps[i].Loss-first[i].Loss) / first[i].Loss; !(e <= 1e-5) || steps[i].GFLOP != first[i].GFLOP {
					t.Errorf("step %d: %+v and %+v", i, steps[i], first[i])
				}
			}
			r, err := x.Report(steps)
			if err != nil {
				t.Fatal(err)
			}
			tasks := map[string]float64{}
			sum := 0.0
			for _, s := range r.Stages {
				tasks[s.Stage] = s.TasksPerStep
				if s.Lane == "compute" {
					sum += s.MsPerStep
				}
			}
			if tasks["update"] != 1 || tasks["loss"] != 1 || tasks["embed"] < 1 || tasks["embed"] != tasks["backward"] || tasks["tokenize"] == 0 {
				t.Errorf("tasks %v", tasks)
			}
			if cached := name == "cached"; cached != (tasks["embed"] > 1) || cached != (r.KeptPercent == 0) || !cached && r.KeptPercent != 100 {
				t.Errorf("%v sub-batches, %v %% kept", tasks["embed"], r.KeptPercent)
			}
			if all := 1e3 * 3 * r.Seconds.Max; sum <= 0 || sum > all {
				t.Errorf("the compute lane was busy for %v ms a step of %v", sum, r.Seconds)
			}
			if r.Machine.Kernels == "" || r.PercentOfPeak <= 0 || r.Steps != 3 || r.Batch != 10 || !strings.HasPrefix(r.Model, "random weights, 2 layers of 32") {
				t.Errorf("%+v", r)
			}
		})
	}
}

// Nothing of a step is done before it is asked for, also when its rows come in several chunks.
func TestGate(t *testing.T) {
	tiny(t)
	x := training(t, prepared(t, pairs(t, 600, "")), 150, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range 3 {
		if _, err := x.Step(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
		x.mu.Lock()
		n := 0
		for _, s := range x.spans {
			if s.Stage == "tokenize" {
				n++
			}
		}
		x.mu.Unlock()
		if want := 2 * (i + 1); n != want { // 128 and 22 rows
			t.Errorf("after %d steps %d chunks were tokenized, want %d", i+1, n, want)
		}
	}
}

// A bad row, a batch that is too large and a cancelled context are errors, at once.
func TestTrainingErrors(t *testing.T) {
	tiny(t)
	in := prepared(t, pairs(t, 25, ""))
	r := recipe.Default()
	r.Batch.GlobalSize, r.Train.Precision = 26, "f32"
	if _, err := NewTraining(t.Context(), TrainingOptions{Input: in, Recipe: r}); err == nil || !strings.Contains(err.Error(), "--batch") {
		t.Errorf("error %v", err)
	}

	bad := *in
	bad.Data = pairs(t, 12, `{"q": "x", "p": null}`+"\n")
	x := training(t, &bad, 13, nil)
	if _, err := x.Step(t.Context()); err == nil || !strings.Contains(err.Error(), "pairs.jsonl:13") {
		t.Errorf("error %v", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	y := training(t, in, 10, nil)
	if _, err := y.Step(ctx); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := Measure(ctx, 0, 1000, y.Step); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// Embedding counts what the tokenizer gives, and a third of a training step's arithmetic.
func TestEmbedding(t *testing.T) {
	tiny(t)
	in := prepared(t, pairs(t, 25, ""))
	e, err := NewEmbedding(t.Context(), EmbeddingOptions{Input: in, MaxLength: 8, Batch: 60})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s, err := e.Step(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tokens, lengths := 0, []int{}
	for i := range 60 {
		n := len(e.tok.Encode(e.texts[i%25], 8))
		tokens, lengths = tokens+n, append(lengths, n)
	}
	if want := e.work.Forward(lengths) / 1e9; s.Tokens != tokens || s.Texts != 60 || !(math.Abs(s.GFLOP-want) <= 1e-12) {
		t.Errorf("%+v, want %d tokens and %v GFLOP", s, tokens, want)
	}
	if !strings.HasPrefix(e.texts[0], "the quick") || len(e.texts) != 25 {
		t.Errorf("%d texts, the first is %q", len(e.texts), e.texts[0])
	}
	if _, err := e.Report([]Step{s}); err != nil {
		t.Error(err)
	}
}

// Every op of the table runs, and has arithmetic or bytes to be measured by.
func TestOps(t *testing.T) {
	for _, bf16 := range []bool{false, true} {
		r, err := MeasureOps(t.Context(), OpsOptions{BF16: bf16, Pairs: 2, LossRows: 64, Only: map[bool]string{true: "attention"}[bf16]}, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range r.Ops {
			if (o.GBPerS > 0) == (o.GFLOPS > 0) || o.Ms.Min <= 0 || o.TensorBytes == 0 {
				t.Errorf("%+v", o)
			}
		}
	}
	if _, err := MeasureOps(t.Context(), OpsOptions{Only: "warp"}, 0); err == nil || !strings.Contains(err.Error(), "there are: gather; layer norm") {
		t.Errorf("error %v", err)
	}
}

// The loss's operands are what it says, and of so many rows no matrix of scores is among them.
func TestLossMemory(t *testing.T) {
	const rows = 4200 // whose scores are more than those that wait for the gradient
	r, err := MeasureOps(t.Context(), OpsOptions{Pairs: 1, LossRows: rows, Only: "loss"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	got, operands, scores := r.Ops[0].TensorBytes, int64(2*2*rows*384*4), int64(rows*rows*4)
	if got < operands || got > operands+scores/2 {
		t.Errorf("%d bytes; embeddings and gradient are %d, the scores would be %d", got, operands, scores)
	}
}
