package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/io/spelling"
	"contraflow/stages/embedder"
	"contraflow/stages/mine"
	"contraflow/stages/reranker"
)

// distillFlags say what a teacher scores.
type distillFlags struct {
	model                 modelFlags
	rows                  pairFlags
	template, instruction string
	negatives             []string
	outputColumn          string
	sigmoid, dot          bool
}

func newDistill() *cobra.Command {
	var f distillFlags
	cmd := &cobra.Command{
		Use:   "distill --model DIR --input FILES --query NAME (--positive NAME [--negatives NAME ...] | --documents NAME) --output FILE",
		Short: "Write a teacher's scores of training rows",
		Long: `distill writes a parquet file with the input's columns and a column of lists beside them: the teacher's scores of each row's documents,
the positive's first, then its negatives'. The column is scores, or as --output-column says, as it must where the input has one called so: what mine has
written has the scores of the model that mined. data.train takes it for losses that learn from scores (margin_mse, distill_kl, and a
reranker's kl and distill); of the command below, as

  {path: scored.parquet, query: query, positive: positive, negatives: [negatives], negatives_per_query: all, scores: teacher}

and of each run as it prints in the end. The teacher is a reranker, which reads query and document together, or an embedding model, whose scores are
cosines, or inner products where its folder says dot; its folder says which model it is. For teacher_embedding (mse), whose teacher gives embeddings, there is contraflow embed.

With --documents the rows have a list of all of their documents, and each is scored. A reranker learns from that as

  {path: scored.parquet, query: query, documents: docs, scores: teacher}

Rows that --on-error skip leaves out are not in the output; among them are lines that are no JSON.
` + inPlace + `
With --on-error skip, which would lose rows, it may not.`,
		Example: `  contraflow distill --model r/model --input mined.parquet --query query --positive positive --negatives negatives --output scored.parquet --output-column teacher`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := f.rows.checkDocuments(cmd, "positive", "negatives"); err != nil {
				return err
			}
			if err := f.rows.bad.beside(f.rows.output, f.rows.input, "the scores"); err != nil {
				return err
			}
			t, err := f.teacher(cmd)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, t.Close()) }()
			return f.run(cmd, t)
		},
	}
	fl := cmd.Flags()
	f.rows.add(cmd, "of a list, each is scored", "of an embedding model: ")
	addQuiet(cmd, "notes and errors")
	fl.StringArrayVar(&f.negatives, "negatives", nil, "a column `NAME` with negatives, or lists of them (may be repeated)")
	fl.StringVar(&f.rows.documents, "documents", "", "instead of --positive and --negatives: the column `NAME` with lists of all of a row's documents")
	fl.StringVar(&f.outputColumn, "output-column", "scores", "the `NAME` of the column with the scores")
	fl.BoolVar(&f.dot, "dot", false, "of an embedding model: products of embeddings as they are, not cosines; a sparse encoder's, and those of a folder that says dot, always are")
	addTemplate(cmd, &f.template, "of a reranker: ")
	fl.StringVar(&f.instruction, "instruction", "", "of a reranker: "+instructionFlag)
	fl.BoolVar(&f.sigmoid, "sigmoid", false, "of a reranker: "+sigmoidFlag)
	f.model.add(cmd, "texts, or a reranker's pairs,")
	f.model.addQueryLength(cmd, "of an embedding model: ", "queries")
	return cmd
}

// teacher scores pairs, until it is closed.
type teacher interface {
	mine.Teacher
	Close() error
}

// sigmoidTeacher gives a reranker's scores between 0 and 1.
type sigmoidTeacher struct{ *reranker.Reranker }

func (t sigmoidTeacher) ScorePairs(ctx context.Context, queries, documents []string) ([]float32, int, error) {
	scores, cut, err := t.Reranker.ScorePairs(ctx, queries, documents)
	reranker.Sigmoid(scores)
	return scores, cut, err
}

