package recipe_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"contraflow/collective"
	"contraflow/collective/sim"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/recipe"
	"contraflow/testdata/harness"
)

// A large model's buckets are a line for each part of a layer.
func TestForecastOfManyLayers(t *testing.T) {
	f := recipe.Forecast{Mesh: collective.Mesh{Replicate: 2, Shard: 1}, Stages: []recipe.Traffic{
		{"reduce table", 1, 5 << 20, time.Millisecond}, {"reduce 1.up", 1, 2 << 20, 2 * time.Millisecond}, {"reduce 0.up", 2, 2 << 20, 2 * time.Millisecond}, {"reduce 0.out to 0.qkv", 1, 1 << 20, time.Millisecond},
	}}
	want := "  reduce *.up              3 collectives       4 MiB  4ms\n  reduce table             1 collectives       5 MiB  1ms\n  reduce 0.out to 0.qkv    1 collectives       1 MiB  1ms"
	if got := f.String(); !strings.HasSuffix(got, "\n"+want) {
		t.Errorf("%s\nwant at its end\n%s", got, want)
	}
}

// What is forecast of a step's communication is what the trace of one says: the collectives and bytes of each stage, and no less time than
// the link gives them.
func TestForecastIsCounted(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	within := map[string]string{ // without overlap, the tasks beside which these would run communicate themselves
		stages.FetchForEmbed: "embed", stages.FetchForBackward: "backward", stages.ReduceEarly: "backward",
	}
	for _, sets := range [][]string{
		{"mesh.replicate=2", "batch.sub_batch={rows: 9}"},
		{"mesh.replicate=3", "mesh.wire=bf16", "batch.global_size=10", "batch.accumulate=2"},
		{"mesh.replicate=2", "mesh.overlap=false"},
		{"mesh.replicate=2", "train.sync=every", "batch.sub_batch={rows: 9}"},
		{"mesh.replicate=2", "mesh.shard=2"},
		{"mesh.replicate=1", "mesh.shard=2", "mesh.gradients=early"},
		{"mesh.replicate=2", "mesh.shard=2", "mesh.gradients=early", "mesh.parameters=streamed", "batch.sub_batch={rows: 9}"},
		{"mesh.replicate=1", "mesh.shard=2", "mesh.gradients=early", "mesh.parameters=streamed", "mesh.overlap=false"},
	} {
		r := freshRecipe(t, 1, append(sets, "train.max_steps=1", "mesh.link=1Gb 200us")...)
		if err := recipe.OnRanks(t.Context(), r, recipe.Place{}, recipe.Observer{}, func(x *recipe.Run) error {
			_, err := x.Train(t.Context(), recipe.WithTrace())
			return err
		}); err != nil {
			t.Fatal(err)
		}
		seen := summaryOf(t, filepath.Join(r.Save.Dir, "trace.json"))
		x, err := recipe.Open(t.Context(), r, recipe.Observer{})
		if err != nil {
			t.Fatal(err)
		}
		f, err := x.Forecast(t.Context(), collective.Mesh{Replicate: int(r.Mesh.Replicate), Shard: r.Mesh.Shard}, r.Mesh.Link.Link, recipe.Rates{Forward: 1e-6, Backward: 2e-6})
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		planned := map[string]recipe.Traffic{}
		sum := int64(0)
		for _, s := range f.Stages {
			sum += s.Sent
			if in, ok := within[s.Stage]; ok && !r.Mesh.Overlap {
				s.Stage = in
			}
			p := planned[s.Stage]
			planned[s.Stage] = recipe.Traffic{Collectives: p.Collectives + s.Collectives, Sent: p.Sent + s.Sent, Time: p.Time + s.Time}
		}
		for _, s := range seen.Stages {
			p := planned[s.Stage]
			delete(planned, s.Stage)
			if int(s.Collectives) != p.Collectives || int64(s.Bytes) != p.Sent {
				t.Errorf("%v: %s: %v collectives of %v bytes, planned %d of %d", sets, s.Stage, s.Collectives, s.Bytes, p.Collectives, p.Sent)
			}
			took := s.Busy
			if s.Comm > 0 {
				took = s.Comm
			}
			if took < p.Time*999/1000 {
				t.Errorf("%v: %s took %v, planned %v of communication", sets, s.Stage, took, p.Time)
			}
		}
		if len(planned) > 0 {
			t.Errorf("%v: planned but not seen: %v", sets, planned)
		}
		if c := seen.Communication; sum != f.Sent || int64(c.Bytes) != f.Sent || c.Total < f.Comm*999/1000 && r.Mesh.Shard == 1 {
			t.Errorf("%v: %v bytes in %v, planned %d and %d in %v", sets, c.Bytes, c.Total, f.Sent, sum, f.Comm)
		}
		metrics, err := os.ReadFile(filepath.Join(r.Save.Dir, "metrics.jsonl"))
		var m recipe.Metrics
		if err == nil {
			err = json.Unmarshal([]byte(strings.SplitN(string(metrics), "\n", 2)[0]), &m)
		}
		if err != nil || m.CommBytes != f.Sent || m.CommS == 0 || m.CommHidden == nil || !r.Mesh.Overlap && *m.CommHidden != 0 {
			t.Errorf("%v: %v in %s", sets, err, metrics)
		}
	}
}

