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
	"contraflow/gpustage"
	_ "contraflow/gpustage/cpu"
	"contraflow/gpustage/cpu/gemm"
	"contraflow/gpustage/cpu/pool"
	"contraflow/pipeline"
	"contraflow/stages/newmodel"
	"contraflow/stages/recipe"
)

// overlapRecipe is a recipe with a model of its own on random words, and one sub-batch a step. In short, it runs, and its figures mean little.
func overlapRecipe(b testing.TB, dir string, layers int) string {
	b.Helper()
	steps := 8
	if testing.Short() {
		layers, steps = 2, 3
	}
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
	if int(r.Mesh.Replicate)*r.Mesh.Shard == 1 {
		err = local.Run(1, func(w collective.World) error {
			return onRanks(recipe.Place{World: w, Share: gpustage.Share{Ranks: 2}})
		})
	} else {
		err = onRanks(recipe.Place{})
	}
	if err != nil {
		b.Fatal(err)
	}
	return summaryOf(b, filepath.Join(r.Save.Dir, "trace.json"))
}

// BenchmarkOverlap trains two local ranks over a simulated link on which communication takes 30 % of computing, with 1, 2 and 4 sub-batches a
// step, and reports how much of it was hidden, by both measures, beside runs that hide nothing. Each rank has half of the processors. Runs
// take turns, and of each kind the fastest counts: what else the machine does only adds time.
//
// What can be hidden depends on the sub-batches. Gradients travel beside the backward pass of a step's last one alone: of one sub-batch that is two
// thirds of computing, and nearly all is hidden (there are 24 layers, so that the last bucket, which nothing hides, is a small part). Of n kept
// ones it is an nth of that: at n = 2 there is no room for any delay, and at n = 4 half of it can't be hidden by any schedule.
//
// What communication takes is the link's: bytes over bandwidth and latencies, from the run's own trace. (The lanes' business has waiting for the other
// rank in it.) serial-slower and every-slower are how much longer a step takes than over a free link, over what its trace predicts: 1 is right.
// With one sub-batch, every reduces as often as last does; with more, n times.
func BenchmarkOverlap(b *testing.B) {
	counts, rounds := []int{1, 2, 4}, 3
	if testing.Short() {
		counts, rounds = []int{2}, 1
	}
	for _, subs := range counts {
		b.Run(fmt.Sprintf("sub-batches=%d", subs), func(b *testing.B) {
			dir := b.TempDir()
			text := overlapRecipe(b, dir, 24)
			run := func(out string, sets ...string) *pipeline.TraceSummary {
				r, err := recipe.Parse("overlap", []byte(text), append(sets, fmt.Sprintf("batch.sub_batch={rows: %d}", 32/subs), "batch.cache=never", "save.dir="+filepath.Join(dir, out)))
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
				const latency = 20 * time.Microsecond
				bytes, _ := sentPerStep(free)
				bandwidth := bytes / (0.3 * compute.Seconds())
				link := fmt.Sprintf("mesh.link=%gGB %v", bandwidth/1e9, latency)
				takes := func(s *pipeline.TraceSummary) float64 {
					bytes, calls := sentPerStep(s)
					return bytes/bandwidth + calls*latency.Seconds()
				}
				faster := func(a, b *pipeline.TraceSummary) *pipeline.TraceSummary {
					if a != nil && a.StepTime <= b.StepTime {
						return a
					}
					return b
				}
				var over, serial, every *pipeline.TraceSummary
				for range rounds {
					free = faster(free, run("free"))
					over = faster(over, run("overlap", link))
					serial = faster(serial, run("serial", link, "mesh.overlap=false"))
					every = faster(every, run("every", link, "train.sync=every"))
				}
				slower := func(s *pipeline.TraceSummary) float64 { return (s.StepTime - free.StepTime).Seconds() / takes(s) }
				for name, s := range map[string]*pipeline.TraceSummary{"free": free, "overlap": over, "serial": serial, "every": every} {
					b.ReportMetric(s.StepTime.Seconds()*1e3, name+"-ms/step")
				}
				b.ReportMetric(slower(serial), "serial-slower/predicted")
				b.ReportMetric(slower(every), "every-slower/predicted")
				b.ReportMetric(1e3*takes(over), "comm-ms/step")
				b.ReportMetric(float64(over.Tail)/1e6, "tail-ms/step")
				b.ReportMetric(100*over.Communication.HiddenShare(), "%hidden-by-lanes")
				b.ReportMetric(100*(1-slower(over)), "%hidden-by-time")
			}
		})
	}
}

