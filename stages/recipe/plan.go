package recipe

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sort"
	"strings"
	"sync"
	"time"

	"contraflow/collective"
	"contraflow/collective/sim"
	"contraflow/gpustage"
	"contraflow/io/spelling"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/optim"
	"contraflow/stages/transformer"
)

// A forecast is the run's own plan without the run: the graph is built for a mesh that exists on paper, its memory is what its
// stages allocate on a device that computes nothing, its traffic is the list of collectives that they would issue for the first
// step's real rows, and its times come from the scheduler itself, run on a clock of its own with each task's time: computing as
// calibrated on this machine, communication as the link says.

// Rates are what computing takes on a device.
type Rates struct {
	Forward  float64                  // seconds per token
	Backward float64                  // seconds per token, without replay
	Score    float64                  // of the loss: seconds per row and candidate
	Update   float64                  // seconds per parameter
	Others   map[string]time.Duration // stages on the host, per task
	Device   string                   // that it was measured on, or what is known of it
}

// TokensPerS is how many tokens a device trains in a second, without replay.
func (r Rates) TokensPerS() float64 { return 1 / (r.Forward + r.Backward) }

// RatesAt are those of a device that trains so many tokens of the run's model in a second. What of a token's time is the forward pass, and what a score takes,
// goes with the products that they are made of; the update and what the host does are not counted.
func (x *Run) RatesAt(tokensPerS float64) Rates {
	l, low := x.model.Layout, x.model.Lowest()
	forward, backward := 0.0, 0.0 // weights that a token is multiplied with, those of factors and of gradients included
	for i := range x.model.Config.Layers {
		part := l.Part(i)
		forward += float64(part.Len)
		if backward += float64(part.Trained()); i >= low {
			backward += float64(part.Len)
			if x.model.Options.CheckpointEvery > 0 { // computed again
				backward += float64(part.Len)
			}
		}
	}
	r := Rates{Device: "a device as given"}
	if forward == 0 { // static embeddings are no products
		forward, backward = 1, 1
	} else {
		r.Score = 3 * float64(x.model.EmbeddingSize()) / (tokensPerS * (forward + backward)) // the score, and two gradients
	}
	r.Forward, r.Backward = forward/(forward+backward)/tokensPerS, backward/(forward+backward)/tokensPerS
	return r
}

// Calibrate trains a few steps of the recipe on this rank alone, as one of so many ranks would, and returns what that took. The
// model is not worth anything afterwards, and Train refuses it.
func (x *Run) Calibrate(ctx context.Context, ranks, steps int) (r Rates, err error) {
	switch {
	case x.closed:
		return Rates{}, errClosed
	case ranks < 1 || steps < 1:
		return Rates{}, fmt.Errorf("Calibrate: %d steps as one of %d ranks: want at least 1 of each", steps, ranks)
	}
	x.began = true
	y := *x
	y.ranks = nil
	y.Recipe.Batch.GlobalSize = max(2, x.Recipe.Batch.GlobalSize/ranks)
	y.Recipe.Train.MaxSteps = steps
	y.Recipe.Optimizer.Schedule = Schedule{Name: string(optim.Constant)} // the run may have fewer steps, and be at its schedule's end
	if err := y.planBatches(); err != nil {
		return Rates{}, err
	}
	var mu sync.Mutex
	var spans []pipeline.Span
	enc, err := y.trainingGraph()
	if err != nil {
		return Rates{}, err
	}
	defer func() { err = errors.Join(err, enc.Close()) }()
	err = enc.Run(ctx, pipeline.WithSpans(func(s pipeline.Span) {
		mu.Lock()
		defer mu.Unlock()
		spans = append(spans, s)
	}))
	if err != nil {
		return Rates{}, x.orSkip(err)
	}
	first := "0" // its memory is new: it counts only where there is no other
	if steps < 2 {
		first = "-"
	}
	r = rates(spans, first, float64(x.model.Layout.Trained()))
	r.Device = x.device.Info().Description
	return r, nil
}

