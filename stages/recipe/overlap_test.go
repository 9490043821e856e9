package recipe_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "contraflow/gpustage/cpu"
	"contraflow/pipeline"
	"contraflow/stages/newmodel"
	"contraflow/stages/recipe"
)

// overlapRecipe is a recipe with a model of its own on random words: 12 layers, so that the last bucket, which nothing hides, is a
// small part.
func overlapRecipe(b testing.TB, dir string) string {
	b.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	words := make([]string, 1500)
	for i := range words {
		for range 2 + rng.IntN(6) {
			words[i] += string(rune('a' + rng.IntN(26)))
		}
	}
	text := func(n int) string {
		var s []string
		for range n {
			s = append(s, words[rng.IntN(len(words))])
		}
		return strings.Join(s, " ")
	}
	f, err := os.Create(filepath.Join(dir, "data.jsonl"))
	if err != nil {
		b.Fatal(err)
	}
	enc := json.NewEncoder(f)
	for range 1024 {
		enc.Encode(map[string]string{"q": text(30), "p": text(60)})
	}
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
	model := filepath.Join(dir, "model")
	err = newmodel.Create(context.Background(), model, newmodel.Spec{Hidden: 128, Layers: 12, Heads: 4, MaxLength: 128, Vocab: 2000, Lowercase: true}, newmodel.Texts(words))
	if err != nil {
		b.Fatal(err)
	}
	steps := 8
	if testing.Short() {
		steps = 3 // it runs; its figures mean little
	}
	return fmt.Sprintf(`
model: {path: %q, max_length: 128}
data: {train: [{path: %q, query: q, positive: p}]}
batch: {global_size: 64, sub_batch: {rows: 32}, no_duplicates: false}
train: {max_steps: %d, device: cpu}
mesh: {replicate: 2}
save: {dir: %q}
`, model, filepath.Join(dir, "data.jsonl"), steps, filepath.Join(dir, "run"))
}

// overlapRun trains by it.
func overlapRun(b *testing.B) func(out string, sets ...string) *pipeline.TraceSummary {
	b.Helper()
	dir := b.TempDir()
	text0 := overlapRecipe(b, dir)
	return func(out string, sets ...string) *pipeline.TraceSummary {
		b.Helper()
		r, err := recipe.Parse("overlap", []byte(text0), append(sets, "save.dir="+filepath.Join(dir, out)))
		if err != nil {
			b.Fatal(err)
		}
		err = recipe.OnRanks(context.Background(), r, recipe.Place{}, recipe.Observer{}, func(x *recipe.Run) error {
			_, err := x.Train(context.Background(), recipe.WithTrace())
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
		t, err := os.Open(filepath.Join(dir, out, "trace.json"))
		if err != nil {
			b.Fatal(err)
		}
		defer t.Close()
		events, err := pipeline.ReadTrace(t)
		if err != nil {
			b.Fatal(err)
		}
		return pipeline.Summary(pipeline.Spans(events))
	}
}

// BenchmarkOverlap trains two local ranks over a simulated link on which communication takes 30 % of computing, and reports
// how much of it was hidden, by both measures, beside runs that hide nothing. Each rank has half of the processors.
func BenchmarkOverlap(b *testing.B) {
	run := overlapRun(b)
	for range b.N {
		free := run("free")
		compute, sent := time.Duration(0), 0.0
		for _, s := range free.Stages {
			if s.Lane == pipeline.Compute.String() && (s.Stage == "embed" || s.Stage == "backward") {
				compute += s.Busy / time.Duration(free.Steps)
			}
			sent += s.Bytes / float64(free.Steps)
		}
		link := fmt.Sprintf("mesh.link=%gGB 20us", sent/(0.3*compute.Seconds())/1e9)
		over := run("over", link)
		serial := run("serial", link, "mesh.overlap=false")
		every := run("every", link, "train.sync=every")
		ms := func(d time.Duration) float64 { return float64(d) / 1e6 }
		b.ReportMetric(ms(free.StepTime), "free-ms/step")
		b.ReportMetric(ms(over.StepTime), "overlap-ms/step")
		b.ReportMetric(ms(serial.StepTime), "serial-ms/step")
		b.ReportMetric(ms(every.StepTime), "every-ms/step")
		b.ReportMetric(ms(over.Communication.Total)/float64(over.Steps), "comm-ms/step")
		b.ReportMetric(ms(over.Tail), "tail-ms/step")
		b.ReportMetric(100*over.Communication.HiddenShare(), "%hidden-by-lanes")
		b.ReportMetric(100*over.HiddenAgainst(free.StepTime), "%hidden-by-time")
	}
}

// BenchmarkSaving trains with a checkpoint every 20 steps and without any, in turns, and reports what saving takes of throughput, in
// percent: the ratio of the best times of two runs each.
func BenchmarkSaving(b *testing.B) {
	dir := b.TempDir()
	text := overlapRecipe(b, dir)
	n := 0
	run := func(every string) float64 {
		n++
		r, err := recipe.Parse("saving", []byte(text), []string{
			"mesh.replicate=1", "train.max_steps=60", "batch.global_size=4", "model.max_length=64", "train.epochs=10", "save.every=" + every, fmt.Sprintf("save.dir=%s/saving%d", dir, n),
		})
		if err != nil {
			b.Fatal(err)
		}
		seconds := 0.0
		if err := recipe.OnRanks(context.Background(), r, recipe.Place{}, recipe.Observer{}, func(x *recipe.Run) error {
			s, err := x.Train(context.Background())
			if err == nil {
				seconds = s.Seconds
			}
			return err
		}); err != nil {
			b.Fatal(err)
		}
		return seconds
	}
	for range b.N {
		with, without := math.Inf(1), math.Inf(1)
		for range 2 {
			without, with = min(without, run("0")), min(with, run("20"))
		}
		b.ReportMetric(100*(with/without-1), "%saving")
		b.ReportMetric(without/60*1000, "ms/step")
	}
}
