// Command contraflow-prep cleans, deduplicates, splits and tokenizes training data: see its help, and package io/prep for what the steps do.
//
// It is a program of its own so that Apache Beam, which runs the same steps on a cluster, stays out of the one that trains. Without the build
// tag beam it has the in-process runner alone.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"contraflow/cmd/internal/flags"
	"contraflow/cmd/internal/help"
	"contraflow/io/hfmodel"
	_ "contraflow/io/objects"
	"contraflow/io/prep"
	"contraflow/io/spelling"
	"contraflow/stages/embedder"
	"contraflow/stages/recipe"
)

// usageError is a mistake in the command line: exit code 2.
type usageError struct{ error }

// job is what a runner gets.
type job struct {
	config  prep.Config
	options prep.Options
	runner  string
	flags   []string // for Beam, as they were given
}

// runners are those of this build, by name. The first is the default.
var runners = map[string]func(ctx context.Context, j job) (*prep.Stats, error){"local": func(ctx context.Context, j job) (*prep.Stats, error) {
	return prep.Run(ctx, j.config, j.options)
}}

func main() {
	asWorker(os.Args[1:])
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), flags.EndSignals()...)
	defer stop()
	defer context.AfterFunc(ctx, func() { // another signal ends it at once, but not one of the same second: contraflow prep passes on what a terminal sends both
		time.Sleep(time.Second)
		stop()
	})()
	cmd := newCommand()
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if ctx.Err() != nil {
		err = errors.New("interrupted; what is written so far does not count as complete")
	}
	fmt.Fprintf(os.Stderr, "contraflow prep: %v\n", err)
	var bug *prep.PanicError
	if errors.As(err, &bug) && os.Getenv("CONTRAFLOW_DEBUG") != "" {
		os.Stderr.Write(bug.Stack)
	}
	var usage usageError
	if errors.As(err, &usage) {
		fmt.Fprintln(os.Stderr, "See 'contraflow prep --help'.")
		return 2
	}
	return 1
}

func newCommand() *cobra.Command {
	var file, out string
	var sets []string
	var quiet bool
	j := job{config: prep.Default()}
	cmd := &cobra.Command{
		Use:         "prep -c PREP.yaml",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "contraflow prep"},
		Short:       "Clean, deduplicate, split and tokenize training data",
		Long: `prep reads parquet, JSON lines and CSV and writes sharded parquet that 'contraflow train' reads, token ids included, with a dataset card.

--runner local (the default) runs in this process. With a binary that is built with '-tags beam', prism runs the same steps as an Apache Beam
pipeline in this process, and universal sends it to a job server of Flink or Spark; what is written is the same. Flags after -- go to Beam.`,
		Example: `  contraflow recipe prep > PREP.yaml
  contraflow prep -c PREP.yaml
  contraflow prep -c PREP.yaml --set output.shards=16 --out prepared
  contraflow prep -c PREP.yaml --runner universal -- --endpoint=localhost:8099 --environment_type=LOOPBACK`,
		SilenceUsage: true, SilenceErrors: true,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); len(args) > 0 && at != 0 {
				return usageError{fmt.Errorf("unexpected argument %q", args[0])}
			}
			if err := flags.Empty(cmd.Flags(), "config", "out", "temp"); err != nil {
				return usageError{err}
			}
			if n := j.options.Threads; n < 1 && cmd.Flags().Changed("threads") {
				return usageError{fmt.Errorf("--threads is %d, want at least 1", n)}
			}
			j.flags = args
			start, ok := runners[j.runner]
			if !ok {
				return usageError{fmt.Errorf("--runner is %q; this binary has %s%s", j.runner, strings.Join(runnerNames(), ", "), withoutBeam)}
			}
			if len(args) > 0 && j.runner == "local" {
				return usageError{fmt.Errorf("%s is for Beam: it needs --runner %s", args[0], "prism or universal")}
			}
			for _, name := range []string{"threads", "temp"} {
				if cmd.Flags().Changed(name) && j.runner != "local" {
					return usageError{fmt.Errorf("--%s is of the local runner; --runner is %s", name, j.runner)}
				}
			}
			if file == "" {
				return usageError{errors.New("-c PREP.yaml is missing; contraflow recipe prep prints one to begin with")}
			}
			if out != "" {
				sets = append(sets, fmt.Sprintf("output.dir=%q", out))
			}
			err := decode(file, sets, &j.config)
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%w; contraflow recipe prep prints one to begin with", err)
			}
			if err != nil {
				return err
			}
			if m := j.config.Tokenize.Model; m != "" {
				dir, err := hfmodel.Resolve(cmd.Context(), m, hfmodel.Options{})
				if err != nil {
					return fmt.Errorf("tokenize.model: %w", err)
				}
				f, err := hfmodel.Open(dir)
				if err != nil {
					return fmt.Errorf("tokenize.model: %w", err)
				}
				j.config.Tokenize.Dir, j.config.Tokenize.Bare = f.TokenizerDir, f.Static()
				if err := errors.Join(checkLengths(f, j.config.Tokenize.MaxLength), f.Close()); err != nil {
					return err
				}
			}
			if !quiet {
				j.options.Progress = progress()
				j.options.Note = func(message string) { fmt.Fprintln(os.Stderr, message) }
			}
			begun := time.Now()
			s, err := start(cmd.Context(), j)
			if err != nil {
				return err
			}
			if !quiet {
				report(s, j.config.Output.Dir, time.Since(begun))
			}
			return nil
		},
	}
	help.Show(cmd)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{flags.Error(err)} })
	f := cmd.Flags()
	f.VarP(flags.Once(&file), "config", "c", "what to do, a YAML `FILE`")
	f.StringArrayVar(&sets, "set", nil, "override a key, `KEY=VALUE`: --set output.shards=4 (may be repeated)")
	f.StringVar(&out, "out", "", "the folder `DIR` to write: sets output.dir")
	f.StringVar(&j.runner, "runner", "local", "the `NAME` of what runs it: local, or with Beam prism, universal (Flink, Spark) or dataflow")
	f.BoolVar(&j.options.Overwrite, "overwrite", false, "replace an earlier output in the folder")
	f.IntVar(&j.options.Threads, "threads", 0, "of the local runner (default: all processors)")
	f.StringVar(&j.options.TempDir, "temp", "", "the folder `DIR` for what the local runner spills (default: the system's)")
	f.BoolVarP(&quiet, "quiet", "q", false, "print errors only")
	return cmd
}

