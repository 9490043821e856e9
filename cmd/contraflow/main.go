// Command contraflow trains text-embedding models: see its help, and the README for the first hour.
//
// It holds flags and nothing else: what a command does is a package's business. It is the one place that picks devices.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"contraflow/cmd/internal/flags"
	"contraflow/cmd/internal/help"
	"contraflow/collective"
	_ "contraflow/gpustage/cpu"
	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	_ "contraflow/io/objects"
	"contraflow/io/spelling"
	"contraflow/pipeline"
	"contraflow/stages/recipe"
	"contraflow/stages/report"
)

// usageError is a mistake in the command line: exit code 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// incomplete is a usageError of a command line that lacks something, which an example shows.
type incomplete struct{ error }

func missing(err error) error { return usageError{incomplete{err}} }

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	go watchSignals(ctx, stop)
	defer func() { fmt.Fprint(os.Stderr, overLast()) }() // where nothing else was said the prompt is next
	root, out := newRoot(), &stdout{file: os.Stdout, terminal: term.IsTerminal(int(os.Stdout.Fd()))}
	ctx = dataset.WithNote(ctx, func(message string) { fmt.Fprintf(os.Stderr, "%snote: %s\n", overLast(), message) })
	root.SetArgs(args)
	root.SetOut(out)
	cmd := root
	err := protect(func() (err error) {
		cmd, err = root.ExecuteContextC(ctx)
		return err
	})
	if err == nil {
		err = out.failed()
	}
	if err == nil {
		return 0
	}
	var unknown *pflag.NotExistError
	if cmd == root && errors.As(err, &unknown) && !strings.HasPrefix(args[0], "-") { // its flags were taken for the root's
		err = root.Args(root, args)
	}
	var said exitCode
	if errors.As(err, &said) {
		return int(said)
	}
	if errors.Is(err, recipe.ErrFirstTells) {
		return 1
	}
	var end *collective.RankError
	failed := errors.As(err, &end)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) && !failed { // a rank that was stopped is named
		err = errors.New("interrupted")
	}
	if failed {
		sayWhy(err)
	} else {
		fmt.Fprintf(os.Stderr, "%scontraflow: %v%s\n", overLast(), err, nearFlag(cmd, err))
	}
	var bug *pipeline.PanicError
	if errors.As(err, &bug) {
		fmt.Fprintln(os.Stderr, "This is a mistake in contraflow, not in your input. CONTRAFLOW_DEBUG=1 prints where it happened.")
		if os.Getenv("CONTRAFLOW_DEBUG") != "" {
			os.Stderr.Write(bug.Stack)
		}
	}
	var usage usageError
	var lacks incomplete
	wrong := errors.As(err, &usage)
	n := next(cmd, err)
	if example, _, _ := strings.Cut(strings.TrimSpace(cmd.Example), "\n"); n == "" && errors.As(err, &lacks) && example != "" {
		n = example
	}
	if n != "" {
		fmt.Fprintf(os.Stderr, "Next: %s\n", n)
	}
	if wrong {
		fmt.Fprintf(os.Stderr, "See '%s --help'.\n", cmd.CommandPath())
		return 2
	}
	return 1
}

// next is what to type after an error of a command that has an answer of that kind.
func next(cmd *cobra.Command, err error) string {
	var gone *net.OpError
	resume := cmd.Flags().Lookup("resume") // nil: the command is none that trains
	if errors.Is(err, hfmodel.ErrOffline) || errors.Is(err, hfmodel.ErrNotFound) || errors.Is(err, hfmodel.ErrNoModel) || errors.Is(err, dataset.ErrNoFiles) || errors.As(err, &gone) {
		if n := runFrom(cmd); n != "" {
			return n
		}
	}
	switch {
	case errors.Is(err, hfmodel.ErrOffline):
		return "contraflow doctor says where models are looked for"
	case errors.Is(err, hfmodel.ErrNotFound), errors.Is(err, hfmodel.ErrNoModel):
		return "contraflow init --help makes a new model; contraflow quickstart --out q trains one on this machine's Go sources"
	case errors.Is(err, dataset.ErrNoFiles) && resume != nil && resume.Value.String() == "true":
		return "a run goes on with the files that it began with: put them back, or have the recipe say where they are now"
	case errors.Is(err, dataset.ErrNoFiles):
		return "contraflow quickstart --out q makes data to look at: q/train.parquet, if you have none yet"
	case errors.Is(err, dataset.ErrBadRow) && cmd.Name() == "train":
		return fmt.Sprintf("contraflow check -c %s lists all rows that can't be used", shellWord(cmd.Flag("config").Value.String()))
	case errors.Is(err, report.ErrNoRun):
		return "contraflow train -c recipe.yaml makes one; so does contraflow quickstart --out q"
	case errors.Is(err, syscall.ENOSPC) && resume != nil:
		return "contraflow doctor says how much is free; once there is more, --resume goes on from the newest checkpoint"
	case errors.Is(err, syscall.ENOSPC):
		return "contraflow doctor says how much is free" + elsewhere(cmd, err, "disk")
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return "ls -l says who may read and write it" + elsewhere(cmd, err, "folder to write into")
	case errors.As(err, &gone) && gone.Op == "listen":
		return "--metrics-addr 127.0.0.1:0 takes a port that is free"
	case errors.As(err, &gone):
		return "contraflow doctor; a model's folder on this machine needs no network"
	}
	return ""
}

