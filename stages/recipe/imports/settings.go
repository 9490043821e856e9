package imports

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"contraflow/io/dataset"
	"contraflow/stages/evaluate"
)

func (r *recipe) model() {
	name, ok := "", false
	for _, key := range []string{"model_name_or_path", "model", "model_name"} {
		if name, ok = r.word(key); ok {
			break
		}
	}
	if !ok {
		name = "MODEL"
		r.open("a model", name)
		r.assume("no model is named: put a folder or a hub id in place of MODEL")
	}
	r.keys["model.path"] = quote(name)

	switch {
	case r.pairs:
		r.keys["model.kind"] = "reranker"
	case r.reranks():
		r.keys["model.kind"] = "reranker"
		if r.decoder() {
			r.keys["model.template"] = "bge" // which cuts the document alone
		} else {
			r.keys["model.truncation"] = "only_second"
		}
		r.layers()
	case r.unified():
		r.keys["model.kind"] = "m3"
		if dim, ok := r.whole("colbert_dim"); ok && dim > 0 {
			r.keys["model.vector_dim"] = fmt.Sprint(dim)
		}
	case r.from == FlagEmbedding:
		r.used["colbert_dim"] = true // of M3 that learns its dense part alone
	}
	if r.ofVectors() {
		r.multiVector()
	}
	r.frozen()
	r.rates()
	embeds := r.from == FlagEmbedding && !r.reranks() // with defaults of its own
	if m, ok := r.word("sentence_pooling_method"); ok {
		r.keys["model.pooling"] = plain(strings.TrimSuffix(m, "_token"))
	} else if embeds && r.decoder() {
		r.keys["model.pooling"] = "last"
		r.assume("pooling is last: FlagEmbedding's default, cls, takes the vector of the first position, which is padding in most texts and in a causal model sees nothing of them")
	} else if embeds {
		r.keys["model.pooling"] = "cls"
	}
	if embeds && r.decoder() {
		r.keys["model.eos"] = "true" // its tokenizer is loaded with add_eos_token=True
	}
	if v, ok := r.yes("normalize_embeddings"); ok || embeds {
		r.keys["model.normalize"] = fmt.Sprint(v || !ok)
	}
	switch s, ok := r.word("similarity_fn_name"); {
	case !ok || r.sparse() && s == "dot" || r.ofVectors() && s == "MaxSim": // as here
	case r.sparse() || r.ofVectors() || r.reranks() || r.unified():
		r.without("similarity_fn_name", "%s; model.similarity is of embedders", s)
	case s == "cosine" || s == "dot":
		r.keys["model.similarity"] = s
	default:
		r.without("similarity_fn_name", "%s; measures compare embeddings by cosine or dot", s)
	}
	q, hasQ := r.whole("query_max_len")
	p, hasP := r.whole("passage_max_len")
	if r.from == FlagEmbedding { // its own defaults
		if !hasQ {
			q = 32
		}
		if !hasP {
			p = 128
		}
	}
	switch {
	case r.reranks() && !r.pairs:
		r.keys["model.max_length"] = fmt.Sprint(q + p) // of the pair
		r.used["max_len"] = true                       // which nothing there reads
		r.assume("of a pair of more than %d tokens the document alone is cut; there a query is cut at %d and a document at %d tokens before", q+p, q+p/4, p+q/2)
	case hasQ && hasP || r.from == FlagEmbedding:
		r.keys["model.max_length"] = fmt.Sprintf("{query: %d, document: %d}", q, p)
	default:
		for _, name := range []string{"max_length", "max_seq_length"} {
			if name == "max_length" && !r.pairs { // a CrossEncoder's older name of it
				continue
			}
			if n, ok := r.whole(name); ok {
				r.keys["model.max_length"] = fmt.Sprint(n)
			}
		}
	}
	for _, name := range []string{"gradient_checkpointing", "activation_checkpointing"} { // its newer name
		if v, _ := r.yes(name); v {
			r.keys["model.activation_checkpointing"] = "true"
		}
	}
	lora := map[string]string{}
	for _, s := range [][2]string{{"lora_rank", "rank"}, {"r", "rank"}, {"lora_r", "rank"}, {"lora_alpha", "alpha"}, {"lora_dropout", "dropout"}} {
		if v, ok := r.number(s[0]); ok {
			lora[s[1]] = num(v)
		}
	}
	if t := r.list("target_modules"); t != nil {
		if len(t) == 1 {
			t = strings.Fields(t[0])
		}
		if !r.pairs { // of all-linear PEFT has the pooler's too, which no embedding reads
			t = slices.DeleteFunc(t, func(name string) bool { return name == "pooler.dense" || strings.HasSuffix(name, ".pooler.dense") })
		}
		lora["targets"] = names(t)
	}
	if v, ok := r.yes("use_rslora"); ok && v {
		lora["rslora"] = "true"
	}
	if m := r.list("modules_to_save"); m != nil {
		lora["modules_to_save"] = names(m)
	}
	if v, ok := r.has("adapter"); ok {
		r.without("adapter", "%s; model.lora has rank, alpha, dropout, targets, rslora and modules_to_save, and begins anew", inFlow(v))
	}
	use, said := r.yes("use_lora")
	if use || !said && (len(lora) > 0 || r.decoder()) {
		usual := map[string]string{"rank": "8", "alpha": "8"} // PEFT's
		if r.from == FlagEmbedding {
			usual = map[string]string{"rank": "64", "alpha": "16", "dropout": "0.1", "targets": "[v_proj, q_proj, k_proj, gate_proj, down_proj, o_proj, up_proj]"}
		} else if _, ok := lora["targets"]; !ok {
			r.assume("no target_modules are named, for which PEFT takes the query and value projections (query and value of BERT's family, q_proj and v_proj of Llama's and Qwen's): model.lora.targets stays all-linear, every linear layer")
		}
		for k, v := range usual {
			if _, ok := lora[k]; !ok {
				lora[k] = v
			}
		}
		var parts []string
		for _, k := range []string{"rank", "alpha", "dropout", "targets", "rslora", "modules_to_save"} {
			if v, ok := lora[k]; ok {
				parts = append(parts, k+": "+v)
			}
		}
		r.keys["model.lora"] = "{" + strings.Join(parts, ", ") + "}"
	}
}

