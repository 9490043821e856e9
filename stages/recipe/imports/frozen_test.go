package imports_test

import (
	"slices"
	"strings"
	"testing"

	"contraflow/stages/recipe"
	"contraflow/stages/recipe/imports"
)

// What does not train is model.freeze where that says all of it: the lowest layers, what is below the first, or both, by names as trainers of any family have them.
func TestFrozen(t *testing.T) {
	bert := []any{"0.model.embeddings.word_embeddings.weight", "0.model.embeddings.LayerNorm.bias", "0.model.encoder.layer.0.output.dense.weight", "0.model.encoder.layer.0.output.dense.bias", "0.model.encoder.layer.1.output.dense.weight", "0.model.pooler.dense.weight"}
	modern := []any{"0.model.model.embeddings.norm.weight", "0.model.model.layers.0.attn.Wqkv.weight", "0.model.model.layers.10.attn.Wqkv.weight", "0.model.model.final_norm.weight", "0.model.classifier.weight"}
	electra := []any{"0.model.embeddings.word_embeddings.weight", "0.model.embeddings_project.weight", "0.model.encoder.layer.0.output.dense.weight"}
	mpnet := []any{"0.model.embeddings.word_embeddings.weight", "0.model.encoder.relative_attention_bias.weight", "0.model.encoder.layer.0.output.dense.weight"}
	t5 := []any{"0.model.shared.weight", "0.model.encoder.block.0.layer.0.SelfAttention.q.weight", "0.model.encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", "0.model.encoder.block.1.layer.0.SelfAttention.q.weight"}
	qwen := []any{"0.model.embed_tokens.weight", "0.model.layers.0.mlp.up_proj.weight", "0.model.norm.weight", "1.linear.weight"}
	for _, c := range []struct {
		arguments string
		names     []any
		frozen    []int
		want      *recipe.Freeze // nil: it can't be said
	}{
		{"SentenceTransformerTrainingArguments", bert, []int{0, 1}, &recipe.Freeze{Layers: 0, Embeddings: true}},
		{"SentenceTransformerTrainingArguments", bert, []int{2, 3}, &recipe.Freeze{Layers: 1, Embeddings: false}},
		{"SentenceTransformerTrainingArguments", bert, []int{0, 1, 2, 3}, &recipe.Freeze{Layers: 1, Embeddings: true}},
		{"SentenceTransformerTrainingArguments", bert, []int{2, 3, 4, 5}, &recipe.Freeze{Layers: 2, Embeddings: false}}, // no embedding reads the pooler
		{"SentenceTransformerTrainingArguments", bert, []int{5}, &recipe.Freeze{}},
		{"CrossEncoderTrainingArguments", bert, []int{2, 3, 4, 5}, nil},
		{"SentenceTransformerTrainingArguments", bert, []int{0}, nil},
		{"SentenceTransformerTrainingArguments", bert, []int{2}, nil},
		{"SentenceTransformerTrainingArguments", bert, []int{4}, nil},
		{"CrossEncoderTrainingArguments", modern, []int{0, 1}, &recipe.Freeze{Layers: 1, Embeddings: true}},
		{"CrossEncoderTrainingArguments", modern, []int{0, 1, 3}, nil},
		{"CrossEncoderTrainingArguments", modern, []int{0, 4}, nil},
		{"SentenceTransformerTrainingArguments", electra, []int{0}, nil},
		{"SentenceTransformerTrainingArguments", electra, []int{0, 1}, &recipe.Freeze{Layers: 0, Embeddings: true}},
		{"SentenceTransformerTrainingArguments", mpnet, []int{0, 2}, nil},
		{"SentenceTransformerTrainingArguments", mpnet, []int{0, 1, 2}, &recipe.Freeze{Layers: 1, Embeddings: true}},
		{"SentenceTransformerTrainingArguments", t5, []int{1, 2}, nil}, // the first layer's distances are all layers'
		{"SentenceTransformerTrainingArguments", t5, []int{0, 1, 2}, &recipe.Freeze{Layers: 1, Embeddings: true}},
		{"SentenceTransformerTrainingArguments", qwen, []int{0, 1}, &recipe.Freeze{Layers: 1, Embeddings: true}},
		{"SentenceTransformerTrainingArguments", qwen, []int{0, 1, 2}, nil},
		{"SentenceTransformerTrainingArguments", qwen, []int{0, 1, 3}, nil},
	} {
		var frozen, training []any
		for i, name := range c.names {
			if slices.Contains(c.frozen, i) {
				frozen = append(frozen, name)
			} else {
				training = append(training, name)
			}
		}
		for _, training := range [][]any{training, nil} {
			s := imports.Settings{"model": "m", "arguments": c.arguments, "loss": "MSELoss", "columns": []any{"a", "b", "label"}, "frozen": frozen, "training": training}
			if strings.HasPrefix(c.arguments, "S") {
				s["loss"] = "CosineSimilarityLoss"
			}
			want, without := c.want, 0
			if want == nil || training == nil { // others may train
				want, without = new(recipe.Freeze), 1
			}
			if r, res := convert(t, imports.SentenceTransformers, s, 1); r.Model.Freeze != *want || strings.Contains(res.Recipe, "\n  freeze:") != (*want != recipe.Freeze{}) || len(res.Without) != without || len(res.Unknown) > 0 {
				t.Errorf("%v of %v: %+v, want %+v, %q", c.frozen, c.names, r.Model.Freeze, *want, res.Without)
			}
		}
	}
}