// runFrom is next of a command whose recipe would find from another folder what it names; "": there is no such folder, or the command has no recipe.
func runFrom(cmd *cobra.Command) string {
	config := cmd.Flags().Lookup("config")
	if config == nil || config.Shorthand == "" {
		return ""
	}
	sets, _ := cmd.Flags().GetStringArray("set")
	r, err := recipe.LoadUnsaved(config.Value.String(), sets)
	if err != nil {
		return ""
	}
	dir, file := r.RunFrom(config.Value.String())
	if dir == "" {
		return ""
	}
	return fmt.Sprintf("cd %s && %s -c %s: a recipe's paths count from the folder in which the program runs", shellWord(dir), cmd.CommandPath(), shellWord(file))
}

// elsewhere says which flag of the command chooses another place than the one that an error is of; "": none does.
func elsewhere(cmd *cobra.Command, err error, what string) string {
	var at *fs.PathError
	if errors.As(err, &at) && at.Path == os.Stdout.Name() {
		return ""
	}
	for _, flag := range []string{"out", "output"} {
		if cmd.Flags().Lookup(flag) != nil {
			return fmt.Sprintf("; --%s chooses another %s", flag, what)
		}
	}
	return ""
}

// protect makes an error of a panic on this goroutine, as the pipeline does on its own.
func protect(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &pipeline.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "contraflow",
		Short: "Train text-embedding models with very large contrastive batches",
		Long: `contraflow trains text-embedding models with very large contrastive batches.

  contraflow quickstart --out q              a first look: trains a small model, in two minutes
  contraflow recipe embedder > recipe.yaml   your data: a recipe to change, with your model and files
  contraflow train -c recipe.yaml            trains by it
  contraflow eval --help                     measures a model, embed uses it`,
		Version:      version(),
		SilenceUsage: true, SilenceErrors: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q%s", args[0], suggestions(cmd, args[0]))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRun: func(cmd *cobra.Command, _ []string) { // whatever reads data that is elsewhere
			u := progressOf(cmd)
			cmd.SetContext(dataset.WithProgress(cmd.Context(), func(file string, done, total int64) {
				u.download(hfmodel.Progress{File: file, Done: done, Total: total})
			}))
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{flagError(err)} })
	root.SetVersionTemplate("{{.Version}}\n")
	help.Show(root)
	cobra.EnableCommandSorting = false // they stand in the order of work
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Begin:", []*cobra.Command{newQuickstart(), newRecipe(), newImport(), newInit()}},
		{"Prepare data:", []*cobra.Command{newPrep(), newCheck(), newMine(), newDistill()}},
		{"Train:", []*cobra.Command{newPlan(), newVerify(), newTrain(), newReport(), newTrace(), newGraph()}},
		{"Measure and use models:", []*cobra.Command{newEval(), newEmbed(), newRerank(), newTokenize(), newMerge(), newMix()}},
		{"This machine and this program:", []*cobra.Command{newDoctor(), newBench(), newVersion()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.title
		}
		root.AddCommand(g.commands...)
		root.SetCompletionCommandGroupID(g.title) // the last one's
		root.SetHelpCommandGroupID(g.title)
	}
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() == "help" {
			c.Args = func(_ *cobra.Command, args []string) error {
				if found, _, _ := root.Find(args); found == root && len(args) > 0 {
					return root.Args(root, args)
				}
				return nil
			}
		}
	}
	return root
}

// flagError says what a flag wants that is given none of its words, or as package flags says what it wants.
func flagError(err error) error {
	var wrong *pflag.InvalidValueError
	var words notOne
	if errors.As(err, &wrong) && errors.As(err, &words) {
		return fmt.Errorf("--%s is %q, %w", wrong.GetFlag().Name, wrong.GetValue(), words)
	}
	return flags.Error(err)
}

// noFlag is what to know where somebody looks for a flag that commands which compute with a model do not have.
var noFlag = map[string]string{
	"batch-size": "; texts go through the model in passes of the size that the device likes",
	"device":     "; the GPU computes, if this program is built for it and it is of a kind that has been tried, else the processor",
}

