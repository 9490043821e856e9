package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"contraflow/cmd/internal/flags"
	"contraflow/gpustage"
	"contraflow/io/checkpoint"
	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/stages/embedder"
	"contraflow/stages/mix"
)

// mixFlags say what is mixed, and how.
type mixFlags struct {
	out, method, precision string
	weights                []float64
	force                  bool

	rows            []string // with which losses are measured; nil: weights are given
	query, positive string
	negatives       []string
	perQuery, batch int
	temperature     float64
}

// ofLoss are the flags that go with --by-loss.
var ofLoss = []string{"query", "positive", "negatives", "negatives-per-query", "batch", "temperature"}

func newMix() *cobra.Command {
	var f mixFlags
	cmd := &cobra.Command{
		Use:   "mix MODEL MODEL... --out DIR [--weights 0.7,0.3 | --by-loss FILES] [--method slerp] [--precision bf16]",
		Short: "Average the parameters of several models, such as a fine-tuned one and its base",
		Long: `mix writes a model whose parameters are the weighted mean of those of several models of one architecture: of a fine-tuned model and the one that it began
with, which keeps what fine-tuning forgets (LM-Cocktail), of several runs, or of a run's last checkpoints (model soups). A MODEL is a folder, a hub id or a
checkpoint of a run (runs/x/checkpoints/step-00000500, once the run has its model); embedding models of all kinds and rerankers can be mixed. A LoRA adapter is made a model
first: contraflow merge --adapter DIR --out DIR.

--weights has a number for each model. They sum to 1 (within 0.001, as those of 0.333,0.333,0.333 do, and are then divided by their sum); without them every model counts the same. With --method
linear one may be negative. --method slerp is of two models: each tensor goes along the arc from the first model's to the second's, as in mergekit, and the second's
weight says how far.

--by-loss takes the weights from a few rows that no model has seen, of what the mixed model is for: softmax(-loss / temperature) of the models' losses on
them, and prints both. The loss is InfoNCE of cosines times 20 in batches of --batch rows. It is for models that make one dense embedding of a text.

Files beside the weights (configuration, tokenizer, prompts) are the first model's, and a base that says nothing of pooling or scores is read as what the first is. Models that differ in more than their numbers are refused, with what differs.`,
		Example: `  contraflow mix runs/x/model BAAI/bge-small-en-v1.5 --weights 0.7,0.3 --out mixed
  contraflow mix runs/x/model runs/y/model BAAI/bge-small-en-v1.5 --by-loss dev.parquet --out mixed
  contraflow mix runs/x/checkpoints/step-00000500 runs/x/checkpoints/step-00001000 --out soup
  contraflow mix a b --method slerp --weights 0.5,0.5 --precision bf16 --out mixed`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return missing(fmt.Errorf("want at least two models to mix, and there %s", map[int]string{0: "are none", 1: "is one"}[len(args)]))
			}
			return nil
		},
		RunE: f.run,
	}
	fl := cmd.Flags()
	fl.StringVar(&f.out, "out", "", "the folder `DIR` to write")
	fl.Float64SliceVar(&f.weights, "weights", nil, "a `NUMBER,...` for each model, which sum to 1 (default: all the same)")
	fl.Lookup("weights").DefValue = ""                                 // the default is the text's
	_ = fl.SetAnnotation("weights", flags.SuchAs, []string{"0.7,0.3"}) // there is such a flag
	oneOf(cmd, &f.method, "method", string(mix.Linear), "the mean, or along the arc between two models", string(mix.Linear), string(mix.SLERP))
	oneOf(cmd, &f.precision, "precision", "", "what the weights are written in (default: what the first model's are in)", "f32", "bf16", "f16")
	fl.BoolVar(&f.force, "force", false, "replace another model in --out")
	fl.StringArrayVar(&f.rows, "by-loss", nil, "weigh the models by their loss on these rows: "+strings.Replace(filesFlag, "split train but", "split test, or else validation, but", 1))
	fl.StringVar(&f.query, "query", "query", "of --by-loss: "+fmt.Sprintf(columnFlag, "queries"))
	fl.StringVar(&f.positive, "positive", "positive", "of --by-loss: "+fmt.Sprintf(columnFlag, "positives"))
	fl.StringArrayVar(&f.negatives, "negatives", nil, "of --by-loss: a column `NAME` with negatives, or lists of them (may be repeated)")
	fl.IntVar(&f.perQuery, "negatives-per-query", 0, "of --by-loss: how `MANY` of a list of negatives count (default: all, of lists that are equally long)")
	fl.IntVar(&f.batch, "batch", 64, "of --by-loss: rows of a batch, in which other rows' documents are negatives")
	fl.Float64Var(&f.temperature, "temperature", mix.Temperature, "of --by-loss: the lower, the more the model with the least loss counts")
	require(cmd, "out")
	return cmd
}

