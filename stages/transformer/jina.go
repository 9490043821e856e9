package transformer

import "encoding/json"

// Jina Embeddings v3 (Sturua et al., arXiv 2409.10173), as transformers has it (jina-embeddings-v3-hf), is XLM-RoBERTa with rotary positions. Its
// adapters, one for each task, are PEFT's and lie in folders of their own; jina-embeddings-v3, whose code lies beside it, has them among its weights.

func init() {
	register(family{parse: parseJina, names: names{
		prefixes: []string{"roberta."},
		word:     "embeddings.word_embeddings", kind: "embeddings.token_type_embeddings", embedNorm: "emb_ln",
		layer: "encoder.layers.%d.",
		qkv:   []string{"mixer.Wqkv"}, out: "mixer.out_proj", attnSum: "norm1",
		up: []string{"mlp.fc1"}, down: "mlp.fc2", ffnSum: "norm2",
	}, classifier: robertaClassifier, mlm: robertaMLM}, "jina_embeddings_v3")
}

func parseJina(raw []byte) (Config, error) {
	c := struct {
		bertConfig
		ropeConfig
	}{bertConfig: bertDefaults()}
	c.VocabSize, c.HiddenSize, c.Layers, c.Heads, c.IntermediateSize, c.MaxPositions, c.TypeVocab, c.NormEps = 250002, 1024, 24, 16, 4096, 8194, 1, 1e-5
	*c.PadID = 1
	if err := json.Unmarshal(raw, &c); err != nil {
		return Config{}, err
	}
	c.PositionType = "absolute" // which nothing reads in this family
	out, err := c.config()
	if err == nil && out.Heads > 0 {
		out.Rotary, out.MaxPositions, err = c.one(out.HeadDim(), 20000, c.MaxPositions)
	}
	return out, err
}
