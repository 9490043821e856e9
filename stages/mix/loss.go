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
// one dense embedding of a text; prompts and lengths are what it says. Batches are of rows in the data's order, so that all models see the same.
func Loss(ctx context.Context, d gpustage.Device, folder string, data *dataset.Dataset, rows int) (_ float64, err error) {
	if checkpoint.IsCheckpoint(folder) {
		return 0, fmt.Errorf("%s is a checkpoint: losses are measured of models' folders", folder)
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
	res, err := held.Loss(ctx, e, loss.InfoNCE{Scale: 20, MaskDuplicates: true})
	if err != nil {
		return 0, fmt.Errorf("the loss of %s: %w", folder, err)
	}
	return res.Mean(), nil
}
