// Package recipe makes a training graph from a YAML file.
//
// A recipe names the model, the data, the batch, the loss and the optimizer; [Load] decodes it strictly, with defaults for
// everything but three keys, [Open] loads what it names, and [Run.Train] runs the graph. The graph is the one that
// package stages offers to Go programs: a recipe can't do anything that a program couldn't.
//
// # Errors
//
// A recipe is the first thing that a user gets wrong, so each error says where (file and line, or the --set argument), the full
// key, and what was probably meant: the nearest key, the key's right section, or our name for another framework's. All
// of them are reported at once, before anything is loaded.
package recipe

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"contraflow/collective"
	"contraflow/collective/sim"
	"contraflow/gpustage"
	"contraflow/io/dataset"
	"contraflow/stages"
	"contraflow/stages/optim"
	"contraflow/stages/transformer"
)

// Recipe is a recipe with every key there is. Its zero value is none that can be opened: a program begins with Default, or with one that was parsed.
type Recipe struct {
	Model     Model     `yaml:"model"`
	Data      Data      `yaml:"data"`
	Batch     Batch     `yaml:"batch"`
	Loss      Loss      `yaml:"loss"`
	Optimizer Optimizer `yaml:"optimizer"`
	Train     Train     `yaml:"train"`
	Mesh      Mesh      `yaml:"mesh"`
	Eval      Eval      `yaml:"eval"`
	Save      Save      `yaml:"save"`
	Log       Log       `yaml:"log"`
}

// Model is the model. Keys with the tag of are those of some kinds alone.
type Model struct {
	Path                    string        `yaml:"path" path:"~"`
	Kind                    string        `yaml:"kind"`
	Pooling                 string        `yaml:"pooling,omitempty"`                      // empty: what the folder says
	Normalize               *bool         `yaml:"normalize,omitempty"`                    // nil: what the folder says
	IncludePrompt           *bool         `yaml:"include_prompt,omitempty" of:"embedder"` // pooling takes the tokens of prompts too; nil: what the folder says
	Similarity              string        `yaml:"similarity,omitempty" of:"embedder"`     // of embeddings in measures, and what the saved folder says: cosine or dot; empty: dot where the losses are all of that
	EOS                     *bool         `yaml:"eos,omitempty" of:"embedder"`            // the tokenizer's EOS token stands behind every text; nil, and false: what the folder's tokenizer does
	MaxLength               Lengths       `yaml:"max_length,omitempty"`
	Dropout                 *float64      `yaml:"dropout,omitempty"` // nil: the model's
	LoRA                    *LoRA         `yaml:"lora,omitempty"`    // nil: the model's own parameters train
	Freeze                  Freeze        `yaml:"freeze,omitempty"`
	ActivationCheckpointing Checkpointing `yaml:"activation_checkpointing"`

	VectorDim int `yaml:"vector_dim,omitempty" of:"m3 multi_vector"` // of heads of m3 and multi_vector where they are new: features of a token's vector; 0: the hidden state's, or 128

	Skiplist       *Skiplist       `yaml:"skiplist,omitempty" of:"multi_vector"`        // tokens of documents without a vector; nil: what the folder says
	QueryExpansion *QueryExpansion `yaml:"query_expansion,omitempty" of:"multi_vector"` // nil: likewise

	ActivationFunction string   `yaml:"activation_function,omitempty" of:"sparse"`                         // relu, or log1p_relu, another logarithm behind it; empty: what the folder says, or relu
	Queries            *Queries `yaml:"queries,omitempty" of:"sparse: queries of weights of tokens alone"` // nil: as the folder has them

	Head        string `yaml:"head,omitempty" of:"reranker"`                                                                        // of a language model: tokens (also empty), or classifier: a projection of the last token
	Template    string `yaml:"template,omitempty" of:"reranker"`                                                                    // what surrounds a pair; empty: what the folder says
	Instruction string `yaml:"instruction,omitempty" of:"reranker; an embedder's goes in front of its texts: data.train[].prompts"` // in the template
	Truncation  string `yaml:"truncation,omitempty" of:"reranker"`                                                                  // longest_first (also empty) or only_second
}