func (f *mixFlags) run(cmd *cobra.Command, args []string) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	models, err := f.models(args)
	if err != nil {
		return err
	}
	if err := mayWrite(f.out, f.force, ", unless it is one of those that are mixed"); err != nil {
		return err
	}
	for i, m := range models {
		if checkpoint.IsCheckpoint(m.Path) {
			continue
		}
		if err := noCheckpoint(m.Path); err != nil {
			return err
		}
		if models[i].Path, err = findModel(cmd, m.Path); err != nil {
			return err
		}
	}
	if f.rows != nil {
		if err := f.weigh(cmd, models); err != nil {
			return err
		}
	}
	u := progressOf(cmd)
	u.said = time.Now() // of what is over within a second nothing is said
	err = mix.Write(cmd.Context(), f.out, models, mix.Options{
		Method: mix.Method(f.method), Precision: f.precision, Note: notes(cmd), Weighed: f.weighed(),
		Progress: func(done, total int64) {
			u.passing(false, fmt.Sprintf("%.0f%% of %.1f million parameters mixed", 100*float64(done)/float64(total), float64(total)/1e6))
		},
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "mixed model saved in %s\n", f.out)
	return err
}

// noCheckpoint finds a path among a run's checkpoints that is none of them, and says which there are.
func noCheckpoint(path string) error {
	dir := filepath.Dir(filepath.Clean(path))
	if filepath.Base(dir) != "checkpoints" || hfmodel.IsModel(path) {
		return nil
	}
	steps, err := checkpoint.Open(dir, checkpoint.Disk{}).Steps()
	if err != nil || len(steps) == 0 {
		return fmt.Errorf("%s is no checkpoint: %s has none; save.every writes them, and save.keep says how many stay", path, dir)
	}
	var names []string
	for _, step := range steps {
		names = append(names, checkpoint.FolderName(step))
	}
	return fmt.Errorf("%s is no checkpoint: %s has %s", path, dir, strings.Join(names, ", "))
}

// check finds flags that make no sense together.
func (f *mixFlags) check(cmd *cobra.Command) error {
	for _, flag := range ofLoss {
		if f.rows == nil && cmd.Flags().Changed(flag) {
			return usageError{fmt.Errorf("--%s is of --by-loss", flag)}
		}
	}
	if f.rows != nil && f.weights != nil {
		return usageError{errors.New("--weights are given, and --by-loss finds them: give one or the other")}
	}
	if _, err := mix.ByLoss(nil, f.temperature); err != nil {
		return usageError{fmt.Errorf("--temperature: %w", err)}
	}
	return atLeastOne(cmd, "batch", "negatives-per-query")
}

// models are those of the command line with their weights, if these are given, and the flags checked.
func (f *mixFlags) models(args []string) ([]mix.Model, error) {
	if f.weights != nil && len(f.weights) != len(args) {
		return nil, usageError{fmt.Errorf("--weights has %d numbers for %d models: want one for each", len(f.weights), len(args))}
	}
	var models []mix.Model
	for i, path := range args {
		if strings.TrimSpace(path) == "" {
			return nil, usageError{fmt.Errorf("model %d has an empty name", i+1)}
		}
		m := mix.Model{Path: path, Name: filepath.ToSlash(path), Weight: 1 / float64(len(args))}
		if f.weights != nil {
			m.Weight = f.weights[i]
		}
		models = append(models, m)
	}
	if err := mix.Check(models, mix.Options{Method: mix.Method(f.method), Precision: f.precision}); err != nil {
		return nil, usageError{err}
	}
	return models, nil
}

// weigh gives models the weights that follow from their losses, and prints them.
func (f *mixFlags) weigh(cmd *cobra.Command, models []mix.Model) (err error) {
	if err := mix.Compare(f.out, models, mix.Options{Method: mix.Method(f.method), Precision: f.precision}); err != nil { // before anything is computed
		return err
	}
	for _, m := range models {
		if err := mix.CheckLoss(m.Path); err != nil {
			return err
		}
	}
	data, err := dataset.Open(noting(cmd), dataset.Source{Paths: f.rows, Splits: dataset.HeldOut, Query: f.query, Positive: f.positive, Negatives: f.negatives, NegativesPerQuery: f.perQuery, InOrder: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	if err := outside(f.out, data); err != nil {
		return err
	}
	progressOf(cmd).notes(data)
	d, err := gpustage.OpenBest(notes(cmd))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	var losses []float64
	for _, m := range models {
		l, err := mix.Loss(cmd.Context(), d, m.Path, data, f.batch)
		if err != nil {
			return err
		}
		losses = append(losses, l)
	}
	weights, err := mix.ByLoss(losses, f.temperature)
	if err != nil {
		return err
	}
	for i := range models {
		models[i].Weight = weights[i]
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "loss %.4f, weight %.4f: %s\n", losses[i], weights[i], models[i].Name); err != nil {
			return err
		}
	}
	return nil
}

// weighed tells for the model card how weights were found.
func (f *mixFlags) weighed() string {
	if f.rows == nil {
		return ""
	}
	var files []string
	for _, name := range f.rows {
		files = append(files, hfmodel.Code(filepath.ToSlash(name)))
	}
	return fmt.Sprintf("Their weights are softmax(-loss / %v) of their losses on the rows of %s, InfoNCE of cosines times 20 in batches of %d.", f.temperature, strings.Join(files, ", "), f.batch)
}

// outside refuses to replace a folder that has files of a dataset.
func outside(dir string, data *dataset.Dataset) error {
	row := int64(0)
	for _, file := range data.Files() {
		if file.Rows == 0 {
			continue // of which nothing is measured
		}
		path := data.Locate(row).File
		if same, err := embedder.Overlap(dir, path); err != nil {
			return err
		} else if same {
			return fmt.Errorf("%s would replace %s, with which losses are measured: choose another folder", dir, path)
		}
		row += file.Rows
	}
	return nil
}
