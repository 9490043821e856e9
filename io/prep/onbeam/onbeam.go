//go:build beam

package onbeam

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/log"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/options/jobopts"
	_ "github.com/apache/beam/sdks/v2/go/pkg/beam/runners/dataflow"
	_ "github.com/apache/beam/sdks/v2/go/pkg/beam/runners/prism"
	_ "github.com/apache/beam/sdks/v2/go/pkg/beam/runners/universal"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/transforms/stats"

	"contraflow/io/dataset"
	"contraflow/io/prep"
)

// Runners are Beam's that are compiled in. Prism runs in this process.
var Runners = []string{"prism", "universal", "dataflow"}

// Options of a run.
type Options struct {
	Runner    string   // one of Runners
	Flags     []string // Beam's: --endpoint, --environment_type, --parallelism, --project, ...
	Overwrite bool
	Quiet     bool                 // of Beam's messages errors alone, in a process whose first run it is
	Note      func(message string) // what a user should know; may be nil

	counters map[string]int64 // for tests: what the runner counted, by rule
}

// Worker turns this process into a worker if its arguments say so: then it does not return. A program calls it before it looks at its
// arguments.
func Worker(args []string) {
	if asWorker(args) {
		flag.CommandLine.Parse(args)
		beam.Init()
		os.Exit(0)
	}
}

// asWorker tells whether a runner has started the process as a worker, by a flag: a folder may be called worker.
func asWorker(args []string) bool {
	return slices.ContainsFunc(args, func(a string) bool {
		name, _, _ := strings.Cut(strings.TrimLeft(a, "-"), "=")
		return strings.HasPrefix(a, "-") && name == "worker"
	})
}

// running has the run at hand: Beam's flags are the process's.
var running = make(chan struct{}, 1)

// Run prepares a dataset on a runner of Beam. A process has one run at a time: others wait for it.
func Run(ctx context.Context, c prep.Config, o Options) (_ *prep.Stats, err error) {
	if !slices.Contains(Runners, o.Runner) { // of which Beam would end the process
		return nil, fmt.Errorf("no runner %q: want %s", o.Runner, strings.Join(Runners, ", "))
	}
	for _, p := range c.Check() { // which completes it too: the card has it so, in whatever process it is made
		return nil, p
	}
	select {
	case running <- struct{}{}:
		defer func() { <-running }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: %w", o.Runner, ctx.Err())
	}
	asGiven := c
	if err := absolute(&c); err != nil {
		return nil, err
	}
	own, restore, err := setFlags(o)
	if err != nil {
		return nil, err
	}
	defer restore()
	if o.Quiet {
		log.LogLevel = "error"
	}
	if !beam.Initialized() {
		beam.Init()
	}
	rules, err := prep.NewRules(ctx, c)
	if err != nil {
		return nil, err
	}
	x, err := prep.OpenInputs(ctx, rules) // here, so that a wrong column is told before anything is sent away
	if err != nil {
		return nil, err
	}
	defer x.Close()
	x.Tell(o.Note)
	claim, err := prep.Begin(&c, o.Overwrite)
	if err != nil {
		return nil, err
	}
	whole := false
	defer func() {
		if !whole { // what a worker still writes finds its folder gone
			err = errors.Join(err, claim.Abandon())
		}
		claim.Release()
	}()
	config, err := c.JSON()
	if err != nil {
		return nil, err
	}
	rules.Config.Output = c.Output // with the folder that the claim has named
	job, started := ctx, func() {}
	if own {
		var end func()
		job, started, end = afterStart(ctx)
		defer end()
	}
	keep(config, x, started)
	defer forget(config) // workers in this process are done with it
	p, s := beam.NewPipelineWithRoot()
	build(s, config, rules, x.ShardStarts())
	err = guard(func() error {
		result, err := beam.Run(job, o.Runner, p)
		if own {
			prismEndpoint = *jobopts.Endpoint
		}
		if err == nil && o.counters != nil {
			for _, c := range result.Metrics().AllMetrics().Counters() {
				o.counters[c.Name()] = c.Result()
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Runner, cmp.Or(ctx.Err(), cause(err)))
	}
	b, err := os.ReadFile(c.Output.StatsFile())
	if err != nil {
		return nil, fmt.Errorf("the job has ended and left no statistics: is %s reachable from its workers? %w", c.Output.Dir, err)
	}
	total := new(prep.Stats)
	if err := json.Unmarshal(b, total); err != nil {
		return nil, err
	}
	rules.Config = asGiven // for the card
	whole = true           // or Finish sees to it
	return total, claim.Finish(ctx, rules, total)
}

// prismEndpoint is where this process's Prism listens, once there is one.
var prismEndpoint string

// afterStart is a context for a job that ends with ctx, but not before started is called: Prism ends the process if a job's workers have gone when it
// reaches for them. end, which must be called, ends it too.
func afterStart(ctx context.Context) (job context.Context, started, end func()) {
	job, cancel := context.WithCancel(context.WithoutCancel(ctx))
	begun := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-begun:
			cancel()
		case <-job.Done():
		}
	})
	return job, sync.OnceFunc(func() { close(begun) }), func() { stop(); cancel() }
}