// sentPerStep is the bytes that rank 0, whose trace it is, sends, and in how many collectives: an all-reduce, which has two latencies, counts twice.
func sentPerStep(s *pipeline.TraceSummary) (bytes, calls float64) {
	for _, st := range s.Stages {
		n := st.Collectives / float64(s.Steps)
		if strings.HasPrefix(st.Stage, "reduce ") && st.Stage != "reduce last rows" || st.Stage == "backward" {
			n *= 2
		}
		bytes, calls = bytes+st.Bytes/float64(s.Steps), calls+n
	}
	return bytes, calls
}

// BenchmarkForecast trains two local ranks over three simulated links, as replicas with one sub-batch a step, with four, and as shards that stream
// parameters, and reports the step's time over what plan says of each. Computing is calibrated before each on a rank that has half of the
// processors, while another does the same beside it.
func BenchmarkForecast(b *testing.B) {
	links := []string{"0.2GB 20us", "10GB 5us", "0.05GB 200us"}
	if testing.Short() {
		links = links[:1]
	}
	for name, sets := range map[string][]string{
		"replicas":       nil,
		"sub-batches=4":  {"batch.sub_batch={rows: 8}", "batch.cache=never"},
		"streamed-early": {"mesh.replicate=1", "mesh.shard=2", "mesh.parameters=streamed", "mesh.gradients=early"},
	} {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			text := overlapRecipe(b, dir, 12)
			parse := func(more ...string) recipe.Recipe {
				r, err := recipe.Parse("forecast", []byte(text), append(append(slices.Clone(sets), more...), "save.dir="+filepath.Join(dir, "run")))
				if err != nil {
					b.Fatal(err)
				}
				return r
			}
			for range b.N {
				for _, link := range links {
					predicted, took := forecast(b, parse("mesh.link="+link), parse("mesh={replicate: 2}")), trained(b, parse("mesh.link="+link)).StepTime
					name := strings.ReplaceAll(link, " ", "+")
					b.ReportMetric(float64(predicted)/1e6, name+"-ms-predicted")
					b.ReportMetric(float64(took)/1e6, name+"-ms")
					b.ReportMetric(float64(took)/float64(predicted), name+"-ratio")
				}
			}
		})
	}
}

// forecast is what plan says of a step by a recipe, calibrated on each of two ranks by another.
func forecast(b *testing.B, r, alone recipe.Recipe) (step time.Duration) {
	b.Helper()
	ctx := context.Background()
	var mu sync.Mutex
	var all []recipe.Rates
	err := recipe.OnRanks(ctx, alone, recipe.Place{}, recipe.Observer{}, func(x *recipe.Run) error {
		rates, err := x.Calibrate(ctx, 2, r.Train.MaxSteps)
		mu.Lock()
		all = append(all, rates)
		mu.Unlock()
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	x, err := recipe.Open(ctx, r, recipe.Observer{})
	if err != nil {
		b.Fatal(err)
	}
	defer x.Close()
	for _, rates := range all {
		f, err := x.Forecast(ctx, collective.Mesh{Replicate: int(r.Mesh.Replicate), Shard: r.Mesh.Shard}, r.Mesh.Link.Link, rates)
		if err != nil {
			b.Fatal(err)
		}
		step = max(step, f.StepTime) // ranks wait for each other
	}
	return step
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