// multiVector is what a MultiVectorEncoder has of its own.
func (r *recipe) multiVector() {
	r.keys["model.kind"] = "multi_vector"
	var lengths []string
	if n, ok := r.whole("query_length"); ok && n > 0 {
		lengths = append(lengths, fmt.Sprintf("query: %d", n))
	}
	if n, ok := r.whole("document_length"); ok && n > 0 {
		lengths = append(lengths, fmt.Sprintf("document: %d", n))
	}
	if lengths != nil {
		r.keys["model.max_length"] = "{" + strings.Join(lengths, ", ") + "}"
	}
	if v, ok := r.has("max_length"); ok { // of the trainer, over the modules'
		r.keys["model.max_length"] = inFlow(v)
		r.assume("max_length is of training and its loss there; here evaluations and the model that is saved have it too (model.max_length)")
	}
	if words, ok := r.has("skiplist_words"); ok {
		if _, list := words.([]any); !list {
			r.wrong("skiplist_words", "a list of tokens", words)
		}
		var quoted []string
		for _, w := range r.list("skiplist_words") {
			quoted = append(quoted, quote(w))
		}
		r.keys["model.skiplist"] = flow(quoted)
	}
	v, given := r.settings["query_expansion"]
	if _, ok := r.has("query_expansion"); !ok {
		if given {
			r.keys["model.query_expansion"] = "none"
		}
		return
	}
	e, ok := v.(map[string]any)
	if !ok {
		r.wrong("query_expansion", "a mapping with strategy and length", v)
		return
	}
	var parts []string
	for _, key := range []string{"strategy", "length", "token"} {
		if e[key] != nil {
			parts = append(parts, fmt.Sprintf("%s: %s", key, plain(fmt.Sprint(e[key]))))
		}
	}
	if attend, _ := e["attend"].(bool); attend {
		parts = append(parts, "attend: true")
	}
	r.keys["model.query_expansion"] = "{" + strings.Join(parts, ", ") + "}"
}