// setFlags sets Beam's flags, which are among the process's, and returns what gives them back the values that they had: the next run has its own. What
// the program itself has parsed is left alone. own says that the runner is this process's Prism.
func setFlags(o Options) (own bool, restore func(), err error) {
	fs := flag.NewFlagSet("Beam", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	var undo []func()
	flag.VisitAll(func(f *flag.Flag) {
		fs.Var(processFlag{f}, f.Name, f.Usage)
		if v := reflect.ValueOf(f.Value); v.Kind() == reflect.Pointer { // not Set, which adds to lists
			text, old := f.Value.String(), reflect.New(v.Type().Elem()).Elem()
			old.Set(v.Elem())
			undo = append(undo, func() {
				if f.Value.String() != text {
					v.Elem().Set(old)
				}
			})
		}
	})
	restore = func() {
		for _, u := range undo {
			u()
		}
	}
	err = fs.Parse(o.Flags)
	if own = o.Runner == "prism" && *jobopts.Endpoint == ""; own {
		*jobopts.Endpoint = prismEndpoint
		*jobopts.EnvironmentType = cmp.Or(*jobopts.EnvironmentType, "loopback")
	}
	switch {
	case err != nil:
	case fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case *jobopts.Async:
		err = errors.New("--async: a run waits for the job, and completes the output when it has ended")
	case o.Runner == "universal" && *jobopts.Endpoint == "":
		err = errors.New("--endpoint is missing: the address of Flink's or Spark's job server, such as --endpoint=localhost:8099")
	case !jobopts.IsLoopback() && *jobopts.WorkerBinary == "": // Beam would build it, without the tag
		err = errors.New("--worker_binary is missing: this program as the workers start it, built with CGO_ENABLED=0 and -tags beam for their system; or --environment_type=LOOPBACK has the workers in this process")
	}
	if err != nil {
		restore()
		return false, nil, fmt.Errorf("flags for Beam: %w", err)
	}
	return own, restore, nil
}

// processFlag is a flag of the process in another set of flags.
type processFlag struct{ *flag.Flag }

func (f processFlag) String() string     { return "" } // what a flag was before is in the process's set
func (f processFlag) Set(v string) error { return flag.Set(f.Name, v) }
func (f processFlag) IsBoolFlag() bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// cause is what a step says of an error, without the plan that Beam puts before it and has logged.
func cause(err error) error {
	text := err.Error()
	at := strings.LastIndex(text, "DoFn[UID:")
	if at < 0 {
		return err
	}
	_, said, ok := strings.Cut(text[at:], "] failed:\n")
	if !ok {
		return err
	}
	return errors.New(said)
}

// guard makes an error of a panic: Beam panics when a runner can't be had.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	return f()
}

// absolute makes the paths mean the same for workers, which may run elsewhere.
func absolute(c *prep.Config) error {
	here, err := dataset.FullPath(".")
	if err != nil {
		return err
	}
	abs := func(p *string) {
		if *p != "" && !dataset.Remote(*p) && !filepath.IsAbs(*p) {
			dir := here
			if dataset.IsGlob(*p) {
				dir = dataset.InGlob(here)
			}
			*p = filepath.Join(dir, *p)
		}
	}
	abs(&c.Output.Dir)
	if c.Tokenize.Dir == "" {
		c.Tokenize.Dir = c.Tokenize.Model
	}
	abs(&c.Tokenize.Dir)
	inputs := append([]prep.Input(nil), c.Input...)
	for i := range inputs {
		inputs[i].Path = append([]string(nil), inputs[i].Path...)
		for k := range inputs[i].Path {
			abs(&inputs[i].Path[k])
		}
	}
	c.Input = inputs
	sets := append([]prep.Against(nil), c.Decontaminate.Against...)
	for i := range sets {
		sets[i].Path = append([]string(nil), sets[i].Path...)
		for k := range sets[i].Path {
			abs(&sets[i].Path[k])
		}
	}
	c.Decontaminate.Against = sets
	return nil
}