// LoRA trains low-rank factors in place of the linear layers' weights; names are those of PEFT.
type LoRA struct {
	Rank          int      `yaml:"rank"`
	Alpha         float64  `yaml:"alpha"`
	Dropout       float64  `yaml:"dropout"`
	Targets       []string `yaml:"targets"` // linear layers, or all-linear
	RSLoRA        bool     `yaml:"rslora"`
	ModulesToSave []string `yaml:"modules_to_save,omitempty"` // that train as a whole
}

// Freeze is what does not train.
type Freeze struct {
	Layers     int  `yaml:"layers,omitempty"` // the lowest so many
	Embeddings bool `yaml:"embeddings,omitempty"`
}

type Data struct {
	Train   []Source `yaml:"train"`
	Shuffle bool     `yaml:"shuffle"`
	Mixing  Mixing   `yaml:"mixing"` // how datasets take turns
	OnError string   `yaml:"on_error"`
}

type Source struct {
	Path              []string `yaml:"path" path:"~"`
	Query             string   `yaml:"query"`
	Positive          string   `yaml:"positive"`
	Negatives         []string `yaml:"negatives,omitempty"`
	NegativesPerQuery Count    `yaml:"negatives_per_query,omitempty"`
	Documents         string   `yaml:"documents,omitempty"`       // of a reranker: column of lists, each all of a row's documents, in the place of positive and negatives
	Queries           *Texts   `yaml:"queries,omitempty"`         // that the query column names by ids; nil: it has texts
	Corpus            *Texts   `yaml:"corpus,omitempty"`          // likewise of all other columns of texts
	Relevance         string   `yaml:"relevance,omitempty"`       // column of numbers: rows in which it is 0 or less are left out
	Weight            string   `yaml:"weight,omitempty"`          // column of row weights
	Label             string   `yaml:"label,omitempty"`           // column of a number per row
	Scores            []string `yaml:"scores,omitempty"`          // columns of a teacher's scores, one per document
	Teacher           string   `yaml:"teacher,omitempty"`         // column of a teacher's embeddings
	SamplingWeight    float64  `yaml:"sampling_weight,omitempty"` // with data.mixing: weighted; 0: 1
	Prompts           *Prompts `yaml:"prompts,omitempty"`         // nil: the model's
	IDs               *bool    `yaml:"ids,omitempty"`             // use token ids that prep has written; nil: where there are any
	Loss              *Loss    `yaml:"loss,omitempty"`            // of this dataset's batches; nil: the recipe's
}

func (s Source) weight() float64 {
	if s.SamplingWeight == 0 {
		return 1
	}
	return s.SamplingWeight
}

// Prompts are put before texts. Where they are given, what they do not say is no prompt, whatever the model has.
type Prompts struct {
	Query    string `yaml:"query,omitempty"`
	Document string `yaml:"document,omitempty"`
	Positive string `yaml:"positive,omitempty"` // in document's place
	Negative string `yaml:"negative,omitempty"` // likewise
}

type Batch struct {
	GlobalSize   int      `yaml:"global_size"`
	Accumulate   int      `yaml:"accumulate"`
	SubBatch     SubBatch `yaml:"sub_batch,omitempty"` // empty where absent: from the device
	Cache        string   `yaml:"cache"`
	ReplayBudget *Bytes   `yaml:"replay_budget,omitempty"` // nil: from the device
	NoDuplicates bool     `yaml:"no_duplicates"`
	ByLength     bool     `yaml:"by_length"` // rows of similar length make a batch
	OneDataset   bool     `yaml:"one_dataset"`
	DropLast     bool     `yaml:"drop_last"`
}

type Optimizer struct {
	Name        string    `yaml:"name"`
	LR          float64   `yaml:"lr"`
	WeightDecay float64   `yaml:"weight_decay"`
	Betas       []float64 `yaml:"betas,omitempty"` // of adamw, as Eps
	Eps         float64   `yaml:"eps,omitempty"`
	Momentum    float64   `yaml:"momentum,omitempty"`
	MaxGradNorm float64   `yaml:"max_grad_norm"`
	Schedule    Schedule  `yaml:"schedule"`
	WarmupRatio float64   `yaml:"warmup_ratio"`
	WarmupSteps *int      `yaml:"warmup_steps,omitempty"`
	LayerDecay  float64   `yaml:"layer_decay,omitempty"` // each layer's learning rate is that of the layer above it times this (heads have all of it, groups their own); 0 and 1: none
	Groups      []Group   `yaml:"groups,omitempty"`
}