// decode reads a configuration, or says all that is wrong with it.
func decode(file string, sets []string, c *prep.Config) error {
	return recipe.Strict(file, sets, c, func(report func(key, text string), said func(key string) bool) {
		found := c.Check()
		for _, key := range []string{"threshold", "shingle", "bands", "rows"} { // said as the defaults are, they do no more
			if said("dedupe.near."+key) && !said("dedupe.near.column") && !slices.Contains(found, prep.NearWithoutColumn) {
				found = append(found, prep.NearWithoutColumn)
			}
		}
		for _, p := range found {
			report(p.Key, p.Text)
		}
	})
}

// checkLengths refuses what training would with the ids: lengths beyond the model's positions, and those that leave no room for a text. Who has a
// model of a kind that is not trained here may take its tokenizer.
func checkLengths(f *hfmodel.Folder, n prep.Lengths) error {
	if !f.Static() && min(n.Query, n.Document) < 1 {
		return fmt.Errorf("tokenize.max_length: is {query: %d, document: %d}, want at least 1: only static embeddings read texts of any length", n.Query, n.Document)
	}
	tok, err := embedder.LoadTokenizer(f)
	if err != nil {
		return fmt.Errorf("tokenize.model: %w", err)
	}
	c, unknown := embedder.ConfigOf(f, nil)
	for _, l := range []struct {
		role   string
		length int
	}{{"query", n.Query}, {"document", n.Document}} {
		if unknown == nil {
			_, err = embedder.MaxLengthOf(f, c, l.length)
		}
		if err = errors.Join(err, embedder.CheckLength(tok, l.length)); err != nil {
			return fmt.Errorf("tokenize.max_length.%s: %w", l.role, err)
		}
	}
	return nil
}

func runnerNames() (names []string) {
	for n := range runners {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// progress prints a line for each stage, and now and then how far it is.
func progress() func(stage string, done, total int) {
	var last time.Time
	return func(stage string, done, total int) {
		if done < total && time.Since(last) < 5*time.Second {
			return
		}
		last = time.Now()
		fmt.Fprintf(os.Stderr, "%s: %d of %d\n", stage, done, total)
	}
}

// mostReasons is how many reasons of one rule are printed.
const mostReasons = 12

func report(s *prep.Stats, dir string, took time.Duration) {
	read, train, dev := s.Rows()
	fmt.Fprintf(os.Stderr, "%s in %.1f s (%.0f rows/s): %d for training, %d for development\n", spelling.Count(read, "row", "rows"), took.Seconds(), float64(read)/took.Seconds(), train, dev)
	for _, in := range s.Inputs {
		if in.Train+in.Dev == 0 {
			fmt.Fprintf(os.Stderr, "no row of input %q is left of %d\n", in.Name, in.Read)
		}
	}
	for _, name := range prep.RuleNames {
		if r := s.Rules[name]; r != nil {
			first := ""
			if len(r.Reasons) == 0 && len(r.Samples) > 0 { // each reason names its own
				first = fmt.Sprintf(" (%s)", r.Where(""))
			}
			fmt.Fprintf(os.Stderr, "%12d %s%s\n", r.Dropped, name, first)
			reasons, others := r.Most(mostReasons)
			for _, reason := range reasons {
				fmt.Fprintf(os.Stderr, "%16d %s (%s)\n", r.Reasons[reason], reason, r.Where(reason))
			}
			if others > 0 {
				fmt.Fprintf(os.Stderr, "%16d for other reasons: %s/README.md\n", others, dir)
			}
		}
	}
	if n := s.Repeated(); n > 0 {
		fmt.Fprintf(os.Stderr, "%12d of the rows for training are repeats of others (mix)\n", n)
	}
	if n := s.Cut(); n > 0 {
		fmt.Fprintf(os.Stderr, "%12d texts were longer than tokenize.max_length and cut\n", n)
	}
	if s.BEIR != nil {
		fmt.Fprintf(os.Stderr, "%s/beir: %v\n", dir, s.BEIR)
	}
	fmt.Fprintf(os.Stderr, "%s/README.md says more.\n", dir)
}