func (r *recipe) batch() {
	size := 8 // transformers' default
	for _, name := range []string{"per_gpu_train_batch_size", "train_batch_size", "per_device_train_batch_size"} {
		if n, ok := r.whole(name); ok {
			size = n
		}
	}
	if c, _ := r.settings["accelerator_config"].(map[string]any); c["split_batches"] == true { // size is that of all devices
		if size%r.devices != 0 {
			r.fail("per_device_train_batch_size: %d rows are not to be split over %d devices, as accelerator_config's split_batches has it", size, r.devices)
		}
		size /= r.devices
	}
	r.keys["batch.global_size"] = fmt.Sprint(size * r.devices)
	gathered, said := r.gathers()
	apart := r.devices > 1 && !gathered && r.inBatch()
	of := fmt.Sprintf("batch.global_size is %d rows on each of %d devices", size, r.devices)
	switch {
	case r.devices == 1:
	case r.drawsInBatch():
		r.assume("%s; a row gets documents of rows on all of them, and there of those on its own", of)
	case r.reranks():
		r.assume("batch.global_size is %d groups on each of %d devices", size, r.devices)
	case gathered:
		r.assume("%s; negatives come from all of them", of)
	case apart:
		r.keys["mesh.replicate"] = fmt.Sprint(r.devices)
		r.assume("%s; negatives stay on their device, as they did, and so mesh.replicate is %d: a launcher has to start as many processes, and without one, train makes as many ranks in one process, on the device that is there. With mesh.replicate: auto and loss.gather_across_devices: true, negatives come from all rows on any number of devices", of, r.devices)
	default:
		r.assume("%s", of)
	}
	if (said || apart) && !r.reranks() {
		r.set("loss.gather_across_devices", fmt.Sprint(gathered), "true")
	}
	if n, ok := r.whole("gradient_accumulation_steps"); ok {
		r.set("batch.accumulate", fmt.Sprint(n), "1")
	}
	drop, _ := r.yes("dataloader_drop_last")
	same, _ := r.yes("same_dataset_within_batch")
	r.set("batch.drop_last", fmt.Sprint(drop || same), "true") // which same_dataset_within_batch always does
	sampler, _ := r.word("batch_sampler")
	sampler = strings.ToLower(sampler[strings.LastIndexByte(sampler, '.')+1:])
	switch {
	case strings.HasPrefix(sampler, "no_duplicates") && r.drawsInBatch():
		r.keys["batch.no_duplicates"] = "true"
	case r.reranks(): // groups don't see each other
	case sampler == "no_duplicates" || sampler == "no_duplicates_hashed":
		r.assume("an epoch has each row once (batch.no_duplicates); where many rows share texts that is more batches than rows divided by batch size, the last ones small, or with batch.drop_last fewer. There it is that many: the rest is left out, or rows come twice")
	case sampler == "group_by_label":
		r.without("batch_sampler", "group_by_label puts rows of equal labels side by side; batches here are in random order")
	default:
		if sampler != "" && sampler != "batch_sampler" {
			r.without("batch_sampler", "%s; batches here are in random order", sampler)
		}
		r.set("batch.no_duplicates", "false", "true")
		if r.from == SentenceTransformers {
			r.assume("batches may hold a text twice, as with batch_sampler's default; batch.no_duplicates: true is mostly better: all rows are read before the first step, and those that fit into no batch are left out and counted")
		}
	}
	if v, ok := r.yes("group_by_length"); ok && v {
		r.keys["batch.by_length"] = "true"
	}
	switch s, _ := r.word("train_sampling_strategy"); strings.ToLower(s) {
	case "", "random":
	case "group_by_length":
		r.keys["batch.by_length"] = "true"
	default:
		r.without("train_sampling_strategy", "%s; rows are in random order, or with data.shuffle: false in that of the files", s)
	}
	for _, name := range []string{"sub_batch_size", "mini_batch_size"} {
		if n, ok := r.whole(name); ok && n > 0 {
			r.keys["batch.sub_batch"] = fmt.Sprintf("{rows: %d}", n)
		}
	}
	if n, ok := r.whole("mini_batch_num_tokens"); ok && n > 0 { // takes the other one's place there, too
		r.keys["batch.sub_batch"] = fmt.Sprintf("{tokens: %d}", n)
	}
}