// teacher loads the model as what its folder says that it is.
func (f *distillFlags) teacher(cmd *cobra.Command) (teacher, error) {
	dir, err := findModel(cmd, f.model.path)
	if err != nil {
		return nil, err
	}
	folder, err := hfmodel.Open(dir)
	if err != nil {
		return nil, err
	}
	reranks, vectors := folder.Reranker != nil, folder.MultiVector != nil
	if err := folder.Close(); err != nil {
		return nil, err
	}
	if vectors {
		return nil, usageError{fmt.Errorf("%s gives a vector for each token and no embeddings: a teacher is a reranker or an embedding model", f.model.path)}
	}
	of := map[bool][]string{true: {"template", "instruction", "sigmoid"}, false: {"query-prompt", "document-prompt", "dot", "query-max-length"}}
	for _, flag := range of[!reranks] {
		if cmd.Flags().Changed(flag) {
			what := map[bool]string{true: "a reranker", false: "an embedding model"}
			return nil, usageError{fmt.Errorf("--%s is for %s, and %s is %s", flag, what[!reranks], f.model.path, what[reranks])}
		}
	}
	if reranks {
		r, err := (&rerankFlags{model: f.model, template: f.template, instruction: f.instruction}).load(cmd)
		if err != nil {
			return nil, err
		}
		if f.sigmoid {
			return sigmoidTeacher{r}, nil
		}
		return r, nil
	}
	e, err := f.model.load(cmd)
	if err != nil {
		return nil, err
	}
	t := &embedder.Teacher{Embedder: e, Dot: f.dot || e.Sparse()} // as eval compares sparse embeddings
	t.Query, t.Document = textPrompts(cmd, e, f.rows.queryPrompt, f.rows.documentPrompt)
	return t, nil
}

func (f *distillFlags) run(cmd *cobra.Command, t teacher) error {
	u := progressOf(cmd)
	x := mine.Distillation{
		Source: dataset.Source{Paths: f.rows.input, Query: f.rows.query, Positive: f.rows.positives(), Negatives: f.negatives, Documents: f.rows.documents},
		Output: f.rows.output, Column: f.outputColumn,
		Note: func(message string) { u.printf("%s\n", message) },
		Progress: func(done, total int64) {
			u.progress(done, total, "", "row", "rows")
		},
	}
	if c, ok := t.(interface{ CheckQuery(query string) error }); ok {
		x.Source.CheckText = func(role dataset.Role, text string, _ []int32) string {
			if role == dataset.Query {
				if err := c.CheckQuery(text); err != nil {
					return err.Error()
				}
			}
			return ""
		}
	}
	if f.rows.bad.skips() {
		x.Bad = f.rows.bad.leave
	}
	out, err := x.Run(cmd.Context(), t)
	if errors.Is(err, mine.ErrNoRow) {
		return f.rows.bad.none()
	}
	if err != nil {
		return f.rows.bad.stopped(err)
	}
	u.printf("%s of %s written to %s, which data.train takes as %s\n", spelling.Count(out.Scores, "score", "scores"), spelling.Count(out.Rows, "row", "rows"), f.rows.output, f.entry(out.Lists))
	if len(f.negatives) == 0 && f.rows.documents == "" {
		u.printf("note: these are scores of positives alone: margin_mse, distill_kl and a reranker's kl and distill compare them with those of negatives, whose columns --negatives names\n")
	}
	f.rows.bad.say(u)
	if out.Cut > 0 {
		u.loud().printf("%s longer than the teacher takes and cut\n", spelling.Count(out.Cut, "text or pair was", "texts or pairs were"))
	}
	return nil
}

// entry is what data.train says to take the scores. lists tells which of query, positive and negatives are.
func (f *distillFlags) entry(lists []bool) string {
	if f.rows.documents != "" {
		return fmt.Sprintf("{path: %s, query: %s, documents: %s, scores: %s}", inYAML(f.rows.output), inYAML(f.rows.query), inYAML(f.rows.documents), inYAML(f.outputColumn))
	}
	e := fmt.Sprintf("{path: %s, query: %s, positive: %s", inYAML(f.rows.output), inYAML(f.rows.query), inYAML(f.rows.positive))
	var names []string
	for _, n := range f.negatives {
		names = append(names, inYAML(n))
	}
	if len(names) > 0 {
		e += ", negatives: [" + strings.Join(names, ", ") + "]"
	}
	if slices.Contains(lists[min(2, len(lists)):], true) {
		e += ", negatives_per_query: all"
	}
	return e + ", scores: " + inYAML(f.outputColumn) + "}"
}

// word is a text that YAML takes as it stands, unless it is one of those that mean something.
var word, meant = regexp.MustCompile(`^[A-Za-z_./][A-Za-z0-9_./-]*$`), regexp.MustCompile(`^(?i:true|false|null|yes|no|on|off|y|n)$`)

// inYAML is a text as it stands in a recipe.
func inYAML(s string) string {
	if word.MatchString(s) && !meant.MatchString(s) {
		return s
	}
	return strconv.Quote(s)
}
