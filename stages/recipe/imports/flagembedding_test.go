package imports_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"contraflow/stages/recipe"
	"contraflow/stages/recipe/imports"
)

// FlagEmbedding's rerankers, with what its README sets, and the defaults of abc/finetune/reranker/AbsArguments.py: the pair may have
// query_max_len + passage_max_len tokens, the loss is cross entropy in the group, and with a teacher KL besides.
func TestFlagEmbeddingReranker(t *testing.T) {
	const options = ` --model_name_or_path BAAI/bge-reranker-v2-m3 --train_data ./toy.jsonl --train_group_size 4 --query_max_len 256 --learning_rate 6e-5 --fp16 --per_device_train_batch_size 2
		--query_instruction_for_rerank 'A: ' --passage_instruction_for_rerank 'B: ' --query_instruction_format '{}{}' --passage_instruction_format '{}{}' --output_dir out --weight_decay 0.01`
	s, devices, err := imports.ReadCommand("torchrun --nproc_per_node 2 -m FlagEmbedding.finetune.reranker.encoder_only.base --knowledge_distillation True" + options)
	if err != nil {
		t.Fatal(err)
	}
	r, res := convert(t, imports.FlagEmbedding, s, devices)
	d := r.Data.Train[0]
	if r.Model.Kind != "reranker" || r.Model.MaxLength != (recipe.Lengths{Query: 384, Document: 384}) || r.Model.Truncation != "only_second" || r.Model.Template != "" || r.Model.LoRA != nil ||
		r.Loss.Name != "distill" || r.Batch.GlobalSize != 4 || d.NegativesPerQuery != 3 || !slices.Equal(d.Scores, []string{"pos_scores", "neg_scores"}) ||
		*d.Prompts != (recipe.Prompts{Query: "A: ", Document: "B: "}) || r.Optimizer.LR != 6e-5 || len(res.Unknown)+len(res.Without) > 0 {
		t.Errorf("unknown %v, without %v in\n%s", res.Unknown, res.Without, res.Recipe)
	}
	if s, _, err = imports.ReadCommand("python -m FlagEmbedding.finetune.reranker.decoder_only.base" + options); err != nil {
		t.Fatal(err)
	}
	r, res = convert(t, imports.FlagEmbedding, s, 1)
	if d := r.Data.Train[0]; r.Model.Truncation != "" || d.Prompts == nil || *d.Prompts != (recipe.Prompts{}) || len(res.Without) > 0 || strings.Contains(res.Recipe, "in front") { // the template has A: and B:
		t.Errorf("truncation %q, prompts %v, without %q", r.Model.Truncation, d.Prompts, res.Without)
	}
	for command, want := range map[string]string{
		" --query_instruction_for_rerank 'Q: ' --passage_instruction_for_rerank 'B: '": `# without counterpart: query_instruction_for_rerank: "Q: "; model.template: bge puts "A: " there`,
		" --query_instruction_for_rerank 'A: '":                                        `# assumed: a document has "B: " in front, of model.template`,
	} {
		s, _, err := imports.ReadCommand("python -m FlagEmbedding.finetune.reranker.decoder_only.base --model_name_or_path m --train_data ./toy.jsonl" + command)
		if err != nil {
			t.Fatal(err)
		}
		if r, res := convert(t, imports.FlagEmbedding, s, 1); !strings.Contains(res.Recipe, want) || *r.Data.Train[0].Prompts != (recipe.Prompts{}) {
			t.Errorf("%s: want %q in\n%s", command, want, res.Recipe)
		}
	}
	if l := r.Model.LoRA; r.Loss.Name != "cross_entropy" || r.Model.Template != "bge" || l == nil || l.Rank != 64 || l.Alpha != 16 || len(l.Targets) != 7 || r.Data.Train[0].Scores != nil {
		t.Errorf("%s", res.Recipe)
	}
}

