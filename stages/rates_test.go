package stages

import (
	"fmt"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/stages/transformer"
)

// With learning rates by depth the embeddings are the lowest; the final norm, and a reranker's language-model head of its own, have the last
// layer's.
func TestRatesByDepth(t *testing.T) {
	c, err := transformer.ParseConfig([]byte(`{"model_type": "qwen2", "vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
		"num_key_value_heads": 1, "intermediate_size": 12, "max_position_embeddings": 16}`))
	if err != nil {
		t.Fatal(err)
	}
	c.Scorer = transformer.Scorer{Pooling: gpustage.LastPooling, Tokens: []int32{3}, LMHead: "lm_head"}
	m, err := transformer.New(ref.New(), c, transformer.Head{}, transformer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rates, err := Update{LR: 1, LayerDecay: 0.5}.rates(m.Layout)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]float64{}
	for i, p := range m.Layout.Training() {
		seen[p.Name] = rates[i]
	}
	for name, want := range map[string]float64{"embed_tokens.weight": 0.25, "layers.0.mlp.down_proj.weight": 0.5, "layers.1.mlp.down_proj.weight": 1, "norm.weight": 1, "lm_head.weight": 1} {
		if seen[name] != want {
			t.Errorf("%s trains with %v, want %v: %s", name, seen[name], want, fmt.Sprint(seen))
		}
	}
}
