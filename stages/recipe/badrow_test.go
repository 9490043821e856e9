package recipe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/collective"
	"contraflow/collective/sim"
	"contraflow/io/checkpoint"
	"contraflow/io/dataset"
	"contraflow/stages"
	"contraflow/stages/loss"
)

// A row that can't be used ends a run that has not looked at it before with all steps before its own: they are in a checkpoint, from which a run that
// skips the row goes on and ends with the bits of one that has skipped it from its beginning. So it is on one rank and on several, one of which alone
// reads the row, and whichever of a step's batches has it.
func TestBadRowLosesNothing(t *testing.T) {
	t.Parallel()
	j := newJob(t, 200)
	file := filepath.Join(j.dir, "data.jsonl")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		name string
		sets []string
		step int // that has the row, from 0
		last bool
	}{
		{"alone", []string{"batch.accumulate=1"}, 9, false},
		{"ranks", []string{"batch.accumulate=1", "mesh.replicate=2"}, 9, true},
		{"accumulate", []string{"batch.accumulate=3"}, 3, true},
		{"ranks accumulate", []string{"batch.accumulate=3", "mesh.replicate=3"}, 3, true},
		{"shards", []string{"batch.accumulate=2", "mesh.replicate=2", "mesh.shard=2", "mesh.parameters=streamed", "mesh.gradients=early"}, 4, true},
		{"first", []string{"batch.accumulate=2", "mesh.replicate=2"}, 0, true},
	} {
		if testing.Short() && i != 3 {
			continue
		}
		if err := os.WriteFile(file, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		sets := append(slices.Clip(c.sets), "batch.no_duplicates=false", "optimizer.schedule=constant", "optimizer.warmup_ratio=0", "train.epochs=1")
		sets = slices.Clip(sets)
		good, err := j.run(t, "good "+c.name, nil, 0, false, sets...)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		read := good.rows[c.step] // by rank
		rows := read[0]
		bad := rows[2]
		if c.last {
			rows = read[len(read)-1]
			bad = rows[len(rows)-1]
		}
		lines := bytes.Split(bytes.Clone(raw), []byte("\n"))
		lines[bad] = []byte(`{"q":"x","p":""}`)
		if err := os.WriteFile(file, bytes.Join(lines, []byte("\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		skip := append(slices.Clip(sets), "data.on_error=skip")
		whole, err := j.run(t, "whole "+c.name, nil, 0, false, skip...)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		out := "run " + c.name
		o, err := j.run(t, out, nil, 0, false, sets...)
		if err == nil || !errors.Is(err, dataset.ErrBadRow) {
			t.Fatalf("%s: %v", c.name, err)
		}
		for _, want := range []string{
			fmt.Sprintf("data.jsonl:%d, column %q: the text is empty; ", bad+1, "p"),
			fmt.Sprintf("checkpoints has step %d, the last one before it: --resume --set data.on_error=skip goes on from there, without such rows, and lists them in skipped.jsonl", c.step),
		} {
			if c.step == 0 && strings.HasPrefix(want, "checkpoints") {
				want = "no step came before it, and nothing is saved: " + skipRows
			}
			if !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "data.jsonl:") != 1 || strings.Count(err.Error(), "skip") != 2 {
				t.Errorf("%s: %v, want %q", c.name, err, want)
			}
		}
		for rank, said := range o.said { // whichever ends first
			if len(read) > 1 && fmt.Sprintf("rank %d: %v", len(read)-1, said) != err.Error() {
				t.Errorf("%s: rank %d ends with %v, the job with %v", c.name, rank, said, err)
			}
		}
		if len(o.losses) != c.step {
			t.Errorf("%s: %d steps, want %d", c.name, len(o.losses), c.step)
		}
		if c.step == 0 {
			continue
		}
		saved := func() string {
			names, err := filepath.Glob(filepath.Join(j.dir, out, "checkpoints", "*"))
			if err != nil || len(names) == 0 {
				t.Fatalf("%s: no checkpoints: %v", c.name, err)
			}
			return strings.Join(names, " ")
		}
		before := saved()
		if _, err := j.run(t, out, nil, 0, true, sets...); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("checkpoints has step %d, the last", c.step)) {
			t.Errorf("%s: going on with the row: %v", c.name, err)
		}
		if after := saved(); after != before {
			t.Errorf("%s: checkpoints %s, and after a run without a step %s", c.name, before, after)
		}
		o, err = j.run(t, out, nil, 0, true, skip...)
		if err != nil || o.summary.from != c.step || o.summary.Skipped != 1 {
			t.Fatalf("%s: %v: %+v", c.name, err, o.summary)
		}
		if o.summary.Counts != whole.summary.Counts || o.summary.Steps != whole.summary.Steps || o.summary.Loss != whole.summary.Loss {
			t.Errorf("%s: %+v, of a run that skipped the row from its beginning %+v", c.name, o.summary, whole.summary)
		}
		if !bytes.Equal(j.model(t, out), j.model(t, "whole "+c.name)) {
			t.Errorf("%s: the weights differ from those of a run that skipped the row from its beginning", c.name)
		}
	}
}

// ones is a loss that takes labels of 1 alone.
type ones struct{ loss.InfoNCE }

func (ones) CheckLabel(y float64) error {
	if y != 1 {
		return errors.New("want 1")
	}
	return nil
}

// What a program's own function says of a row ends the run in the same way, and so does what it makes of a row that no loss takes, or not its own.
func TestOwnRowLosesNothing(t *testing.T) {
	boom := errors.New("boom")
	j := newJob(t, 60)
	file := filepath.Join(j.dir, "data.jsonl")
	raw, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, bytes.ReplaceAll(raw, []byte(`{"p":`), []byte(`{"l":1,"p":`)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	bad := int64(-1)
	spoil := func(*dataset.Example) error { return boom }
	j.opts = []TrainOption{WithRow(func(e *dataset.Example) error {
		if e.Row == bad {
			return spoil(e)
		}
		return nil
	})}
	sets := []string{"batch.accumulate=1", "train.epochs=1", "data.train.0.label=l"}
	good, err := j.run(t, "good", nil, 0, false, sets...)
	if err != nil {
		t.Fatal(err)
	}
	fails := func(out, want string) {
		t.Helper()
		bad = good.rows[3][0][0]
		_, err := j.run(t, out, nil, 0, false, sets...)
		want = fmt.Sprintf("data.jsonl:%d: %s", bad+1, want)
		if err == nil || (out == "row") != errors.Is(err, boom) || !strings.Contains(err.Error(), want) || !strings.HasSuffix(err.Error(), "checkpoints has step 3, the last one before it: --resume goes on from there, if the row can be used then") {
			t.Errorf("%v, want %s", err, want)
		}
	}
	fails("row", "boom")
	bad = -1
	o, err := j.run(t, "row", nil, 0, true, sets...)
	if err != nil || o.summary.from != 3 || !bytes.Equal(j.model(t, "row"), j.model(t, "good")) {
		t.Errorf("%v, after step %d", err, o.summary.from)
	}
	spoil = func(e *dataset.Example) error { e.Label = float32(math.NaN()); return nil }
	fails("label", "the label is NaN: it must be a number")
	spoil = func(e *dataset.Example) error { e.Label = 2; return nil }
	j.opts = append(j.opts, WithLoss(ones{}))
	fails("loss", "the label is 2: want 1; the program's loss has to take the row, or recipe.WithRow to change it: data.on_error knows of neither; ")

	// The loss is asked of rows that no function of the program's has seen, too.
	j.opts = []TrainOption{WithLoss(ones{})}
	lines := bytes.Split(bytes.ReplaceAll(raw, []byte(`{"p":`), []byte(`{"l":1,"p":`)), []byte("\n"))
	lines[bad] = bytes.Replace(lines[bad], []byte(`"l":1`), []byte(`"l":3`), 1)
	if err := os.WriteFile(file, bytes.Join(lines, []byte("\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	fails("loss alone", "the label is 3: want 1; ")
}

// scoresOfOne is a loss that takes scores of 1 alone.
type scoresOfOne struct{ loss.InfoNCE }

func (scoresOfOne) CheckScore(y float64) error { return ones{}.CheckLabel(y) }

// scored are rows with scores and no labels.
type scored struct{ stages.Rows }

func (scored) HasLabels() bool { return false }
func (scored) HasScores() bool { return true }

// A program's loss is asked of each score of a row.
func TestOwnScores(t *testing.T) {
	o := own{loss: scoresOfOne{}}
	if !o.checks() || (own{loss: loss.InfoNCE{}}).checks() {
		t.Error("which losses check numbers")
	}
	if err := o.checkNumbers(&dataset.Example{Scores: []float32{1, 1}, Label: 2}, scored{}, 0); err != nil {
		t.Error(err)
	}
	if err := o.checkNumbers(&dataset.Example{Scores: []float32{1, 2}}, scored{}, 0); err == nil || err.Error() != "score 1 is 2: want 1" {
		t.Error(err)
	}
}

// A program's loss is asked of a row's negatives, whether it comes as texts or as token ids, and each dataset's own of its rows.
func TestOwnNegatives(t *testing.T) {
	texts, ids := func(n int) *dataset.Example { return &dataset.Example{Texts: make([]string, n)} }, func(n int) *dataset.Example { return &dataset.Example{IDs: make([][]int32, n)} }
	one, parts := own{loss: loss.Triplet{}}, own{loss: loss.ByDataset{loss.InfoNCE{}, loss.Triplet{}}}
	if !parts.checks() {
		t.Error("losses of several datasets are not asked")
	}
	for _, c := range []struct {
		o      own
		source int
		row    *dataset.Example
		takes  bool
	}{
		{one, 0, texts(2), false}, {one, 0, texts(3), true}, {one, 0, ids(2), false}, {one, 0, ids(3), true},
		{parts, 0, texts(2), true}, {parts, 1, texts(2), false}, {parts, 1, ids(3), true},
	} {
		if err := c.o.checkNegatives(c.row, c.source); (err == nil) != c.takes {
			t.Errorf("%T, dataset %d, %d texts, %d of ids: %v", c.o.loss, c.source, len(c.row.Texts), len(c.row.IDs), err)
		}
	}
}

// Where data is too small because rows can't be used, the error says how many and why the first one can't, of the dataset that is too small.
func TestTooFewForBadRows(t *testing.T) {
	j := newJob(t, 40)
	write := func(name string, lines ...string) string {
		t.Helper()
		path := filepath.Join(j.dir, name)
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var strs, empty, null []string
	for i := range 63 {
		null = append(null, `{"q": "one", "p": null}`)
		strs = append(strs, fmt.Sprintf(`{"q": "one %d", "p": "two %d"}`, i, i))
		empty = append(empty, `{"q": "one", "p": " "}`)
	}
	lists := write("lists.jsonl", append([]string{`{"q": "one", "p": ["two"]}`}, null...)...)
	none := write("none.jsonl", empty...)
	two := write("two.jsonl", append(slices.Clip(strs[:2]), empty...)...)
	one := func(path string) string { return fmt.Sprintf("data.train=[{path: %q, query: q, positive: p}]", path) }
	left := "; data.on_error: skip has left out 63 rows that can't be used, the first one: "
	for _, c := range []struct {
		name, train, drop, want string
	}{
		{"lists", one(lists), "true", "1 row, which has no negatives: it takes more data" + left + lists + `:2, column "p": the list is null or empty`},
		{"none", one(none), "true", "none of the 63 rows can be used" + left + none + `:1, column "p": the text is `},
		{"second", fmt.Sprintf("data.train=[{path: %q, query: q, positive: p}, {path: %q, query: q, positive: p}, {path: %q, query: q, positive: p}]", lists, none, two), "false",
			"data.train[1]: none of the 63 rows can be used" + left + none},
		{"few", one(two), "true", "only 2 rows: lower batch.global_size, or set batch.drop_last to false" + left + two + ":3, "},
	} {
		_, err := j.run(t, c.name, nil, 0, false, c.train, "data.on_error=skip", "batch.drop_last="+c.drop)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
}

// A plan of the first step, for a mesh that is on paper alone, says which of its rows can't be used, and the way out; so does what measures steps for it.
func TestForecastOfBadRow(t *testing.T) {
	j := newJob(t, 40)
	file := filepath.Join(j.dir, "data.jsonl")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, bytes.ReplaceAll(raw, []byte(`"p":"`), []byte(`"p":" ","z":"`)), 0o600); err != nil {
		t.Fatal(err)
	}
	x := j.opened(t, []string{"save.dir=" + filepath.Join(j.dir, "out"), "batch.no_duplicates=false"})
	for _, ranks := range []int{1, 2} {
		_, err := x.Forecast(t.Context(), collective.Mesh{Replicate: ranks, Shard: 1}, sim.Link{}, Rates{})
		_, measured := x.Calibrate(t.Context(), ranks, 1) // which the command does first
		for _, err := range []error{err, measured} {
			if !errors.Is(err, dataset.ErrBadRow) || !strings.HasSuffix(err.Error(), `column "p": the text is blank; `+skipRows) {
				t.Errorf("%d ranks: %v", ranks, err)
			}
		}
	}
}

// The way on from a row that can't be used is data.on_error: skip only where that is not what the run has had.
func TestWayOnFromRow(t *testing.T) {
	for _, c := range []struct {
		onError string
		row     bool
		want    string
	}{
		{"stop", true, "bad; no step came before it, and nothing is saved: " + skipRows},
		{"stop", false, "bad; no step came before it, and nothing is saved"},
		{"skip", true, "bad; no step came before it, and nothing is saved"},
	} {
		x := &Run{saves: &checkpoints{}}
		x.Recipe.Data.OnError = c.onError
		bad := &stages.RowsError{Err: errors.New("bad"), Row: c.row}
		if err := x.saveBefore(t.Context(), nil, bad, bad); err.Error() != c.want {
			t.Errorf("%s, %t: %v, want %s", c.onError, c.row, err, c.want)
		}
	}
}

// stopAt ends a context at the first file of a checkpoint, which waits until all ranks know.
type stopAt struct {
	checkpoint.FS
	stop  func()
	known <-chan struct{}
}

func (s stopAt) Create(path string) (checkpoint.File, error) {
	s.stop()
	<-s.known
	return s.FS.Create(path)
}

// A run that is stopped while it saves what came before a row that can't be used tells of both, and how it goes on.
func TestStoppedAtBadRow(t *testing.T) {
	j := newJob(t, 60)
	r, err := Parse("job", []byte(j.text), []string{"batch.accumulate=1", "train.epochs=1", "mesh.replicate=2", "data.shuffle=false", "batch.no_duplicates=false", "save.dir=" + filepath.Join(j.dir, "out")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = OnRanks(ctx, r, Place{}, Observer{}, func(x *Run) error {
		x.fs = stopAt{checkpoint.Disk{}, cancel, x.ranks.Comm.World.Done()}
		_, err := x.Train(ctx, WithRow(func(e *dataset.Example) error {
			if e.Row == 30 {
				return errors.New("boom")
			}
			return nil
		}))
		return err
	})
	way := "stopped: context canceled while what came before it was saved: --resume goes on from step 2 if " + filepath.Join(j.dir, "out", "checkpoints") + " has that, or else from the beginning, if the row can be used then"
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "data.jsonl:31: boom") || !strings.HasSuffix(err.Error(), way) {
		t.Errorf("%v, want %s", err, way)
	}
}

// Alone it saves that to the end all the same.
func TestStoppedAloneAtBadRow(t *testing.T) {
	j := newJob(t, 60)
	out := filepath.Join(j.dir, "out")
	x := j.opened(t, []string{"batch.accumulate=1", "train.epochs=1", "data.shuffle=false", "batch.no_duplicates=false", "save.dir=" + out})
	ctx, cancel := context.WithCancel(t.Context())
	x.fs = stopAt{checkpoint.Disk{}, cancel, ctx.Done()}
	_, err := x.Train(ctx, WithRow(func(e *dataset.Example) error {
		if e.Row == 30 {
			return errors.New("boom")
		}
		return nil
	}))
	const way = "checkpoints has step 2, the last one before it: --resume goes on from there, if the row can be used then"
	if err == nil || ctx.Err() == nil || !strings.Contains(err.Error(), "data.jsonl:31: boom") || !strings.HasSuffix(err.Error(), way) {
		t.Errorf("%v, want %s", err, way)
	}
	c, err := checkpoint.Open(filepath.Join(out, "checkpoints"), checkpoint.Disk{}).LoadChecked(2)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