func summaryOf(t testing.TB, file string) *pipeline.TraceSummary {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	events, err := pipeline.ReadTrace(f)
	if err != nil {
		t.Fatal(err)
	}
	return pipeline.Summary(pipeline.Spans(events), stages.StepStages)
}

// A step's forecast adds up: without a cost of communication it is its computing, with nothing hidden it is both, and otherwise it lies between.
func TestForecastAddsUp(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	rates := recipe.Rates{Forward: 20e-6, Backward: 50e-6}
	for _, mode := range [][]string{
		{"mesh.replicate=2"}, {"mesh.replicate=2", "batch.accumulate=2"}, {"mesh.replicate=1", "mesh.shard=2"},
		{"mesh.replicate=2", "mesh.shard=2", "mesh.gradients=early", "mesh.parameters=streamed"},
	} {
		plan := func(link sim.Link, rates recipe.Rates, sets ...string) *recipe.Forecast {
			t.Helper()
			r := freshRecipe(t, 1, append(append([]string{"batch.sub_batch={rows: 9}", "batch.cache=never"}, mode...), sets...)...)
			x, err := recipe.Open(t.Context(), r, recipe.Observer{})
			if err != nil {
				t.Fatal(err)
			}
			defer x.Close()
			f, err := x.Forecast(t.Context(), collective.Mesh{Replicate: int(r.Mesh.Replicate), Shard: r.Mesh.Shard}, link, rates)
			if err != nil {
				t.Fatal(err)
			}
			if want := r.Batch.GlobalSize * r.Batch.Accumulate; f.Rows != want {
				t.Errorf("%v: %d rows a step, want %d", mode, f.Rows, want)
			}
			return f
		}
		near := func(a, b time.Duration) bool { d := a - b; return max(d, -d) <= b/1000+time.Microsecond }
		link := sim.Link{Bandwidth: 5e6, Latency: 20 * time.Microsecond}
		free, over, serial := plan(sim.Link{}, rates), plan(link, rates), plan(link, rates, "mesh.overlap=false")
		// All sub-batches are kept, and ranks wait for the one with the most tokens.
		each := float64(free.Tokens) / float64(free.Mesh.Size()) * 70e-6
		if s := free.StepTime.Seconds(); s < each || s > 1.5*each || free.Exposed != 0 {
			t.Errorf("%v: without a cost of communication %v a step, %v exposed; want %v s or a little more", mode, free.StepTime, free.Exposed, each)
		}
		if twice := plan(sim.Link{}, recipe.Rates{Forward: 2 * rates.Forward, Backward: 2 * rates.Backward}); !near(twice.StepTime, 2*free.StepTime) {
			t.Errorf("%v: half as fast %v a step, else %v", mode, twice.StepTime, free.StepTime)
		}
		update := rates
		update.Update = 1e-6
		share := float64(free.Memory.Optimizer) / 8 // of the parameters, each with two moments
		if f := plan(sim.Link{}, update); !near(f.StepTime-free.StepTime, time.Duration(share*1e-6*1e9)) {
			t.Errorf("%v: an update of %v parameters adds %v to a step", mode, share, f.StepTime-free.StepTime)
		}
		if again := plan(sim.Link{}, rates, "batch.cache=always", "batch.replay_budget=0"); !near(again.StepTime, free.StepTime*9/7) {
			t.Errorf("%v: with nothing kept %v a step, else %v; want a forward pass more", mode, again.StepTime, free.StepTime)
		}
		score := rates
		score.Score = 1e-6
		ranks := free.Mesh.Size()
		all := time.Duration(free.Rows/ranks*32) * time.Microsecond // 16 rows of a batch have two documents each
		for gather, want := range map[string]time.Duration{"true": all, "false": all / time.Duration(ranks)} {
			if f := plan(sim.Link{}, score, "loss.gather_across_devices="+gather); !near(f.StepTime-free.StepTime, want) {
				t.Errorf("%v: scores add %v to a step where documents of other ranks count (%s), want %v", mode, f.StepTime-free.StepTime, gather, want)
			}
		}
		if !near(serial.StepTime, free.StepTime+serial.Comm) || !near(serial.Exposed, serial.Comm) {
			t.Errorf("%v: with nothing hidden %v a step, %v of %v exposed; computing takes %v", mode, serial.StepTime, serial.Exposed, serial.Comm, free.StepTime)
		}
		if over.Comm != serial.Comm || over.StepTime <= free.StepTime || over.StepTime >= serial.StepTime || over.Exposed < over.StepTime-free.StepTime-time.Microsecond || over.Exposed >= over.Comm {
			t.Errorf("%v: %v a step, %v of %v exposed; between %v and %v", mode, over.StepTime, over.Exposed, over.Comm, free.StepTime, serial.StepTime)
		}
		host := rates
		host.Others = map[string]time.Duration{"ingest": time.Second}
		if f := plan(link, host); f.Bound != "ingest" || f.StepTime < time.Second || over.Bound != "" || !strings.Contains(f.String(), "; ingest, on this machine's host, takes as long\n") {
			t.Errorf("%v: where ingest takes a second, a step takes %v, as long as %q; else as long as %q", mode, f.StepTime, f.Bound, over.Bound)
		}
		host.Others["ingest"] = over.StepTime / 4 // of each batch, of which a step has one or two
		if f := plan(link, host); f.Bound != "" {
			t.Errorf("%v: where ingest takes half a step, or less, a step is said to take as long as %q", mode, f.Bound)
		}
		// What the link gives a rank's bytes, and each collective.
		calls := 0
		for _, s := range over.Stages {
			calls += s.Collectives
		}
		least := time.Duration(float64(over.Sent) / link.Bandwidth * 1e9)
		if over.Comm < least+time.Duration(calls)*link.Latency || over.Comm > least*3/2+2*time.Duration(calls)*link.Latency {
			t.Errorf("%v: %d collectives of %d bytes take %v", mode, calls, over.Sent, over.Comm)
		}
		// Over a slow link the busier of the two lanes decides, and hides what the other one communicates meanwhile.
		slow := plan(sim.Link{Bandwidth: 5e3}, rates)
		var fetch time.Duration
		for _, s := range slow.Stages {
			if s.Stage == stages.FetchForEmbed || s.Stage == stages.FetchForBackward {
				fetch += s.Time
			}
		}
		busier := max(fetch, slow.Comm-fetch)
		if slow.StepTime < busier*999/1000 || slow.Comm-slow.Exposed > free.StepTime+slow.Comm-busier {
			t.Errorf("%v: over a slow link %v a step, %v of %v exposed, %v on a lane; computing takes %v", mode, slow.StepTime, slow.Exposed, slow.Comm, busier, free.StepTime)
		}
	}
}