// Group is parameters with a learning rate of their own: those with one of these parts in their names.
type Group struct {
	Params []string `yaml:"params"`
	LR     float64  `yaml:"lr"`
}

// Epochs is how often a run sees the data. It may have a part of an epoch.
type Epochs float64

// MarshalYAML writes whole ones without a point.
func (e Epochs) MarshalYAML() (any, error) {
	if f := float64(e); f != math.Trunc(f) {
		return f, nil
	}
	return int(e), nil
}

type Train struct {
	Epochs    Epochs `yaml:"epochs"`
	MaxSteps  int    `yaml:"max_steps"`
	Precision string `yaml:"precision"` // auto (f32), f32, tf32 (where the device has it) or bf16
	Device    string `yaml:"device"`
	Seed      uint64 `yaml:"seed"`
	Sync      string `yaml:"sync"`
	OnNaN     string `yaml:"on_nan"` // stop, skip (the step) or rollback (to the last checkpoint)
}

type Mesh struct {
	Replicate  Auto   `yaml:"replicate"`
	Shard      int    `yaml:"shard"`
	Wire       string `yaml:"wire"`             // of embeddings and gradients between ranks: f32 or bf16
	Parameters string `yaml:"parameters"`       // resident, streamed, or auto: by the memory at hand
	Gradients  string `yaml:"gradients"`        // late, early, or auto
	Overlap    bool   `yaml:"overlap"`          // communicate beside computing
	Bucket     Bytes  `yaml:"bucket,omitempty"` // of gradients that are reduced at once; 0: by the model
	Link       *Link  `yaml:"link,omitempty"`   // simulated between local ranks
	Deadline   Wait   `yaml:"deadline"`         // how long a rank waits for others
}

type Eval struct {
	Every   Period `yaml:"every"`    // not a time; 0: at the end alone
	AtStart bool   `yaml:"at_start"` // before the first step too
	Metric  string `yaml:"metric"`   // of retrieval, nanobeir, rerank and candidates; or loss: what eval.loss measures decides

	// One each, or several: an evaluation's value is then the mean of theirs.
	Retrieval OneOrMore[Retrieval] `yaml:"retrieval,omitempty"`
	STS       OneOrMore[STS]       `yaml:"sts,omitempty"`
	Rerank    OneOrMore[Rerank]    `yaml:"rerank,omitempty"`
	NanoBEIR  NanoBEIRs            `yaml:"nanobeir,omitempty"`

	Paraphrases OneOrMore[Paraphrases] `yaml:"paraphrases,omitempty"`

	PairClassification OneOrMore[PairClassification] `yaml:"pair_classification,omitempty"`
	Triplets           OneOrMore[Triplets]           `yaml:"triplets,omitempty"`
	Candidates         OneOrMore[Candidates]         `yaml:"candidates,omitempty"`

	Loss OneOrMore[HeldOut] `yaml:"loss,omitempty"` // rows that the loss is measured on; it decides where nothing else is measured, or metric says so

	// What texts are compared by.
	Part    string    `yaml:"part,omitempty" of:"m3"`    // dense, sparse, multi_vector or fused; "": fused, of the parts that the loss trains
	Weights []float64 `yaml:"weights,omitempty" of:"m3"` // of dense, sparse and multi_vector in fused; nil: loss.Fusion

	EarlyStopping *EarlyStopping `yaml:"early_stopping,omitempty"`
}

// OneOrMore is a list that is written without brackets if it has one element.
type OneOrMore[T any] []T

// MarshalYAML writes what decode reads.
func (l OneOrMore[T]) MarshalYAML() (any, error) {
	if len(l) == 1 {
		return l[0], nil
	}
	return []T(l), nil
}

// Cuts are numbers of dimensions that embeddings are cut to, the first ones; 0, or no numbers: all. Several make as many tasks, whose texts are embedded once.
type Cuts = OneOrMore[int]

// EarlyStopping ends a run when so many evaluations in a row were no better by more than MinDelta than the last one that was.
type EarlyStopping struct {
	Patience int     `yaml:"patience"`
	MinDelta float64 `yaml:"min_delta"`
}

