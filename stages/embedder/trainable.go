package embedder

import (
	"errors"
	"fmt"

	"contraflow/gpustage"
	"contraflow/io/hfmodel"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// Trainable is a folder's model and tokenizer on a device, for pipelines that train it: [LoadTrainable], and when the pipeline has run, [Trainable.Save].
type Trainable struct {
	Model     *transformer.Model
	Tokenizer *tokenize.Tokenizer

	folder *hfmodel.Folder
}

// LoadTrainable loads a model folder for training in f32, with the folder's dropout, pooling and normalization. An adapter is merged into its
// base model's weights, and all of them train.
func LoadTrainable(folder string, d gpustage.Device) (*Trainable, error) {
	f, err := hfmodel.Open(folder)
	if err != nil {
		return nil, err
	}
	t := &Trainable{folder: f}
	if err := t.load(d); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *Trainable) load(d gpustage.Device) (err error) {
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
	t.Model, err = LoadModel(t.folder, d, s, head, transformer.Options{}, nil)
	if err = errors.Join(err, s.Close()); err != nil {
		return err
	}
	return CheckVocabulary(t.Tokenizer, t.Model.Config)
}

// Saving is what a trained model's folder says that the model does not know. Its zero value is what the folder that it came from says.
type Saving struct {
	MaxLength int               // tokens, special ones included, at which texts are cut
	Prompts   map[string]string // by name: {"query": "query: "}. nil: the folder's; an empty map: none
	Precision string            // of the weights in the file: f32, bf16 or f16, see [Precisions]
	Summary   string            // a paragraph of the model card, in Markdown
}

// Save writes the model with its present parameters to a folder, which [Load], sentence-transformers and transformers read; only the main rank of
// several calls it. No pipeline may be running. A model in dir is replaced when all of the new one is written, a folder that holds none never;
// the folder that the model came from may be dir.
func (t *Trainable) Save(dir string, o Saving) error {
	if t.Model == nil {
		return fmt.Errorf("save model to %s: %w", dir, ErrClosed)
	}
	length, err := MaxLengthOf(t.folder, t.Model.Config, o.MaxLength)
	if err == nil {
		err = CheckLength(t.Tokenizer, length)
	}
	if err != nil {
		return fmt.Errorf("save model to %s: %w", dir, err)
	}
	s, err := t.Model.Device.OpenStream()
	if err != nil {
		return err
	}
	tensors, err := Tensors(t.folder, t.Model, s)
	if err = errors.Join(err, s.Close()); err != nil {
		return err
	}
	if err := Round(tensors, o.Precision); err != nil {
		return err
	}
	spec := specOf(t.folder, t.Model, tensors)
	spec.MaxSeqLength, spec.Card = length, hfmodel.Card{BaseModel: t.folder.Dir, Summary: o.Summary}
	if o.Prompts != nil {
		spec.Prompts = o.Prompts
		if _, ok := o.Prompts[spec.DefaultPromptName]; !ok {
			spec.DefaultPromptName = ""
		}
	}
	return write(dir, spec)
}

// Close gives the model's memory back, and its folder's files.
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
	return err
}
