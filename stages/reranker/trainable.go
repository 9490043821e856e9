package reranker

import (
	"context"
	"errors"
	"fmt"

	"contraflow/gpustage"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// Trainable is a folder's model on a device, for pipelines that train it to score pairs, with loss.Groups: [LoadTrainable], and when the pipeline
// has run, [Trainable.Save].
type Trainable struct {
	Model *transformer.Model
	Pairs *tokenize.Pairs // how a document becomes tokens with its query in front

	folder *hfmodel.Folder
	device gpustage.Device // to close; nil: the caller's
	spec   *Spec
}

// LoadTrainable loads a reranker's folder for training, or that of an encoder or a language model, which gets a head that scores: a new one, or the
// logits of the language model's yes and no. A nil device is the best one of those that the program imports, as with [Load]: Close
// closes it. ([gpustage.OpenBest] also says why a better one was passed over.) o says how the model computes and what of it trains (bf16, activation
// checkpointing, LoRA); its zero value is f32, and all. A layer-wise reranker trains by the scores of all its layers, the last layer's first, by which it is
// measured. Adapters are errors.
func LoadTrainable(folder string, d gpustage.Device, text TextOptions, o transformer.Options) (*Trainable, error) {
	f, err := hfmodel.Open(folder)
	if err != nil {
		return nil, err
	}
	t := &Trainable{folder: f}
	if d == nil {
		if t.device, err = gpustage.OpenBest(nil); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		d = t.device
	}
	if err := t.load(d, text, o); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *Trainable) load(d gpustage.Device, text TextOptions, o transformer.Options) error {
	f := t.folder
	switch {
	case f.Adapter != nil:
		return fmt.Errorf("%s is an adapter, and a reranker does not begin with one: PEFT's merge_and_unload merges it into its model", f.Dir)
	case text.CutoffLayer != 0:
		return fmt.Errorf("%s: a cutoff layer is for scoring: all layers are trained", f.Dir)
	}
	if err := f.CheckReranker(); err != nil {
		return fmt.Errorf("%s: %w", f.Dir, err)
	}
	tok, err := tokenize.Load(f.TokenizerDir)
	if err != nil {
		return err
	}
	c, err := embedder.ConfigOf(f, nil)
	if err != nil {
		return err
	}
	text.EveryLayer = true
	if t.spec, err = Describe(f, tok, c, text); err != nil {
		return err
	}
	t.Pairs = t.spec.Pairs
	s, err := d.OpenStream()
	if err != nil {
		return err
	}
	t.Model, err = embedder.LoadModel(f, d, s, transformer.Head{}, o, t.spec.Configure)
	if err = errors.Join(err, s.Close()); err != nil {
		return err
	}
	return embedder.CheckVocabulary(tok, t.Model.Config)
}

// Head are the tokens whose logits are the score, where the head is one of a language model: what stages.Text.Head wants.
func (t *Trainable) Head() []int32 { return t.spec.Scorer.Tied() }

// Evaluate measures the model as it is, by the order into which it puts first: see the function [Evaluate]. While a pipeline trains it that is an
// error: within one, stages.EvaluateReranker measures.
func (t *Trainable) Evaluate(ctx context.Context, task *embedder.Task, first evaluate.Run, measures ...evaluate.Measure) (*evaluate.Result, error) {
	return embedder.Measured(t.Model, "stages.EvaluateReranker", func(e *embedder.Engine) (*evaluate.Result, error) {
		return Evaluate(ctx, e, t.Pairs, task, first, measures...)
	})
}

// Save writes the model with its present parameters to a folder, which [Load], transformers and CrossEncoder read, with LoRA's factors merged. What
// [embedder.Trainable.Save] says of its folder, and of when it may be called, holds here too. precision is of the weights in the file: see
// [embedder.Precisions]. summary is a paragraph of the model card, in Markdown.
func (t *Trainable) Save(dir, precision, summary string) error {
	if err := embedder.Whole(t.Model); err != nil {
		return fmt.Errorf("save model to %s: %w", dir, err)
	}
	m := t.Model
	s, err := m.Device.OpenStream()
	if err != nil {
		return err
	}
	var tensors []safetensors.Tensor
	err = m.Unchanged(s, func() (err error) {
		tensors, err = embedder.Merged(m, s, embedder.All(m, s))
		return err
	})
	if err = errors.Join(err, s.Close()); err != nil {
		return fmt.Errorf("save model to %s: %w", dir, err)
	}
	if err := embedder.Round(tensors, precision); err != nil {
		return err
	}
	return Save(dir, t.folder, m, tensors, t.spec, hfmodel.Card{BaseModel: t.folder.Dir, Summary: summary})
}

// Close gives the model's memory back, and its folder's files, and closes a device that LoadTrainable has opened.
func (t *Trainable) Close() error {
	if t.folder == nil {
		return nil
	}
	err := t.folder.Close()
	t.folder = nil
	if t.Model != nil {
		err = errors.Join(err, t.Model.Free())
		t.Model = nil
	}
	if t.device != nil {
		err = errors.Join(err, t.device.Close())
	}
	return err
}