func rates(spans []pipeline.Span, skip string, parameters float64) Rates {
	spent, note, tasks := map[string]float64{}, map[string]float64{}, map[string]float64{}
	for _, s := range spans {
		if step, _, _ := strings.Cut(s.Item, "."); step == skip {
			continue
		}
		spent[s.Stage] += (s.End - s.Start).Seconds()
		tasks[s.Stage]++
		for k, v := range s.Notes {
			note[s.Stage+" "+k] += v
		}
	}
	per := func(stage, what string) float64 { return spent[stage] / max(1, note[stage+" "+what]) }
	r := Rates{Forward: per("embed", stages.Tokens), Score: per("loss", stages.Scores), Update: spent["update"] / max(1, tasks["update"]) / parameters}
	replayed := note["backward "+stages.Replayed] * r.Forward
	r.Backward = max(0, spent["backward"]-replayed) / max(1, note["backward "+stages.Tokens])
	r.Others = map[string]time.Duration{}
	for s, t := range spent {
		r.Others[s] = durationOf(t / tasks[s])
	}
	return r
}

func durationOf(seconds float64) time.Duration { return time.Duration(seconds * 1e9) }

// Forecast is what a step will take on a mesh, per rank.
type Forecast struct {
	Mesh      collective.Mesh
	Link      sim.Link
	Rates     Rates     // of a device
	Rows      int       // of a step, over all ranks
	Tokens    int       // likewise
	First     int64     // bytes of tensors on each device in the first step
	Memory    Memory    // of each device, for the longest texts: what Run.Memory is where the recipe trains
	Room      int64     // bytes that a device has for all of it; 0: nobody knows
	Budget    int64     // of them, those that activations may be kept in; -1: all of these are kept
	Kept      int64     // bytes of all activations of a batch, if nothing of them is computed again
	Fits      error     // why it does not fit, with what would; nil: it does, or nobody knows
	Shardings []Holding // what ranks of the shard axis hold, and could; nil without one
	Sent      int64     // bytes that a rank sends per step
	Stages    []Traffic
	StepTime  time.Duration
	Comm      time.Duration // communication per step
	Exposed   time.Duration // of it not hidden
	Tail      time.Duration // from the last backward to the end of the update
	Steps     int           // of the whole run
	When      [][2]string   // how its learning rate goes, and after which steps it evaluates and saves
	Bound     string        // the host's stage that takes as long as a step, if one does: neither devices nor links decide then

	predicted string // Memory in words
}

// Traffic is what one stage communicates per step.
type Traffic struct {
	Stage       string
	Collectives int
	Sent        int64
	Time        time.Duration
}

// Forecast plans the recipe for a mesh whose ranks are connected by a link.
func (x *Run) Forecast(ctx context.Context, mesh collective.Mesh, link sim.Link, r Rates) (*Forecast, error) {
	if !x.paper { // there it was said
		x.noteIdle(mesh.Size())
	}
	step, err := stages.Preview(ctx, x.plan, x.text, x.size(), mesh.Size())
	if err != nil {
		return nil, x.orSkip(err)
	}
	y, room, err := x.on(mesh)
	if err != nil {
		return nil, err
	}
	sent := map[sharding]int64{}
	for _, s := range y.shardings(y.Recipe.Mesh) {
		if s != y.sharding {
			if sent[s], err = y.sends(mesh, s, step); err != nil {
				return nil, err
			}
		}
	}
	enc, err := y.trainingGraph()
	if err != nil {
		return nil, err
	}
	p, err := enc.Build()
	if err != nil {
		return nil, err
	}
	f := &Forecast{Mesh: mesh, Link: link, Rates: r, Memory: y.Memory, Room: room, Budget: y.budget(y.Memory), Kept: y.kept(), predicted: y.describeMemory()}
	if y.Memory.check(room, 0) != nil {
		f.Fits = y.fits(room)
	}
	f.Steps, f.When = x.Steps, x.when()
	c := &clock{rates: r, again: make([][]float64, len(step)), layers: y.model.Config.Layers, gathers: x.Recipe.Loss.GatherAcrossDevices}
	c.serial = y.ranks != nil && y.ranks.NoOverlap
	c.updated = float64(y.model.Layout.Trained()) / float64(mesh.Shard)
	for b, batch := range step {
		c.batches = append(c.batches, batch.Global)
		if c.again[b], err = enc.Plan(batch); err != nil {
			return nil, err
		}
		f.Rows += batch.Global.Rows
		for _, peer := range batch.Global.Peers {
			f.Tokens += peer.Tokens
		}
	}
	f.First = enc.PeakBytes()
	f.send(enc.Calls(c.batches))
	sent[y.sharding] = f.Sent
	f.Shardings = y.holdings(func(s sharding) int64 { return sent[s] })
	c.communicates(f.Stages)
	f.time(c, p, enc)
	if f.timed() && f.StepTime <= 0 { // a Duration has no figure of it
		return nil, fmt.Errorf("with %g tokens/s on each rank no step takes a time that can be told", r.TokensPerS())
	}
	// Where tasks on both sides wait for each other, or communicate themselves, what that adds to a step is exposed.
	if y.sharding != (sharding{}) || c.serial || x.Recipe.Train.Sync == "every" {
		clear(c.comm)
		f.Exposed = min(f.Comm, max(0, f.StepTime-c.predict(p, enc).StepTime))
	}
	return f, nil
}

