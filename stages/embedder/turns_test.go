package embedder

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"contraflow/gpustage"
	"contraflow/io/dataset"
	"contraflow/testdata/goldens"
)

// A call with few texts is done long before one with many that began earlier, and one whose time is up while others compute does not wait for them.
func TestTurns(t *testing.T) {
	e, err := Load(goldens.Path(t, "bert/minilm-tiny"), PassTokens(20))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	texts := make([]string, 2000)
	for i := range texts {
		texts[i] = fmt.Sprint("the river and the stone ", i)
	}
	want, err := e.Embed(t.Context(), texts[:40])
	if err != nil {
		t.Fatal(err)
	}
	var long atomic.Bool // the long call has ended
	var wait sync.WaitGroup
	began := make(chan struct{})
	wait.Go(func() {
		close(began)
		got, err := e.Embed(t.Context(), texts)
		long.Store(true)
		if err != nil || fmt.Sprint(got[:40]) != fmt.Sprint(want) {
			t.Errorf("the long call: %v, or other embeddings", err)
		}
	})
	<-began
	before := 0
	for range 5 {
		got, err := e.Embed(t.Context(), texts[:2])
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want[:2]) {
			t.Errorf("%v, or other embeddings", err)
		}
		if !long.Load() {
			before++
		}
	}
	wait.Wait()
	if before == 0 {
		t.Error("five short calls have all waited for the long one")
	}

	_, give, err := e.engine.Turns.Take(t.Context()) // somebody's pass
	if err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, boom)
	defer cancel()
	r := &dataset.Retrieval{QueryIDs: []string{"q"}, Queries: texts[:1], DocIDs: []string{"d"}, Docs: texts[1:2], Judgements: []dataset.Judgement{{Relevance: 1}}}
	task, err := e.NewTask(t.Context(), r, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Embed(ctx, texts[:1]); !errors.Is(err, boom) {
		t.Errorf("Embed: %v", err)
	}
	if _, err := e.Evaluate(ctx, task); !errors.Is(err, boom) {
		t.Errorf("Evaluate: %v", err)
	}
	give()
	if res, err := e.Evaluate(t.Context(), task); err != nil || res.Means[0] != 1 {
		t.Errorf("%v, %v", res, err)
	}
}

