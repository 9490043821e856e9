package imports_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	yaml "github.com/goccy/go-yaml/parser"

	"contraflow/stages/recipe"
	"contraflow/stages/recipe/imports"
	"contraflow/testdata/harness"
)

// convert makes a recipe and parses it: whatever is printed must be one.
func convert(t *testing.T, from imports.Source, s imports.Settings, devices int) (recipe.Recipe, *imports.Result) {
	t.Helper()
	res, err := imports.Convert(from, s, devices)
	if err != nil {
		t.Fatal(err)
	}
	r, err := recipe.Parse("imported", []byte(res.Recipe), nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, res.Recipe)
	}
	return r, res
}

// The command of FlagEmbedding's own README for fine-tuning an embedder, with LoRA added.
const flagCommand = `#!/bin/bash
torchrun --nproc_per_node 2 \
	-m FlagEmbedding.finetune.embedder.encoder_only.base \
	--model_name_or_path BAAI/bge-large-en-v1.5 \
    --cache_dir ./cache/model \
    --train_data ./example_data/retrieval \
    			 ./example_data/sts/sts.jsonl \
    --cache_path ./cache/data \
    --train_group_size 8 \
    --query_max_len 512 \
    --passage_max_len 512 \
    --pad_to_multiple_of 8 \
    --query_instruction_for_retrieval 'Represent this sentence for searching relevant passages: ' \
    --query_instruction_format '{}{}' \
    --knowledge_distillation False \
	--output_dir ./test_encoder_only_base_bge-large-en-v1.5 \
    --overwrite_output_dir \
    --learning_rate 1e-5 \
    --fp16 \
    --num_train_epochs 2 \
    --per_device_train_batch_size 2 \
    --dataloader_drop_last True \
    --warmup_ratio 0.1 \
    --gradient_checkpointing \
    --deepspeed ../ds_stage0.json \
    --logging_steps 1 \
    --save_steps 1000 \
    --negatives_cross_device \
    --temperature 0.02 \
    --sentence_pooling_method cls \
    --normalize_embeddings True \
    --use_lora True --lora_rank 32 --lora_alpha 64 --target_modules q_proj v_proj \
    --kd_loss_type kl_div --frobnicate 3 # the end
`

func TestFlagEmbedding(t *testing.T) {
	s, devices, err := imports.ReadCommand(flagCommand)
	if err != nil || devices != 2 {
		t.Fatal(devices, err)
	}
	r, res := convert(t, imports.FlagEmbedding, s, devices)
	for what, ok := range map[string]bool{
		"model":     r.Model.Path == "BAAI/bge-large-en-v1.5" && r.Model.Pooling == "cls" && *r.Model.Normalize,
		"lengths":   r.Model.MaxLength == recipe.Lengths{Query: 512, Document: 512},
		"data":      fmt.Sprint(r.Data.Train[0].Path) == "[./example_data/retrieval/*.json* ./example_data/sts/sts.jsonl]",
		"columns":   r.Data.Train[0].Query == "query" && r.Data.Train[0].Positive == "pos" && slices.Equal(r.Data.Train[0].Negatives, []string{"neg"}),
		"prompt":    r.Data.Train[0].Prompts.Query == "Represent this sentence for searching relevant passages: " && r.Data.Train[0].Prompts.Document == "",
		"batch":     r.Batch.GlobalSize == 4 && r.Batch.DropLast && !r.Batch.NoDuplicates,
		"loss":      r.Loss.Scale == 50 && r.Loss.GatherAcrossDevices,
		"lora":      r.Model.LoRA.Rank == 32 && r.Model.LoRA.Alpha == 64 && r.Model.LoRA.Dropout == 0.1 && slices.Equal(r.Model.LoRA.Targets, []string{"q_proj", "v_proj"}),
		"recompute": r.Model.ActivationCheckpointing.Every != 0,
		"optimizer": r.Optimizer.LR == 1e-5 && r.Optimizer.WeightDecay == 0 && r.Optimizer.WarmupRatio == 0.1,
		"rest":      r.Train.Epochs == 2 && r.Train.Precision == "bf16" && r.Save.Every.Steps == 1000 && r.Log.Every == (recipe.Period{Steps: 1}),
	} {
		if !ok {
			t.Errorf("%s is wrong in\n%s", what, res.Recipe)
		}
	}
	if fmt.Sprint(res.Unknown) != "[frobnicate]" || !strings.Contains(res.Recipe, "# unknown, left out: frobnicate") {
		t.Errorf("unknown: %v", res.Unknown)
	}
	if !strings.Contains(fmt.Sprint(res.Without), "deepspeed: ") || strings.Contains(fmt.Sprint(res.Without), "kd_loss_type") || strings.Contains(fmt.Sprint(res.Without), "cache_dir") {
		t.Errorf("without counterpart: %q", res.Without)
	}
}

// FlagEmbedding's M3 trainer, whose steps count from 0.
func TestFlagEmbeddingM3(t *testing.T) {
	s, devices, err := imports.ReadCommand(`torchrun --nproc_per_node 2 -m FlagEmbedding.finetune.embedder.encoder_only.m3 --model_name_or_path BAAI/bge-m3 --train_data ./data.jsonl
		--knowledge_distillation True --kd_loss_type m3_kd_loss --unified_finetuning True --use_self_distill True --self_distill_start_step 10 --colbert_dim 128 --fix_encoder False
		--output_dir ./out --temperature 0.02`)
	if err != nil {
		t.Fatal(err)
	}
	r, res := convert(t, imports.FlagEmbedding, s, devices)
	if r.Model.Kind != "m3" || r.Model.VectorDim != 128 || r.Loss.Name != "m3" || !r.Loss.SelfDistill || r.Loss.SelfDistillFrom != 12 || r.Loss.Distillation != "m3_kd_loss" || r.Loss.Scale != 50 || r.Loss.MaskDuplicates {
		t.Errorf("%+v in\n%s", r.Loss, res.Recipe)
	}
	if len(res.Unknown)+len(res.Without) > 0 {
		t.Errorf("unknown %v, without %v", res.Unknown, res.Without)
	}
}

// What somebody calls a column is a text, whatever YAML thinks of it, and what a comment quotes stays in it.
func TestOddWords(t *testing.T) {
	columns := []any{"no", "a: b", "x, y", "}", "# d", "größe", "42", "- e", "~"}
	r, res := convert(t, imports.SentenceTransformers, imports.Settings{"model": "m", "train_dataset": "d", "columns": columns, "lr_scheduler_type": "poly\nloss: {scale: 3}", "odd\nmodel: {path: x}": 1.0}, 1)
	d := r.Data.Train[0]
	var got []any
	for _, c := range append([]string{d.Query, d.Positive}, d.Negatives...) {
		got = append(got, c)
	}
	if !slices.Equal(got, columns) || r.Loss.Scale != 20 || r.Model.Path != "m" {
		t.Errorf("%q in\n%s", got, res.Recipe)
	}
}