// build makes the pipeline. first is the id of each shard's first row.
func build(s beam.Scope, config string, rules *prep.Rules, first []int64) {
	var numbers []int
	for i := range first {
		numbers = append(numbers, i)
	}
	shards := beam.Reshuffle(s, beam.CreateList(s, numbers))
	drops := beam.ParDo(s, &markFn{}, shards)
	var counts beam.PCollection
	if rules.NeedsKeys() {
		k := s.Scope("compare")
		keys, counted := beam.ParDo2(k, &keysFn{Config: config}, shards)
		counts = counted
		if rules.Exact() {
			var d beam.PCollection
			keys, d = beam.ParDo2(k, &exactFn{First: first}, beam.GroupByKey(k, keys))
			drops = beam.Flatten(k, drops, d)
		} else {
			keys = beam.DropKey(k, keys)
		}
		if n := rules.Config.Dedupe.Near; n.Column != "" {
			bands := beam.ParDo(k, &bandsFn{}, keys)
			d := beam.ParDo(k, &nearFn{First: first, Threshold: n.Threshold}, beam.GroupByKey(k, bands))
			drops = beam.Flatten(k, drops, d)
		}
	}
	w := s.Scope("write")
	// A CoGroupByKey of shards and drops would say it plainer; Flink can't hand its output to a step with a side input.
	work := beam.GroupByKey(w, drops)
	var parts beam.PCollection
	if rules.Config.Mix.Kind == "proportional" {
		parts = beam.ParDo(w, &writeFn{Config: config}, work)
	} else {
		// Rows that remain of each input: those that pass their own rules, without the dropped ones.
		lost := beam.ParDo(w, &lostFn{Config: config}, work)
		remain := stats.SumPerKey(w, beam.Flatten(w, counts, lost))
		parts = beam.ParDo(w, &writeMixedFn{Config: config}, work, beam.SideInput{Input: remain})
	}
	beam.ParDo0(w, &mergeFn{Config: config}, beam.GroupByKey(w, beam.AddFixedKey(w, parts)))
}

// opened are the inputs of a run, opened once in a process: bundles come and go. What fails is tried again by the next bundle. In the process that Run
// is called in they are those that it has opened.
var opened = struct {
	sync.Mutex
	inputs map[string]*opening // by configuration
}{inputs: map[string]*opening{}}

type opening struct {
	sync.Mutex
	x       *prep.Inputs
	started func() // of those that Run has opened: tells it that there is a worker
	ended   bool   // so has Run, which has closed them
}

func open(ctx context.Context, config string) (*prep.Inputs, error) {
	opened.Lock()
	o := opened.inputs[config]
	if o == nil {
		o = new(opening)
		opened.inputs[config] = o
	}
	opened.Unlock()
	o.Lock()
	defer o.Unlock()
	if o.ended {
		return nil, errors.New("the run has ended")
	}
	if o.started != nil {
		o.started()
	}
	if o.x != nil {
		return o.x, nil
	}
	c, err := prep.ParseJSON(config)
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx) // it outlives the bundle that happens to be first
	rules, err := prep.NewRules(ctx, c)
	if err != nil {
		return nil, err
	}
	o.x, err = prep.OpenInputs(ctx, rules)
	return o.x, err
}

// keep has workers in this process use inputs that are open.
func keep(config string, x *prep.Inputs, started func()) {
	opened.Lock()
	defer opened.Unlock()
	opened.inputs[config] = &opening{x: x, started: started}
}

// forget undoes keep. A worker in this process may outlive an interrupted run by a while: it is not to open inputs that nobody closes.
func forget(config string) {
	opened.Lock()
	defer opened.Unlock()
	opened.inputs[config] = &opening{ended: true}
}
