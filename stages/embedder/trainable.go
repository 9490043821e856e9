package embedder

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"contraflow/gpustage"
	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/evaluate"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// Trainable is a folder's model and tokenizer on a device, for pipelines that train it: [LoadTrainable], and when the pipeline has run, [Trainable.Save].
type Trainable struct {
	Model     *transformer.Model
	Tokenizer *tokenize.Tokenizer

	folder                 *hfmodel.Folder
	device                 gpustage.Device // to close; nil: the caller's
	maxLength, queryLength int
}

// TrainableOption configures LoadTrainable.
type TrainableOption func(*trainableOptions)

type trainableOptions struct {
	model   transformer.Options
	dropout *float64
}

// ModelOptions are how a model computes and what of it trains: bf16, activation checkpointing, LoRA, frozen layers.
func ModelOptions(o transformer.Options) TrainableOption {
	return func(t *trainableOptions) { t.model = o }
}

// Dropout is that of hidden states and of attention, in place of what config.json says.
func Dropout(p float64) TrainableOption { return func(t *trainableOptions) { t.dropout = &p } }

// LoadTrainable loads a model folder for training, with the folder's dropout, pooling and normalization, in f32 where no option says otherwise. A nil device
// is the best one of those that the program imports, as with [Load]: Close closes it. ([gpustage.OpenBest] also says why a better one was passed over.) An
// adapter is merged into its base model's weights, and all of them train; with LoRA among the options its factors train, which must be
// as many and as large as the options say.
func LoadTrainable(folder string, d gpustage.Device, opts ...TrainableOption) (*Trainable, error) {
	var o trainableOptions
	for _, f := range opts {
		f(&o)
	}
	if o.dropout != nil && !(*o.dropout >= 0 && *o.dropout < 1) {
		return nil, fmt.Errorf("a dropout of %v, want at least 0 and less than 1", *o.dropout)
	}
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
	if err := t.load(d, o); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *Trainable) load(d gpustage.Device, o trainableOptions) (err error) {
	if t.Tokenizer, err = LoadTokenizer(t.folder); err != nil {
		return err
	}
	head, err := TrainableHead(t.folder, "", nil)
	if err != nil {
		return err
	}
	s, err := d.OpenStream()
	if err != nil {
		return err
	}
	t.Model, err = LoadModel(t.folder, d, s, head, o.model, func(c *transformer.Config) {
		if o.dropout != nil {
			c.HiddenDropout, c.AttentionDropout = *o.dropout, *o.dropout
		}
	})
	if err = errors.Join(err, s.Close()); err != nil {
		return err
	}
	if t.queryLength, t.maxLength, err = LengthsOf(t.folder, t.folder.MultiVector, t.Model.Config, 0, 0); err != nil {
		return err
	}
	if t.Model.Config.Tokens, err = Completed(t.Model.Config, t.folder, t.Tokenizer); err != nil {
		return err
	}
	return CheckVocabulary(t.Tokenizer, t.Model.Config)
}

// MaxLength is the number of tokens at which the folder cuts texts; 0: it does not.
func (t *Trainable) MaxLength() int { return t.maxLength }

// QueryLength is that of queries: the same, but for models that give vectors of tokens alone.
func (t *Trainable) QueryLength() int { return t.queryLength }

// RolePrompts are the texts that belong before queries and before documents, as [hfmodel.Folder.RolePrompts] has them.
func (t *Trainable) RolePrompts() (query, document string) { return t.folder.RolePrompts() }

// NewTask tokenizes a retrieval task for the model, with its prompts and its length.
func (t *Trainable) NewTask(ctx context.Context, r *dataset.Retrieval) (*Task, error) {
	query, document := t.RolePrompts()
	return NewTask(ctx, r, Text{Tokenizer: t.Tokenizer, QueryLength: t.queryLength, DocumentLength: t.maxLength, QueryPrompt: query, DocumentPrompt: document, Weighed: t.Model.Config.Queries.There})
}

// Evaluate measures the model as it is. While a pipeline trains it that is an error: within one, stages.Evaluate measures.
func (t *Trainable) Evaluate(ctx context.Context, task *Task, measures ...evaluate.Measure) (*evaluate.Result, error) {
	return Measured(t.Model, "stages.Evaluate", func(e *Engine) (*evaluate.Result, error) { return task.Evaluate(ctx, e, measures...) })
}