// A MultiVectorEncoder's settings become a recipe of a multi_vector, of whose losses alone its are; what it has no counterpart of is said.
func TestMultiVector(t *testing.T) {
	for _, c := range []struct {
		s                imports.Settings
		loss, similarity string
		without, assumed string
	}{
		{imports.Settings{"arguments": "MultiVectorEncoderTrainingArguments"}, "mnrl", "maxsim", "", "the loss is MultiVectorMultipleNegativesRankingLoss"},
		{imports.Settings{"arguments": "sentence_transformers.MultiVectorEncoderTrainingArguments", "loss": "MultiVectorMarginMSELoss"}, "margin_mse", "maxsim", "", ""},
		{imports.Settings{"loss": "MultiVectorMarginMSELoss", "similarity_fct": "scoring.mean_colbert_scores_pairwise"}, "margin_mse", "mean_maxsim", "", ""},
		{imports.Settings{"loss": "MultiVectorMultipleNegativesRankingLoss", "similarity_fct": "XTRScores()"}, "mnrl", "maxsim", "similarity_fct: XTRScores(); there are maxsim and mean_maxsim", ""},
		{imports.Settings{"loss": "MultiVectorMultipleNegativesRankingLoss", "query_expansion": map[string]any{"strategy": "min", "length": 16.0}}, "mnrl", "maxsim", "", ""},
	} {
		r, res := convert(t, imports.SentenceTransformers, c.s, 1)
		if r.Model.Kind != "multi_vector" || r.Loss.Name != c.loss || r.Loss.Similarity != c.similarity || r.Loss.Name == "mnrl" && r.Loss.Scale != 1 {
			t.Errorf("%v:\n%s", c.s, res.Recipe)
		}
		if !strings.Contains(strings.Join(res.Without, "\n"), c.without) || (c.without == "") != (len(res.Without) == 0) || !strings.Contains(strings.Join(res.Assumed, "\n"), c.assumed) || len(res.Unknown) > 0 {
			t.Errorf("%v: without %q, assumed %q, unknown %q", c.s, res.Without, res.Assumed, res.Unknown)
		}
	}
	if _, err := imports.Convert(imports.SentenceTransformers, imports.Settings{"loss": "MultiVectorMultipleNegativesRankingLoss", "query_expansion": "fixed"}, 1); err == nil || !strings.Contains(err.Error(), "query_expansion: want a mapping") {
		t.Error(err)
	}
}

func TestShares(t *testing.T) {
	r, res := convert(t, imports.SentenceTransformers, imports.Settings{"eval_steps": 0.1, "save_strategy": "epoch", "save_steps": 500.0, "logging_steps": 0.01}, 1)
	if r.Eval.Every != (recipe.Period{Share: 0.1}) || r.Save.Every != (recipe.Period{Epoch: true}) || r.Log.Every != (recipe.Period{Share: 0.01}) || strings.Contains(res.Recipe, "logging_steps") {
		t.Errorf("%s", res.Recipe)
	}
}

// What stands first of instruction and text stands first here, too; and a warm-up of 0 steps leaves it to warmup_ratio.
func TestInFront(t *testing.T) {
	r, res := convert(t, imports.FlagEmbedding, imports.Settings{"query_instruction_for_retrieval": "find it", "query_instruction_format": `Instruct: {}\nQuery: {}`, "warmup_steps": "0", "warmup_ratio": "0.3"}, 1)
	if r.Data.Train[0].Prompts.Query != "Instruct: find it\nQuery: " || r.Optimizer.WarmupRatio != 0.3 {
		t.Error(res.Recipe)
	}
}