func (e *EarlyStopping) delta() float64 {
	if e == nil {
		return 0
	}
	return e.MinDelta
}

// Retrieval is a task of texts to find, as [dataset.LoadRetrieval] reads it.
type Retrieval struct {
	Name    string `yaml:"name,omitempty"` // "": by its queries' path
	Queries string `yaml:"queries" path:"~"`
	Corpus  string `yaml:"corpus,omitempty" path:"~"`
	Qrels   string `yaml:"qrels,omitempty" path:"~"`

	Prompts    *Prompts `yaml:"prompts,omitempty"`    // of queries and documents; nil: those of other evaluations
	Dimensions Cuts     `yaml:"dimensions,omitempty"` // that embeddings are cut to
}

// Paraphrases are texts among which those that say the same are to be found.
type Paraphrases struct {
	Name  string `yaml:"name,omitempty"` // "": by its texts' path
	Texts string `yaml:"texts" path:"~"`
	Pairs string `yaml:"pairs" path:"~"` // of their ids, as qrels are

	Prompts    *Prompts `yaml:"prompts,omitempty"`    // as a Retrieval's
	Dimensions Cuts     `yaml:"dimensions,omitempty"` // that embeddings are cut to
}

// Rerank is a retrieval task of which BM25's first documents are reranked.
type Rerank struct {
	Name    string `yaml:"name,omitempty"` // "": by its queries' path
	Queries string `yaml:"queries" path:"~"`
	Corpus  string `yaml:"corpus,omitempty" path:"~"`
	Qrels   string `yaml:"qrels,omitempty" path:"~"`
	Top     int    `yaml:"top,omitempty"` // documents of each query; 0: 100
}

// STS are pairs of texts with scores that their similarities are to correlate with.
type STS struct {
	Name  string `yaml:"name,omitempty"` // "": by its path
	Path  string `yaml:"path" path:"~"`
	A     string `yaml:"a"`
	B     string `yaml:"b"`
	Score string `yaml:"score"`

	Prompts    *Prompts `yaml:"prompts,omitempty"`    // as a Retrieval's
	Dimensions Cuts     `yaml:"dimensions,omitempty"` // that embeddings are cut to
}

// PairClassification are pairs of texts with labels: 1 or true of those that belong together, 0 or false of others.
type PairClassification struct {
	Name  string `yaml:"name,omitempty"` // "": by its path
	Path  string `yaml:"path" path:"~"`
	A     string `yaml:"a"`
	B     string `yaml:"b"`
	Label string `yaml:"label"`

	Prompts    *Prompts `yaml:"prompts,omitempty"`    // as a Retrieval's
	Dimensions Cuts     `yaml:"dimensions,omitempty"` // that embeddings are cut to
}

// Triplets are queries with a document that each is to be nearer to than to another.
type Triplets struct {
	Name     string  `yaml:"name,omitempty"` // "": by its path
	Path     string  `yaml:"path" path:"~"`
	Query    string  `yaml:"query"`
	Positive string  `yaml:"positive"`
	Negative string  `yaml:"negative"`
	Margin   float64 `yaml:"margin,omitempty"` // by which it is to be nearer, at least 0

	Prompts    *Prompts `yaml:"prompts,omitempty"`    // as a Retrieval's
	Dimensions Cuts     `yaml:"dimensions,omitempty"` // that embeddings are cut to
}

// Candidates are queries, a row each, with texts to rank.
type Candidates struct {
	Name      string `yaml:"name,omitempty"` // "": by its path
	Path      string `yaml:"path" path:"~"`
	Query     string `yaml:"query"`
	Positive  string `yaml:"positive"`            // a column of lists, or of one text each
	Negative  string `yaml:"negative,omitempty"`  // likewise; or
	Documents string `yaml:"documents,omitempty"` // all candidates, in an order of theirs, which is measured too
	Found     bool   `yaml:"found,omitempty"`     // positives that are not among documents have been missed: they are not ranked

	Prompts    *Prompts `yaml:"prompts,omitempty"`    // as a Retrieval's
	Dimensions Cuts     `yaml:"dimensions,omitempty"` // that embeddings are cut to
}