// on is the run on a mesh of devices like its own that is there on paper alone, with the first sharding that fits, and the room that each has.
func (x *Run) on(mesh collective.Mesh) (_ *Run, room int64, err error) {
	y := *x
	dry := gpustage.Dry{Like: x.device, Free: x.freeMemory()}
	if dry.Free > 0 {
		dry.Free += x.there(x.Memory)
	}
	y.paper, y.device, y.ranks = true, dry, stages.OnPaper(mesh, x.Recipe.exchanging())
	y.Recipe.Mesh.Shard = mesh.Shard
	if y.guide, err = x.guide.onPaper(x.device, dry); err != nil {
		return nil, 0, err
	}
	z, err := y.sharded(mesh, y.fitting())
	return z, dry.Free, err
}

// sharded is a run on paper with that sharding.
func (x *Run) sharded(mesh collective.Mesh, s sharding) (_ *Run, err error) {
	y := *x
	y.ranks = stages.OnPaper(mesh, x.Recipe.exchanging())
	y.setSharding(s)
	o := x.model.Options
	o.Own = y.ranks.Own()
	if y.model, err = transformer.New(y.device, x.model.Config, x.model.Head, o); err != nil {
		return nil, err
	}
	y.Memory = y.predict(s)
	return &y, nil
}

// sends is what a rank of a run on paper would send in a step with that sharding, in bytes.
func (x *Run) sends(mesh collective.Mesh, s sharding, step []*stages.Batch) (bytes int64, err error) {
	y, err := x.sharded(mesh, s)
	if err != nil {
		return 0, err
	}
	enc, err := y.trainingGraph()
	if err != nil {
		return 0, err
	}
	var batches []*stages.Global
	for _, batch := range step {
		if _, err := enc.Plan(batch); err != nil {
			return 0, err
		}
		batches = append(batches, batch.Global)
	}
	for _, c := range enc.Calls(batches) {
		bytes += c.Sent()
	}
	return bytes, nil
}

// send sums up what each stage sends in a step.
func (f *Forecast) send(calls []stages.Call) {
	at := map[string]int{}
	for _, c := range calls {
		i, ok := at[c.Stage]
		if !ok {
			i = len(f.Stages)
			at[c.Stage] = i
			f.Stages = append(f.Stages, Traffic{Stage: c.Stage})
		}
		t, st := f.Link.Time(c.Call), &f.Stages[i]
		st.Collectives, st.Sent, st.Time = st.Collectives+1, st.Sent+c.Sent(), st.Time+t
		f.Sent, f.Comm = f.Sent+c.Sent(), f.Comm+t
	}
}

// time has the scheduler go through steps by a clock.
func (f *Forecast) time(c *clock, p *pipeline.Plan, enc *stages.Encoder) {
	s := c.predict(p, enc)
	f.StepTime, f.Tail = s.StepTime, s.Tail
	for _, st := range s.Stages {
		if st.Lane == "host" && st.Busy/clockSteps >= f.StepTime*9/10 {
			f.Bound = st.Stage
		}
	}
	f.Exposed = (s.Communication.Total - s.Communication.Hidden) / clockSteps
}