// A layer-wise reranker's last layer teaches those below where no teacher does; heads that a language model would be given have no counterpart.
func TestFlagEmbeddingLayerWise(t *testing.T) {
	const options = "python -m FlagEmbedding.finetune.reranker.decoder_only.layerwise --model_name_or_path BAAI/bge-reranker-v2-minicpm-layerwise --train_data d.jsonl --lora_rank 32 --modules_to_save linear_head"
	for more, c := range map[string]struct{ loss, without, assumed string }{
		" --model_type from_finetuned_model":                               {"cross_entropy true", "", ""},
		" --model_type from_finetuned_model --knowledge_distillation True": {"distill false", "", ""},
		" --model_type from_raw_model --start_layer 8":                     {"cross_entropy true", "model_type: from_raw_model gives a language model its heads start_layer: a layer-wise reranker's heads", ""},
		"": {"cross_entropy true", "", "model_type is from_finetuned_model; FlagEmbedding's default, from_raw_model"},
		" --model_type from_finetuned_model --head_multi True --use_lora no": {"cross_entropy true", "head_multi: a layer-wise reranker's heads", ""},
	} {
		s, _, err := imports.ReadCommand(options + more)
		if err != nil {
			t.Fatal(err)
		}
		r, res := convert(t, imports.FlagEmbedding, s, 1)
		l := r.Model.LoRA
		if fmt.Sprint(r.Loss.Name, " ", r.Loss.SelfDistill) != c.loss || r.Model.Template != "bge" || (l == nil) != strings.Contains(more, "use_lora") || l != nil && (l.Rank != 32 || !slices.Equal(l.ModulesToSave, []string{"linear_head"})) {
			t.Errorf("%s:\n%s", more, res.Recipe)
		}
		for _, part := range strings.Split(c.without, " start_layer: ") {
			if !strings.Contains(strings.Join(res.Without, " "), part) || c.without == "" && len(res.Without) > 0 {
				t.Errorf("%s: without %q, want %q", more, res.Without, c.without)
			}
		}
		if !strings.Contains(res.Recipe, c.assumed) || !strings.Contains(res.Recipe, "asks its model for the last layer's alone") {
			t.Errorf("%s: want %q in\n%s", more, c.assumed, res.Recipe)
		}
	}
}

// An embedder that learns from a teacher as well has FlagEmbedding's sum of losses; where there is none, that is said, and the contrastive loss stays.
func TestFlagEmbeddingDistillation(t *testing.T) {
	const command = "torchrun -m FlagEmbedding.finetune.embedder.decoder_only.base --model_name_or_path m --train_data d.jsonl --knowledge_distillation True --use_mrl --mrl_dims 64 32 --use_lora False"
	for _, c := range []struct {
		more    string
		devices int
		want    []recipe.Loss
		said    string // in a comment
	}{
		{"", 1, []recipe.Loss{{Name: "mnrl", Weight: 1, Scale: 50, Similarity: "cosine", GatherAcrossDevices: true}, {Name: "distill_kl", Weight: 2500, StudentTemperature: 0.02, Similarity: "cosine", GatherAcrossDevices: true}}, ""},
		{
			" --temperature 0.1 --normalize_embeddings False", 2,
			[]recipe.Loss{{Name: "mnrl", Weight: 1, Scale: 10, Similarity: "dot"}, {Name: "distill_kl", Weight: 100, StudentTemperature: 0.1, Similarity: "dot"}},
			"# assumed: the shorter embeddings of loss.matryoshka are of length 1",
		},
		{
			" --kd_loss_type kl_div --negatives_cross_device", 4,
			[]recipe.Loss{{Name: "mnrl", Weight: 0.25, Scale: 50, Similarity: "cosine", GatherAcrossDevices: true}, {Name: "distill_kl", Weight: 2500, StudentTemperature: 0.02, Similarity: "cosine", GatherAcrossDevices: true}},
			"# assumed: FlagEmbedding's contrastive loss has 1/4 of its gradient",
		},
		{" --kd_loss_type m3_kd_loss", 1, nil, "# without counterpart: kd_loss_type: m3_kd_loss, which for an embedder takes the teacher's scores alone"},
		{" --train_group_size 1", 1, nil, "# without counterpart: knowledge_distillation: with train_group_size 1"},
	} {
		s, _, err := imports.ReadCommand(command + c.more)
		if err != nil {
			t.Fatal(err)
		}
		r, res := convert(t, imports.FlagEmbedding, s, c.devices)
		without := 0
		if strings.Contains(c.said, "without") {
			without = 1
		}
		if !strings.Contains(res.Recipe, c.said) || len(res.Without) != without || len(res.Unknown) > 0 || (r.Data.Train[0].Scores != nil) != (c.want != nil) || r.Model.LoRA != nil {
			t.Errorf("%s: %q in\n%s", c.more, res.Without, res.Recipe)
		}
		terms := r.Loss.Terms
		if c.want == nil {
			terms = []recipe.Loss{r.Loss}
		} else if len(terms) != len(c.want) {
			t.Fatalf("%s:\n%s", c.more, res.Recipe)
		}
		for i, l := range terms {
			if m := l.Matryoshka; m == nil || !slices.Equal(m.Dims, []int{64, 32}) || !slices.Equal(m.Weights, []float64{0.5, 0.5}) {
				t.Errorf("%s: %+v", c.more, m)
			}
			if c.want == nil {
				continue
			}
			w := c.want[i]
			if l.Name != w.Name || l.Weight != w.Weight || i == 0 && l.Scale != w.Scale || l.StudentTemperature != w.StudentTemperature || l.Similarity != w.Similarity || l.GatherAcrossDevices != w.GatherAcrossDevices || i == 0 && l.MaskDuplicates {
				t.Errorf("%s: loss[%d] is %+v in\n%s", c.more, i, l, res.Recipe)
			}
		}
	}
}

