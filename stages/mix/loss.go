package mix

import (
	"context"
	"errors"
	"fmt"
	"math"

	"contraflow/gpustage"
	"contraflow/io/checkpoint"
	"contraflow/io/dataset"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
)

// Temperature is LM-Cocktail's default for [ByLoss].
const Temperature = 5.0

// ByLoss are weights of models by their losses on the same examples: softmax(-loss / temperature), as LM-Cocktail has it (mix_models_with_data). The lower the
// temperature, the more the best model decides.
func ByLoss(losses []float64, temperature float64) ([]float64, error) {
	if !(temperature > 0) || math.IsInf(temperature, 1) {
		return nil, fmt.Errorf("a temperature of %v, want a number above 0", temperature)
	}
	least := math.Inf(1)
	for i, l := range losses {
		if l-l != 0 {
			return nil, fmt.Errorf("the loss of model %d is %v, want a finite number", i, l)
		}
		least = min(least, l)
	}
	ws, sum := make([]float64, len(losses)), 0.0
	for i, l := range losses {
		ws[i] = math.Exp((least - l) / temperature)
		sum += ws[i]
	}
	for i := range ws {
		ws[i] /= sum
	}
	return ws, nil
}

// Loss is a model's loss on examples: InfoNCE of cosines times 20 (a temperature of 0.05) over batches of so many rows, in which every other row's documents
// are negatives too, as LM-Cocktail measures embedding models and as eval.loss of a recipe with the loss mnrl does. The folder is one of a model that makes
// one dense embedding of a text; prompts and lengths are what it says. Batches are of rows in the data's order, so that all models see the same. A row
// whose batch has no negative for it, as every row has that is alone in its batch and brings none, is an error: all models are as good at it.
func Loss(ctx context.Context, d gpustage.Device, folder string, data *dataset.Dataset, rows int) (_ float64, err error) {
	if err := CheckLoss(folder); err != nil {
		return 0, err
	}
	m, err := embedder.LoadTrainable(folder, d)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if c := m.Model.Config; !c.Tokens.None() || !c.MLMHead.None() {
		return 0, fmt.Errorf("%s: losses are measured of models that make one dense embedding of a text", folder)
	}
	held, err := stages.NewHeldOut(ctx, data, stages.TextOf(m), rows, 0)
	if err != nil {
		return 0, err
	}
	s, err := d.OpenStream()
	if err != nil {
		return 0, err
	}
	e := &embedder.Engine{Model: m.Model, Stream: s}
	defer func() { err = errors.Join(err, e.Close(), e.CloseStream()) }()
	res, err := held.Loss(ctx, e, contrast{loss.InfoNCE{Scale: 20, MaskDuplicates: true}})
	if err != nil {
		return 0, fmt.Errorf("the loss of %s: %w", folder, err)
	}
	return res.Mean(), nil
}

// CheckLoss tells why a folder's loss can't be measured, as far as that shows before the model is loaded.
func CheckLoss(folder string) error {
	if checkpoint.IsCheckpoint(folder) {
		return fmt.Errorf("%s is a checkpoint: losses are measured of models' folders", folder)
	}
	return nil
}

// contrast is InfoNCE of rows that each have a negative.
type contrast struct{ loss.InfoNCE }

func (l contrast) Compute(s gpustage.Stream, a *gpustage.Arena, b *loss.Batch) (loss.Result, error) {
	for row := range b.Rows {
		if alone(b, row) {
			return loss.Result{}, &loss.LabelError{Row: row, Why: fmt.Sprintf("no other document of its batch of %d rows is a negative for it, so that its loss is 0 whatever the model: "+
				"give more rows, larger batches or columns of negatives", b.Rows)}
		}
	}
	return l.InfoNCE.Compute(s, a, b)
}

// alone tells whether a row has no negatives, by what InfoNCE's MaskDuplicates leaves out.
func alone(b *loss.Batch, row int) bool {
	query, positive := b.Texts[row], b.Texts[b.Rows+row]
	for k := b.Rows; k < len(b.Texts); k++ {
		if text := b.Texts[k]; text != query && text != positive && (k >= 2*b.Rows || b.Texts[k-b.Rows] != query) {
			return false
		}
	}
	return true
}