type Save struct {
	Dir       string `yaml:"dir" path:"~"`
	Every     Period `yaml:"every"`     // between checkpoints; 0: none but those that are asked for
	Keep      int    `yaml:"keep"`      // checkpoints that stay
	Best      bool   `yaml:"best"`      // the model is that of the best evaluation, not of the last step
	Precision string `yaml:"precision"` // of the model's files: f32, bf16 or f16. Checkpoints are in f32

	unsaved bool // nobody saves anything, and Dir may be missing: see LoadUnsaved
}

type Log struct {
	Every       Period `yaml:"every"`       // lines about steps, besides the first and the last; not a time
	TensorBoard bool   `yaml:"tensorboard"` // event files in save.dir/tensorboard
}

// Default is a recipe with every default. Model.Path, Data.Train and Save.Dir are the user's.
func Default() Recipe {
	return Recipe{
		Model:     Model{Kind: "embedder"},
		Data:      Data{Shuffle: true, OnError: "stop"},
		Batch:     Batch{GlobalSize: 256, Accumulate: 1, Cache: "auto", NoDuplicates: true, OneDataset: true, DropLast: true},
		Loss:      defaultLoss(),
		Optimizer: Optimizer{Name: "adamw", LR: 2e-5, WeightDecay: 0.01, Betas: []float64{0.9, 0.999}, Eps: 1e-8, MaxGradNorm: 1, Schedule: Schedule{Name: string(optim.Linear)}, WarmupRatio: 0.1},
		Train:     Train{Epochs: 1, Precision: "auto", Device: "auto", Seed: 42, Sync: "last", OnNaN: "stop"},
		Mesh:      Mesh{Replicate: 0, Shard: 1, Wire: "f32", Overlap: true, Parameters: "auto", Gradients: "auto", Deadline: Wait(collective.DefaultDeadline)},
		Eval:      Eval{Every: Period{Steps: 500}, Metric: "ndcg@10"},
		Save:      Save{Every: Period{Steps: 500}, Keep: 2, Precision: "f32"},
		Log:       Log{Every: Period{Steps: 10}},
	}
}

