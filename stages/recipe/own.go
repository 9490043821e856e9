package recipe

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"runtime"
	"strings"

	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/loss"
)

// What a program puts in the place of a recipe's, or adds to it.

// WithLoss trains with a loss of one's own in the place of the recipe's, which still says what rows must have, negatives too, for data is opened before
// the program's loss is known: mnrl, and a reranker's cross_entropy, take rows with any number of negatives, and columns of scores, which l gets. Where l has a method CheckLabel or CheckScore (func(float64) error) or
// CheckNegatives (func(n int) error), as those of package loss that not all numbers will do for, a row that it refuses, as the epoch has drawn it, ends the run before its step, whatever data.on_error says. All ranks are given the same, and a run
// that goes on from a checkpoint the one that it had: nobody else knows what it is. It is measured on the held-out rows (eval.loss) that have no loss
// of their own, too, and its gradient is verified by Verify.
func WithLoss(l loss.Loss) TrainOption { return func(o *trainOptions) { o.own.loss = l } }

// WithRow calls f with each row before it becomes tokens: it may change the texts, not their number, and the weight, label and scores. f is
// called by one goroutine of each rank at a time. Rows of evaluations stay as they are. So that a run goes on as if nothing had happened, what it does
// must follow from the row alone. With a reranker's mnrl each rank calls f with all rows of each batch, and other rows get the documents that f has left.
func WithRow(f func(*dataset.Example) error) TrainOption {
	return func(o *trainOptions) { o.own.row = f }
}

// WithStages has add put stages of one's own into the graph that trains: what looks at batches or results, or measures something else, of this rank.
// Of a step's gradient they find its norm (StepResult.GradNorm): the update has cleared it, and stages.BeforeUpdate is for graphs of one's own. A graph
// is built anew after a step that is rolled back (train.on_nan), and add called again. Stages that change what is trained are WithRow's and WithLoss's
// matter, of which checkpoints know.
func WithStages(add func(g *pipeline.Graph, p Ports) error) TrainOption {
	return func(o *trainOptions) { o.own.stages = add }
}

// own is what a program puts in the place of a recipe's, or adds to it.
type own struct {
	loss   loss.Loss
	row    func(*dataset.Example) error
	stages func(*pipeline.Graph, Ports) error
}

// says tells, in comments before its loss, what of a recipe's text a program has put something in the place of: nothing reads them but people.
func (o own) says(text []byte) []byte {
	var notes string
	if o.row != nil {
		notes += "# The program has changed rows (recipe.WithRow).\n"
	}
	if o.loss != nil {
		is := strings.Join(strings.Fields(o.mark().Settings), " ")
		if f := reflect.ValueOf(o.loss); f.Kind() == reflect.Func { // whose type says nothing
			is += " (" + runtime.FuncForPC(f.Pointer()).Name() + ")"
		}
		notes += fmt.Sprintf("# The program's own loss has trained (recipe.WithLoss): %s. What follows says what rows must have.\n", is)
	}
	const key = "\nloss:"
	return bytes.Replace(text, []byte(key), []byte("\n"+notes+key[1:]), 1)
}

// ofRecipe is what the recipe's loss at a key asks of a row's negatives: where a program's own loss trains, the error says whose it is.
func (x *Run) ofRecipe(check func(n int) error, at string) func(n int) error {
	takesAny := "mnrl"
	if x.Recipe.Model.Kind == "reranker" {
		takesAny = "cross_entropy"
	}
	return func(n int) error {
		err := check(n)
		if err != nil && x.own.loss != nil {
			return fmt.Errorf("%w: the program's own loss trains, and %s.name says what rows must have; %s takes any number of negatives, and scores beside them", err, at, takesAny)
		}
		return err
	}
}

// of is the program's own loss for rows of a dataset.
func (o own) of(source int) loss.Loss {
	if all, ok := o.loss.(loss.ByDataset); ok && source < len(all) {
		return all[source]
	}
	return o.loss
}

// checks tells whether the program's own loss may say which labels, scores or numbers of negatives it takes.
func (o own) checks() bool {
	_, parts := o.loss.(loss.ByDataset)
	_, labels := o.loss.(interface{ CheckLabel(float64) error })
	_, scores := o.loss.(interface{ CheckScore(float64) error })
	_, negatives := o.loss.(interface{ CheckNegatives(int) error })
	return parts || labels || scores || negatives
}

// checkNumbers finds what of a row's label and scores the program's own loss does not take.
func (o own) checkNumbers(e *dataset.Example, data stages.Rows, source int) error {
	l := o.of(source)
	if data.HasLabels() {
		if err := loss.CheckLabel(l, float64(e.Label)); err != nil {
			return fmt.Errorf("the label is %v: %w", e.Label, err)
		}
	}
	if data.HasScores() {
		for k, s := range e.Scores {
			if err := loss.CheckScore(l, float64(s)); err != nil {
				return fmt.Errorf("score %d is %v: %w", k, s, err)
			}
		}
	}
	return nil
}

// checkNegatives refuses a row with a number of negatives that the program's own loss does not take.
func (o own) checkNegatives(e *dataset.Example, source int) error {
	return loss.CheckNegatives(o.of(source), max(0, max(len(e.Texts), len(e.IDs))-2))
}

// ownRow changes a row, and refuses one that the program's own loss does not take.
func (x *Run) ownRow(c *stages.Chunk, e *dataset.Example) error {
	if x.own.row != nil {
		if e.IDs != nil {
			return fmt.Errorf("the row comes as token ids, whose texts can't be changed: data.train[%d].ids: false takes its texts", c.Source)
		}
		if err := x.own.row(e); err != nil {
			return err
		}
	}
	if err := x.own.checkNumbers(e, c.Data, c.Source); err != nil {
		return fmt.Errorf("%w; the program's loss has to take the row, or recipe.WithRow to change it: data.on_error knows of neither", err)
	}
	if err := x.own.checkNegatives(e, c.Source); err != nil {
		return fmt.Errorf("%w; the program's loss has to take the row, or the file to be without it: recipe.WithRow can't give it negatives, and data.on_error does not know of the loss", err)
	}
	return nil
}

// checkOwnHeldOut finds held-out rows that the program's own loss does not take, where it is what is measured on them.
func (x *Run) checkOwnHeldOut(ctx context.Context) error {
	if !x.own.checks() {
		return nil
	}
	for _, h := range x.heldOut {
		if h.own {
			continue
		}
		if err := x.checkOwnRows(ctx, h.data); err != nil {
			return fmt.Errorf("%s: %w; none of the rows that a loss is measured on is left out, so it takes a file without this one, or a loss that takes it: %[1]s.loss is one of their own", h.key, err)
		}
	}
	return nil
}

func (x *Run) checkOwnRows(ctx context.Context, d *dataset.Dataset) error {
	reader := d.NewReader(dataset.ReaderConfig{Seed: x.Recipe.Train.Seed})
	defer reader.Close()
	const some = 256 // texts of so many rows are in memory at once
	for next := int64(0); next < d.Rows(); {
		var ids []int64
		for ; next < d.Rows() && len(ids) < some; next++ {
			ids = append(ids, next)
		}
		rows, err := reader.Read(ctx, 0, ids)
		if err != nil {
			return err
		}
		for i := range rows {
			err := x.own.checkNumbers(&rows[i], d, 0)
			if err == nil {
				err = x.own.checkNegatives(&rows[i], 0)
			}
			if err != nil {
				return fmt.Errorf("%v: %w", d.Locate(rows[i].Row), err)
			}
		}
	}
	return nil
}