// Measured measures a trainable model as it is, with an engine that is made for it. While a pipeline trains the model that is an error, which names the
// stage that does it within one.
func Measured(m *transformer.Model, stage string, measure func(*Engine) (*evaluate.Result, error)) (*evaluate.Result, error) {
	if err := Whole(m); err != nil {
		return nil, err
	}
	if err := m.Busy(); err != nil {
		return nil, fmt.Errorf("%w: within a graph %s measures it, between two steps", err, stage)
	}
	s, err := m.Device.OpenStream()
	if err != nil {
		return nil, err
	}
	e := &Engine{Model: m, Stream: s}
	res, err := measure(e)
	return res, errors.Join(err, e.Close(), e.CloseStream())
}

// ErrPart is what a rank that holds a part of the model's parameters alone gets where all are needed.
var ErrPart = errors.New("this rank holds a part of the model (transformer.Options.Own): a recipe's run with mesh.parameters: streamed saves and measures such a one")

// Whole tells why a model can't be saved or measured as it is: it has been closed (nil), or this rank holds a part of it.
func Whole(m *transformer.Model) error {
	switch {
	case m == nil:
		return ErrClosed
	case m.Partial():
		return ErrPart
	}
	return nil
}

// Saving is what a trained model's folder says that the model does not know. Its zero value is what the folder that it came from says.
type Saving struct {
	MaxLength int               // tokens, special ones included, at which texts are cut
	Prompts   map[string]string // by name: {"query": "query: "}. nil: the folder's; an empty map: none
	Precision string            // of the weights in the file: f32, bf16 or f16, see [Precisions]
	Summary   string            // a paragraph of the model card, in Markdown
}

// Save writes the model with its present parameters to a folder, which [Load], sentence-transformers and transformers read: with LoRA, that of an
// adapter in PEFT's format, with the base model's path in full, or its hub id if it lies in the hub's cache; of a model with heads of tokens the factors are merged, since no program
// loads adapters of those. Only the main rank of several calls it. While a pipeline trains the model, a stage on its compute lane may, behind Apply;
// elsewhere an update that comes in between is [transformer.ErrChanged]. A model in dir is replaced when all of the new one is written, a folder that holds none never. It may be the
// folder that the model came from, but not an adapter's base.
func (t *Trainable) Save(dir string, o Saving) error {
	if err := Whole(t.Model); err != nil {
		return fmt.Errorf("save model to %s: %w", dir, err)
	}
	length, err := MaxLengthOf(t.folder, t.Model.Config, o.MaxLength)
	if err == nil {
		err = CheckLength(t.Tokenizer, o.MaxLength, length)
	}
	if err != nil {
		return fmt.Errorf("save model to %s: %w", dir, err)
	}
	s, err := t.Model.Device.OpenStream()
	if err != nil {
		return err
	}
	var tensors []safetensors.Tensor
	var adapter *hfmodel.AdapterSpec
	err = t.Model.Unchanged(s, func() (err error) {
		tensors, adapter, err = t.saved(s)
		return err
	})
	if err = errors.Join(err, s.Close()); err != nil {
		return fmt.Errorf("save model to %s: %w", dir, err)
	}
	needed := ""
	if adapter != nil {
		needed = adapter.Base
	} else if t.folder.Base != nil { // of the adapter that is merged into what is saved
		needed = t.folder.Base.Dir
	}
	if replaces, err := Within(needed, dir); needed != "" && err == nil && replaces {
		return fmt.Errorf("save model to %s: it would replace the base model that an adapter needs, in %s: choose another folder", dir, needed)
	}
	if err := Round(tensors, o.Precision); err != nil {
		return err
	}
	spec := SpecOf(t.folder, t.Model, tensors)
	if m := spec.MultiVector; m != nil && o.MaxLength > 0 {
		m.DocumentLength = length
	}
	if q := spec.Queries; q != nil && o.MaxLength > 0 {
		q.MaxLength = length
	}
	spec.MaxSeqLength, spec.Adapter, spec.Card = length, adapter, hfmodel.Card{BaseModel: t.base(), Summary: o.Summary}
	if o.Prompts != nil {
		spec.Prompts = o.Prompts
		if _, ok := o.Prompts[spec.DefaultPromptName]; !ok {
			spec.DefaultPromptName = ""
		}
	}
	return hfmodel.Save(dir, spec)
}