// foreign maps other frameworks' names to ours.
var foreign = map[string]string{
	"mini_batch_size":                 "batch.sub_batch: {rows: N} or {tokens: N}",
	"sub_batch_size":                  "batch.sub_batch: {rows: N} or {tokens: N}",
	"negatives_cross_device":          "loss.gather_across_devices",
	"per_device_train_batch_size":     "batch.global_size: rows of one contrastive batch over all replicas",
	"train_batch_size":                "batch.global_size",
	"batch_size":                      "batch.global_size",
	"gradient_accumulation_steps":     "batch.accumulate",
	"train_group_size":                "data.train[].negatives_per_query (train_group_size - 1)",
	"knowledge_distillation":          "data.train[].scores: [pos_scores, neg_scores]",
	"reranking":                       "eval.candidates: {path: ..., query: query, positive: positive, negative: negative}",
	"kd_loss_type":                    "loss.distillation",
	"use_self_distill":                "loss.self_distill",
	"self_distill_start_step":         "loss.self_distill_from, the first step with it (self_distill_start_step + 2)",
	"unified_finetuning":              "loss.parts: all, or [dense]",
	"colbert_dim":                     "model.vector_dim",
	"fix_encoder":                     "model.freeze: {layers: N, embeddings: true}, with the model's number of layers",
	"same_dataset_within_batch":       "batch.one_dataset",
	"batch_sampler":                   "batch.no_duplicates: true or false",
	"learning_rate":                   "optimizer.lr",
	"num_train_epochs":                "train.epochs",
	"num_epochs":                      "train.epochs",
	"lr_scheduler_type":               "optimizer.schedule",
	"lr_scheduler_kwargs":             "optimizer.schedule: {name: ..., min_ratio: ...}",
	"num_cycles":                      "optimizer.schedule: {cycles: N}, or of a cosine without restarts {waves: N}",
	"min_lr":                          "optimizer.schedule: {min_ratio: ...}, a part of optimizer.lr",
	"min_lr_rate":                     "optimizer.schedule: {min_ratio: ...}",
	"min_lr_ratio":                    "optimizer.schedule: {min_ratio: ...}",
	"lr_end":                          "optimizer.schedule: {min_ratio: ...}, a part of optimizer.lr",
	"num_decay_steps":                 "optimizer.schedule: {decay_steps: N}",
	"num_stable_steps":                "optimizer.schedule: {stable_steps: N}",
	"gradient_checkpointing":          "model.activation_checkpointing",
	"model_name_or_path":              "model.path",
	"output_dir":                      "save.dir",
	"train_data":                      "data.train",
	"anchor":                          "data.train[].query",
	"passage":                         "data.train[].positive",
	"pos":                             "data.train[].positive",
	"neg":                             "data.train[].negatives",
	"query_max_len":                   "model.max_length: {query: N, document: N}",
	"passage_max_len":                 "model.max_length: {query: N, document: N}",
	"max_seq_length":                  "model.max_length",
	"sentence_pooling_method":         "model.pooling",
	"normalize_embeddings":            "model.normalize",
	"query_regularizer_weight":        "loss.flops: {query: ...}",
	"document_regularizer_weight":     "loss.flops: {document: ...}",
	"query_regularizer_threshold":     "loss.flops: {query_threshold: ...}",
	"document_regularizer_threshold":  "loss.flops: {document_threshold: ...}",
	"use_document_regularizer_only":   "loss.flops: {document_only: true}",
	"router_mapping":                  "model.queries: {weights: ...}, of model.kind: sparse; data.train's query and positive say what is embedded so",
	"lambda_q":                        "loss.flops: {query: ...}",
	"lambda_d":                        "loss.flops: {document: ...}",
	"query_instruction_for_retrieval": "data.train[].prompts: {query: ...}",
	"activation_fn":                   "loss.activation: sigmoid or identity, of rerankers' losses",
	"r":                               "model.lora.rank",
	"lora_rank":                       "model.lora.rank",
	"lora_alpha":                      "model.lora.alpha",
	"lora_dropout":                    "model.lora.dropout",
	"target_modules":                  "model.lora.targets",
	"use_rslora":                      "model.lora.rslora",
	"logging_steps":                   "log.every",
	"logging_strategy":                "log.every: epoch, or a number of steps",
	"eval_steps":                      "eval.every",
	"eval_strategy":                   "eval.every: epoch, or a number of steps",
	"evaluation_strategy":             "eval.every: epoch, or a number of steps",
	"save_strategy":                   "save.every: epoch, or a number of steps",
	"eval_dataset":                    "eval.loss: {path: ..., query: ..., positive: ...}",
	"metric_for_best_model":           "eval.metric",
	"eval_on_start":                   "eval.at_start",
	"warmup_proportion":               "optimizer.warmup_ratio",
	"bf16":                            "train.precision: bf16",
	"fp16":                            "train.precision: f32 or bf16",
	"dataloader_drop_last":            "batch.drop_last",
	"group_by_length":                 "batch.by_length",
	"multi_dataset_batch_sampler":     "data.mixing: proportional or round_robin",
	"early_stopping_patience":         "eval.early_stopping: {patience: N}",
	"load_best_model_at_end":          "save.best",
	"save_steps":                      "save.every",
	"save_total_limit":                "save.keep",
	"resume_from_checkpoint":          "contraflow train --resume",
}

// Load reads a recipe, applies --set arguments ("a.b=c") and checks it.
func Load(path string, sets []string) (Recipe, error) {
	root, err := readTree(path)
	if err != nil {
		return Recipe{}, err
	}
	return resolve(root, sets, false)
}

// LoadUnsaved is Load for who only plans, verifies or looks over: save.dir, which Train alone writes to, may be missing.
func LoadUnsaved(path string, sets []string) (Recipe, error) {
	root, err := readTree(path)
	if err != nil {
		return Recipe{}, err
	}
	return resolve(root, sets, true)
}

// Parse is Load for a recipe in memory; name stands for its file in errors.
func Parse(name string, data []byte, sets []string) (Recipe, error) {
	root, err := parseTree(name, data)
	if err != nil {
		return Recipe{}, err
	}
	return resolve(root, sets, false)
}

func resolve(root *node, sets []string, unsaved bool) (Recipe, error) {
	r := Default()
	r.Save.unsaved = unsaved
	for _, s := range sets {
		if err := root.set(s); err != nil {
			return r, err
		}
	}
	d := &decoder{}
	d.value("", root, reflect.ValueOf(&r).Elem())
	c := checker{d: d, root: root}
	c.check(&r)
	return r, errors.Join(d.errs...)
}

