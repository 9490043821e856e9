package imports_test

import (
	"strings"
	"testing"

	"contraflow/stages/recipe/imports"
)

// FlagEmbedding's embedders of language models read texts with add_eos_token=True (finetune/embedder/decoder_only/base/runner.py). Where nothing says how they
// pool it takes the first position (AbsArguments.py, modeling.py), which a causal model is not trained with here: that is said. What is asked for stays.
func TestDecoderPooling(t *testing.T) {
	for more, want := range map[string]string{"": "last", " --sentence_pooling_method last_token": "last", " --sentence_pooling_method mean": "mean", " --sentence_pooling_method cls": "cls"} {
		s, _, err := imports.ReadCommand("torchrun -m FlagEmbedding.finetune.embedder.decoder_only.base --model_name_or_path m --train_data d.jsonl" + more)
		if err != nil {
			t.Fatal(err)
		}
		r, res := convert(t, imports.FlagEmbedding, s, 1)
		said := strings.Contains(res.Recipe, "# assumed: pooling is last: FlagEmbedding's default, cls,")
		if m := r.Model; m.Pooling != want || m.EOS == nil || !*m.EOS || said != (more == "") {
			t.Errorf("%q:\n%s", more, res.Recipe)
		}
	}
	s, _, err := imports.ReadCommand("torchrun -m FlagEmbedding.finetune.embedder.encoder_only.base --model_name_or_path m --train_data d.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	if r, res := convert(t, imports.FlagEmbedding, s, 1); r.Model.Pooling != "cls" || r.Model.EOS != nil {
		t.Errorf("%s", res.Recipe)
	}
}