// clock says what each task of a step takes.
type clock struct {
	rates   Rates
	batches []*stages.Global
	again   [][]float64              // of each sub-batch, what is computed again before it goes backward, in forward passes
	comm    map[string]time.Duration // what a stage communicates in a step, and
	tasks   map[string]int           // in how many tasks
	serial  bool                     // nothing communicates beside computing
	layers  int
	updated float64 // parameters that a rank updates
	gathers bool    // a rank's rows are compared with those of all
}

// clockSteps is how many steps are predicted.
const clockSteps = 6

// communicates takes over what stages communicate.
func (c *clock) communicates(traffic []Traffic) {
	c.comm, c.tasks = map[string]time.Duration{}, map[string]int{}
	for _, t := range traffic {
		c.comm[t.Stage] = t.Time
	}
	for _, b := range c.batches {
		for _, stage := range []string{"gather", "backward", stages.ReduceEarly, stages.FetchForEmbed, stages.FetchForBackward} {
			c.tasks[stage] += b.Subs()
		}
		c.tasks["gather guide"]++
		c.tasks["scatter"]++
	}
}

// each is what one of a stage's tasks communicates.
func (c *clock) each(stage string) time.Duration {
	return c.comm[stage] / time.Duration(max(1, c.tasks[stage]))
}

// beside is a task's time, with what stages communicate meanwhile.
func (c *clock) beside(computing time.Duration, others ...string) time.Duration {
	for _, stage := range others {
		if c.serial {
			computing += c.each(stage)
		} else {
			computing = max(computing, c.each(stage))
		}
	}
	return computing
}

// task is what a stage's task takes.
func (c *clock) task(stage string, item pipeline.Index) time.Duration {
	tokens := func() float64 { return float64(c.batches[item.Batch].SubTokens(item.Sub)) }
	backward := func() time.Duration {
		computing := durationOf(tokens() * (c.again[item.Batch][item.Sub]*c.rates.Forward + c.rates.Backward))
		return c.each("backward") + c.beside(computing, stages.FetchForBackward, stages.ReduceEarly)
	}
	switch {
	case stage == stages.ReduceEarly: // it ends a layer later
		return backward() + c.each(stage)/time.Duration(c.layers+1)
	case stage == "embed": // as long as what runs beside it
		return c.beside(durationOf(c.rates.Forward*tokens()), stages.FetchForEmbed)
	case stage == "backward":
		return backward()
	case c.comm[stage] > 0:
		return c.each(stage)
	case stage == "loss":
		return durationOf(c.rates.Score * c.batches[item.Batch].ScoreCount(c.gathers))
	case stage == "update":
		return durationOf(c.rates.Update * c.updated)
	}
	return c.rates.Others[stage]
}

// predict has the scheduler go through steps.
func (c *clock) predict(p *pipeline.Plan, enc *stages.Encoder) *pipeline.TraceSummary {
	return pipeline.Summary(p.Predict(pipeline.Workload{
		Items:   clockSteps * len(c.batches),
		Batches: func(int) int { return len(c.batches) },
		Subs:    func(i pipeline.Index) int { return c.batches[i.Batch].Subs() },
		Time:    c.task,
		Final: func(_, output string, item pipeline.Index) time.Duration {
			tokens := c.batches[item.Batch].SubTokens(item.Sub)
			return durationOf(float64(tokens) * (c.again[item.Batch][item.Sub]*c.rates.Forward + enc.Done(output)*c.rates.Backward))
		},
	}), stages.StepStages)
}

