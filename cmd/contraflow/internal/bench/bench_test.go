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

// counting adds up the arithmetic of products and attention as they are called.
type counting struct {
	gpustage.Stream
	products, attention float64
}

func (c *counting) MatMul(y, a, _ gpustage.Tensor, o gpustage.MatMul) {
	k := a.Cols
	if o.TransA {
		k = a.Rows
	}
	c.products += 2 * float64(y.Rows) * float64(y.Cols) * float64(k)
}

func (c *counting) Attention(_, _, q, _, _ gpustage.Tensor, o gpustage.Attention) {
	c.attention += 4 * float64(q.Rows) * float64(o.Seqs.MaxLen) * float64(q.Cols) // all rows of the test are equally long
}

func (c *counting) AttentionBackward(dq, _, _, _, _, _, _, _, _ gpustage.Tensor, o gpustage.Attention) {
	c.attention += 8 * float64(dq.Rows) * float64(o.Seqs.MaxLen) * float64(dq.Cols)
}

// StepWork is what the encoder's own calls of products and attention come to.
func TestStepWork(t *testing.T) {
	c := transformer.Config{Family: "bert", Vocab: 30, Hidden: 48, Layers: 3, Heads: 4, FeedForward: 80, MaxPositions: 20, TypeVocab: 2, NormEps: 1e-12}
	m, err := transformer.New(gpustage.Dry{}, c, transformer.Head{Normalize: true}, transformer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	dry, err := m.Device.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	s := &counting{Stream: dry}
	const rows, n = 5, 7
	r := transformer.Rows{IDs: make([]int32, rows*n), Cu: []int32{0}}
	var lengths []int
	for b := range rows {
		r.Cu, lengths = append(r.Cu, int32((b+1)*n)), append(lengths, n)
	}
	p := m.Forward(s, gpustage.DryArena(), r, true, true)
	forward := s.products + s.attention
	p.Backward(p.Embeddings(), m.Params)
	if got, want := s.products+s.attention, StepWork(c, lengths); got != want {
		t.Errorf("a step calls for %v, StepWork is %v", got, want)
	}
	if want := StepWork(c, lengths) / 3; forward != want {
		t.Errorf("a forward pass calls for %v, a third of StepWork is %v", forward, want)
	}
	if s.attention == 0 || s.products == 0 {
		t.Error("nothing was counted")
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
				if s.Pairs != 10 || s.Texts != 20 || !(s.Loss > 0) || !(s.Seconds > 0) || !(s.PeakGFLOPS > 0) {
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
				if e := math.Abs(steps[i].Loss-first[i].Loss) / first[i].Loss; e > 1e-5 || steps[i].GFLOP != first[i].GFLOP {
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
			if cached := name == "cached"; cached != (tasks["embed"] > 1) {
				t.Errorf("%v sub-batches", tasks["embed"])
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
	if want := StepWork(e.config, lengths) / 3e9; s.Tokens != tokens || s.Texts != 60 || math.Abs(s.GFLOP-want) > 1e-12 {
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

// The loss's operands are what it says, and no matrix of scores is among them.
func TestLossMemory(t *testing.T) {
	r, err := MeasureOps(t.Context(), OpsOptions{Pairs: 1, LossRows: 3000, Only: "loss"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	got, operands, scores := r.Ops[0].TensorBytes, int64(2*2*3000*384*4), int64(3000*3000*4)
	if got < operands || got > operands+scores/2 {
		t.Errorf("%d bytes; embeddings and gradient are %d, the scores would be %d", got, operands, scores)
	}
}
