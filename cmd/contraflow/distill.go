package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
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
		Use:   "distill --model DIR --input FILES --query NAME --positive NAME [--negatives NAME ...] --output FILE",
		Short: "Write a teacher's scores of training rows",
		Long: `distill writes a parquet file with the input's columns and a column of lists beside them: the teacher's scores of each row's documents,
the positive's first, then its negatives'. The column is scores, or as --output-column says, as it must where the input has one called so: what mine has
written has the scores of the model that mined. data.train takes it for losses that learn from scores (margin_mse, distill_kl, and a
reranker's kl and distill); of the command below, as

  {path: scored.parquet, query: query, positive: positive, negatives: [negatives], negatives_per_query: all, scores: teacher}

and of each run as it prints in the end. The teacher is a reranker, which reads query and document together, or an embedding model, whose scores are
cosines; its folder says which. For teacher_embedding (mse), whose teacher gives embeddings, there is contraflow embed.

Rows that --on-error skip leaves out are not in the output; among them are lines that are no JSON.
` + inPlace + `
With --on-error skip, which would lose rows, it may not.`,
		Example: `  contraflow distill --model r/model --input mined.parquet --query query --positive positive --negatives negatives --output scored.parquet --output-column teacher`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := f.rows.bad.check(); err != nil {
				return err
			}
			if err := f.rows.bad.apart(f.rows.output, f.rows.input, "the scores"); err != nil {
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
	fl.StringArrayVar(&f.negatives, "negatives", nil, "a column `NAME` with negatives, or lists of them (may be repeated)")
	fl.StringVar(&f.outputColumn, "output-column", "scores", "the `NAME` of the column with the scores")
	fl.BoolVar(&f.dot, "dot", false, "of an embedding model: products of embeddings as they are, not cosines; those of a sparse encoder always are")
	fl.StringVar(&f.template, "template", "", "of a reranker: "+templateFlag)
	fl.StringVar(&f.instruction, "instruction", "", "of a reranker: "+instructionFlag)
	fl.BoolVar(&f.sigmoid, "sigmoid", false, "of a reranker: "+sigmoidFlag)
	f.model.add(cmd, "texts, or a reranker's pairs,")
	return cmd
}

// teacher scores pairs.
type teacher interface {
	// ScorePairs scores each document with the query of its place; cut is how many texts or pairs were too long.
	ScorePairs(ctx context.Context, queries, documents []string) (scores []float32, cut int, err error)
	Close() error
}

// teacher loads the model as what its folder says that it is.
func (f *distillFlags) teacher(cmd *cobra.Command) (teacher, error) {
	dir, err := hfmodel.Resolve(cmd.Context(), f.model.path, hfmodel.Options{Progress: newUI(cmd.ErrOrStderr(), false).download})
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
	of := map[bool][]string{true: {"template", "instruction", "sigmoid"}, false: {"query-prompt", "document-prompt", "dot"}}
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
		return r, nil
	}
	e, err := f.model.load(cmd)
	if err != nil {
		return nil, err
	}
	t := &cosines{Embedder: e, dot: f.dot || e.Sparse()} // as eval compares sparse embeddings
	t.query, t.document = textPrompts(cmd, e, f.rows.queryPrompt, f.rows.documentPrompt)
	return t, nil
}

// cosines is an embedding model as a teacher.
type cosines struct {
	*embedder.Embedder
	query, document string // prompts
	dot             bool
}

func (t *cosines) ScorePairs(ctx context.Context, queries, documents []string) (scores []float32, cut int, err error) {
	place := map[string]int{} // a text is embedded once: queries come with each of their documents
	var texts []string
	number := func(prompt string, of []string) (places []int) {
		for _, text := range of {
			text = prompt + text
			if _, ok := place[text]; !ok {
				place[text] = len(texts)
				texts = append(texts, text)
			}
			places = append(places, place[text])
		}
		return places
	}
	q, d := number(t.query, queries), number(t.document, documents)
	x := make([]float32, len(texts)*t.Size())
	if cut, err = t.EmbedInto(ctx, "", texts, x); err != nil && !errors.Is(err, embedder.ErrNotFinite) { // of a score that is not, run names the row
		return nil, 0, err
	}
	if !t.dot {
		evaluate.Normalize(x, t.Size())
	}
	for i := range q {
		scores = append(scores, mine.Score(x, x, t.Size(), q[i], d[i]))
	}
	return scores, cut, nil
}