// Lengths are the longest texts in tokens: one number, or one per role. 0: as long as the model takes.
type Lengths struct {
	Query    int `yaml:"query,omitempty"`
	Document int `yaml:"document,omitempty"`
}

func (l *Lengths) decode(d *decoder, path string, n *node) {
	if n.kind == scalar {
		var v int
		d.scalar(path, n, reflect.ValueOf(&v).Elem())
		*l = Lengths{v, v}
		return
	}
	d.structure(path, n, reflect.ValueOf(l).Elem())
}

// Checkpointing is activation checkpointing: false, true, or {every: k}.
type Checkpointing struct {
	Every int `yaml:"every"` // 0: none; transformer.AutoCheckpoint: true
}

// MarshalYAML writes what decode reads.
func (c Checkpointing) MarshalYAML() (any, error) {
	if c.Every > 0 {
		return map[string]int{"every": c.Every}, nil
	}
	return c.Every == transformer.AutoCheckpoint, nil
}

func (c *Checkpointing) decode(d *decoder, path string, n *node) {
	if n.kind == mapping {
		if d.structure(path, n, reflect.ValueOf(c).Elem()); c.Every < 1 {
			d.fail(n.at, path, "every is %d, want at least 1", c.Every)
		}
		return
	}
	var on bool
	d.scalar(path, n, reflect.ValueOf(&on).Elem())
	c.Every = 0
	if on {
		c.Every = transformer.AutoCheckpoint
	}
}

func (l *LoRA) decode(d *decoder, path string, n *node) {
	*l = LoRA{Rank: 16, Alpha: 32, Targets: []string{transformer.AllLinear}}
	d.structure(path, n, reflect.ValueOf(l).Elem())
}

// SubBatch bounds a sub-batch by tokens or by rows (sequences).
type SubBatch struct {
	Tokens int `yaml:"tokens,omitempty"`
	Rows   int `yaml:"rows,omitempty"`
}

// Size is what a sub-batch on a device may have: as the recipe says, or as the device likes.
func (s SubBatch) Size(d gpustage.Device) stages.Size {
	if s == (SubBatch{}) {
		s.Tokens = d.Info().PassTokens()
	}
	return stages.Size{Tokens: s.Tokens, Rows: s.Rows}
}

func (s *SubBatch) decode(d *decoder, path string, n *node) {
	*s = SubBatch{}
	if n.kind != mapping {
		d.fail(n.at, path, "want {tokens: N} or {rows: N}, got %s", describe(n))
		return
	}
	d.structure(path, n, reflect.ValueOf(s).Elem())
	if (s.Tokens > 0) == (s.Rows > 0) {
		d.fail(n.at, path, "want a positive number for one of tokens and rows")
	}
}

// Bytes is an amount of memory: 8GiB, 512MiB, 100MB, or a number of bytes.
type Bytes int64

var units = []struct {
	suffix string
	factor float64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}, {"", 1}}

func (b *Bytes) decode(d *decoder, path string, n *node) {
	if n.kind == scalar && b.UnmarshalText([]byte(n.text)) == nil {
		return
	}
	d.fail(n.at, path, "want an amount of memory such as 8GiB or 512MiB, got %s", describe(n))
}

// UnmarshalText reads it as recipes have it.
func (b *Bytes) UnmarshalText(text []byte) error {
	for _, u := range units {
		if num, ok := strings.CutSuffix(string(text), u.suffix); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(num), 64)
			if err != nil || !(v >= 0 && v*u.factor < math.MaxInt64) {
				break
			}
			*b = Bytes(v * u.factor)
			return nil
		}
	}
	return fmt.Errorf("want an amount of memory such as 8GiB or 512MiB, got %q", text)
}

// MarshalYAML writes the amount in the largest unit that divides it.
func (b Bytes) MarshalYAML() (any, error) {
	for _, u := range []struct {
		suffix string
		size   Bytes
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if b > 0 && b%u.size == 0 {
			return fmt.Sprintf("%d%s", b/u.size, u.suffix), nil
		}
	}
	return int64(b), nil
}

// Mixing is a word, or {temperature: T}.
type Mixing struct {
	Kind        dataset.MixKind
	Temperature float64
}