// gathers tells whether negatives came from all devices.
func (r *recipe) gathers() (yes, said bool) {
	if v, ok := r.yes("negatives_cross_device"); ok {
		return v, true
	}
	if v, ok := r.yes("gather_across_devices"); ok {
		return v, true
	}
	return false, false
}

// inBatch tells whether a row's loss depends on what other rows are on its device.
func (r *recipe) inBatch() bool {
	if r.reranks() {
		return false
	}
	for _, p := range r.parts {
		loss := r
		if p.loss != nil {
			loss = p.loss
		}
		if !loss.peer().rows {
			return true
		}
	}
	return false
}

// program is the module of FlagEmbedding that the command line runs.
func (r *recipe) program() string {
	if r.from != FlagEmbedding {
		return ""
	}
	s, _ := r.word("module")
	return s
}

// layerWise tells whether it trains a reranker with a head for each of several layers.
func (r *recipe) layerWise() bool {
	return strings.Contains(r.program(), "reranker.decoder_only.layerwise")
}

// layers is what a layer-wise reranker has besides.
func (r *recipe) layers() {
	if !r.layerWise() {
		if kind, _ := r.word("model_type"); kind != "decoder" && strings.Contains(r.program(), "decoder_only") {
			r.assume("model_type is decoder; with encoder, FlagEmbedding's default, it trains pairs without the question and the marks with which it scores")
		}
		return
	}
	r.assume("the scores of all layers that have a head train; FlagEmbedding 1.4.2, whose loss is written for all, asks its model for the last layer's alone")
	kind, ok := r.word("model_type")
	const raw = "from_raw_model gives a language model its heads, and begins with that: here model.path is a model that has them, such as BAAI/bge-reranker-v2-minicpm-layerwise"
	switch {
	case !ok:
		r.assume("model_type is from_finetuned_model; FlagEmbedding's default, %s", raw)
	case kind != "from_finetuned_model":
		r.without("model_type", "%s", raw)
	}
}

// reranks tells whether it trains a reranker.
func (r *recipe) reranks() bool { return r.pairs || strings.Contains(r.program(), "reranker") }

// decoder tells whether it trains a language model, for which it takes LoRA unless it is told not to.
func (r *recipe) decoder() bool {
	return strings.Contains(r.program(), "decoder_only") || strings.Contains(r.program(), "llm_")
}

// distills tells whether it learns from a teacher's scores.
func (r *recipe) distills() bool {
	v, _ := r.yes("knowledge_distillation")
	return v && r.from == FlagEmbedding && r.group > 1
}

// kind is that of distillation.
func (r *recipe) kind() string {
	kind, ok := r.word("kd_loss_type")
	if !ok {
		return "kl_div" // its default
	}
	return kind
}

// teaches tells whether the recipe's loss learns from a teacher's scores.
func (r *recipe) teaches() bool {
	return r.distills() && (r.reranks() || r.unified() || r.kind() == "kl_div")
}

// unified tells whether dense, sparse and multi-vector embeddings are trained together.
func (r *recipe) unified() bool {
	v, _ := r.yes("unified_finetuning")
	return v && r.from == FlagEmbedding
}

