//go:build beam

package onbeam

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	_ "github.com/apache/beam/sdks/v2/go/pkg/beam/runners/dataflow"
	_ "github.com/apache/beam/sdks/v2/go/pkg/beam/runners/prism"
	_ "github.com/apache/beam/sdks/v2/go/pkg/beam/runners/universal"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/transforms/stats"

	"contraflow/io/prep"
)

// Runners are Beam's that are compiled in. Prism runs in this process.
var Runners = []string{"prism", "universal", "dataflow"}

// Options of a run.
type Options struct {
	Runner    string   // one of Runners
	Flags     []string // Beam's: --endpoint, --environment_type, --parallelism, --project, ...
	Overwrite bool
	Note      func(message string) // what a user should know; may be nil

	counters map[string]int64 // for tests: what the runner counted, by rule
}

// Worker turns this process into a worker if its arguments say so: then it does not return. A program calls it before it looks at its
// arguments.
func Worker(args []string) {
	for _, a := range args {
		if strings.TrimLeft(a, "-") == "worker" || strings.HasPrefix(strings.TrimLeft(a, "-"), "worker=") {
			flag.CommandLine.Parse(args)
			beam.Init()
			os.Exit(0)
		}
	}
}

// Run prepares a dataset on a runner of Beam.
func Run(ctx context.Context, c prep.Config, o Options) (_ *prep.Stats, err error) {
	if !slices.Contains(Runners, o.Runner) { // of which Beam would end the process
		return nil, fmt.Errorf("no runner %q: want %s", o.Runner, strings.Join(Runners, ", "))
	}
	for _, p := range c.Check() { // which completes it too: the card has it so, in whatever process it is made
		return nil, p
	}
	asGiven := c
	if err := absolute(&c); err != nil {
		return nil, err
	}
	fs := flag.CommandLine
	fs.Init(fs.Name(), flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	if err := fs.Set("endpoint", ""); err != nil { // of an earlier run
		return nil, err
	}
	if o.Runner == "prism" && prismEndpoint != "" {
		fs.Set("endpoint", prismEndpoint)
	}
	if err := fs.Parse(o.Flags); err != nil {
		return nil, fmt.Errorf("flags for Beam: %w", err)
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("flags for Beam: unexpected argument %q", fs.Arg(0))
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
	x.Tell(o.Note)
	first := x.ShardStarts()
	if err := x.Close(); err != nil {
		return nil, err
	}
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
	defer forget(config) // workers in this process are done with it
	p, s := beam.NewPipelineWithRoot()
	build(s, config, rules, first)
	err = guard(func() error {
		result, err := beam.Run(ctx, o.Runner, p)
		if err == nil && o.counters != nil {
			for _, c := range result.Metrics().AllMetrics().Counters() {
				o.counters[c.Name()] = c.Result()
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Runner, err)
	}
	if o.Runner == "prism" {
		prismEndpoint = fs.Lookup("endpoint").Value.String()
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

// prismEndpoint is where this process's Prism listens, once there is one. Beam's flags, and so Run, belong to one goroutine at a time.
var prismEndpoint string

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
	var errs []error
	abs := func(p *string) {
		var err error
		if *p != "" && !strings.Contains(*p, "://") {
			if *p, err = filepath.Abs(*p); err != nil {
				errs = append(errs, err)
			}
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
	return errors.Join(errs...)
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

// opened are the inputs of a run, opened once in a process: bundles come and go. What fails is tried again by the next bundle.
var opened = struct {
	sync.Mutex
	inputs map[string]*opening // by configuration
}{inputs: map[string]*opening{}}

type opening struct {
	sync.Mutex
	x *prep.Inputs
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

// forget closes the inputs of a run.
func forget(config string) {
	opened.Lock()
	o := opened.inputs[config]
	delete(opened.inputs, config)
	opened.Unlock()
	if o == nil {
		return
	}
	o.Lock()
	defer o.Unlock()
	if o.x != nil {
		o.x.Close()
	}
}
