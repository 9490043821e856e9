package recipe_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"contraflow/collective"
	"contraflow/collective/local"
	"contraflow/collective/sim"
	"contraflow/gpustage"
	_ "contraflow/gpustage/cpu"
	"contraflow/gpustage/cpu/gemm"
	"contraflow/gpustage/cpu/pool"
	"contraflow/pipeline"
	"contraflow/stages/newmodel"
	"contraflow/stages/recipe"
)

// overlapRecipe is a recipe with a model of its own on random words, and one sub-batch a step.
func overlapRecipe(b testing.TB, dir string, layers int) string {
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
	err = newmodel.Create(context.Background(), model, newmodel.Spec{Hidden: 128, Layers: layers, Heads: 4, MaxLength: 128, Vocab: 2000, Lowercase: true}, newmodel.Texts(words))
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
batch: {global_size: 32, sub_batch: {rows: 32}, no_duplicates: false}
train: {max_steps: %d, device: cpu}
mesh: {replicate: 2}
save: {dir: %q}
`, model, filepath.Join(dir, "data.jsonl"), steps, filepath.Join(dir, "run"))
}

// trained trains by a recipe, with half of the processors for each rank, and sums its trace up.
func trained(b *testing.B, r recipe.Recipe) *pipeline.TraceSummary {
	b.Helper()
	train := func(x *recipe.Run) error {
		_, err := x.Train(context.Background(), recipe.WithTrace())
		return err
	}
	onRanks := func(p recipe.Place) error {
		return recipe.OnRanks(context.Background(), r, p, recipe.Observer{}, train)
	}
	var err error
	if r.Mesh.Replicate == 1 {
		err = local.Run(1, func(w collective.World) error {
			return onRanks(recipe.Place{World: w, Share: gpustage.Share{Ranks: 2}})
		})
	} else {
		err = onRanks(recipe.Place{})
	}
	if err != nil {
		b.Fatal(err)
	}
	t, err := os.Open(filepath.Join(r.Save.Dir, "trace.json"))
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

// BenchmarkOverlap trains two local ranks over a simulated link on which communication takes 30 % of computing, and reports
// how much of it was hidden, by both measures, beside runs that hide nothing and what these should take: the time without a link, and that of
// the bytes in their traces. Each rank has half of the processors. Times are the best of rounds in turns.
//
// There are 24 layers, so that the last bucket, which nothing hides, is a small part, and there is one sub-batch a step, so that there is a
// whole backward pass to hide in: two thirds of computing. Of n kept sub-batches only the last one's is, and at n = 2 and 30 % there
// is no room for any delay: 75 % were hidden.
func BenchmarkOverlap(b *testing.B) {
	dir := b.TempDir()
	text := overlapRecipe(b, dir, 24)
	run := func(out string, sets ...string) *pipeline.TraceSummary {
		r, err := recipe.Parse("overlap", []byte(text), append(sets, "save.dir="+filepath.Join(dir, out)))
		if err != nil {
			b.Fatal(err)
		}
		return trained(b, r)
	}
	for range b.N {
		free := run("free")
		compute := time.Duration(0)
		for _, s := range free.Stages {
			if s.Lane == pipeline.Compute.String() && (s.Stage == "embed" || s.Stage == "backward") {
				compute += s.Busy / time.Duration(free.Steps)
			}
		}
		bandwidth := sentPerStep(free) / (0.3 * compute.Seconds())
		link := fmt.Sprintf("mesh.link=%gGB 20us", bandwidth/1e9)
		rounds := 3
		if testing.Short() {
			rounds = 1
		}
		best := map[string]time.Duration{"free": free.StepTime}
		var total, hidden, tail time.Duration
		var took func(without time.Duration) float64 // hidden, by time
		var serialBytes, everyBytes float64
		try := func(name string, sets ...string) *pipeline.TraceSummary {
			s := run(name, sets...)
			if t, ok := best[name]; !ok || s.StepTime < t {
				best[name] = s.StepTime
			}
			return s
		}
		for range rounds {
			try("free")
			over := try("overlap", link)
			if best["overlap"] == over.StepTime {
				took = over.HiddenAgainst
			}
			total, hidden, tail = total+over.Communication.Total, hidden+over.Communication.Hidden, tail+over.Tail
			serialBytes = sentPerStep(try("serial", link, "mesh.overlap=false"))
			everyBytes = sentPerStep(try("every", link, "train.sync=every"))
		}
		for name, t := range best {
			b.ReportMetric(float64(t)/1e6, name+"-ms/step")
		}
		b.ReportMetric(best["serial"].Seconds()/(best["free"].Seconds()+serialBytes/bandwidth), "serial/predicted")
		b.ReportMetric(best["every"].Seconds()/(best["free"].Seconds()+everyBytes/bandwidth), "every/predicted")
		b.ReportMetric(1e3*serialBytes/bandwidth, "comm-ms/step")
		b.ReportMetric(float64(tail)/1e6/float64(rounds), "tail-ms/step")
		b.ReportMetric(100*float64(hidden)/float64(total), "%hidden-by-lanes")
		b.ReportMetric(100*took(best["free"]), "%hidden-by-time")
	}
}

// sentPerStep is the bytes that rank 0, whose trace it is, sends.
func sentPerStep(s *pipeline.TraceSummary) (bytes float64) {
	for _, st := range s.Stages {
		bytes += st.Bytes / float64(s.Steps)
	}
	return bytes
}

// BenchmarkForecast trains two local ranks over three simulated links and reports the step's time over what plan says of each. Computing is
// calibrated before each on a rank that has half of the processors, while another does the same beside it.
func BenchmarkForecast(b *testing.B) {
	dir := b.TempDir()
	text := overlapRecipe(b, dir, 12)
	ctx := context.Background()
	for range b.N {
		for _, link := range []string{"10GB 5us", "0.2GB 20us", "0.05GB 200us"} {
			var l sim.Link
			if err := l.UnmarshalText([]byte(link)); err != nil {
				b.Fatal(err)
			}
			r, err := recipe.Parse("forecast", []byte(text), []string{"mesh.link=" + link, "save.dir=" + filepath.Join(dir, "run")})
			if err != nil {
				b.Fatal(err)
			}
			var mu sync.Mutex
			var predicted time.Duration
			if err := recipe.OnRanks(ctx, r, recipe.Place{}, recipe.Observer{}, func(x *recipe.Run) error {
				rates, err := x.Calibrate(ctx, 2, r.Train.MaxSteps)
				if err != nil {
					return err
				}
				f, err := x.Forecast(ctx, collective.Mesh{Replicate: 2, Shard: 1}, l, rates)
				if err == nil {
					mu.Lock()
					predicted = max(predicted, f.StepTime) // ranks wait for each other
					mu.Unlock()
				}
				return err
			}); err != nil {
				b.Fatal(err)
			}
			took := trained(b, r).StepTime
			name := strings.ReplaceAll(link, " ", "+")
			b.ReportMetric(float64(predicted)/1e6, name+"-ms-predicted")
			b.ReportMetric(float64(took)/1e6, name+"-ms")
			b.ReportMetric(float64(took)/float64(predicted), name+"-ratio")
		}
	}
}

// BenchmarkRanks trains the same global batches on two local ranks of a thread and on one rank of one thread, in turns, with the peak of
// multiply-adds on two threads and on one beside them: the ratio of throughputs over that of peaks.
func BenchmarkRanks(b *testing.B) {
	dir := b.TempDir()
	text := overlapRecipe(b, dir, 12)
	two, err := recipe.Parse("ranks", []byte(text), []string{"save.dir=" + filepath.Join(dir, "two")})
	if err != nil {
		b.Fatal(err)
	}
	one, err := recipe.Parse("ranks", []byte(text), []string{"mesh.replicate=1", "save.dir=" + filepath.Join(dir, "one")})
	if err != nil {
		b.Fatal(err)
	}
	k, err := gemm.Select("")
	if err != nil {
		b.Fatal(err)
	}
	peak := func(threads int) float64 {
		p := pool.New(threads)
		defer p.Close()
		return gemm.Peak[float32](k, false, 50*time.Millisecond, p)
	}
	for range b.N {
		best := [2]time.Duration{math.MaxInt64, math.MaxInt64}
		var peaks [2]float64
		rounds := 3
		if testing.Short() {
			rounds = 1
		}
		for range rounds {
			best[0] = min(best[0], trained(b, one).StepTime)
			peaks[0] = max(peaks[0], peak(1))
			best[1] = min(best[1], trained(b, two).StepTime)
			peaks[1] = max(peaks[1], peak(2))
		}
		ratio := float64(best[0]) / float64(best[1])
		b.ReportMetric(ratio, "x-throughput")
		b.ReportMetric(peaks[1]/peaks[0], "x-peak")
		b.ReportMetric(ratio/(peaks[1]/peaks[0]), "of-peak")
	}
}

// BenchmarkSaving trains with a checkpoint every 20 steps and without any, in turns, and reports what saving takes of throughput, in
// percent. Twenty steps are the sum of the medians of the first after a checkpoint, of the second, and so on: a machine's other work
// moves whole runs by more than saving does. Each step computes 0.1 to 0.2 s for the 30 MB of a checkpoint.
func BenchmarkSaving(b *testing.B) {
	const every = 20
	rounds, blocks := 5, 4 // the first block, in which memory is claimed, is left out
	if testing.Short() {
		rounds, blocks = 1, 2
	}
	dir := b.TempDir()
	text := overlapRecipe(b, dir, 12)
	n := 0
	run := func(save int, times *[every][]float64) {
		n++
		r, err := recipe.Parse("saving", []byte(text), []string{
			"mesh.replicate=1", fmt.Sprint("train.max_steps=", blocks*every+1), "batch.global_size=8", "model.max_length=64", "train.epochs=10",
			fmt.Sprint("save.every=", save), fmt.Sprintf("save.dir=%s/saving%d", dir, n),
		})
		if err != nil {
			b.Fatal(err)
		}
		last := time.Now()
		step := func(m recipe.Metrics) {
			took := time.Since(last)
			last = time.Now()
			if i := m.Step - 1; every <= i && i < blocks*every {
				times[i%every] = append(times[i%every], took.Seconds())
			}
		}
		if err := recipe.OnRanks(context.Background(), r, recipe.Place{}, recipe.Observer{Step: step}, func(x *recipe.Run) error {
			_, err := x.Train(context.Background())
			return err
		}); err != nil {
			b.Fatal(err)
		}
	}
	block := func(times *[every][]float64) (sum float64) {
		for _, t := range times {
			slices.Sort(t)
			sum += t[len(t)/2]
		}
		return sum
	}
	for range b.N {
		var with, without [every][]float64
		for range rounds {
			run(0, &without)
			run(every, &with)
		}
		b.ReportMetric(100*(block(&with)/block(&without)-1), "%saving")
		b.ReportMetric(block(&without)/every*1000, "ms/step")
	}
}