// m3 is what FlagEmbedding's M3 trainer has besides. It counts steps from 0 and distils after self_distill_start_step; here steps count from 1.
func (r *recipe) m3() {
	r.keys["loss.name"] = "m3"
	if v, _ := r.yes("use_self_distill"); v {
		r.keys["loss.self_distill"] = "true"
		if n, ok := r.whole("self_distill_start_step"); ok && n >= 0 {
			r.keys["loss.self_distill_from"] = fmt.Sprint(n + 2)
		}
	}
	kind := r.kind()
	if r.distills() {
		r.keys["loss.distillation"] = plain(kind)
	}
	if gathered, _ := r.gathers(); gathered && r.devices > 1 {
		r.assume("negatives of all devices count for all three parts; FlagEmbedding's sparse and multi-vector losses stay on their device")
	}
}

func (r *recipe) optimizer() {
	lr, ok := r.number("learning_rate")
	if !ok {
		lr = 5e-5 // transformers' default
	}
	r.set("optimizer.lr", num(lr), "2e-05")
	wd, _ := r.number("weight_decay") // 0 there
	r.set("optimizer.weight_decay", num(wd), "0.01")
	b1, ok1 := r.number("adam_beta1")
	b2, ok2 := r.number("adam_beta2")
	eps, hasEps := r.number("adam_epsilon")
	optim, _ := r.word("optim")
	switch {
	case optim == "sgd":
		r.keys["optimizer.name"] = "sgd"
		ok1, ok2, hasEps = false, false, false // which it does not read
	case optim != "" && !strings.HasPrefix(optim, "adamw"):
		r.without("optim", "%s; AdamW is taken", optim)
	case optim != "" && optim != "adamw_torch" && optim != "adamw_torch_fused":
		r.without("optim", "%s keeps its state in another form; AdamW with f32 state is taken", optim)
	}
	if ok1 || ok2 {
		if !ok1 {
			b1 = 0.9
		}
		if !ok2 {
			b2 = 0.999
		}
		r.set("optimizer.betas", fmt.Sprintf("[%s, %s]", num(b1), num(b2)), "[0.9, 0.999]")
	}
	if hasEps {
		r.set("optimizer.eps", num(eps), "1e-08")
	}
	if v, ok := r.number("max_grad_norm"); ok {
		if !(v > 0) || math.IsInf(v, 1) { // nothing is clipped
			v = 0
		}
		r.set("optimizer.max_grad_norm", num(v), "1")
	}
	constant := r.schedule(lr)
	steps, hasSteps := r.number("warmup_steps")
	ratio, _ := r.number("warmup_ratio")
	if constant && (steps > 0 || ratio > 0) {
		r.assume("there is no warm-up, whatever warmup_ratio and warmup_steps say: lr_scheduler_type constant has none, and constant_with_warmup has")
	}
	switch {
	case constant:
		r.keys["optimizer.warmup_ratio"] = "0"
	case hasSteps && steps >= 1:
		r.keys["optimizer.warmup_steps"] = num(steps)
	case hasSteps && steps > 0: // transformers 5: a share
		r.set("optimizer.warmup_ratio", num(steps), "0.1")
	default:
		r.set("optimizer.warmup_ratio", num(ratio), "0.1")
	}
}