// An open run is forecast for a mesh of another size as one of that mesh is; each device has room for what is loaded on this one, too.
func TestForecastOfAnotherMesh(t *testing.T) {
	forecast := func(sets ...string) (*recipe.Forecast, int64) {
		r := freshRecipe(t, 1, append([]string{"train.device=roomy", "batch.sub_batch={rows: 9}"}, sets...)...)
		x, err := recipe.Open(t.Context(), r, recipe.Observer{})
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		f, err := x.Forecast(t.Context(), collective.Mesh{Replicate: 2, Shard: 2}, sim.Link{Bandwidth: 1e9}, recipe.Rates{})
		if err != nil {
			t.Fatal(err)
		}
		return f, x.Memory.Parameters
	}
	own, _ := forecast("mesh.replicate=2", "mesh.shard=2")
	other, loaded := forecast()
	if other.Memory != own.Memory || other.Sent != own.Sent || len(own.Shardings) != 3 || !slices.Equal(other.Shardings, own.Shardings) {
		t.Errorf("of one rank for 2 x 2: %+v, %d bytes sent, %+v\nof 2 x 2: %+v, %d, %+v", other.Memory, other.Sent, other.Shardings, own.Memory, own.Sent, own.Shardings)
	}
	if other.Room != roomyFree+loaded {
		t.Errorf("room for %d bytes, want %d that are free and %d that are there", other.Room, roomyFree, loaded)
	}
}
