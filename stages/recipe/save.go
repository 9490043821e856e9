package recipe

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"contraflow/gpustage"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/embedder"
	"contraflow/stages/transformer"
)

// Save writes the model with its present parameters to a folder that sentence-transformers loads: with LoRA, that of the adapter, or merged. s is the
// stream of the stage that saves while the run trains (stages.Stream, on the compute lane); nil before and after: the run's own. Where ranks hold a
// part of it, all call it and rank 0 writes.
func (x *Run) Save(s gpustage.Stream, dir string) error {
	if x.closed {
		return errClosed
	}
	if s == nil {
		s = x.stream
	}
	if x.reranker != nil {
		return x.saveReranker(s, dir)
	}
	var tensors []safetensors.Tensor
	var adapter *hfmodel.AdapterSpec
	var err error
	if x.merges() {
		tensors, err = x.merged(s)
	} else {
		tensors, adapter, err = x.trained(s)
	}
	if err != nil || !x.Main() {
		return err
	}
	if adapter == nil {
		rest, err := embedder.Untrained(x.folder, x.model, s)
		if err != nil {
			return err
		}
		tensors = append(tensors, rest...)
	}
	if err := embedder.Round(tensors, x.Recipe.Save.Precision); err != nil {
		return fmt.Errorf("save.precision: %w", err)
	}
	card, err := x.card()
	if err != nil {
		return err
	}
	spec := embedder.SpecOf(x.folder, x.model, tensors)
	if x.ends() {
		spec.Tokenizer = x.saveTokenizer
	}
	spec.Adapter, spec.Card = adapter, card
	if x.Recipe.Data.Train[0].Prompts != nil || x.text.QueryPrompt != "" || x.text.DocumentPrompt != "" {
		spec.Prompts = map[string]string{}
		maps.Copy(spec.Prompts, x.folder.Prompts)
		spec.Prompts["query"], spec.Prompts["document"] = x.text.QueryPrompt, x.text.DocumentPrompt
	}
	if x.vectors != nil {
		x.savedVectors(&spec)
	} else {
		spec.Similarity = x.Recipe.similarity()
	}
	if q := spec.Queries; q != nil {
		q.MaxLength, spec.MaxSeqLength = x.text.QueryLength, x.text.DocumentLength
	} else if min(x.text.QueryLength, x.text.DocumentLength) > 0 { // or some are not cut
		spec.MaxSeqLength = max(x.text.QueryLength, x.text.DocumentLength)
	}
	return hfmodel.Save(dir, spec)
}

// similarity is what embeddings are compared by, but for vectors of tokens: what the recipe says, or what trains.
func (r Recipe) similarity() string {
	switch {
	case r.Model.Similarity != "":
		return r.Model.Similarity
	case r.Model.Kind == "sparse" || !slices.ContainsFunc(r.terms(), func(l stated) bool { return l.Similarity != "dot" }):
		return "dot"
	}
	return "cosine"
}

// byProducts tells that measures compare embeddings by inner products, and not by cosine.
func (r Recipe) byProducts() bool { return r.Model.Kind == "embedder" && r.similarity() == "dot" }

// The folders of models in save.dir: that of a run that is over, and with save.best that of its best evaluation.
const (
	modelFolder = "model"
	bestFolder  = "best"
)

// modelDir is where the model is when a run is over.
func (x *Run) modelDir() string { return filepath.Join(x.Recipe.Save.Dir, modelFolder) }

// saveOver saves the model of a run that is over after so many steps: the best one, if that is kept. All ranks call it.
func (x *Run) saveOver(s gpustage.Stream, steps int) error {
	if !x.Main() && !x.model.Partial() {
		return nil
	}
	if p := x.saves.progress; x.Recipe.Save.Best && p.BestStep > 0 && p.BestStep != steps {
		if err := x.loadBest(s); err != nil {
			return fmt.Errorf("loading the best model: %w", err)
		}
	}
	if err := x.Save(s, x.modelDir()); err != nil {
		return fmt.Errorf("saving the model: %w", err)
	}
	if !x.Main() { // which may be writing yet
		return nil
	}
	if err := forget(x.Recipe.Save.Dir); err != nil {
		return fmt.Errorf("save.dir: %w", err)
	}
	return nil
}

// base is what training began with.
func (x *Run) base() string { return embedder.BaseOf(x.folder, x.model, x.Recipe.Model.Path) }

// merges tells whether LoRA's factors are merged into the weights that are saved: CrossEncoder and FlagEmbedding load no adapters of
// rerankers, nor of models with heads of tokens, and of sparse encoders only what names their model for masked language modelling.
func (x *Run) merges() bool {
	return x.reranker != nil || !x.config.Tokens.None() || !x.config.MLMHead.None()
}

// merged are all parameters, with LoRA's factors merged into them; on ranks but the main one, nil.
func (x *Run) merged(s gpustage.Stream) ([]safetensors.Tensor, error) {
	all := func(each func(transformer.Param, []float32) error) error {
		return x.ranks.Parameters(s, x.model, func(transformer.Param) bool { return true }, func(p transformer.Param, vs []float32) error {
			if !x.Main() {
				return nil
			}
			return each(p, vs)
		})
	}
	if !x.Main() {
		return nil, all(nil)
	}
	return embedder.Merged(x.model, s, all)
}

// trained are all parameters, or with LoRA those that train, and what an adapter says of itself; on ranks but the main one, nil.
func (x *Run) trained(s gpustage.Stream) ([]safetensors.Tensor, *hfmodel.AdapterSpec, error) {
	l := x.model.Options.Tuning.LoRA
	want := func(p transformer.Param) bool { return l == nil || x.model.Layout.Trains(p) }
	var out []safetensors.Tensor
	err := x.ranks.Parameters(s, x.model, want, func(p transformer.Param, vs []float32) error {
		if !x.Main() {
			return nil
		}
		t, err := embedder.Tensor(p, vs)
		out = append(out, t)
		return err
	})
	if err != nil || !x.Main() || l == nil {
		return out, nil, err
	}
	return out, embedder.AdapterOf(x.base(), x.model), nil
}