func (r *recipe) rest() {
	epochs, ok := r.number("num_train_epochs")
	if !ok {
		epochs = 3
	}
	if n, ok := r.whole("max_steps"); ok && n > 0 {
		r.keys["train.max_steps"] = fmt.Sprint(n)
		epochs = float64(n) // it ends the run, whatever num_train_epochs is: an epoch has a step at least
	}
	r.set("train.epochs", strconv.FormatFloat(epochs, 'f', -1, 64), "1")
	bf, _ := r.yes("bf16")
	if half, _ := r.yes("fp16"); half && !bf {
		bf = true
		r.assume("fp16 is bf16 here: it needs no loss scaling")
	}
	r.keys["train.precision"] = "f32"
	tf, _ := r.yes("tf32")
	switch {
	case bf:
		r.keys["train.precision"] = "bf16"
	case tf:
		r.assume("tf32 is train.precision: tf32 here, on NVIDIA's GPUs alone; it stays f32")
	}
	cpu, _ := r.yes("use_cpu")
	if old, _ := r.yes("no_cuda"); cpu || old {
		r.keys["train.device"] = "cpu"
	}
	if n, ok := r.whole("seed"); ok {
		r.set("train.seed", fmt.Sprint(n), "42")
	}
	if _, old := r.has("evaluation_strategy"); old { // its older name
		if _, ok := r.has("eval_strategy"); !ok {
			r.settings = maps.Clone(r.settings)
			r.settings["eval_strategy"] = r.settings["evaluation_strategy"]
		}
	}
	r.every("eval.every", "eval", "500")
	dir, ok := r.word("output_dir")
	if !ok {
		dir = "runs/imported"
	}
	r.keys["save.dir"] = quote(dir)
	switch s, _ := r.interval("save_strategy"); s {
	case "no":
		r.keys["save.every"] = "0"
		r.has("save_steps")
	case "best":
		r.keys["save.best"] = "true"
		r.assume("save_strategy is best: the model that is saved is the best evaluation's (save.best), and checkpoints to resume from are written besides: save.every stays at its default, 500")
		r.has("save_steps")
	default:
		r.every("save.every", "save", "500")
	}
	if n, ok := r.whole("save_total_limit"); ok && n > 0 {
		r.set("save.keep", fmt.Sprint(n), "2")
	}
	if v, ok := r.yes("load_best_model_at_end"); ok && v {
		r.keys["save.best"] = "true"
	}
	r.evaluators()
	if m, ok := r.word("metric_for_best_model"); ok && m != "" {
		r.metric(m)
	} else if r.measuresLoss() && r.keys["save.best"] != "" {
		r.keys["eval.metric"] = "loss" // transformers' default
	}
	r.direction()
	patience, stops := r.whole("early_stopping_patience")
	delta, hasDelta := r.number("early_stopping_threshold")
	if !stops {
		patience = 1 // transformers' default
	}
	switch {
	case hasDelta:
		r.keys["eval.early_stopping"] = fmt.Sprintf("{patience: %d, min_delta: %s}", patience, num(delta))
	case stops:
		r.keys["eval.early_stopping"] = fmt.Sprintf("{patience: %d}", patience)
	}
	r.every("log.every", "logging", "10")
	for _, where := range r.list("report_to") {
		switch where {
		case "tensorboard", "all":
			r.keys["log.tensorboard"] = "true"
		case "none":
		default:
			r.without("report_to", "%s; metrics.jsonl, TensorBoard (log.tensorboard) and Prometheus (--metrics-addr) are there", where)
		}
	}
}

// metric is that of the best model: eval_NAME_cosine_mrr@10 as well, of an evaluator called NAME.
func (r *recipe) metric(name string) {
	bare := strings.TrimPrefix(name, "eval_")
	measure := bare[strings.LastIndexByte(bare, '_')+1:]
	if measure == "mse" { // MSEEvaluator's
		measure = "loss"
	}
	switch _, err := evaluate.ParseMeasure(measure); {
	case err == nil:
		r.set("eval.metric", plain(strings.ToLower(measure)), "ndcg@10")
		if r.nanobeir(bare, name) {
			return
		}
		if evaluator := strings.TrimSuffix(bare, measure); evaluator != "" && evaluator != "cosine_" && evaluator != "dot_" && r.measured == 0 {
			r.assume("metric_for_best_model is one evaluator's, %s: eval.metric is %s, of all that eval.%s names, whose mean counts", name, measure, map[bool]string{false: "retrieval", true: "rerank"}[r.reranks()])
		}
	case measure == "loss" && !r.measuresLoss():
		r.without("metric_for_best_model", "%s: eval.loss measures it, on rows that eval_dataset would name; eval.metric: loss has save.best go by it", name)
	case measure == "loss":
		if r.keys["eval.metric"] = "loss"; bare != measure {
			r.assume("metric_for_best_model is one dataset's, %s: eval.metric is loss, of all that eval.loss names, whose mean counts", name)
		}
	case r.measured > 0: // each has its figure
	default:
		r.without("metric_for_best_model", "%s: save.best goes by eval.metric, which eval.retrieval, eval.nanobeir, eval.sts, eval.pair_classification, eval.triplets, eval.paraphrases, eval.candidates or a reranker's eval.rerank measures", name)
	}
}

