//go:build beam

package onbeam

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/beam/sdks/v2/go/pkg/beam/options/jobopts"

	"contraflow/io/dataset"
	"contraflow/io/prep"
)

// raw is 4,000 rows in two files, a tenth of them exact and a tenth near duplicates, with some of every other trouble.
func raw(t testing.TB) prep.Config {
	t.Helper()
	dir := t.TempDir()
	state := uint64(1)
	next := func(n int) int {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		return int(state % uint64(n))
	}
	var docs [][]string
	var queries []string
	for file := range 2 {
		var b strings.Builder
		for i := range 2000 {
			query := fmt.Sprintf("query %d of the words", next(100000))
			doc := make([]string, 30+next(40))
			for k := range doc {
				doc[k] = fmt.Sprint("w", next(2000))
			}
			if len(docs) > 10 {
				switch of := next(len(docs)); next(10) {
				case 0:
					query, doc = queries[of], docs[of]
				case 1:
					doc = append([]string(nil), docs[of]...)
					for range next(4) {
						doc[next(len(doc))] = "edit"
					}
				case 2:
					if i%4 == 0 {
						doc = doc[:2]
					}
				}
			}
			queries, docs = append(queries, query), append(docs, doc)
			js, err := json.Marshal(map[string]string{"query": query, "positive": " " + strings.Join(doc, "  ")})
			if err != nil {
				t.Fatal(err)
			}
			b.Write(append(js, '\n'))
			if i%500 == 7 {
				b.WriteString("{\"query\": null, \"positive\": \"x\"}\nno json\n")
			}
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.jsonl", file)), []byte(b.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	c := prep.Default()
	c.Input = []prep.Input{
		{Name: "first", Path: []string{filepath.Join(dir, "0.jsonl")}, Query: "query", Positive: "positive"},
		{Name: "second", Path: []string{filepath.Join(dir, "1.jsonl")}, Query: "query", Positive: "positive"},
	}
	c.Filter.Document = prep.Range{Min: 3}
	c.Dedupe.Near.Column = "positive"
	c.Split.Dev = 0.1
	c.Mix.Kind = "balanced"
	c.Output.Dir, c.Output.Shards = filepath.Join(t.TempDir(), "out"), 2
	return c
}

// sameFiles compares two folders byte for byte.
func sameFiles(t *testing.T, got, want string) {
	t.Helper()
	a, err := filepath.Glob(filepath.Join(want, "*"))
	if err != nil || len(a) < 4 {
		t.Fatalf("%d files in %s (%v)", len(a), want, err)
	}
	b, _ := filepath.Glob(filepath.Join(got, "*"))
	if len(a) != len(b) {
		t.Errorf("%d files, want %d", len(b), len(a))
	}
	for _, path := range a {
		x, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		y, err := os.ReadFile(filepath.Join(got, filepath.Base(path)))
		if err != nil {
			t.Error(err)
		} else if string(x) != string(y) {
			t.Errorf("%s differs", filepath.Base(path))
		}
	}
}

func local(t *testing.T, c prep.Config) (prep.Config, *prep.Stats) {
	t.Helper()
	c.Output.Dir = filepath.Join(t.TempDir(), "local")
	s, err := prep.Run(t.Context(), c, prep.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

func TestPrismEqualsLocal(t *testing.T) {
	full := raw(t)
	plain := full
	plain.Dedupe, plain.Input = prep.Dedupe{Exact: "none", Near: full.Dedupe.Near}, full.Input[:1]
	plain.Dedupe.Near.Column, plain.Mix.Kind, plain.Filter.Unit = "", "", "" // which are completed
	near := full
	near.Dedupe.Exact, near.Mix.Kind = "none", "proportional"
	repeats := full
	repeats.Dedupe.Near.Column, repeats.Mix.Repeat = "", 2.5
	repeats.Tokenize = prep.Tokenize{Model: filepath.Join("..", "..", "..", "testdata", "golden", "tokenize", "uncased"), MaxLength: prep.Lengths{Query: 8, Document: 60}}
	for name, c := range map[string]prep.Config{"everything": full, "no comparison": plain, "near only": near, "repeats": repeats} {
		want, stats := local(t, c)
		c.Output.Dir = filepath.Join(t.TempDir(), "out")
		counters := map[string]int64{}
		got, err := Run(t.Context(), c, Options{Runner: "prism", counters: counters})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		sameFiles(t, c.Output.Dir, want.Output.Dir)
		for rule, r := range stats.Rules {
			if got.Rules[rule] == nil || got.Rules[rule].Dropped != r.Dropped {
				t.Errorf("%s: %s drops %+v, want %d", name, rule, got.Rules[rule], r.Dropped)
			}
			if counters[rule] != r.Dropped {
				t.Errorf("%s: Beam's counter of %s is %d, want %d", name, rule, counters[rule], r.Dropped)
			}
		}
		if name == "everything" && len(stats.Rules) < 5 {
			t.Errorf("only %d rules had work", len(stats.Rules))
		}
		if got.Repeated() != stats.Repeated() || (name == "repeats") != (stats.Repeated() > 0) || got.Cut() != stats.Cut() || (name == "repeats") != (stats.Cut() > 0) {
			t.Errorf("%s: %d rows are repeats, want %d; %d texts are cut, want %d", name, got.Repeated(), stats.Repeated(), got.Cut(), stats.Cut())
		}
	}
}

// TestErrorNamesRow: what is wrong with a file comes through the runner, nothing looks complete, and an earlier output is as it was.
func TestErrorNamesRow(t *testing.T) {
	c := raw(t)
	if _, err := prep.Run(t.Context(), c, prep.Options{}); err != nil {
		t.Fatal(err)
	}
	earlier := filepath.Join(t.TempDir(), "earlier")
	if err := os.CopyFS(earlier, os.DirFS(c.Output.Dir)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "damaged.parquet")
	w, err := dataset.NewParquetWriter(path, dataset.OutColumn{Name: "query"}, dataset.OutColumn{Name: "positive"})
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for i := range 5000 {
		texts = append(texts, fmt.Sprint("text ", i*i))
	}
	if err := errors.Join(w.Write(texts, texts), w.Close()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 200; i < 260; i++ {
		b[i] ^= 0x55
	}
	if err := os.WriteFile(path, b, 0o666); err != nil {
		t.Fatal(err)
	}
	c.Input = c.Input[:1]
	c.Input[0].Path, c.Mix.Kind = []string{path}, "proportional"
	over := c
	c.Output.Dir = filepath.Join(t.TempDir(), "out")
	_, err = Run(t.Context(), c, Options{Runner: "prism"})
	if err == nil || !strings.HasPrefix(err.Error(), "prism: "+path+": row group 0, column") {
		t.Errorf("got %v", err)
	}
	if _, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{filepath.Join(c.Output.Dir, "*.parquet")}, Query: "query", Positive: "positive"}); err == nil {
		t.Error("half-written output was read")
	}
	_, err = Run(t.Context(), over, Options{Runner: "prism", Overwrite: true})
	if err == nil || !strings.Contains(err.Error(), "damaged.parquet: row group 0, column") {
		t.Errorf("over an earlier output: %v", err)
	}
	sameFiles(t, over.Output.Dir, earlier)
	d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{filepath.Join(over.Output.Dir, "*.parquet")}, Query: "query", Positive: "positive"})
	if err != nil {
		t.Fatalf("the earlier output is no longer one: %v", err)
	}
	d.Close()
}

// Of a runner that it does not know Beam ends the process.
func TestUnknownRunner(t *testing.T) {
	for _, name := range []string{"", "prysm"} {
		if _, err := Run(t.Context(), raw(t), Options{Runner: name}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("no runner %q: want prism, universal, dataflow", name)) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestPaths: paths are named from a folder whose name is a glob's, some in full, and the output is written over one that is its own input.
func TestPaths(t *testing.T) {
	write := func() (top string) {
		top = t.TempDir()
		here := filepath.Join(top, "a [b] *")
		for i, name := range []string{"z/1.jsonl", "a [b] */2.jsonl", "a [b] */sub/1.jsonl", "eval.jsonl"} {
			path := filepath.Join(top, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			for k := range 20 {
				fmt.Fprintf(&b, "{\"query\": \"query %d\", \"positive\": \"document %d\"}\n", k%7*(i+1), k)
			}
			if err := os.WriteFile(path, []byte(b.String()), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		t.Chdir(here)
		return top
	}
	var outs []string
	for _, beam := range []bool{false, true} {
		run := func(c prep.Config, overwrite bool) {
			t.Helper()
			var err error
			if beam {
				_, err = Run(t.Context(), c, Options{Runner: "prism", Overwrite: overwrite})
			} else {
				_, err = prep.Run(t.Context(), c, prep.Options{Overwrite: overwrite})
			}
			if err != nil {
				t.Fatalf("beam %t: %v", beam, err)
			}
		}
		top := write()
		c := prep.Default()
		c.Input = []prep.Input{{Path: []string{"../z/1.jsonl", "*/1.jsonl", filepath.Join(top, "a [b] *", "2.jsonl")}, Query: "query", Positive: "positive"}}
		c.Decontaminate.Against = []prep.Against{{Path: []string{"../eval.jsonl"}, Columns: []string{"query"}}}
		c.Output = prep.Output{Dir: "../out", Shards: 2}
		run(c, false)
		again := c
		again.Input = []prep.Input{{Path: []string{"../out/train-*.parquet"}, Query: "query", Positive: "positive"}}
		again.Decontaminate, again.Filter.Document, again.Filter.Unit = prep.Decontaminate{}, prep.Range{Min: 11}, "characters"
		second := again
		second.Output.Dir = "../second"
		run(second, false)
		run(again, true)
		outs = append(outs, top)
	}
	for _, out := range []string{"out", "second"} {
		if sameFiles(t, filepath.Join(outs[1], out), filepath.Join(outs[0], out)); t.Failed() {
			t.Fatalf("in %s", out)
		}
	}
}

// A run's flags are its own, and those with which nothing could come of it are refused before anything is written.
func TestFlags(t *testing.T) {
	c := raw(t)
	for _, f := range []struct{ runner, flags, want string }{
		{"prism", "--nonsense", "flags for Beam: flag provided but not defined: -nonsense"},
		{"prism", "--parallelism=3 x", `flags for Beam: unexpected argument "x"`},
		{"prism", "--async", "flags for Beam: --async: a run waits for the job"},
		{"universal", "--environment_type=LOOPBACK --resource_hints=min_ram=1GB", "flags for Beam: --endpoint is missing"},
		{"universal", "--endpoint=localhost:1", "flags for Beam: --worker_binary is missing"},
		{"dataflow", "--project=p", "flags for Beam: --worker_binary is missing"},
		{"prism", "--environment_type=DOCKER", "flags for Beam: --worker_binary is missing"},
	} {
		if _, err := Run(t.Context(), c, Options{Runner: f.runner, Flags: strings.Fields(f.flags)}); err == nil || !strings.Contains(err.Error(), f.want) {
			t.Errorf("%s %s: %v, want %q", f.runner, f.flags, err, f.want)
		}
		if _, err := os.Stat(c.Output.Dir); err == nil {
			t.Errorf("%s %s: the output folder is there", f.runner, f.flags)
		}
	}
	for _, flags := range []string{"--endpoint=localhost:1 --worker_binary=x", "--endpoint=localhost:1 --environment_type=LOOPBACK"} {
		_, restore, err := setFlags(Options{Runner: "universal", Flags: strings.Fields(flags)})
		if err != nil {
			t.Fatalf("%s: %v", flags, err)
		}
		restore()
	}
	c.Input, c.Dedupe.Near.Column = c.Input[:1], ""
	before := []any{*jobopts.Parallelism, *jobopts.Async, *jobopts.Endpoint, *jobopts.EnvironmentType, jobopts.ResourceHints.String(), flag.Args()}
	if _, err := Run(t.Context(), c, Options{Runner: "prism", Flags: []string{"--parallelism=3", "--resource_hints=min_ram=1GB"}}); err != nil {
		t.Error(err)
	}
	if after := []any{*jobopts.Parallelism, *jobopts.Async, *jobopts.Endpoint, *jobopts.EnvironmentType, jobopts.ResourceHints.String(), flag.Args()}; !reflect.DeepEqual(after, before) || *jobopts.Parallelism == 3 {
		t.Errorf("after a run Beam's flags are %v, before it %v", after, before)
	}
}

// Runners start a worker by a flag: a folder may have its name.
func TestWorker(t *testing.T) {
	for line, want := range map[string]bool{
		"--worker --id=1": true, "--id=1 --worker=true": true, "-worker": true,
		"prep --out worker --set worker=1": false, "--workers=2 -- --worker_binary=x": false, "": false,
	} {
		if got := asWorker(strings.Fields(line)); got != want {
			t.Errorf("%q: %t", line, got)
		}
	}
}

// A shard's first row is its own, as its last is.
func TestShardOf(t *testing.T) {
	first := []int64{0, 10, 25}
	for id, want := range map[int64]int{0: 0, 9: 0, 10: 1, 24: 1, 25: 2, 99: 2} {
		if got := shardOf(first, id); got != want {
			t.Errorf("row %d is of shard %d, want %d", id, got, want)
		}
	}
}

// Runners hand over a group in any order: the first row of equal ones is kept, and the first row that one repeats is said.
func TestAnyOrder(t *testing.T) {
	each := func(recs [][]byte) func(*[]byte) bool {
		return func(rec *[]byte) bool {
			if len(recs) == 0 {
				return false
			}
			*rec, recs = recs[0], recs[1:]
			return true
		}
	}
	id := func(id uint64) []byte { return binary.BigEndian.AppendUint64(nil, id) }
	for _, rows := range [][][]byte{{id(3), id(7), id(9)}, {id(9), id(3), id(7)}, {id(7), id(9), id(3)}} {
		var kept []int64
		dropped := map[int]prep.Verdict{}
		(&exactFn{First: []int64{0, 8}}).ProcessElement("", each(rows), func(rec []byte) { kept = append(kept, idOf(rec)) }, func(shard int, rec []byte) {
			for of, v := range gather(each([][]byte{rec})) {
				dropped[shard*100+int(of)] = v
			}
		})
		want := map[int]prep.Verdict{7: {Rule: prep.Duplicate, Of: 3, Pass: true}, 109: {Rule: prep.Duplicate, Of: 3, Pass: true}}
		if !slices.Equal(kept, []int64{3}) || !maps.Equal(dropped, want) {
			t.Errorf("of %v %v is kept and %v dropped, want 3 and %v", rows, kept, dropped, want)
		}
	}
	for _, drops := range [][][]byte{{{}, dropRecord(7, isNear, 2), dropRecord(7, isNear, 5)}, {dropRecord(7, isNear, 5), dropRecord(7, isNear, 2), {}}} {
		if got, want := gather(each(drops)), (map[int64]prep.Verdict{7: {Rule: prep.NearDuplicate, Of: 2, Pass: true}}); !maps.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
}

// Workers elsewhere run in another folder: every local path is a full one for them, and the configuration that the caller holds is as it was.
func TestAbsolute(t *testing.T) {
	here := filepath.Join(t.TempDir(), "a [b]")
	if err := os.Mkdir(here, 0o777); err != nil {
		t.Fatal(err)
	}
	t.Chdir(here)
	if err := os.WriteFile("x[1].jsonl", nil, 0o666); err != nil {
		t.Fatal(err)
	}
	given := prep.Config{
		Input:         []prep.Input{{Path: []string{"x[1].jsonl", "*.jsonl", "s3://bucket/*.jsonl", filepath.Join(here, "y.jsonl")}}},
		Decontaminate: prep.Decontaminate{Against: []prep.Against{{Path: []string{"eval.jsonl", "hf://datasets/a/b"}}}},
		Tokenize:      prep.Tokenize{Model: "model"}, Output: prep.Output{Dir: "out"},
	}
	c := given
	if err := absolute(&c); err != nil {
		t.Fatal(err)
	}
	got := append(append([]string{c.Output.Dir, c.Tokenize.Dir, c.Tokenize.Model}, c.Input[0].Path...), c.Decontaminate.Against[0].Path...)
	want := []string{filepath.Join(here, "out"), filepath.Join(here, "model"), "model", filepath.Join(here, "x[1].jsonl"), filepath.Join(dataset.InGlob(here), "*.jsonl"),
		"s3://bucket/*.jsonl", filepath.Join(here, "y.jsonl"), filepath.Join(here, "eval.jsonl"), "hf://datasets/a/b"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if given.Input[0].Path[1] != "*.jsonl" || given.Decontaminate.Against[0].Path[0] != "eval.jsonl" {
		t.Errorf("the caller's is changed: %q, %q", given.Input[0].Path, given.Decontaminate.Against[0].Path)
	}
}

// Who waits for another run of the process can be interrupted.
func TestWaits(t *testing.T) {
	running <- struct{}{}
	defer func() { <-running }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	c := prep.Default()
	c.Input = []prep.Input{{Path: []string{"x.jsonl"}, Query: "query", Positive: "positive"}}
	c.Output.Dir = filepath.Join(t.TempDir(), "out")
	if _, err := Run(ctx, c, Options{Runner: "prism"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// A job ends with its run, once it has begun.
func TestAfterStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	job, started, end := afterStart(ctx)
	defer end()
	cancel()
	time.Sleep(20 * time.Millisecond)
	if job.Err() != nil {
		t.Error("it has ended before it began")
	}
	started()
	started() // by another worker
	<-job.Done()
	begun, started, end := afterStart(t.Context())
	if started(); begun.Err() != nil {
		t.Error("it has ended without its run")
	}
	if end(); begun.Err() == nil {
		t.Error("it goes on after its run")
	}
}

// A run that is interrupted takes back what it has begun, and the next one in the process is as the first.
func TestInterrupted(t *testing.T) {
	c := raw(t)
	c.Dedupe.Near.Column = ""
	want, _ := local(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			if begun, _ := filepath.Glob(filepath.Join(c.Output.Dir, prep.Temporary)); len(begun) > 0 {
				cancel() // before there is a job
			}
			time.Sleep(time.Millisecond)
		}
	}()
	_, err := Run(ctx, c, Options{Runner: "prism"})
	cancel()
	if <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if left, _ := os.ReadDir(c.Output.Dir); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	if _, err := Run(t.Context(), c, Options{Runner: "prism"}); err != nil {
		t.Fatal(err)
	}
	sameFiles(t, c.Output.Dir, want.Output.Dir)
}

// A worker elsewhere opens a run's inputs once, for all of its bundles: those that come after the first has ended, or has failed, have them too.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "in.jsonl")
	c := prep.Config{Input: []prep.Input{{Path: []string{path}, Query: "query", Positive: "positive"}}, Output: prep.Output{Dir: filepath.Join(dir, "out")}}
	config, err := c.JSON()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(t.Context(), config); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	if err := os.WriteFile(path, []byte("{\"query\": \"a\", \"positive\": \"b\"}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	first, end := context.WithCancel(t.Context())
	end()
	x, err := open(first, config)
	if err != nil {
		t.Fatalf("by a bundle that is ended: %v", err)
	}
	defer x.Close()
	if again, err := open(t.Context(), config); err != nil || again != x {
		t.Errorf("again: %p, %v, want %p", again, err, x)
	}
	forget(config)
	if _, err := open(t.Context(), config); err == nil || err.Error() != "the run has ended" {
		t.Errorf("by a worker that outlives the run: %v", err)
	}
}

// What a user should know of the inputs is told whatever runs it.
func TestNotes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in.jsonl")
	if err := os.WriteFile(path, []byte("{\"query\": \"a\", \"positive\": \"['b', 'c']\"}\n{\"query\": \"d\", \"positive\": \"e\"}\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	c := prep.Config{Input: []prep.Input{{Path: []string{path}, Query: "query", Positive: "positive"}}, Output: prep.Output{Dir: filepath.Join(t.TempDir(), "out")}}
	var notes []string
	if _, err := Run(t.Context(), c, Options{Runner: "prism", Note: func(n string) { notes = append(notes, n) }}); err != nil || len(notes) != 1 || !strings.Contains(notes[0], ":1, column \"positive\": the text is a list") {
		t.Errorf("%q, %v", notes, err)
	}
	for config, o := range opened.inputs {
		if !o.ended || o.x != nil {
			t.Errorf("inputs of a run that has ended are kept: %s", config)
		}
	}
}
