package imports

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"contraflow/io/spelling"
)

// Settings that no rule turns into keys: what is said of them, and of names that nobody knows.

// nothing are settings that change nothing that is computed, or that have no meaning here, or that others' rules read.
var nothing = strings.Fields(`
	score_mini_batch_size show_progress_bar use_mini_batched_version
	overwrite_output_dir do_train do_eval do_predict run_name project trackio_space_id trackio_bucket_id trackio_static_space_id disable_tqdm debug skip_memory_metrics
	log_level log_level_replica log_on_each_node logging_dir logging_first_step logging_nan_inf_filter include_num_input_tokens_seen include_tokens_per_second
	dataloader_num_workers dataloader_pin_memory dataloader_prefetch_factor dataloader_persistent_workers dataloader_multiprocessing_context dataloader_in_order
	remove_unused_columns label_names length_column_name past_index use_cache average_tokens_across_devices
	ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout local_rank _n_gpu ray_scope mp_parameters accelerator_config
	push_to_hub_model_id push_to_hub_organization push_to_hub_token hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision
	per_device_eval_batch_size per_gpu_eval_batch_size prediction_loss_only eval_do_concat_batches eval_use_gather_object batch_eval_metrics
	include_for_metrics include_inputs_for_metrics use_legacy_prediction_loop greater_is_better
	save_safetensors save_on_each_node enable_jit_checkpoint
	no_cuda use_mps_device use_ipex jit_mode_eval tpu_num_cores tpu_metrics_debug torch_compile torch_compile_backend torch_compile_mode torchdynamo
	use_liger_kernel liger_kernel_config gradient_checkpointing_kwargs activation_checkpointing_kwargs half_precision_backend fp16_backend fp16_opt_level
	cache_path cache_dir token trust_remote_code use_fast_tokenizer use_slow_tokenizer use_flash_attn pad_to_multiple_of kd_loss_type
	query_instruction_format passage_instruction_format query_instruction_for_retrieval passage_instruction_for_retrieval use_lora`)

// counterparts are settings that change what is computed and have no key.
var counterparts = map[string]string{
	"deepspeed":                 "parameters and optimizer state are sharded with mesh.shard; there is no configuration file for it",
	"fsdp":                      "parameters and optimizer state are sharded with mesh.shard",
	"fsdp_config":               "parameters and optimizer state are sharded with mesh.shard",
	"use_self_distill":          "belongs to model.kind: m3",
	"frozen":                    "model.freeze: {layers: N, embeddings: true} freezes the first N layers and the embeddings, and other tensors train",
	"transform":                 "rows are as the dataset's transform has made them once: what it draws anew in each epoch stays as it was drawn",
	"fix_encoder":               "model.freeze: {layers: N, embeddings: true}, with the model's number of layers, freezes all but the heads",
	"self_distill_start_step":   "belongs to model.kind: m3",
	"eval_on_start":             "eval.at_start: true measures the model before its first step, once eval.retrieval, eval.nanobeir, eval.sts, eval.pair_classification, eval.triplets, eval.paraphrases, eval.candidates, eval.loss or a reranker's eval.rerank has data",
	"evaluator":                 "eval.retrieval, eval.nanobeir, eval.sts, eval.pair_classification, eval.triplets, eval.paraphrases, eval.candidates or a reranker's eval.rerank measures the model while it trains, each with files of its own",
	"eval_delay":                "evaluations begin after eval.every steps, or with eval.at_start: true before the first",
	"bf16_full_eval":            "evaluation has no precision of its own",
	"fp16_full_eval":            "evaluation has no precision of its own",
	"optim_args":                "AdamW's options are optimizer.betas, optimizer.eps and optimizer.weight_decay, and SGD's optimizer.momentum",
	"optim_target_modules":      "GaLore and APOLLO are not here; AdamW is taken",
	"adafactor":                 "AdamW is taken",
	"push_to_hub":               "nothing is uploaded: hf upload ORG/NAME save.dir/model does it when the run is done",
	"resume_from_checkpoint":    "another program's run does not go on here; contraflow train --resume goes on with one of its own",
	"save_only_model":           "checkpoints have the optimizer's state too; the model alone is in save.dir's model/",
	"parallelism_config":        "mesh says how many replicas and shards there are",
	"tp_size":                   "no layer is split over devices; parameters and optimizer state are sharded with mesh.shard",
	"fsdp_min_num_params":       "parameters and optimizer state are sharded with mesh.shard",
	"model_init":                "model.path names the model",
	"data_collator":             "data.train says what is read, and batches are made of it",
	"processing_class":          "the tokenizer is the one in the model's folder",
	"tokenizer":                 "the tokenizer is the one in the model's folder",
	"callbacks":                 "Python's are not called; eval.early_stopping is there (settings early_stopping_patience and early_stopping_threshold say it)",
	"compute_metrics":           "eval.retrieval, eval.nanobeir, eval.sts, eval.pair_classification, eval.triplets, eval.paraphrases, eval.candidates and a reranker's eval.rerank have metrics of their own",
	"optimizers":                "the optimizer is AdamW, with the settings of the arguments, and so is its schedule",
	"trainer":                   "Python's own is not called: what it makes of losses, batches or steps is not here",
	"optimizer_cls_and_kwargs":  "the optimizer is AdamW, with the settings of the arguments",
	"save_merged_lora_model":    "an embedder's adapter is saved as it is, and contraflow merge makes a model of it; a reranker's is merged when it is saved",
	"only_merge_lora_model":     "contraflow merge does it, and trains nothing",
	"peft_model_path":           "training goes on with an adapter where model.path names its folder",
	"from_peft":                 "training goes on with an adapter where model.path names its folder",
	"raw_peft":                  "contraflow merge puts an adapter into its model, which model.path can name then",
	"additional_special_tokens": "the vocabulary is the one in the model's folder, and grows by nothing",
	"example_query_max_len":     "no examples are put before a query",
	"example_passage_max_len":   "no examples are put before a query",
	"retrieval_use_examples":    "no examples are put before a query",
	"icl_suffix_str":            "no text is put behind a query",
	"start_layer":               "a layer-wise reranker's heads are those that its config.json tells of; any other has one, on its last layer",
	"head_multi":                "a layer-wise reranker's heads are those that its config.json tells of; any other has one, on its last layer",
	"head_type":                 "a layer-wise reranker's heads are those that its config.json tells of; any other has one, on its last layer",

	"restore_callback_states_from_checkpoint": "Python's callbacks are not called",
	"preprocess_logits_for_metrics":           "eval.retrieval, eval.nanobeir, eval.sts, eval.pair_classification, eval.triplets, eval.paraphrases, eval.candidates and a reranker's eval.rerank have metrics of their own",
	"fsdp_transformer_layer_cls_to_wrap":      "parameters and optimizer state are sharded with mesh.shard",
	"tokenizer_name":                          "the tokenizer is the one in the model's folder",
	"config_name":                             "the configuration is the one in the model's folder",
	"label_smoothing_factor":                  "there is none",
	"neftune_noise_alpha":                     "there is none",
	"fix_position_embedding":                  "position embeddings train; model.freeze: {embeddings: true} freezes all embeddings",
	"learning_rate_mapping":                   "optimizer.groups: [{params: [...], lr: ...}]; what contraflow import --python writes finds the parameters",
	"router_mapping":                          "a dataset's query and positive say what is a query and what a document; model.queries has queries made without the model (SparseStaticEmbedding)",
	"data_seed":                               "train.seed is the seed of everything",
	"full_determinism":                        "runs are bit-equal for one mesh always",
	"auto_find_batch_size":                    "batch.sub_batch bounds memory, and no batch size needs to be found",
	"torch_empty_cache_steps":                 "memory is planned before the first step",
	"ignore_data_skip":                        "resuming costs no skipping: contraflow train --resume",
	"eval_accumulation_steps":                 "evaluation embeds in sub-batches",
	"torch_dtype":                             "train.precision",
	"max_example_num_per_dataset":             "all rows of a dataset train: a file with so many of them would be one of that size",
	"small_threshold":                         "small files train as they are: with same_dataset_within_batch those of a folder are merged there, and a single one is left out",
	"drop_threshold":                          "no rows are dropped: with same_dataset_within_batch small files of a folder that are too few rows together are left out there",
	"shuffle_ratio":                           "texts stay as they are: parts of long positives are not put in another order",
	"sep_token":                               "what stands between query and document is the model's, or model.template's",
	"model_type":                              "the program (encoder_only, decoder_only) and the model's own config.json say what is trained",
}