// nanobeir takes a figure of NanoBEIR's evaluators, as they call it: NanoBEIR_mean_cosine_ndcg@10, of embeddings cut to 64 dimensions NanoBEIR_mean_64_cosine_ndcg@10,
// of the first 50 of a reranker NanoBEIR_R50_mean_ndcg@10, and of one task NanoMSMARCO_cosine_ndcg@10.
func (r *recipe) nanobeir(bare, name string) bool {
	parts := strings.Split(bare, "_")
	task, err := dataset.NanoTask(parts[0])
	all := parts[0] == "NanoBEIR"
	if !all && (err != nil || parts[0] != task) {
		return false
	}
	if r.keys["eval.nanobeir"] != "" {
		return true // its evaluator has said more
	}
	tasks, more, cut := "true", "", ""
	for _, p := range parts[1:] {
		switch n, ranked := strings.CutPrefix(p, "R"); {
		case isNumber(n) && ranked && n != "100":
			more = "top: " + n
		case isNumber(p) && r.sparse():
			cut = fmt.Sprintf("; there embeddings had their %s largest features, here they have all", p)
		case isNumber(p):
			more = "dimensions: " + p
		}
	}
	switch {
	case !all && more != "":
		tasks = fmt.Sprintf("{tasks: [%s], %s}", task, more)
	case !all:
		tasks = "[" + task + "]"
	case more != "":
		tasks = "{" + more + "}"
	}
	r.keys["eval.nanobeir"] = tasks
	if all {
		r.assume("metric_for_best_model is NanoBEIR's mean, %s: eval.nanobeir measures on all tasks, as its evaluator does if nobody names some (dataset_names), which a list does here: [msmarco, nq]%s", name, cut)
	} else {
		r.assume("metric_for_best_model is of one of NanoBEIR's tasks, %s: eval.nanobeir measures on it alone, as the mean of all that it names decides%s", name, cut)
	}
	return true
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// direction says which way is better, where the settings have it the other way: here that is fixed, of a loss lower and of any metric higher.
func (r *recipe) direction() {
	const key = "greater_is_better"
	greater, ok := r.yes(key)
	metric, named := r.word("metric_for_best_model")
	if !ok || !named && !r.measuresLoss() {
		return
	}
	if loss := !named || strings.HasSuffix(metric, "loss"); greater == loss {
		r.without(key, "%t, of %s: the best is the evaluation with the %s one here", greater, cmp.Or(metric, "loss"), map[bool]string{true: "lowest", false: "highest"}[loss])
	}
}

// interval is no, steps, epoch or best.
func (r *recipe) interval(name string) (string, bool) {
	s, ok := r.word(name)
	return strings.ToLower(s[strings.LastIndexByte(s, '.')+1:]), ok
}

// every reads how often something is done: by steps, as a share of the run, or by epochs.
func (r *recipe) every(key, what, fallback string) {
	n, ok := r.number(what + "_steps")
	s, _ := r.interval(what + "_strategy")
	if what == "eval" && s == "steps" && n == 0 {
		n, ok = r.number("logging_steps") // which transformers takes for it
	}
	switch {
	case s == "epoch":
		r.keys[key] = "epoch"
	case ok && n > 0 && n < 1:
		r.keys[key] = num(n)
	case ok && n != math.Trunc(n):
		r.wrong(what+"_steps", "a whole number, or a share of the run", n)
	case ok:
		r.set(key, num(n), fallback)
	}
}
