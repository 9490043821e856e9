package reranker

import (
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/transformer"
)

// Save writes a folder that scores as spec says, with a model's parameters: transformers, CrossEncoder and Load read it, and that of a
// layer-wise reranker FlagEmbedding and Load. base is the folder that the model came from.
func Save(dir string, base *hfmodel.Folder, m *transformer.Model, tensors []safetensors.Tensor, spec *Spec, card hfmodel.Card) error {
	head := spec.Scorer.Modules()
	if spec.Scorer.LMHead != "" {
		head = append(head, spec.Scorer.LMHead)
	}
	return hfmodel.SaveReranker(dir, hfmodel.RerankerSpec{
		Config: base.Config, Tensors: tensors, Prefix: m.Config.Prefixes()[0], Head: head, Reranker: spec.Folder, Pad: spec.Pad, Layers: m.Config.Layers, MaxSeqLength: spec.MaxLength,
		Base: base, Tokenizer: base.CopyTokenizer, Card: card,
	})
}