func (f *distillFlags) run(cmd *cobra.Command, t teacher) error {
	ctx, u := cmd.Context(), newUI(cmd.ErrOrStderr(), false)
	d, err := dataset.Open(ctx, dataset.Source{Paths: f.rows.input, Query: f.rows.query, Positive: f.rows.positive, Negatives: f.negatives, Raw: true, InOrder: true})
	if err != nil {
		return err
	}
	defer d.Close()
	u.notes(d)
	table, w, done, err := besides(ctx, f.rows.bad.open, f.rows.input, f.rows.output, dataset.OutColumn{Name: f.outputColumn, Type: dataset.NumbersOut})
	if err != nil {
		return err
	}
	defer done()
	next, stop := iter.Pull2(rows(ctx, d))
	defer stop()
	total, long, written := 0, 0, 0
	for c, err := range table.Chunks(ctx, "", distillRows) {
		if err != nil {
			return err
		}
		var queries, documents []string
		var counts, out []int // the documents of each row that is scored, and the rows of the chunk that are not
		var ids []int64       // of the former
		for i := range c.Rows {
			id := c.First + int64(i)
			row, err, ok := next()
			if !ok {
				return fmt.Errorf("row %d: the file has changed while it was read", id)
			}
			if bad := c.Bad[i]; err == nil && bad != nil {
				err = bad
			}
			if err != nil {
				if err := f.rows.bad.leave(err); err != nil {
					return err
				}
				out = append(out, i)
				continue
			}
			var texts []string // the query, then its documents
			for column := range 2 + len(f.negatives) {
				texts = row.texts(texts, column)
			}
			for _, text := range texts[1:] {
				queries, documents = append(queries, texts[0]), append(documents, text)
			}
			counts, ids = append(counts, len(texts)-1), append(ids, id)
		}
		last := c.First + int64(c.Rows) - 1
		if c.Drop(out); c.Rows == 0 {
			continue
		}
		scores, cut, err := t.ScorePairs(ctx, queries, documents)
		if err != nil {
			return fmt.Errorf("rows %d to %d: %w", c.First, last, err)
		}
		if f.sigmoid {
			reranker.Sigmoid(scores)
		}
		total, long, written = total+len(scores), long+cut, written+c.Rows
		lists := make([][]float32, c.Rows)
		for i, n := range counts {
			lists[i], scores = scores[:n], scores[n:]
			for k, s := range lists[i] {
				if !finite(s) {
					return fmt.Errorf("row %d: the teacher's score of document %d is %v: its weights, or what it computes of them in --precision %s, are not finite", ids[i], k, s, f.model.precision)
				}
			}
		}
		if err := w.Write(c, lists); err != nil {
			return err
		}
		if u.due(last+1 == table.Rows()) {
			u.printf("%d of %d rows\n", last+1, table.Rows())
		}
	}
	if written == 0 {
		return f.rows.bad.none()
	}
	if err := w.Close(); err != nil {
		return err
	}
	u.printf("%d scores of %d rows written to %s, which data.train takes as %s\n", total, written, f.rows.output, f.entry(d.Lists()))
	if len(f.negatives) == 0 {
		u.printf("note: these are scores of positives alone: margin_mse, distill_kl and a reranker's kl and distill compare them with those of negatives, whose columns --negatives names\n")
	}
	f.rows.bad.say(u)
	if long > 0 {
		u.printf("%d texts or pairs were longer than the teacher takes and cut\n", long)
	}
	return nil
}

// entry is what data.train says to take the scores. lists tells which of query, positive and negatives are.
func (f *distillFlags) entry(lists []bool) string {
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

// distillRows is how many rows are scored at a time: with their documents, sorted by length, they fill passes well.
const distillRows = 1024