// off tells a setting that asks for nothing, as a list of all arguments has many of.
func off(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case bool:
		return !v
	case string:
		switch strings.ToLower(v) {
		case "", "false", "no", "none", "null":
			return true
		}
		f, err := strconv.ParseFloat(v, 64)
		return err == nil && f == 0
	case float64:
		return v == 0
	case []any:
		return len(v) == 0
	case Datasets:
		return len(v) == 0
	case map[string]any: // FSDP's is never empty
		for _, inner := range v {
			if !off(inner) {
				return false
			}
		}
		return true
	}
	return fmt.Sprint(v) == "0" // YAML's whole numbers
}

// usual are names that scripts give settings of their own, for those that are known.
var usual = map[string]string{"lr": "learning_rate", "epochs": "num_train_epochs", "num_epochs": "num_train_epochs", "batch_size": "per_device_train_batch_size", "max_length": "max_seq_length"}

// remaining sorts what no rule has used.
func (r *recipe) remaining() {
	known := slices.Concat(slices.Collect(maps.Keys(counterparts)), slices.Collect(maps.Keys(r.asked)), nothing)
	slices.Sort(known)
	for _, n := range slices.Sorted(maps.Keys(r.settings)) {
		_, zero := r.settings[n].(float64)
		why, has := counterparts[n]
		switch {
		case r.used[n] || slices.Contains(nothing, n):
			continue
		case off(r.settings[n]) && (has || !zero): // of a name that nobody knows 0 may be meant
			continue
		case has:
			r.without(n, "%s", why)
			continue
		}
		near, meant := usual[n]
		if !meant && len(n) > 2 {
			near = spelling.Nearest(n, known)
		}
		if near != "" && !slices.Contains(known, n) {
			n += "; did you mean " + near + "?"
		}
		r.result.Unknown = append(r.result.Unknown, n)
	}
}

// variables names the settings whose text has a shell's variable in it, which no script has set.
func (r *recipe) variables() {
	if r.from != FlagEmbedding {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(r.settings)) {
		texts := r.list(name)
		if slices.Contains(nothing, name) && len(texts) == 1 && name != "overwrite_output_dir" { // which takes no value: other options may be in it
			continue
		}
		for _, text := range texts {
			if v := leftWhole.FindString(text); v != "" {
				r.assume("%s has %s in it, as it stands: nothing sets it that can be read here: write its value in its place", name, v)
			}
		}
	}
}