// An evaluation, or a checkpoint, with each epoch is one here, however many there are, and stops early as there.
func TestEveryEpoch(t *testing.T) {
	epoch := recipe.Period{Epoch: true}
	for _, c := range []struct {
		settings   imports.Settings
		eval, save recipe.Period
	}{
		{imports.Settings{"eval_strategy": "epoch", "num_train_epochs": 1.0}, epoch, recipe.Period{Steps: 500}},
		{imports.Settings{"evaluation_strategy": "IntervalStrategy.EPOCH", "save_strategy": "SaveStrategy.EPOCH", "eval_steps": 50.0, "save_steps": 500.0}, epoch, epoch},
		{imports.Settings{"eval_strategy": "steps", "eval_steps": 50.0, "save_steps": 0.25, "logging_steps": 7.0}, recipe.Period{Steps: 50}, recipe.Period{Share: 0.25}},
		{imports.Settings{"eval_strategy": "steps", "logging_steps": 7.0}, recipe.Period{Steps: 7}, recipe.Period{Steps: 500}}, // as eval_steps is then
		{imports.Settings{"eval_strategy": "epoch", "save_strategy": "steps", "logging_steps": 7.0}, epoch, recipe.Period{Steps: 500}},
		{imports.Settings{"logging_steps": 7.0}, recipe.Period{Steps: 500}, recipe.Period{Steps: 500}},
	} {
		r, res := convert(t, imports.SentenceTransformers, c.settings, 1)
		if r.Eval.Every != c.eval || r.Save.Every != c.save || strings.Contains(res.Recipe, "_strategy") || len(res.Without)+len(res.Unknown) > 0 {
			t.Errorf("%v:\n%s", c.settings, res.Recipe)
		}
	}
	res, err := imports.Convert(imports.SentenceTransformers, imports.Settings{"eval_strategy": "epoch", "early_stopping_patience": 2.0}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := recipe.Parse("imported", []byte(res.Recipe), []string{"eval.retrieval={queries: q}"}); err != nil || r.Eval.Every != epoch || r.Eval.EarlyStopping.Patience != 2 {
		t.Errorf("%v\n%s", err, res.Recipe)
	}
}

// The best model is what another program calls so, and what differs is said.
func TestBest(t *testing.T) {
	for _, c := range []struct {
		settings imports.Settings
		metric   string
		said     string
	}{
		{imports.Settings{"save_strategy": "best", "load_best_model_at_end": true}, "ndcg@10", "save_strategy is best: "},
		{imports.Settings{"save_strategy": "SaveStrategy.BEST", "save_steps": 100.0}, "ndcg@10", "save_strategy is best: "},
		{imports.Settings{"load_best_model_at_end": true, "metric_for_best_model": "eval_cranfield_cosine_mrr@10"}, "mrr@10", "metric_for_best_model is one evaluator's, eval_cranfield_cosine_mrr@10: eval.metric is mrr@10"},
		{imports.Settings{"load_best_model_at_end": true, "metric_for_best_model": "eval_cosine_ndcg@10"}, "ndcg@10", ""},
		{imports.Settings{"load_best_model_at_end": true, "metric_for_best_model": "dot_recall@100"}, "recall@100", ""},
		{imports.Settings{"load_best_model_at_end": true, "metric_for_best_model": "cosine_accuracy@1"}, "ndcg@10", "# without counterpart: metric_for_best_model: cosine_accuracy@1"},
		{imports.Settings{"load_best_model_at_end": true, "metric_for_best_model": "precision"}, "ndcg@10", "# without counterpart: metric_for_best_model: precision"}, // of how many
	} {
		res, err := imports.Convert(imports.SentenceTransformers, c.settings, 1)
		if err != nil {
			t.Fatal(err)
		}
		r, err := recipe.Parse("imported", []byte(res.Recipe), []string{"eval.retrieval={queries: q}"})
		if err != nil {
			t.Fatal(err)
		}
		said := strings.Contains(res.Recipe, "save_strategy") || strings.Contains(res.Recipe, "metric_for_best_model")
		if !r.Save.Best || r.Eval.Metric != c.metric || r.Save.Every.Steps != 500 || said != (c.said != "") || !strings.Contains(res.Recipe, c.said) {
			t.Errorf("%v:\n%s", c.settings, res.Recipe)
		}
	}
}

// A figure of NanoBEIR's evaluators has a recipe measure on what they do.
func TestBestOfNanoBEIR(t *testing.T) {
	for _, c := range []struct {
		metric, loss string
		want, said   string
	}{
		{"eval_NanoBEIR_mean_cosine_ndcg@10", "MultipleNegativesRankingLoss", "true", "eval.nanobeir measures on all tasks"},
		{"NanoBEIR_mean_64_cosine_ndcg@10", "MultipleNegativesRankingLoss", "{dimensions: 64}", "eval.nanobeir measures on all tasks"},
		{"NanoBEIR_mean_64_dot_ndcg@10", "SparseMultipleNegativesRankingLoss", "true", "their 64 largest features"},
		{"eval_NanoMSMARCO_cosine_ndcg@10", "MultipleNegativesRankingLoss", "[NanoMSMARCO]", "measures on it alone"},
		{"eval_msmarco_cosine_ndcg@10", "MultipleNegativesRankingLoss", "", "metric_for_best_model is one evaluator's"},
		{"eval_NanoBEIR_R100_mean_ndcg@10", "BinaryCrossEntropyLoss", "true", "eval.nanobeir measures on all tasks"},
		{"eval_NanoBEIR_R50_mean_ndcg@10", "BinaryCrossEntropyLoss", "{top: 50}", "eval.nanobeir measures on all tasks"},
		{"eval_NanoFiQA2018_R50_ndcg@10", "BinaryCrossEntropyLoss", "{tasks: [NanoFiQA2018], top: 50}", "measures on it alone"},
	} {
		res, err := imports.Convert(imports.SentenceTransformers, imports.Settings{"load_best_model_at_end": true, "metric_for_best_model": c.metric, "loss": c.loss, "columns": []any{"q", "d", "label"}}, 1)
		if err != nil {
			t.Fatal(err)
		}
		_, got, _ := strings.Cut(res.Recipe, "\n  nanobeir: ")
		if got, _, _ = strings.Cut(got, "\n"); got != c.want || !strings.Contains(res.Recipe, c.said) || !strings.Contains(res.Recipe, `metric: "ndcg@10"`) {
			t.Errorf("%s: %q, want %q, saying %q\n%s", c.metric, got, c.want, c.said, res.Recipe)
		}
	}
}

func TestSentenceTransformers(t *testing.T) {
	s, err := imports.ReadMapping("args.json", []byte(`{
		"model": "microsoft/mpnet-base", "train_dataset": "data/nli/*.parquet", "columns": ["anchor", "positive", "negative"],
		"loss": {"name": "CachedMultipleNegativesRankingLoss", "mini_batch_size": 64, "scale": 30.0, "gather_across_devices": true},
		"args": {"output_dir": "models/x", "num_train_epochs": 1.5, "per_device_train_batch_size": 4096, "learning_rate": 2e-5, "warmup_ratio": 0.1, "fp16": false, "bf16": true,
			"batch_sampler": "BatchSamplers.NO_DUPLICATES", "multi_dataset_batch_sampler": "round_robin", "eval_strategy": "steps", "eval_steps": 100, "save_steps": 100, "save_total_limit": 2,
			"logging_steps": 100, "run_name": "mpnet", "report_to": ["tensorboard", "wandb"], "lr_scheduler_type": "polynomial", "prompts": {"anchor": "q: ", "positive": "d: "}, "deepspeed": null, "eval_on_start": true}
	}`))
	if err != nil {
		t.Fatal(err)
	}
	r, res := convert(t, imports.SentenceTransformers, s, 4)
	for what, ok := range map[string]bool{
		"model":     r.Model.Path == "microsoft/mpnet-base",
		"data":      r.Data.Train[0].Query == "anchor" && slices.Equal(r.Data.Train[0].Negatives, []string{"negative"}) && *r.Data.Train[0].Prompts == recipe.Prompts{Query: "q: ", Positive: "d: "},
		"batch":     r.Batch.GlobalSize == 4*4096 && r.Batch.SubBatch.Rows == 64 && r.Batch.NoDuplicates && !r.Batch.DropLast,
		"loss":      r.Loss.Scale == 30 && r.Loss.GatherAcrossDevices,
		"optimizer": r.Optimizer.LR == 2e-5 && r.Optimizer.WarmupRatio == 0.1 && r.Optimizer.WeightDecay == 0,
		"rest":      r.Train.Epochs == 1.5 && r.Train.Precision == "bf16" && r.Save.Dir == "models/x" && r.Eval.Every.Steps == 100 && r.Log.Every == (recipe.Period{Steps: 100}) && r.Log.TensorBoard,
	} {
		if !ok {
			t.Errorf("%s is wrong in\n%s", what, res.Recipe)
		}
	}
	all := fmt.Sprint(res.Without)
	if r.Optimizer.Schedule != (recipe.Schedule{Name: "polynomial", MinRatio: 0.005}) || !strings.Contains(all, "report_to: wandb") || !strings.Contains(all, "eval_on_start: eval.at_start: true measures") || strings.Contains(all, "deepspeed") || len(res.Unknown) > 0 {
		t.Errorf("%q, unknown %v", res.Without, res.Unknown)
	}
}

// Each of sentence-transformers' losses that there is becomes a recipe, with its options and its inputs.
func TestLosses(t *testing.T) {
	number := func(v float64) *float64 { return &v }
	for name, c := range map[string]struct {
		settings imports.Settings
		columns  []any
		want     recipe.Loss // of what is set
		source   recipe.Source
	}{
		"CoSENTLoss":                     {imports.Settings{"scale": 30.0}, nil, recipe.Loss{Name: "cosent", Scale: 30}, recipe.Source{Query: "sentence1", Positive: "sentence2", Label: "label"}},
		"losses.AnglELoss()":             {nil, []any{"a", "b", "score"}, recipe.Loss{Name: "angle", Scale: 20}, recipe.Source{Query: "a", Positive: "b", Label: "score"}},
		"CosineSimilarityLoss":           {nil, nil, recipe.Loss{Name: "cosine_similarity"}, recipe.Source{Query: "sentence1", Positive: "sentence2", Label: "label"}},
		"ContrastiveLoss":                {imports.Settings{"margin": 0.3, "distance_metric": "SiameseDistanceMetric.EUCLIDEAN"}, nil, recipe.Loss{Name: "contrastive", Margin: 0.3, Distance: "euclidean"}, recipe.Source{Query: "sentence1", Positive: "sentence2", Label: "label"}},
		"OnlineContrastiveLoss":          {imports.Settings{"distance_metric": "COSINE_DISTANCE"}, nil, recipe.Loss{Name: "online_contrastive", Distance: "cosine"}, recipe.Source{Query: "sentence1", Positive: "sentence2", Label: "label"}},
		"TripletLoss":                    {imports.Settings{"triplet_margin": 2.0, "distance_metric": "TripletDistanceMetric.MANHATTAN"}, []any{"a", "p", "n"}, recipe.Loss{Name: "triplet", Margin: 2, Distance: "manhattan"}, recipe.Source{Query: "a", Positive: "p", Negatives: []string{"n"}}},
		"BatchHardTripletLoss":           {imports.Settings{"margin": 4.0}, nil, recipe.Loss{Name: "batch_hard_triplet", Margin: 4, Distance: "euclidean"}, recipe.Source{Query: "sentence", Label: "label"}},
		"BatchHardSoftMarginTripletLoss": {nil, []any{"text", "class"}, recipe.Loss{Name: "batch_hard_soft_margin_triplet", Distance: "euclidean"}, recipe.Source{Query: "text", Label: "class"}},
		"BatchSemiHardTripletLoss":       {nil, nil, recipe.Loss{Name: "batch_semi_hard_triplet", Distance: "euclidean"}, recipe.Source{Query: "sentence", Label: "label"}},
		"BatchAllTripletLoss":            {nil, nil, recipe.Loss{Name: "batch_all_triplet", Distance: "euclidean"}, recipe.Source{Query: "sentence", Label: "label"}},
		"MarginMSELoss":                  {nil, []any{"q", "p", "n1", "n2", "margins"}, recipe.Loss{Name: "margin_mse", Similarity: "dot"}, recipe.Source{Query: "q", Positive: "p", Negatives: []string{"n1", "n2"}, Scores: []string{"margins"}}},
		"DistillKLDivLoss":               {imports.Settings{"temperature": 2.0, "similarity_fct": "pairwise_cos_sim"}, nil, recipe.Loss{Name: "distill_kl", Temperature: 2, Similarity: "cosine"}, recipe.Source{Query: "query", Positive: "positive", Negatives: []string{"negative"}, Scores: []string{"scores"}}},
		"MSELoss":                        {nil, nil, recipe.Loss{Name: "teacher_embedding", Distance: "mse"}, recipe.Source{Query: "sentence", Teacher: "teacher"}},
		"EmbedDistillLoss":               {nil, nil, recipe.Loss{Name: "teacher_embedding", Distance: "cosine"}, recipe.Source{Query: "sentence", Teacher: "teacher"}},
		"CachedGISTEmbedLoss": {imports.Settings{"guide": "all-MiniLM-L6-v2", "temperature": 0.05, "margin": 0.1, "margin_strategy": "relative", "contrast_positives": false}, nil,
			recipe.Loss{Name: "gist", Scale: 20, Margin: 0.1, MarginStrategy: "relative", Guide: &recipe.Guide{Path: "all-MiniLM-L6-v2", Prompts: new(recipe.Prompts)}, ContrastAnchors: true}, recipe.Source{Query: "anchor", Positive: "positive"}},
		"MatryoshkaLoss": {imports.Settings{"inner_loss": "MultipleNegativesRankingLoss", "matryoshka_dims": []any{64.0, 32.0}, "matryoshka_weights": []any{1.0, 0.5}, "n_dims_per_step": 1.0}, nil,
			recipe.Loss{Name: "mnrl", Scale: 20, Matryoshka: &recipe.Matryoshka{Dims: []int{64, 32}, Weights: []float64{1, 0.5}, DimsPerStep: 1}}, recipe.Source{Query: "anchor", Positive: "positive"}},
		"MegaBatchMarginLoss": {imports.Settings{"positive_margin": 0.7, "mini_batch_size": 16.0, "use_mini_batched_version": true}, nil, recipe.Loss{Name: "mega_batch_margin", PositiveMargin: number(0.7), NegativeMargin: number(0.3)}, recipe.Source{Query: "anchor", Positive: "positive"}},
		"GlobalOrthogonalRegularizationLoss": {imports.Settings{"mean_weight": nil, "second_moment_weight": 2.0, "aggregation": "sum", "similarity_fct": "cos_sim"}, []any{"a", "b", "c"},
			recipe.Loss{Name: "gor", Similarity: "cosine", MeanWeight: number(0), SecondMomentWeight: number(2), Aggregation: "sum"}, recipe.Source{Query: "a", Positive: "b", Negatives: []string{"c"}}},
		"MultipleNegativesRankingLoss": {imports.Settings{"hardness_mode": "hard_negatives", "hardness_strength": 9.0}, nil, recipe.Loss{Name: "mnrl", Scale: 20, HardnessMode: "hard_negatives", HardnessStrength: 9}, recipe.Source{Query: "anchor", Positive: "positive"}},
	} {
		s := imports.Settings{"model": "m", "train_dataset": "d.parquet", "loss": name}
		maps.Copy(s, c.settings)
		if c.columns != nil {
			s["columns"] = c.columns
		}
		r, res := convert(t, imports.SentenceTransformers, s, 1)
		got, d := r.Loss, r.Data.Train[0]
		if c.want.Scale == 0 { // an option of other losses
			got.Scale = 0
		}
		if c.want.Similarity == "" {
			got.Similarity = ""
		}
		if c.want.Guide == nil {
			got.ContrastAnchors, got.ContrastPositives = false, false
		}
		got.Directions, got.PartitionMode, got.MaskDuplicates, got.GatherAcrossDevices = nil, "", false, false
		if d.Prompts == nil || *d.Prompts != (recipe.Prompts{}) {
			t.Errorf("%s: prompts %v, want none", name, d.Prompts)
		}
		d.Path, d.Prompts = nil, nil
		if !reflect.DeepEqual(got, c.want) || !reflect.DeepEqual(d, c.source) || len(res.Unknown)+len(res.Without) > 0 {
			t.Errorf("%s: %+v of %+v, want %+v of %+v\n%s", name, got, d, c.want, c.source, res.Recipe)
		}
	}
}

// Each loss of a MultiVectorEncoder takes the columns that its trainer gives it.
func TestVectorLosses(t *testing.T) {
	for name, c := range map[string]struct {
		ours   string
		source recipe.Source
	}{
		"MultiVectorMultipleNegativesRankingLoss": {"mnrl", recipe.Source{Query: "anchor", Positive: "positive"}},
		"MultiVectorMarginMSELoss":                {"margin_mse", recipe.Source{Query: "query", Positive: "positive", Negatives: []string{"negative"}, Label: "label"}},
		"MultiVectorDistillKLDivLoss":             {"distill_kl", recipe.Source{Query: "query", Positive: "positive", Negatives: []string{"negative"}, Scores: []string{"scores"}}},
	} {
		r, res := convert(t, imports.SentenceTransformers, imports.Settings{"model": "m", "train_dataset": "d.parquet", "loss": name}, 1)
		d := r.Data.Train[0]
		d.Path, d.Prompts = nil, nil
		if r.Model.Kind != "multi_vector" || r.Loss.Name != c.ours || !reflect.DeepEqual(d, c.source) || len(res.Unknown)+len(res.Without) > 0 {
			t.Errorf("%s: %s of %+v, want %s of %+v\n%s", name, r.Loss.Name, d, c.ours, c.source, res.Recipe)
		}
	}
}

// A margin of 0, which only gist takes, is not lost without a word.
func TestNoMargin(t *testing.T) {
	for name, setting := range map[string]string{"ContrastiveLoss": "margin", "BatchAllTripletLoss": "margin", "TripletLoss": "triplet_margin", "GISTEmbedLoss": "margin"} {
		s := imports.Settings{"model": "m", "train_dataset": "d.parquet", "loss": name, setting: 0.0}
		if name == "TripletLoss" {
			s["columns"] = []any{"a", "p", "n"}
		}
		r, res := convert(t, imports.SentenceTransformers, s, 1)
		said := len(res.Without) == 1 && strings.HasPrefix(res.Without[0], setting+": a margin of 0")
		if said != (name != "GISTEmbedLoss") || r.Loss.Margin != 0 {
			t.Errorf("%s: margin %v, %q", name, r.Loss.Margin, res.Without)
		}
	}
}

// TestNothing: what isn't said has the other program's default, not ours, where the two differ.
func TestNothing(t *testing.T) {
	r, res := convert(t, imports.SentenceTransformers, imports.Settings{}, 0)
	if r.Optimizer.LR != 5e-5 || r.Optimizer.WeightDecay != 0 || r.Optimizer.WarmupRatio != 0 || r.Train.Epochs != 3 || r.Batch.GlobalSize != 8 || r.Batch.DropLast || r.Train.Precision != "f32" {
		t.Errorf("%s", res.Recipe)
	}
	if len(res.Assumed) == 0 {
		t.Error("nothing is said of the model and the data that are missing")
	}
	f, _ := convert(t, imports.FlagEmbedding, imports.Settings{}, 1)
	if f.Loss.Scale != 50 || f.Model.Pooling != "cls" || f.Model.Normalize == nil || !*f.Model.Normalize || f.Data.Train[0].NegativesPerQuery != 7 || f.Model.MaxLength != (recipe.Lengths{Query: 32, Document: 128}) {
		t.Errorf("%+v", f)
	}
}

func TestWrongSettings(t *testing.T) {
	for name, v := range map[string]any{"learning_rate": "fast", "max_steps": 1e30, "seed": 1.5, "bf16": "perhaps", "prompts": 3.0, "per_device_train_batch_size": []any{1.0}} {
		if _, err := imports.Convert(imports.SentenceTransformers, imports.Settings{name: v}, 1); err == nil || !strings.HasPrefix(err.Error(), name+": want ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for text, want := range map[string]string{
		`torchrun -m FlagEmbedding.x 'a`: "line 1, character 29: reached EOF without closing quote `'`", "ls -l": "no command line of FlagEmbedding", "python a.py x": `"x" stands where`, "": "no command line",
		"torchrun --nproc_per_node gpu x.py --train_data d": "want the number of processes",
	} {
		if _, _, err := imports.ReadCommand(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, name := range []string{"x.yaml", "x.json"} {
		for _, text := range []string{"", "[1]", "a: [", "7", "null", "{\"a\": 1"} {
			s, err := imports.ReadMapping(name, []byte(text))
			if err == nil || text != "" && name == "x.json" && json.Valid([]byte(text)) && !strings.HasSuffix(err.Error(), "want a mapping of settings to values") {
				t.Errorf("%q: %v, %v", text, s, err)
			}
		}
	}
	for text, want := range map[string]string{
		`{"evaluator": {"metric": "ndcg@10"}}`: `evaluator: metric: want a list, as trainer_settings.py writes one, got "ndcg@10"`, `{"evaluator": {"sts": {"path": "x"}, "metric": []}}`: `evaluator: sts: want a list, as trainer_settings.py writes one, got {"path":"x"}`,
		`{"columns": ["a", "b"], "prompts": {"a": 5, "b": null}}`: "prompts: a: want a text, got 5", `{"columns": ["a", "b", "c"], "prompts": {"c": {"x": "y"}}}`: `prompts: c: want a text, got {"x":"y"}`,
	} {
		s, err := imports.ReadMapping("x", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := imports.Convert(imports.SentenceTransformers, s, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := imports.Convert(imports.FlagEmbedding, imports.Settings{"learning_rate": "$lr"}, 1); err == nil || !strings.HasSuffix(err.Error(), `got "$lr": what the shell puts there can't be read here: write it in its place`) {
		t.Errorf("a variable: %v", err)
	}
	if _, err := imports.Convert(imports.SentenceTransformers, imports.Settings{"columns": []any{"a", nil}}, 1); err == nil || !strings.Contains(err.Error(), `got ["a",null]`) {
		t.Errorf("columns of null: %v", err)
	}
	if s, err := imports.ReadMapping("x.json", []byte("\ufeff{\"model\": \"m\"}")); err != nil || s["model"] != "m" {
		t.Errorf("behind a byte order mark: %v, %v", s, err)
	}
	for text, want := range map[string]string{"\ufeffimport os\n": "x.json is a Python script", "\xff\xfe{\x00}\x00": "x.json is UTF-16"} {
		if s, err := imports.ReadMapping("x.json", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", text, s, err)
		}
	}
	lists := imports.Settings{"arguments": "CrossEncoderTrainingArguments", "loss": "LambdaLoss", "columns": []any{"query", "label"}}
	if _, err := imports.Convert(imports.SentenceTransformers, lists, 1); err == nil || !strings.Contains(err.Error(), `a column of lists of documents and one of their labels, got ["query","label"]`) {
		t.Errorf("no documents: %v", err)
	}
}

// FuzzConvert: settings of a stranger, of which one has another value, become a recipe, in which keys may be wrong and YAML is not, or an error.
func FuzzConvert(f *testing.F) {
	for _, text := range []string{
		flagCommand, `{"model": "m", "args": {"output_dir": "o", "num_train_epochs": 1.5, "prompts": {"a": "q: "}, "lr_scheduler_kwargs": {"num_cycles": 2}}, "train_dataset": ["d.jsonl"], "columns": ["a", "b"]}`,
		"arguments: CrossEncoderTrainingArguments\nloss: {name: LambdaLoss, k: 10}\ncolumns: [q, d, label]\nadapter: {r: 8, target_modules: [query]}",
		`{"arguments": "SparseEncoderTrainingArguments", "loss": {"name": "SpladeLoss", "loss": "SparseMultipleNegativesRankingLoss", "document_regularizer_weight": 3e-5}, "columns": ["a", "b"]}`,
		`{"arguments": "MultiVectorEncoderTrainingArguments", "query_length": 32, "query_expansion": {"strategy": "fixed"}, "skiplist_words": [".", ","], "evaluator": [{"name": "e", "primary_metric": "ndcg"}]}`,
		`{"train_dataset": {"a": "a.parquet", "b": "b.parquet"}, "columns": {"a": ["x", "y"], "b": ["x", "y", "z"]}, "loss": {"a": {"name": "MatryoshkaLoss", "loss": "CoSENTLoss", "matryoshka_dims": [8, 4]}, "b": "GISTEmbedLoss"}, "guide": "g"}`,
	} {
		for at, value := range []string{"null", "-1", "1e308", `""`, `[null]`, `{"name": null}`, `{"a": {"a": "\u0000: {"}}`} {
			f.Add([]byte(text), uint8(at), []byte(value))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, at uint8, value []byte) {
		harness.Bounded(t, func() {
			from, devices := imports.SentenceTransformers, 0
			s, err := imports.ReadMapping("settings", text)
			if err != nil {
				from = imports.FlagEmbedding
				if s, devices, err = imports.ReadCommand(string(text)); err != nil {
					return
				}
			}
			var v any
			if names := slices.Sorted(maps.Keys(s)); len(names) > 0 && json.Unmarshal(value, &v) == nil {
				s[names[int(at)%len(names)]] = v
			}
			res, err := imports.Convert(from, s, devices)
			if err != nil {
				return
			}
			if _, err := yaml.ParseBytes([]byte(res.Recipe), 0); err != nil {
				t.Errorf("%v\n%s", err, res.Recipe)
			}
			recipe.Parse("imported", []byte(res.Recipe), nil)
		})
	})
}

// What a configuration of PEFT doesn't say has PEFT's defaults.
func TestLoRA(t *testing.T) {
	s, err := imports.ReadMapping("args.yaml", []byte("{model: m, train_dataset: d.parquet, peft_config: {r: 16}}"))
	if err != nil {
		t.Fatal(err)
	}
	r, res := convert(t, imports.SentenceTransformers, s, 1)
	if l := r.Model.LoRA; l.Rank != 16 || l.Alpha != 8 || l.Dropout != 0 || !slices.Equal(l.Targets, []string{"all-linear"}) || !strings.Contains(res.Recipe, "# assumed: no target_modules are named, for which PEFT takes") {
		t.Errorf("%s", res.Recipe)
	}
	r, res = convert(t, imports.SentenceTransformers, imports.Settings{"target_modules": []any{"query", "value"}}, 1)
	if l := r.Model.LoRA; l.Rank != 8 || l.Alpha != 8 || strings.Contains(res.Recipe, "target_modules") {
		t.Errorf("%s", res.Recipe)
	}
	of := imports.Settings{"arguments": "CrossEncoderTrainingArguments", "loss": "BinaryCrossEntropyLoss", "target_modules": []any{"query", "pooler.dense"}} // which reads it
	if r, _ = convert(t, imports.SentenceTransformers, of, 1); !slices.Equal(r.Model.LoRA.Targets, []string{"query", "pooler.dense"}) {
		t.Errorf("%v", r.Model.LoRA.Targets)
	}
}

// FlagEmbedding's rows may have prompts of their own, in place of an instruction: that they are not read is said where there is one.
func TestRowsPrompts(t *testing.T) {
	const query, passage, question = "rows' own query_prompt, ", "rows' own passage_prompt, ", "rows' own prompt, the question"
	for _, c := range []struct {
		settings imports.Settings
		said     []string
	}{
		{imports.Settings{"query_instruction_for_retrieval": "Q: "}, []string{"rows' own prompt, which stands in place of query_instruction_for_retrieval"}},
		{imports.Settings{"passage_instruction_for_retrieval": "P: "}, nil}, {imports.Settings{}, nil},
		{imports.Settings{"query_instruction_for_retrieval": ""}, []string{"rows' own prompt, which stands"}},
		{imports.Settings{"module": "FlagEmbedding.finetune.reranker.encoder_only.base"}, nil},
		{imports.Settings{"module": "FlagEmbedding.finetune.reranker.encoder_only.base", "query_instruction_for_rerank": "A: "}, []string{query}},
		{imports.Settings{"module": "FlagEmbedding.finetune.reranker.decoder_only.base", "query_instruction_for_rerank": "A: ", "passage_instruction_for_rerank": "B: "}, []string{query, passage, question}},
	} {
		_, res := convert(t, imports.FlagEmbedding, c.settings, 1)
		for _, s := range c.said {
			if !strings.Contains(res.Recipe, "# assumed: "+s) {
				t.Errorf("%v: want %q in\n%s", c.settings, s, res.Recipe)
			}
		}
		if n := strings.Count(res.Recipe, "rows' own"); n != len(c.said) {
			t.Errorf("%v: %d remarks\n%s", c.settings, n, res.Recipe)
		}
	}
}

// A group of one has no hard negatives.
func TestGroupOfOne(t *testing.T) {
	s := imports.Settings{"train_data": "a.jsonl", "train_group_size": "1"}
	r, res := convert(t, imports.FlagEmbedding, s, 1)
	if d := r.Data.Train[0]; d.Positive != "pos" || d.Negatives != nil || d.NegativesPerQuery != 0 || len(res.Without) > 0 {
		t.Errorf("%s", res.Recipe)
	}
	s["unified_finetuning"], s["knowledge_distillation"] = true, true
	if r, res := convert(t, imports.FlagEmbedding, s, 1); r.Loss.Distillation != "" || len(res.Without) != 1 || !strings.HasPrefix(res.Without[0], "knowledge_distillation: with train_group_size 1") {
		t.Errorf("%s", res.Recipe)
	}
	res, err := imports.Convert(imports.FlagEmbedding, imports.Settings{"module": "FlagEmbedding.finetune.reranker.encoder_only.base", "train_data": "a.jsonl", "train_group_size": "1"}, 1)
	if err != nil || len(res.Without) != 1 || !strings.HasPrefix(res.Without[0], "train_group_size: 1: of a positive alone") || strings.Contains(res.Recipe, "negatives:") {
		t.Errorf("%v %+v", err, res)
	}
	if _, err := recipe.Parse("imported", []byte(res.Recipe), nil); err == nil || !strings.Contains(err.Error(), "negatives: are missing") {
		t.Error(err)
	}
}

// Settings that are known, and what is said of them.
func TestSaid(t *testing.T) {
	for name, c := range map[string]struct {
		from  imports.Source
		value any
		want  string // "": nothing
	}{
		"similarity_fct":              {imports.SentenceTransformers, "util.manhattan_sim", "util.manhattan_sim; there are cosine and dot"},
		"train_sampling_strategy":     {imports.SentenceTransformers, "sequential", "sequential; rows are in random order"},
		"lr_scheduler_kwargs":         {imports.SentenceTransformers, map[string]any{"num_cycles": 2.0}, "linear has no num_cycles"},
		"max_example_num_per_dataset": {imports.FlagEmbedding, "1000", "all rows"},
		"shuffle_ratio":               {imports.FlagEmbedding, "0.1", "texts stay"},
		"small_threshold":             {imports.FlagEmbedding, "100", "small files train as they are"},
		"drop_threshold":              {imports.FlagEmbedding, "50", "no rows are dropped"},
		"batch_sampler":               {imports.SentenceTransformers, "Own", "own; batches here are in random order"},
		"adapter":                     {imports.SentenceTransformers, map[string]any{"use_dora": true, "trained": true}, "{trained: true, use_dora: true}; model.lora has rank"},
		"loss_fct":                    {imports.SentenceTransformers, "torch.nn.modules.loss.L1Loss", "torch.nn.modules.loss.L1Loss; the loss has the square"},
		"size_average":                {imports.SentenceTransformers, false, "false; the loss is a mean"},
		"sep_token":                   {imports.FlagEmbedding, "\n", "what stands between"},
		"model_type":                  {imports.FlagEmbedding, "decoder", "the program"},
	} {
		_, res := convert(t, c.from, imports.Settings{name: c.value}, 1)
		if len(res.Unknown) > 0 || len(res.Without) != 1 || !strings.HasPrefix(res.Without[0], name+": "+c.want) {
			t.Errorf("%s: without %q, unknown %q", name, res.Without, res.Unknown)
		}
	}
	for name, value := range map[string]any{"lr_scheduler_kwargs": map[string]any{}, "train_sampling_strategy": "random", "similarity_fct": "cos_sim", "batch_sampler": "no_duplicates_hashed", "loss_fct": "torch.nn.modules.loss.MSELoss", "size_average": true, "small_threshold": "0", "drop_threshold": 0.0} {
		if _, res := convert(t, imports.SentenceTransformers, imports.Settings{name: value}, 1); len(res.Unknown)+len(res.Without) > 0 {
			t.Errorf("%s: without %q, unknown %q", name, res.Without, res.Unknown)
		}
	}
	res, err := imports.Convert(imports.SentenceTransformers, imports.Settings{"early_stopping_threshold": 0.01}, 1)
	if err != nil || !strings.Contains(res.Recipe, "early_stopping: {patience: 1, min_delta: 0.01}") { // transformers' default
		t.Errorf("%v %+v", err, res)
	}
}

// All of a trainer's arguments, as args.to_dict() has them, are known; those that are off are not spoken of.
func TestDefaults(t *testing.T) {
	s, err := imports.ReadMapping("args.json", []byte(`{"model": "m", "train_dataset": "d.parquet", "columns": ["a", "b"], "loss": "MultipleNegativesRankingLoss", "output_dir": "out", "do_train": false,
		"eval_strategy": "no", "prediction_loss_only": true, "past_index": -1, "half_precision_backend": "auto", "fp16_opt_level": "O1", "include_for_metrics": [], "eval_delay": 0, "data_seed": null,
		"fsdp": [], "fsdp_config": {"min_num_params": 0, "xla": false, "xla_fsdp_v2": false, "xla_fsdp_grad_ckpt": false}, "tp_size": 0, "label_smoothing_factor": 0.0, "neftune_noise_alpha": null,
		"accelerator_config": {"split_batches": false, "dispatch_batches": null, "even_batches": true, "use_seedable_sampler": true, "non_blocking": false}, "include_num_input_tokens_seen": "no",
		"optim": "adamw_torch_fused", "deepspeed": null, "learning_rate_mapping": {}, "router_mapping": {}, "report_to": ["none"], "project": "huggingface", "adafactor": false, "lr_scheduler_kwargs": {},
		"optim_args": "none", "batch_sampler": "batch_sampler", "per_gpu_train_batch_size": null, "per_device_train_batch_size": 16, "activation_checkpointing": null, "gradient_checkpointing": null}`))
	if err != nil {
		t.Fatal(err)
	}
	if r, res := convert(t, imports.SentenceTransformers, s, 1); len(res.Without)+len(res.Unknown) > 0 || r.Batch.GlobalSize != 16 {
		t.Errorf("without %q, unknown %q", res.Without, res.Unknown)
	}
	s["deepspeed"] = map[string]any{"zero_optimization": map[string]any{"stage": 2.0}}
	s["fsdp_config"] = map[string]any{"min_num_params": 1e8}
	if _, res := convert(t, imports.SentenceTransformers, s, 1); len(res.Without) != 2 || len(res.Unknown) > 0 {
		t.Errorf("without %q, unknown %q", res.Without, res.Unknown)
	}
}

// A mapping of columns to routes that is what a recipe has anyway goes without a word, of all datasets or of each; another does not.
func TestRoutes(t *testing.T) {
	for routes, usual := range map[string]bool{
		`{"a": "query", "b": "document"}`: true, `{"a": "query"}`: true, `{"a": "query", "b": "document", "c": "query"}`: true, `{}`: true, `{"x": {"a": "query"}, "y": {"c": "query", "d": "document"}}`: false,
		`{"b": "document"}`: false, `{"a": "document", "b": "query"}`: false, `{"a": "query", "b": "query"}`: false, `{"a": "query", "b": null}`: true, `"a"`: false,
	} {
		s, err := imports.ReadMapping("args.json", []byte(`{"model": "m", "train_dataset": "d.parquet", "columns": ["a", "b"], "loss": "MultipleNegativesRankingLoss", "router_mapping": `+routes+`}`))
		if err != nil {
			t.Fatal(err)
		}
		if _, res := convert(t, imports.SentenceTransformers, s, 1); usual != (len(res.Without) == 0) {
			t.Errorf("%s: without %q", routes, res.Without)
		}
	}
	for routes, usual := range map[string]bool{
		`{"x": {"a": "query"}, "y": {"c": "query", "d": "document"}}`: true, `{"a": "query", "c": "query"}`: true, `{"x": {"a": "query"}, "y": {"c": "document"}}`: false, `{"x": {"a": "query"}}`: false,
	} {
		s, err := imports.ReadMapping("args.json", []byte(`{"model": "m", "train_dataset": {"x": "d.parquet", "y": "e.parquet"}, "columns": {"x": ["a", "b"], "y": ["c", "d"]}, "loss": "MultipleNegativesRankingLoss", "router_mapping": `+routes+`}`))
		if err != nil {
			t.Fatal(err)
		}
		if _, res := convert(t, imports.SentenceTransformers, s, 2); usual != (len(res.Without) == 0) {
			t.Errorf("two datasets, %s: without %q", routes, res.Without)
		}
	}
}

// A trainer with SGD has what it says of Adam all the same, of which a recipe has none then.
func TestSGD(t *testing.T) {
	s := imports.Settings{"model": "m", "train_dataset": "d.parquet", "columns": []any{"a", "b"}, "output_dir": "out", "optim": "sgd", "adam_beta2": 0.98, "adam_epsilon": 1e-6, "weight_decay": 0.3}
	r, res := convert(t, imports.SentenceTransformers, s, 1)
	if o := r.Optimizer; o.Name != "sgd" || o.Betas != nil || o.Eps != 0 || o.Momentum != 0 || o.WeightDecay != 0.3 || len(res.Without) > 0 {
		t.Errorf("%+v, without %q", o, res.Without)
	}
	s["optim"] = "adafactor"
	if r, res := convert(t, imports.SentenceTransformers, s, 1); r.Optimizer.Name != "adamw" || r.Optimizer.Betas[1] != 0.98 || fmt.Sprint(res.Without) != "[optim: adafactor; AdamW is taken]" {
		t.Errorf("%+v, without %q", r.Optimizer, res.Without)
	}
}

// A slip is told from a name that nobody has.
func TestUnknown(t *testing.T) {
	_, res := convert(t, imports.SentenceTransformers, imports.Settings{"leaning_rate": 0.0, "eval_datset": "x", "frobnicate": 1.0, "lr": 3.0, "q": 1.0}, 1)
	if fmt.Sprintf("%q", res.Unknown) != `["eval_datset; did you mean eval_dataset?" "frobnicate" "leaning_rate; did you mean learning_rate?" "lr; did you mean learning_rate?" "q"]` {
		t.Errorf("%q", res.Unknown)
	}
}

func ExampleConvert() {
	s, err := imports.ReadMapping("args.yaml", []byte("{model: my/model, train_dataset: pairs.parquet, columns: [question, answer], learning_rate: 1e-4, batch_sampler: no_duplicates}"))
	if err != nil {
		panic(err)
	}
	r, err := imports.Convert(imports.SentenceTransformers, s, 1)
	if err != nil {
		panic(err)
	}
	fmt.Print(r.Recipe)
	// Output:
	// # From sentence-transformers settings, by contraflow import.
	// # assumed: an epoch has each row once (batch.no_duplicates); where many rows share texts that is more batches than rows divided by batch size, the last ones small, or with batch.drop_last fewer. There it is that many: the rest is left out, or rows come twice
	// # assumed: the loss is MultipleNegativesRankingLoss: no setting called loss names another
	// # assumed: a text that occurs twice in a batch is a negative of itself, as it is there; loss.mask_duplicates: true is mostly better
	// model:
	//   path: "my/model"
	// data:
	//   train:
	//     - {path: "pairs.parquet", query: question, positive: answer, prompts: {}}
	// batch:
	//   global_size: 8
	//   drop_last: false
	// loss:
	//   mask_duplicates: false
	// optimizer:
	//   lr: 0.0001
	//   warmup_ratio: 0
	//   weight_decay: 0
	// train:
	//   epochs: 3
	//   precision: f32
	// save:
	//   dir: "runs/imported"
}

// What kept negatives on their devices does so however the recipe is run: on a mesh of as many ranks.
func TestNegativesApart(t *testing.T) {
	for _, c := range []struct {
		from     imports.Source
		settings imports.Settings
		devices  int
		mesh     int
		gather   bool
	}{
		{imports.FlagEmbedding, imports.Settings{}, 8, 8, false},
		{imports.FlagEmbedding, imports.Settings{"negatives_cross_device": true}, 8, 0, true},
		{imports.FlagEmbedding, imports.Settings{}, 1, 0, true},
		{imports.FlagEmbedding, imports.Settings{"unified_finetuning": true}, 8, 8, false},
		{imports.FlagEmbedding, imports.Settings{"module": "FlagEmbedding.finetune.reranker.encoder_only.base"}, 8, 0, false}, // of groups
		{imports.SentenceTransformers, imports.Settings{}, 4, 4, false},
		{imports.SentenceTransformers, imports.Settings{"gather_across_devices": true}, 4, 0, true},
		{imports.SentenceTransformers, imports.Settings{"gather_across_devices": false}, 1, 0, false},
		{imports.SentenceTransformers, imports.Settings{"loss": "CoSENTLoss"}, 4, 4, false},
		{imports.SentenceTransformers, imports.Settings{"loss": "CosineSimilarityLoss"}, 4, 0, true}, // which sees no other rows
		{imports.SentenceTransformers, imports.Settings{"loss": map[string]any{"a": "CosineSimilarityLoss", "b": "MSELoss"}, "train_dataset": map[string]any{"a": "a", "b": "b"}}, 4, 0, true},
		{imports.SentenceTransformers, imports.Settings{"loss": map[string]any{"a": "CosineSimilarityLoss", "b": "AnglELoss"}, "train_dataset": map[string]any{"a": "a", "b": "b"}}, 4, 4, false},
	} {
		r, res := convert(t, c.from, c.settings, c.devices)
		if int(r.Mesh.Replicate) != c.mesh || r.Loss.GatherAcrossDevices != c.gather || r.Batch.GlobalSize != 8*c.devices || strings.Contains(res.Recipe, "and so mesh.replicate is") != (c.mesh > 0) {
			t.Errorf("%v on %d:\n%s", c.settings, c.devices, res.Recipe)
		}
	}
}

// A SparseEncoder's settings become a recipe that is right, and what is not SPLADE is refused by name.
func TestSparse(t *testing.T) {
	_, res := convert(t, imports.SentenceTransformers, imports.Settings{"arguments": "SparseEncoderTrainingArguments", "loss": map[string]any{
		"name": "SpladeLoss", "loss": map[string]any{"name": "SparseMultipleNegativesRankingLoss", "scale": 1.0}, "query_regularizer_weight": 5e-5, "document_regularizer_weight": 3e-5,
	}}, 1)
	if strings.Contains(res.Recipe, "scale:") || !strings.Contains(res.Recipe, "kind: sparse") || len(res.Without)+len(res.Unknown) > 0 {
		t.Errorf("%s", res.Recipe)
	}
	_, res = convert(t, imports.SentenceTransformers, imports.Settings{"loss": "SpladeLoss", "inner_loss": "SparseMultipleNegativesRankingLoss", "scale": 20.0, "document_regularizer": "MyLoss"}, 1)
	if !strings.Contains(res.Recipe, "scale: 20") || len(res.Without) != 1 || !strings.Contains(res.Without[0], "document_regularizer: MyLoss") {
		t.Errorf("%q\n%s", res.Without, res.Recipe)
	}
	const weights = "the regularizer's weights are 5e-5 for queries and 3e-5 for documents"
	for _, c := range []struct {
		settings imports.Settings
		flops    string
		assumed  bool
	}{
		{imports.Settings{"loss": "SpladeLoss"}, "flops: {query: 5e-5, document: 3e-5}", true},
		{imports.Settings{"loss": "SpladeLoss", "use_document_regularizer_only": true}, "flops: {query: 0, document: 3e-5, document_only: true}", true},
		{imports.Settings{"loss": "SpladeLoss", "query_regularizer_threshold": 4.0}, "flops: {query: 5e-5, document: 3e-5, query_threshold: 4}", true},
		{imports.Settings{"loss": "SpladeLoss", "document_regularizer_weight": 0.5}, "flops: {document: 0.5}", false},
		{imports.Settings{"loss": "SpladeLoss", "query_regularizer_weight": 0.0}, "flops: {query: 0}", false},
	} {
		_, res := convert(t, imports.SentenceTransformers, c.settings, 1)
		if !strings.Contains(res.Recipe, c.flops) || strings.Contains(res.Recipe, weights) != c.assumed {
			t.Errorf("%v:\n%s", c.settings, res.Recipe)
		}
	}
	for loss, want := range map[string]string{"CSRLoss": "SparseAutoEncoder", "sparse_encoder.losses.FlopsLoss": "SpladeLoss"} {
		s := imports.Settings{"arguments": "SparseEncoderTrainingArguments", "loss": loss}
		if res, err := imports.Convert(imports.SentenceTransformers, s, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v %+v", s, err, res)
		}
	}
}

// What an embedder's texts are compared by is the recipe's; other kinds of models have one way, and a recipe of theirs names none.
func TestSimilarityName(t *testing.T) {
	for _, c := range []struct {
		arguments, name, want, without string
	}{
		{"", "dot", "dot", ""},
		{"", "cosine", "cosine", ""},
		{"", "euclidean", "", "similarity_fn_name: euclidean; measures compare embeddings by cosine or dot"},
		{"SparseEncoder", "dot", "", ""},
		{"SparseEncoder", "cosine", "", "similarity_fn_name: cosine; model.similarity is of embedders"},
		{"MultiVectorEncoder", "MaxSim", "", ""},
		{"CrossEncoder", "dot", "", "similarity_fn_name: dot; model.similarity is of embedders"},
	} {
		r, res := convert(t, imports.SentenceTransformers, imports.Settings{"arguments": c.arguments + "TrainingArguments", "similarity_fn_name": c.name}, 1)
		if got := strings.Join(res.Without, "\n"); r.Model.Similarity != c.want || got != c.without || len(res.Unknown) > 0 {
			t.Errorf("%+v: without %q in\n%s", c, got, res.Recipe)
		}
	}
}