func (t *Trainable) base() string { return BaseOf(t.folder, t.Model, t.folder.Dir) }

// BaseOf is what training began with, as path names the folder, or of an adapter that training went on with the base.
func BaseOf(f *hfmodel.Folder, m *transformer.Model, path string) string {
	if a := f.Adapter; a != nil && m.Options.Tuning.LoRA != nil {
		return a.BaseID()
	}
	return path
}

// saved are the tensors of the folder that Save writes, and what an adapter says of itself.
func (t *Trainable) saved(s gpustage.Stream) ([]safetensors.Tensor, *hfmodel.AdapterSpec, error) {
	m := t.Model
	switch lora := m.Options.Tuning.LoRA; {
	case lora == nil:
		tensors, err := Tensors(t.folder, m, s)
		return tensors, nil, err
	case m.Config.Tokens.None() && m.Config.MLMHead.None():
		tensors, err := Read(m, s, m.Layout.Training())
		return tensors, AdapterOf(t.base(), m), err
	}
	tensors, err := Merged(m, s, All(m, s))
	if err != nil {
		return nil, nil, err
	}
	rest, err := Untrained(t.folder, m, s)
	return append(tensors, rest...), nil, err
}

// AdapterOf is what the folder of a model's LoRA factors says of them.
func AdapterOf(base string, m *transformer.Model) *hfmodel.AdapterSpec {
	t := m.Options.Tuning
	l := t.LoRA
	a := &hfmodel.AdapterSpec{Base: base, Rank: l.Rank, Alpha: l.Alpha, Dropout: l.Dropout, RSLoRA: l.RSLoRA, Targets: l.Targets, Save: l.Save}
	if slices.Equal(l.Targets, []string{transformer.AllLinear}) || t.FreezeLayers > 0 || slices.ContainsFunc(m.Layout.Training(), m.Config.IsDense) {
		// PEFT would find others by such names: BERT's pooler, or layers that are frozen here; and no dense ones, which are modules beside the adapter.
		a.Targets, a.Save = nil, nil
		for _, p := range m.Layout.Training() {
			if m.Config.IsDense(p) {
				continue
			}
			list := &a.Save
			if p.Factor() {
				list = &a.Targets
			}
			if !slices.Contains(*list, p.Module()) {
				*list = append(*list, p.Module())
			}
		}
	}
	return a
}

// All visits each parameter of a model that this rank holds whole.
func All(m *transformer.Model, s gpustage.Stream) func(each func(p transformer.Param, vs []float32) error) error {
	return func(each func(p transformer.Param, vs []float32) error) error {
		for _, p := range m.Layout.Params {
			vs, err := m.Read(s, m.Params, p)
			if err == nil {
				err = each(p, vs)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// Merged are a model's parameters, which visit gives to each one by one, with LoRA's factors merged into them.
func Merged(m *transformer.Model, s gpustage.Stream, visit func(each func(p transformer.Param, vs []float32) error) error) (tensors []safetensors.Tensor, err error) {
	factors := map[string][]float32{}
	err = visit(func(p transformer.Param, vs []float32) error {
		if p.Factor() {
			factors[p.Name] = slices.Clone(vs)
			return nil
		}
		t, err := Tensor(p, slices.Clone(vs))
		tensors = append(tensors, t)
		return err
	})
	lora := m.Options.Tuning.LoRA
	if err != nil || lora == nil {
		return tensors, err
	}
	for i, t := range tensors {
		p, _ := m.Layout.Find(t.Name)
		a, b := factors[p.Module()+".lora_A.weight"], factors[p.Module()+".lora_B.weight"]
		if a == nil || p.Name != p.Module()+".weight" { // a bias has its weight's module
			continue
		}
		vs := make([]float32, t.Len())
		if err := t.Float32s(vs); err != nil {
			return nil, err
		}
		if err := m.AddProduct(s, p, vs, a, b, lora.Rank, lora.Scale()); err != nil {
			return nil, err
		}
		if tensors[i], err = Tensor(p, vs); err != nil {
			return nil, err
		}
	}
	return tensors, nil
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
