package imports_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"contraflow/stages/recipe"
	"contraflow/stages/recipe/imports"
)

// Every line of arguments.md is true, and every argument that settings.go sets a key for has one.
func TestArguments(t *testing.T) {
	text, err := os.ReadFile("arguments.md")
	if err != nil {
		t.Fatal(err)
	}
	from, told := imports.SentenceTransformers, map[string]bool{}
	row := regexp.MustCompile("^\\| `(.*)` \\| `([a-z_.0-9]+): (.*)` \\|$")
	for n, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(line, "## FlagEmbedding") {
			from = imports.FlagEmbedding
		}
		m := row.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		var s imports.Settings
		if err := yaml.Unmarshal([]byte(m[1]), &s); err != nil {
			t.Fatalf("line %d: %v", n+1, err)
		}
		for name := range s {
			told[name] = true
		}
		if _, lora := s["target_modules"]; !lora && strings.HasPrefix(m[2], "model.lora") && m[2] != "model.lora.rank" {
			s["r"] = 8.0 // what else LoRA has says nothing alone
		}
		res, err := imports.Convert(from, s, 1)
		if err != nil {
			t.Errorf("line %d: %v", n+1, err)
			continue
		}
		var all map[string]any
		if err := yaml.Unmarshal([]byte(res.Recipe), &all); err != nil {
			t.Fatal(err)
		}
		var want any
		if err := yaml.Unmarshal([]byte(m[3]), &want); err != nil {
			t.Fatalf("line %d: %v", n+1, err)
		}
		got := at(all, strings.Split(m[2], "."))
		if got == nil { // what a recipe doesn't say is its default
			got = at(defaults(t), strings.Split(m[2], "."))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("line %d: %s is %v, the table says %v\n%s", n+1, m[2], got, want, res.Recipe)
		}
	}
	var code []byte
	for _, file := range []string{"settings.go", "remaining.go", "datasets.go", "losses.go", "schedules.go", "heldout.go", "sparse.go", "crossencoder.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code = append(code, text...)
	}
	for _, m := range regexp.MustCompile("`(\\w+): ").FindAllStringSubmatch(string(text), -1) { // without counterpart
		told[m[1]] = true
	}
	notInTable := " model_name train_file dataset data_files optim use_rslora knowledge_distillation query_instruction_format passage_instruction_format negatives_cross_device "
	for _, m := range regexp.MustCompile(`r\.(?:word|number|whole|yes|list|has)\("(\w+)"\)`).FindAllStringSubmatch(string(code), -1) {
		if !told[m[1]] && !strings.Contains(notInTable, " "+m[1]+" ") {
			t.Errorf("%s is converted, and not in arguments.md", m[1])
		}
	}
}