// After Close calls say so: those that come then, and those that waited.
func TestClosed(t *testing.T) {
	e, err := Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	r := &dataset.Retrieval{QueryIDs: []string{"q"}, Queries: []string{"a"}, DocIDs: []string{"d"}, Docs: []string{"b"}, Judgements: []dataset.Judgement{{Relevance: 1}}}
	task, err := e.NewTask(t.Context(), r, "", "")
	if err != nil {
		t.Fatal(err)
	}
	_, give, err := e.engine.Turns.Take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			if _, err := e.Embed(t.Context(), []string{"a"}); err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		})
		wait.Go(func() {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	give()
	wait.Wait()
	for what, err := range map[string]error{
		"Embed":      second(e.Embed(t.Context(), []string{"a"})),
		"of nothing": second(e.Embed(t.Context(), nil)),
		"Evaluate":   second(e.Evaluate(t.Context(), task)),
		"Similarity": second(e.Similarity(t.Context(), "", []string{"a"}, []string{"b"})),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// A call that waited while the model was closed finds it closed, and leaves the turn to others; one whose pass failed has given it back.
func TestTurnsGivenBack(t *testing.T) {
	e, err := Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	within := func(what string, f func() error) error {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- f() }()
		select {
		case err := <-done:
			return err
		case <-time.After(20 * time.Second):
			t.Fatalf("%s waits for a turn that nobody has", what)
			return nil
		}
	}
	if err := e.engine.Embed(t.Context(), [][]int32{{1 << 20}}, func(int, []float32) {}); err == nil {
		t.Fatal("a token that the model does not have was embedded")
	}
	if err := within("a call after one that failed", func() error { return second(e.Embed(t.Context(), []string{"a"})) }); err != nil {
		t.Error(err)
	}
	_, give, err := e.engine.Turns.Take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	waits, embedded := waiting{t.Context(), make(chan struct{}, 1)}, make(chan error, 1)
	go func() { embedded <- e.engine.Embed(waits, [][]int32{{1}}, func(int, []float32) {}) }()
	<-waits.said
	e.engine.Turns.closed.Store(true) // as Close does, between two turns
	give()
	if err := <-embedded; !errors.Is(err, ErrClosed) {
		t.Errorf("a call that waited while the model was closed: %v", err)
	}
	e.engine.Turns.closed.Store(false)
	if err := within("Close", e.Close); err != nil {
		t.Error(err)
	}
	if err := within("Close after Close", e.Close); err != nil {
		t.Error(err)
	}
}

// waiting is a context that says when somebody begins to wait for its end.
type waiting struct {
	context.Context
	said chan struct{}
}

func (w waiting) Done() <-chan struct{} {
	select {
	case w.said <- struct{}{}:
	default:
	}
	return w.Context.Done()
}

func second[T any](_ T, err error) error { return err }

// Tasks that can't be measured, or whose numbers are of nothing, are errors.
func TestTaskErrors(t *testing.T) {
	e, err := Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	good := dataset.Retrieval{QueryIDs: []string{"q"}, Queries: []string{"a"}, DocIDs: []string{"d"}, Docs: []string{"b"}, Judgements: []dataset.Judgement{{Relevance: 1}}}
	for want, change := range map[string]func(*dataset.Retrieval){
		"1 queries have 0 ids":                     func(r *dataset.Retrieval) { r.QueryIDs = nil },
		"1 documents 2":                            func(r *dataset.Retrieval) { r.DocIDs = []string{"d", "e"} },
		"judgement 0 is of query 0 and document 1": func(r *dataset.Retrieval) { r.Judgements = []dataset.Judgement{{Doc: 1}} },
		"missed judgement 0 is of query -1":        func(r *dataset.Retrieval) { r.Missed = []dataset.MissedJudgement{{Query: -1}} },
		"missed judgement 0 is of query 1":         func(r *dataset.Retrieval) { r.Missed = []dataset.MissedJudgement{{Query: 1}} },
	} {
		r := good
		change(&r)
		if _, err := NewTask(t.Context(), &r, Text{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	bare, err := NewTask(t.Context(), &good, Text{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Evaluate(t.Context(), bare); err == nil || !strings.Contains(err.Error(), "made without a tokenizer") {
		t.Error(err)
	}
	if _, err := e.Similarity(t.Context(), "", []string{"a"}, nil); err == nil || !strings.Contains(err.Error(), "1 texts and 0") {
		t.Error(err)
	}
}

// Who has the turn at one model has none at another.
func TestTurnsOfAnother(t *testing.T) {
	one, other := NewTurns(), NewTurns()
	ctx, give, err := one.Take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer give()
	_, second, err := other.Take(ctx)
	if err != nil || len(other.c) != 1 {
		t.Fatalf("%v, or no turn was taken", err)
	}
	if second(); len(other.c) != 0 {
		t.Error("the turn was not given back")
	}
}

// A call whose caller's function panics gives its turn back: a server that goes on serves others, and closes the model.
func TestTurnAfterPanic(t *testing.T) {
	told := func(int, int) { panic("told") }
	e, err := Load(goldens.Path(t, "bert/minilm-tiny"), Progress(func(done, total int) { told(done, total) }))
	if err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func() error{
		"progress": func() error { _, err := e.Embed(t.Context(), []string{"a cat"}); return err },
		"yield": func() error {
			return e.engine.Embed(t.Context(), [][]int32{{5}}, func(int, []float32) { panic("yield") })
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic: ", name)
				}
			}()
			t.Errorf("%s: %v", name, call())
		}()
		if n := len(e.engine.Turns.c); n > 0 {
			t.Fatal("the turn was not given back: ", name)
		}
	}
	told = func(int, int) {}
	if _, err := e.Embed(t.Context(), []string{"a cat"}); err != nil {
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// paired is a sharing of two ranks, of which one is here.
type paired struct {
	alone
	rank int
}

func (p *paired) Rank() int                                             { return p.rank }
func (*paired) Size() int                                               { return 2 }
func (*paired) Gather(_ gpustage.Stream, _, _ gpustage.Tensor, _ []int) {}

// How far a call is, of texts on all ranks, the first rank tells.
func TestToldOfRanks(t *testing.T) {
	for rank, want := range []string{"[2 3]", "[]"} {
		var told []int
		e, err := Load(goldens.Path(t, "bert/minilm-tiny"), PassTokens(1), Progress(func(done, total int) { told = append(told, done) }))
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		e.engine.Ranks = &paired{rank: rank}
		if err := e.engine.Embed(t.Context(), [][]int32{{5}, {6}, {7}}, func(int, []float32) {}); err != nil {
			t.Error(err)
		}
		if fmt.Sprint(told) != want {
			t.Errorf("rank %d told %v, want %s", rank, told, want)
		}
	}
}