// String is the forecast for people.
func (f *Forecast) String() string {
	var b strings.Builder
	line := func(key, format string, args ...any) { fmt.Fprintf(&b, "%-8s %s\n", key, fmt.Sprintf(format, args...)) }
	if f.Mesh.Size() > 1 {
		line("mesh", "%v, %d ranks, each on a link of %v to all others alike", f.Mesh, f.Mesh.Size(), f.Link)
	} else {
		line("mesh", "%v, one rank", f.Mesh)
	}
	timed := f.timed()
	if timed {
		line("compute", "%.0f tokens/s on each rank, of %s", f.Rates.TokensPerS(), f.Rates.Device)
		bound := ""
		if f.Bound != "" {
			bound = fmt.Sprintf("; %s, on this machine's host, takes as long", f.Bound)
		}
		line("step", "%v: %s, %d tokens, %.0f rows/s%s", round(f.StepTime), spelling.Count(f.Rows, "row", "rows"), f.Tokens, f.rowsPerS(), bound)
	} else {
		line("step", "%s, %d tokens (--tokens-per-s says what time they take)", spelling.Count(f.Rows, "row", "rows"), f.Tokens)
	}
	line("memory", "%s (of tensors %s in the first step)", f.predicted, Size(f.First))
	line("fits", "%s", f.fit())
	if f.Shardings != nil {
		line("shards", "%s", describeSharding("", f.Shardings))
	}
	line("run", "%s", spelling.Count(f.Steps, "step", "steps"))
	for _, l := range f.When {
		line(l[0], "%s", l[1])
	}
	if f.Mesh.Size() == 1 {
		return strings.TrimRight(b.String(), "\n")
	}
	line("traffic", "%s sent by each rank per step", Size(f.Sent))
	if timed {
		line("time", "%v of communication per step, %.1f %% hidden, %v exposed (%v from the last backward to the end of the update)", round(f.Comm), 100*f.hidden(), round(f.Exposed), round(f.Tail))
	} else {
		line("time", "%v of communication per step", round(f.Comm))
	}
	for _, s := range f.traffic() {
		fmt.Fprintf(&b, "  %-22s %3d collectives  %10s  %v\n", s.Stage, s.Collectives, Size(s.Sent), round(s.Time))
	}
	return strings.TrimRight(b.String(), "\n")
}

// timed tells whether anybody knows what computing takes.
func (f *Forecast) timed() bool { return f.Rates.Forward > 0 }

// rowsPerS is how many rows all ranks train in a second.
func (f *Forecast) rowsPerS() float64 { return float64(f.Rows) / f.StepTime.Seconds() }

// hidden is the share of communication that computing hides.
func (f *Forecast) hidden() float64 {
	if f.Comm == 0 {
		return 1
	}
	return 1 - float64(f.Exposed)/float64(f.Comm)
}

// traffic is that of stages, those of all layers together, the one that takes longest first.
func (f *Forecast) traffic() []Traffic {
	all := layersTogether(f.Stages)
	sort.SliceStable(all, func(i, j int) bool { return all[i].Time > all[j].Time })
	return all
}

var layerNumber = regexp.MustCompile(`\b\d+\.`)

// layersTogether has one line for buckets that are the same of each layer, of which a large model has hundreds.
func layersTogether(stages []Traffic) (out []Traffic) {
	at := map[string]int{}
	for _, s := range stages {
		alike := layerNumber.ReplaceAllString(s.Stage, "*.")
		i, ok := at[alike]
		if !ok {
			at[alike] = len(out)
			out = append(out, s)
			continue
		}
		t := &out[i]
		t.Stage, t.Collectives, t.Sent, t.Time = alike, t.Collectives+s.Collectives, t.Sent+s.Sent, t.Time+s.Time
	}
	return out
}

// fit says whether it fits, and what activations may be kept.
func (f *Forecast) fit() string {
	if f.Fits != nil {
		return fmt.Sprintf("not into %s: %v", Size(f.Room), f.Fits)
	}
	kept := fmt.Sprintf("all %s of activations are kept", Size(f.Kept))
	if f.Budget >= 0 {
		kept = fmt.Sprintf("%s may go to kept activations (the replay budget), all of them are %s", Size(f.Budget), Size(f.Kept))
	}
	if f.Room == 0 {
		return fmt.Sprintf("nobody knows: --memory says what there is; until then %s", kept)
	}
	return fmt.Sprintf("into %s: %s", Size(f.Room), kept)
}

func round(d time.Duration) time.Duration {
	switch {
	case d >= time.Second:
		return d.Round(time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(time.Microsecond)
	}
	return d.Round(100 * time.Nanosecond)
}