// What arguments.md says has no counterpart has none, for that reason; what it says goes without a word does; and it has the names that the code
// has, and all that the programs have.
func TestWithoutCounterpart(t *testing.T) {
	text, err := os.ReadFile("arguments.md")
	if err != nil {
		t.Fatal(err)
	}
	table, rest, _ := strings.Cut(string(text), "## Without counterpart")
	rest, silent, _ := strings.Cut(rest, "## Without a word")
	known := map[string]bool{}
	for _, m := range regexp.MustCompile("`[^`]*`").FindAllString(table, -1) {
		for _, m := range regexp.MustCompile(`\w+`).FindAllString(m, -1) {
			known[m] = true
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)(?:: (\\w+))?` \\| (.*) \\|$").FindAllStringSubmatch(rest, -1) {
		known[m[1]] = true
		var value any = true
		if m[2] != "" {
			value = m[2]
		}
		said := false
		for _, from := range []imports.Source{imports.SentenceTransformers, imports.FlagEmbedding} {
			_, res := convert(t, from, imports.Settings{m[1]: value}, 1)
			said = said || slices.Contains(res.Without, m[1]+": "+m[3])
		}
		if !said {
			t.Errorf("%s: is not said to be %s", m[1], m[3])
		}
	}
	for _, m := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(silent, -1) {
		known[m[1]] = true
		if _, res := convert(t, imports.SentenceTransformers, imports.Settings{m[1]: true}, 1); len(res.Without)+len(res.Unknown) > 0 {
			t.Errorf("%s: without %q, unknown %q", m[1], res.Without, res.Unknown)
		}
	}
	code, err := os.ReadFile("remaining.go")
	if err != nil {
		t.Fatal(err)
	}
	_, lists, _ := strings.Cut(string(code), "var nothing")
	words, reasons, _ := strings.Cut(lists, "var counterparts")
	names := regexp.MustCompile(`[a-z]\w+_\w+`).FindAllString(words, -1)
	for _, m := range regexp.MustCompile(`(?m)^\t"(\w+)": `).FindAllStringSubmatch(reasons, -1) {
		names = append(names, m[1])
	}
	for _, name := range append(names, strings.Fields(theirs)...) {
		if !known[name] {
			t.Errorf("%s is not in arguments.md", name)
		}
	}
}

// theirs are the fields of transformers' TrainingArguments (5.24 and 4.51), those that sentence-transformers adds, its trainers' parameters, and
// the arguments of FlagEmbedding's embedders and rerankers.
const theirs = `
	output_dir per_device_train_batch_size num_train_epochs max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps optim optim_args weight_decay
	adam_beta1 adam_beta2 adam_epsilon optim_target_modules gradient_accumulation_steps average_tokens_across_devices max_grad_norm label_smoothing_factor bf16 fp16
	bf16_full_eval fp16_full_eval tf32 activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing gradient_checkpointing_kwargs torch_compile
	torch_compile_backend torch_compile_mode use_liger_kernel liger_kernel_config use_cache neftune_noise_alpha torch_empty_cache_steps auto_find_batch_size
	logging_strategy logging_steps logging_first_step log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen log_level log_level_replica disable_tqdm
	report_to run_name project trackio_space_id trackio_bucket_id trackio_static_space_id eval_strategy eval_steps eval_delay per_device_eval_batch_size
	prediction_loss_only eval_on_start eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics save_only_model
	save_strategy save_steps save_on_each_node save_total_limit enable_jit_checkpoint push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push
	hub_revision load_best_model_at_end metric_for_best_model greater_is_better ignore_data_skip restore_callback_states_from_checkpoint full_determinism seed data_seed
	use_cpu accelerator_config parallelism_config dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
	dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order remove_unused_columns label_names train_sampling_strategy length_column_name
	ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout fsdp fsdp_config deepspeed debug skip_memory_metrics
	do_train do_eval do_predict resume_from_checkpoint local_rank overwrite_output_dir per_gpu_train_batch_size per_gpu_eval_batch_size warmup_ratio logging_dir
	save_safetensors no_cuda use_mps_device jit_mode_eval use_ipex fp16_opt_level half_precision_backend tpu_num_cores tpu_metrics_debug past_index fsdp_min_num_params
	tp_size fsdp_transformer_layer_cls_to_wrap adafactor group_by_length use_legacy_prediction_loop include_inputs_for_metrics fp16_backend push_to_hub_model_id
	push_to_hub_organization push_to_hub_token _n_gpu mp_parameters torchdynamo ray_scope include_tokens_per_second
	prompts batch_sampler multi_dataset_batch_sampler router_mapping learning_rate_mapping warmup_ratio model train_dataset eval_dataset loss evaluator data_collator
	processing_class tokenizer model_init compute_metrics callbacks optimizers optimizer_cls_and_kwargs preprocess_logits_for_metrics
	model_name_or_path config_name tokenizer_name cache_dir trust_remote_code use_fast_tokenizer token train_data cache_path train_group_size query_max_len
	passage_max_len pad_to_multiple_of max_example_num_per_dataset query_instruction_for_retrieval query_instruction_format knowledge_distillation
	passage_instruction_for_retrieval passage_instruction_format shuffle_ratio same_dataset_within_batch small_threshold drop_threshold negatives_cross_device
	temperature fix_position_embedding sentence_pooling_method normalize_embeddings sub_batch_size kd_loss_type use_mrl mrl_dims model_type max_len
	query_instruction_for_rerank passage_instruction_for_rerank sep_token peft_model_path use_lora lora_rank lora_alpha lora_dropout target_modules use_flash_attn
	use_slow_tokenizer from_peft modules_to_save raw_peft additional_special_tokens save_merged_lora_model only_merge_lora_model example_query_max_len
	example_passage_max_len retrieval_use_examples icl_suffix_str colbert_dim unified_finetuning use_self_distill fix_encoder self_distill_start_step start_layer
	head_multi head_type
`

// at is a value in nested mappings and lists.
func at(v any, keys []string) any {
	for _, k := range keys {
		switch x := v.(type) {
		case map[string]any:
			v = x[k]
		case []any:
			i, err := strconv.Atoi(k)
			if err != nil || i >= len(x) {
				return nil
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

func defaults(t *testing.T) (all map[string]any) {
	t.Helper()
	r, err := recipe.Parse("defaults", []byte("model: {path: m}\ndata: {train: [{path: d, query: q, positive: p}]}\nsave: {dir: s}\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := r.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all
}