// A dataset whose name asks for no negatives but a row's own has the loss that has none, with the options of the contrastive one.
func TestFlagEmbeddingAlone(t *testing.T) {
	dot := imports.Settings{"temperature": "0.05", "normalize_embeddings": "False"}
	for _, c := range []struct {
		file, same, module string
		more               imports.Settings
		alone, said        bool
	}{ // AbsEmbedderSameDatasetTrainDataset alone reads the suffix, of a folder's name as it is written
		{file: "./clusters_no_in_batch_neg.jsonl", same: "True", module: "embedder.encoder_only.m3", more: dot, alone: true},
		{file: "./clusters_no_in_batch_neg", same: "True", module: "embedder.encoder_only.base", more: dot, alone: true},
		{file: "./clusters_no_in_batch_neg/", same: "True", module: "embedder.encoder_only.m3"},
		{file: "./clusters_no_in_batch_neg.jsonl", same: "False", module: "embedder.encoder_only.m3"},
		{file: "./clusters_no_in_batch_neg.jsonl", same: "True", module: "reranker.encoder_only.base"},
		{file: "./clusters_no_in_batch_neg.jsonl", same: "True", module: "embedder.encoder_only.m3", more: imports.Settings{"unified_finetuning": "True"}, said: true},
		{file: "./clusters_no_in_batch_neg.jsonl", same: "True", module: "embedder.encoder_only.base", more: imports.Settings{"knowledge_distillation": "True"}, said: true},
		{file: "./clusters_no_in_batch_neg.jsonl", same: "True", module: "embedder.encoder_only.base", more: imports.Settings{"train_group_size": "1"}, said: true},
	} {
		s := imports.Settings{"model_name_or_path": "m", "train_data": []any{c.file, "./others.jsonl"}, "same_dataset_within_batch": c.same, "module": "FlagEmbedding.finetune." + c.module}
		maps.Copy(s, c.more)
		r, res := convert(t, imports.FlagEmbedding, s, 1)
		if strings.Contains(strings.Join(res.Without, "\n"), "no negatives but a row's own") != c.said {
			t.Errorf("%+v: without %v", c, res.Without)
		}
		own := r.Data.Train[0].Loss
		if (own != nil) != c.alone || c.alone && (own.Name != "cross_entropy" || own.Scale != 20 || own.Similarity != "dot" || r.Data.Train[1].Loss != nil || r.Loss.Name != "mnrl") {
			t.Errorf("%+v: %s", c, res.Recipe)
		}
	}
}

// What FlagEmbedding does that its arguments don't say is told: the word None in front of queries, texts of pairs that are cut before the pair is, and
// language models that it trains as if they were encoders.
// The width of vectors is nothing to an M3 that learns none.
func TestSaidOfFlagEmbedding(t *testing.T) {
	for _, c := range []struct{ arguments, want string }{
		{"embedder.encoder_only.base --same_dataset_within_batch True", "each has the word None"},
		{"embedder.encoder_only.base", ""},
		{"embedder.encoder_only.base --same_dataset_within_batch True --query_instruction_for_retrieval x", ""},
		{"embedder.encoder_only.m3 --colbert_dim 8", ""},
		{"reranker.decoder_only.base", "model_type is decoder"},
		{"reranker.decoder_only.base --model_type encoder", "model_type is decoder"},
		{"reranker.decoder_only.base --model_type decoder", ""},
		{"reranker.encoder_only.base --query_max_len 20 --passage_max_len 100", "more than 120 tokens the document alone is cut; there a query is cut at 45 and a document at 110 tokens"},
	} {
		s, _, err := imports.ReadCommand("python -m FlagEmbedding.finetune." + c.arguments + " --train_data d.jsonl --model_name_or_path m")
		if err != nil {
			t.Fatal(err)
		}
		_, res := convert(t, imports.FlagEmbedding, s, 1)
		said := strings.Join(res.Assumed, "\n")
		if !strings.Contains(said, c.want) || c.want == "" && (strings.Contains(said, "None") || strings.Contains(said, "model_type")) || len(res.Unknown) > 0 {
			t.Errorf("%s: %q, %q", c.arguments, said, res.Unknown)
		}
	}
}
