package recipe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"contraflow/collective"
	"contraflow/collective/local"
	"contraflow/io/dataset"
	"contraflow/stages"
)

// A row that the first pass over the data finds is found by all ranks: the error has no rank's number, whichever meets with it first.
func TestFirstPassNamesNoRank(t *testing.T) {
	j := newJob(t, 40)
	file := filepath.Join(j.dir, "bad.jsonl")
	if err := os.WriteFile(file, []byte(strings.Repeat(`{"q":"a","p":"b"}`+"\n", 30)+`{"q":"a","p":""}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		_, err := j.run(t, "out", nil, 0, false, "mesh.replicate=3", "batch.no_duplicates=true", "data.train=[{path: "+file+", query: q, positive: p}]")
		if want := "data.train[0]: " + file + `:31, column "p": the text is empty; ` + skipRows; err == nil || !errors.Is(err, dataset.ErrBadRow) || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// Of several processes rank 0's tells of a row that all have found; where it does not find it, the rank that has is named.
func TestAlikeTold(t *testing.T) {
	bad := &dataset.RowError{Location: dataset.Location{File: "a.jsonl", Line: 3}, Reason: "bad"}
	var end *collective.RankError

	ws := local.New(2)
	late := make(chan error)
	go func() {
		err := alike(ws[1], bad)
		ws[1].Abort(err)
		late <- ofProcess(ws[1], err)
	}()
	time.Sleep(20 * time.Millisecond) // rank 1 is first, and waits
	if ws[0].Err() != nil {
		t.Fatal("rank 1 has ended the job")
	}
	err := alike(ws[0], bad)
	ws[0].Abort(err)
	if err := ofProcess(ws[0], err); errors.As(err, &end) || err.Error() != "a.jsonl:3: bad" {
		t.Errorf("rank 0: %v", err)
	}
	if err := <-late; !errors.Is(err, ErrFirstTells) || !errors.Is(err, bad) {
		t.Errorf("rank 1: %v", err)
	}

	defer func(d time.Duration) { alikeTakes = d }(alikeTakes)
	alikeTakes = time.Millisecond
	ws = local.New(2)
	err = alike(ws[1], bad)
	ws[1].Abort(err)
	for r, w := range ws {
		if err := ofProcess(w, err); !errors.As(err, &end) || end.Rank != 1 || errors.Is(err, ErrFirstTells) {
			t.Errorf("rank %d: %v", r, err)
		}
	}

	ws = local.New(2)
	ws[0].Abort(errors.New("another"))
	err = alike(ws[1], bad)
	if err := ofProcess(ws[1], err); err.Error() != "rank 0: another" {
		t.Errorf("rank 1: %v", err)
	}
}

// The ranks of a process have one index of a dataset, for as long as they need it.
func TestOneIndex(t *testing.T) {
	j := newJob(t, 40)
	r, err := Parse("job", []byte(j.text), []string{"save.dir=" + filepath.Join(j.dir, "run"), "mesh.replicate=3", "batch.no_duplicates=true"})
	if err != nil {
		t.Fatal(err)
	}
	var of [3]dataset.TextHashes
	err = OnRanks(t.Context(), r, Place{}, Observer{}, func(x *Run) error {
		of[x.ranks.Rank()] = x.parts[0].Texts
		if x.shared.passes[0].index != nil {
			return errors.New("they would have it without need, too")
		}
		if n := reflect.ValueOf(&x.shared.counts).Elem().FieldByName("all").Len(); n != int(r.Train.Epochs) {
			return fmt.Errorf("they have counted the batches of %d epochs together, of %v", n, r.Train.Epochs)
		}
		return nil
	})
	if err != nil || of[0] == nil || of[1] != of[0] || of[2] != of[0] {
		t.Errorf("%p: %v", of, err)
	}
}

// A rank waits for rank 0's index no longer than the job lasts, and takes none of other data.
func TestOneIndexOfOthers(t *testing.T) {
	d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{filepath.Join(newJob(t, 40).dir, "data.jsonl")}, Query: "q", Positive: "p"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	x := &Run{ranks: &stages.Replicas{Comm: &collective.Comm{World: local.New(2)[1]}}, shared: newShared(1, 2)}
	ctx, end := context.WithCancelCause(t.Context())
	over := errors.New("rank 0 has failed")
	time.AfterFunc(20*time.Millisecond, func() { end(over) })
	if _, err := x.firstPass(ctx, 0, d); err != over {
		t.Errorf("of a job that is over: %v", err)
	}
	x.shared.passes[0].err = over // of its data
	close(x.shared.passes[0].done)
	if index, err := x.firstPass(t.Context(), 0, d); err != nil || len(index.Hashes(nil, 0, 0, 39)) != 2 {
		t.Errorf("of other data: %v", err)
	}
	x.shared.passes[0].of = d.Fingerprint()
	if _, err := x.firstPass(t.Context(), 0, d); err != over {
		t.Errorf("of the same data, which can't be used: %v", err)
	}
}