// nearFlag says which flag of the command was probably meant, or which key of a recipe.
func nearFlag(cmd *cobra.Command, err error) string {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return ""
	}
	name := strings.ReplaceAll(unknown.GetSpecifiedName(), "_", "-")
	if len(name) == 1 { // nothing is like a letter
		return ""
	}
	var names, alike []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		names = append(names, f.Name)
		if a, b := strings.Split(f.Name, "-"), strings.Split(name, "-"); within(a, b) || within(b, a) {
			alike = append(alike, "--"+f.Name)
		}
	})
	other := map[string]string{"out": "output", "output": "out"}[name] // folders are --out, files that rows are written to --output
	near := spelling.Nearest(name, names)
	switch {
	case slices.Contains(names, other):
		near = other
	case near != "":
	case slices.Contains(names, "set") && recipe.Ours(name) != "":
		return fmt.Sprintf("; a recipe has %s, which --set overrides", recipe.Ours(name))
	case len(alike) > 0:
		return fmt.Sprintf("; did you mean %s?", either(alike))
	case slices.Contains(names, "model") && slices.Contains(names, "precision"):
		return noFlag[name]
	}
	if near != "" {
		return fmt.Sprintf("; did you mean --%s?", near)
	}
	return ""
}

// within tells that all words are among others.
func within(words, others []string) bool {
	return !slices.ContainsFunc(words, func(w string) bool { return !slices.Contains(others, w) })
}

func suggestions(cmd *cobra.Command, arg string) string {
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(arg); len(near) > 0 {
		return fmt.Sprintf("; did you mean %s?", cmp.Or(spelling.Nearest(arg, near), near[0]))
	}
	return ""
}

// noArgs is for commands that take flags only.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unexpected argument %q%s", args[0], expanded(cmd, args[0]))}
	}
	return nil
}

// expanded says what to do where an argument is a file beside one that a flag names: a shell has made both of a glob; or the value of a flag that needs none.
func expanded(cmd *cobra.Command, arg string) (hint string) {
	if f := cmd.Flags().Lookup("nanobeir"); f != nil && f.Changed {
		return fmt.Sprintf("; NanoBEIR's tasks stand behind an equals sign: --nanobeir=%s", arg)
	}
	if f := cmd.Flags().Lookup("config"); f != nil && f.Shorthand != "" && !f.Changed && slices.Contains([]string{".yaml", ".yml"}, filepath.Ext(arg)) {
		return "; a recipe is named by -c " + arg
	}
	if f := cmd.Flags().Lookup("model"); f != nil && !f.Changed && hfmodel.IsModel(arg) {
		return "; a model is named by --model " + arg
	}
	if _, err := os.Stat(arg); err != nil {
		return ""
	}
	for _, name := range []string{"input", "corpus", "queries", "qrels", "data"} {
		f := cmd.Flags().Lookup(name)
		if f == nil || !f.Changed {
			continue
		}
		values := []string{f.Value.String()}
		list, many := f.Value.(pflag.SliceValue)
		if many {
			values = list.GetSlice()
		}
		for _, v := range values {
			if filepath.Dir(v) != filepath.Dir(arg) || filepath.Ext(v) != filepath.Ext(arg) {
				continue
			}
			hint = fmt.Sprintf("; a glob is quoted, so that the shell leaves it alone: --%s '%s'", name, filepath.Join(filepath.Dir(arg), "*"+filepath.Ext(arg)))
			if many && name != "queries" { // of which each is a task
				hint += fmt.Sprintf("; or --%s comes before each file", name)
			}
			return hint
		}
	}
	return ""
}

// atLeastOne refuses numbers below 1 that were given: 0 stands for a default that was not.
func atLeastOne(cmd *cobra.Command, names ...string) error {
	for _, f := range names {
		if n, err := cmd.Flags().GetInt(f); err == nil && n < 1 && cmd.Flags().Changed(f) {
			return usageError{fmt.Errorf("--%s is %d, want at least 1", f, n)}
		}
	}
	return nil
}

// require marks flags as required and makes their absence a usage error.
func require(cmd *cobra.Command, names ...string) {
	notEmpty(cmd, names...)
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, f := range names {
			if !cmd.Flags().Changed(f) {
				return missing(fmt.Errorf("--%s is missing", f))
			}
		}
		return run(cmd, args)
	}
}

// notEmpty refuses flags that are given as nothing.
func notEmpty(cmd *cobra.Command, names ...string) {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := flags.Empty(cmd.Flags(), names...); err != nil {
			return usageError{err}
		}
		return run(cmd, args)
	}
}