func (m *Mixing) decode(d *decoder, path string, n *node) {
	*m = Mixing{}
	if n.kind == mapping {
		var t struct {
			Temperature float64 `yaml:"temperature"`
		}
		d.structure(path, n, reflect.ValueOf(&t).Elem())
		*m = Mixing{dataset.Tempered, t.Temperature}
		if t.Temperature <= 0 {
			d.fail(n.at, path+".temperature", "is %v, want a positive number", t.Temperature)
		}
		return
	}
	kinds := []dataset.MixKind{dataset.Proportional, dataset.RoundRobin, dataset.Weighted}
	var words []string
	for _, k := range kinds {
		words = append(words, k.String())
		if n.kind == scalar && n.text == k.String() {
			m.Kind = k
		}
	}
	d.oneOf(path, n, words...)
}

// MarshalYAML writes it as it was given.
func (m Mixing) MarshalYAML() (any, error) {
	if m.Kind == dataset.Tempered {
		return map[string]float64{"temperature": m.Temperature}, nil
	}
	return m.Kind.String(), nil
}

// Link is a simulated link between local ranks, such as "10Gb 50us".
type Link struct{ sim.Link }

func (l *Link) decode(d *decoder, path string, n *node) {
	if n.kind != scalar {
		d.fail(n.at, path, "want a link such as 10Gb or \"50GB 20us\", got %s", describe(n))
	} else if err := l.UnmarshalText([]byte(n.text)); err != nil {
		d.fail(n.at, path, "%v", err)
	}
}

// MarshalYAML writes it in bytes.
func (l Link) MarshalYAML() (any, error) {
	return fmt.Sprintf("%gGB %v", l.Bandwidth/1e9, l.Latency), nil
}

// Wait is a time such as 10m.
type Wait time.Duration

func (w *Wait) decode(d *decoder, path string, n *node) {
	if n.kind == scalar && !n.quoted {
		if t, err := time.ParseDuration(n.text); err == nil && t > 0 {
			*w = Wait(t)
			return
		}
	}
	d.fail(n.at, path, "want a time such as 10m, got %s", describe(n))
}

// MarshalYAML writes it as it was given.
func (w Wait) MarshalYAML() (any, error) { return time.Duration(w).String(), nil }

// Count is a number or "all", which is dataset.AllNegatives.
type Count int

func (c *Count) decode(d *decoder, path string, n *node) {
	d.numberOr("all", dataset.AllNegatives, path, n, (*int)(c), "a number of negatives, or all")
}

// MarshalYAML writes it as it was given.
func (c Count) MarshalYAML() (any, error) {
	if c == dataset.AllNegatives {
		return "all", nil
	}
	return int(c), nil
}

// Auto is a number or "auto", which is 0.
type Auto int

func (a *Auto) decode(d *decoder, path string, n *node) {
	d.numberOr("auto", 0, path, n, (*int)(a), "1 or more, or auto")
}

// numberOr decodes a number of at least 1, or a word that stands for another one.
func (d *decoder) numberOr(word string, meaning int, path string, n *node, v *int, want string) {
	if *v = meaning; n.kind == scalar && n.text == word {
		return
	}
	before := len(d.errs)
	if d.scalar(path, n, reflect.ValueOf(v).Elem()); *v < 1 && len(d.errs) == before {
		d.fail(n.at, path, "is %d, want %s", *v, want)
	}
}

// MarshalYAML writes auto for 0.
func (a Auto) MarshalYAML() (any, error) {
	if a == 0 {
		return "auto", nil
	}
	return int(a), nil
}

// YAML writes the recipe as resolved: it can be run again.
func (r Recipe) YAML() ([]byte, error) {
	return yaml.MarshalWithOptions(r, yaml.CustomMarshaler[string](quoted))
}

// quoted writes a text on one line: as the library does, where it reads that as the same text (tabs it would lose), and otherwise as JSON, which is YAML.
func quoted(text string) ([]byte, error) {
	plain, err := yaml.Marshal(text)
	var again any
	if err == nil && !strings.Contains(text, "\n") && yaml.Unmarshal(plain, &again) == nil && again == any(text) {
		return plain, nil
	}
	return json.Marshal(text)
}
