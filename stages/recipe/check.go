package recipe

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"contraflow/collective"
	"contraflow/io/dataset"
	"contraflow/stages"
	"contraflow/stages/transformer"
)

// checker looks at a decoded recipe and reports what makes no sense, at the line where it was said.
type checker struct {
	d    *decoder
	root *node
}

// find is the node of a full key; nil if the recipe doesn't say it.
func (c *checker) find(path string) *node {
	n := c.root
	for _, key := range strings.Split(path, ".") {
		key, index, indexed := strings.Cut(key, "[")
		var next *node
		if n.kind == mapping {
			for _, e := range n.keys {
				if e.key == key {
					next = e.value
				}
			}
		}
		if next == nil {
			return nil
		}
		n = next
		if indexed {
			i, _ := strconv.Atoi(strings.TrimSuffix(index, "]"))
			if n.kind == list && i < len(n.list) {
				n = n.list[i]
			}
		}
	}
	return n
}

// at is where a key was said, or the recipe itself.
func (c *checker) at(path string) string {
	for p := path; ; {
		if n := c.find(p); n != nil {
			return n.at
		}
		i := strings.LastIndexByte(p, '.')
		if i < 0 {
			return c.root.at
		}
		p = p[:i]
	}
}

func (c *checker) fail(path, format string, args ...any) {
	for _, f := range c.d.failed { // of what is wrong already, and so not as it was meant, there is no more to say
		if within(f, path) || within(path, f) {
			return
		}
	}
	for _, m := range c.d.meant { // it is there, by another name
		if within(path, m) && c.find(m) == nil {
			return
		}
	}
	c.d.fail(c.at(path), path, format, args...)
}

// within tells whether a full key is another one or a part of it.
func within(key, of string) bool {
	rest, ok := strings.CutPrefix(key, of)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

func (c *checker) require(ok bool, path, format string, args ...any) {
	if !ok {
		c.fail(path, format, args...)
	}
}

// words checks a key against a list, if the recipe says it.
func (c *checker) words(path string, words ...string) {
	if n := c.find(path); n != nil && n.kind != null {
		c.d.oneOf(path, n, words...)
	}
}

// texts are the words of a type of words.
func texts[T ~string](words []T) (out []string) {
	for _, w := range words {
		out = append(out, string(w))
	}
	return out
}

func (c *checker) positive(path string, v int) {
	c.require(v > 0, path, "is %d, want at least 1", v)
}

func (c *checker) check(r *Recipe) {
	*r = r.withLosses(func(l *Loss, dataset bool) { l.of(r.Model.Kind, dataset) })
	c.otherKinds("model", reflect.ValueOf(r.Model), r.Model.Kind)
	c.otherKinds("eval", reflect.ValueOf(r.Eval), r.Model.Kind)
	c.checkModel(&r.Model)
	c.checkData(&r.Data)
	c.checkBatch(&r.Batch, len(r.Data.Train))
	alone := r.Model.Kind == "reranker" || !slices.ContainsFunc(r.terms(), func(l stated) bool { return !l.kind().rowwise() })
	c.require(r.Batch.GlobalSize != 1 || alone, "batch.global_size", "is 1: a row alone has no negatives")
	c.require(!r.Batch.ByLength || r.Data.Shuffle, "batch.by_length", "needs data.shuffle")
	if r.Model.Kind == "reranker" {
		c.checkReranker(r)
	} else {
		if r.Model.Kind == "m3" {
			c.defaultM3(r)
		}
		c.checkLosses(r)
		c.require(len(r.Eval.Rerank) == 0, "eval.rerank", "is for model.kind: reranker")
	}
	c.checkOptimizer(&r.Optimizer)
	c.checkRest(r)
}

// otherKinds finds keys of a section that are for other kinds of models: the tag of has them, and what else is to be said.
func (c *checker) otherKinds(section string, v reflect.Value, kind string) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		of := f.Tag.Get("of")
		end := strings.IndexAny(of+";", ":;")
		if kinds := strings.Fields(of[:end]); len(kinds) > 0 && !v.Field(i).IsZero() && !slices.Contains(kinds, kind) {
			c.fail(section+"."+name(f), "is for model.kind: %s%s", strings.Join(kinds, " and "), of[end:])
		}
	}
}

func (c *checker) checkModel(m *Model) {
	c.require(m.Path != "", "model.path", "is missing: a model folder, or a hub id such as sentence-transformers/all-MiniLM-L6-v2")
	c.words("model.kind", "embedder", "reranker", "m3", "multi_vector", "sparse")
	c.words("model.activation_function", "relu", "log1p_relu")
	c.require(m.Kind != "sparse" || m.Pooling == "", "model.pooling", "is not for model.kind: sparse, which takes the largest logits of a text's tokens")
	c.require(m.Kind != "multi_vector" || m.Pooling == "", "model.pooling", "is not for model.kind: multi_vector, which gives a vector for each token: nothing is pooled")
	if e := m.QueryExpansion; e != nil && !e.None {
		if err := e.expansion().Check(); err != nil {
			c.fail("model.query_expansion", "%v", err)
		}
	}
	c.require(m.VectorDim >= 0, "model.vector_dim", "is negative; 0 is as many as hidden states have, and of multi_vector %d", defaultVectorDim)
	if m.Pooling != "" {
		c.words("model.pooling", "mean", "cls", "last")
	}
	if m.Similarity != "" {
		c.words("model.similarity", "cosine", "dot")
	}
	c.require(m.MaxLength.Query >= 0 && m.MaxLength.Document >= 0, "model.max_length", "is negative")
	if m.Dropout != nil {
		c.require(*m.Dropout >= 0 && *m.Dropout < 1, "model.dropout", "is %v, want at least 0 and less than 1", *m.Dropout)
	}
	if l := m.LoRA; l != nil {
		c.positive("model.lora.rank", l.Rank)
		c.require(l.Alpha > 0 && l.Alpha <= math.MaxFloat32, "model.lora.alpha", "is %v, want a positive number that float32 has", l.Alpha)
		c.require(l.Dropout >= 0 && l.Dropout < 1, "model.lora.dropout", "is %v, want at least 0 and less than 1", l.Dropout)
		c.require(len(l.Targets) > 0, "model.lora.targets", "are missing: names of linear layers such as query, or %s", transformer.AllLinear)
	}
	c.require(m.Freeze.Layers >= 0, "model.freeze.layers", "is negative")
}

func (c *checker) checkData(d *Data) {
	if len(d.Train) == 0 {
		c.fail("data.train", "is missing: a list with a path and the names of the query and positive columns, such as\n"+
			"    train:\n      - {path: \"data/*.parquet\", query: query, positive: positive}")
	}
	weights, sum := false, 0.0
	for i := range d.Train {
		key := fmt.Sprintf("data.train[%d]", i)
		d.Train[i].judgements()
		s := d.Train[i]
		c.checkSource(s, key)
		c.require(s.SamplingWeight >= 0, key+".sampling_weight", "is %v, want a positive number", s.SamplingWeight)
		weights, sum = weights || s.SamplingWeight > 0, sum+s.SamplingWeight
		c.require(!math.IsInf(sum, 0), key+".sampling_weight", "is %v, and with those before it infinite: smaller numbers say the same", s.SamplingWeight)
	}
	c.words("data.on_error", "stop", "skip")
	c.require(!weights || d.Mixing.Kind == dataset.Weighted, "data.mixing", "sampling_weight is for data.mixing: weighted, not %v", d.Mixing.Kind)
}

// checkSource checks what all rows' sources have.
func (c *checker) checkSource(s Source, key string) {
	c.require(len(s.Path) > 0, key+".path", "is missing: files or globs of parquet, JSON lines or CSV")
	c.require(s.Query != "", key+".query", "is missing: the column with the queries")
	if s.Documents != "" {
		c.require(s.Positive == "", key+".positive", "is among the documents already: %s.documents names a column with all of a row's", key)
		c.require(len(s.Negatives) == 0, key+".negatives", "are among the documents already: %s.documents names a column with all of a row's", key)
		c.require(s.Label == "", key+".label", "is for pairs: of documents, scores: %s names the column with a label of each", s.Label)
		c.require(s.IDs == nil || !*s.IDs, key+".ids", "are not of documents, whose texts are tokenized here")
	}
	for name, t := range s.texts() {
		c.require(len(t.Path) > 0, key+"."+name+".path", "is missing: files or globs of texts with ids")
		c.require(s.IDs == nil || !*s.IDs, key+".ids", "are not of texts that rows name by ids, which are tokenized here")
	}
	c.require(s.Corpus == nil || s.Positive != "" || s.Documents != "", key+".corpus", "has the texts of documents, and no column has their ids: %s.positive names one", key)
	c.require(s.NegativesPerQuery == 0 || len(s.Negatives) > 0, key+".negatives_per_query", "needs negatives")
}

func (c *checker) checkBatch(b *Batch, datasets int) {
	c.positive("batch.global_size", b.GlobalSize)
	c.require(b.OneDataset || datasets == 1, "batch.one_dataset", "not yet: each batch has the rows of one dataset")
	c.positive("batch.accumulate", b.Accumulate)
	c.require(b.Accumulate <= 1<<30, "batch.accumulate", "is %d, want at most %d", b.Accumulate, 1<<30) // and a product with global_size is a number
	c.words("batch.cache", "auto", "always", "never")
	c.require(b.Cache != "never" || b.ReplayBudget == nil, "batch.replay_budget", "makes no sense with batch.cache: never, which keeps everything")
}

func (c *checker) checkOptimizer(o *Optimizer) {
	c.words("optimizer.name", "adamw", "sgd")
	c.require(o.LR > 0, "optimizer.lr", "is %v, want a positive number", o.LR)
	c.require(o.WeightDecay >= 0, "optimizer.weight_decay", "is %v, want a number of at least 0", o.WeightDecay)
	if o.Name == "sgd" {
		for _, key := range []string{"optimizer.betas", "optimizer.eps"} {
			c.require(c.find(key) == nil, key, "is for adamw")
		}
		o.Betas, o.Eps = nil, 0
	} else {
		c.require(o.Eps > 0, "optimizer.eps", "is %v, want a positive number", o.Eps)
		c.require(len(o.Betas) == 2 && o.Betas[0] >= 0 && o.Betas[0] < 1 && o.Betas[1] >= 0 && o.Betas[1] < 1, "optimizer.betas", "are %v, want two numbers of at least 0 and less than 1", o.Betas)
	}
	c.require(o.Momentum >= 0 && o.Momentum < 1, "optimizer.momentum", "is %v, want at least 0 and less than 1", o.Momentum)
	c.require(o.Momentum == 0 || o.Name == "sgd", "optimizer.momentum", "is for sgd")
	c.require(o.MaxGradNorm >= 0, "optimizer.max_grad_norm", "is negative; 0 turns clipping off")
	c.require(o.LayerDecay >= 0 && o.LayerDecay <= 1, "optimizer.layer_decay", "is %v, want at most 1, which is none, such as 0.9", o.LayerDecay)
	for i, g := range o.Groups {
		key := fmt.Sprintf("optimizer.groups[%d]", i)
		c.require(len(g.Params) > 0, key+".params", "are missing: parts of parameters' names such as lora_B or embeddings.")
		c.require(!slices.Contains(g.Params, ""), key+".params", "have an empty name, which is in all names: optimizer.lr is the rate of all")
		c.require(g.LR > 0, key+".lr", "is %v, want a positive number; model.freeze keeps parameters as they are", g.LR)
	}
	c.checkSchedule(o)
	c.require(o.WarmupRatio >= 0 && o.WarmupRatio <= 1, "optimizer.warmup_ratio", "is %v, want a part of the steps, 0 to 1", o.WarmupRatio)
	if o.WarmupSteps != nil {
		c.require(*o.WarmupSteps >= 0, "optimizer.warmup_steps", "is negative")
		c.require(c.find("optimizer.warmup_ratio") == nil || o.WarmupRatio == 0, "optimizer.warmup_steps", "and optimizer.warmup_ratio say the same: give one of them")
		o.WarmupRatio = 0
	}
}

const noDir = "is missing: the folder for the run (--out sets it)"

func (c *checker) checkRest(r *Recipe) {
	t := r.Train
	c.require(t.Epochs > 0 && t.Epochs <= 1<<30, "train.epochs", "is %v, want a positive number of at most %d; train.max_steps ends a run before", t.Epochs, 1<<30)
	c.require(t.MaxSteps >= 0, "train.max_steps", "is negative; 0 means all epochs")
	c.words("train.precision", "auto", "f32", "tf32", "bf16")
	c.words("train.sync", "last", "every")
	c.words("train.on_nan", string(stages.StopOnNaN), string(stages.SkipOnNaN), string(stages.RollbackOnNaN))
	c.require(r.Mesh.Replicate >= 0, "mesh.replicate", "is negative")
	c.positive("mesh.shard", r.Mesh.Shard)
	m := collective.Mesh{Replicate: max(1, int(r.Mesh.Replicate)), Shard: r.Mesh.Shard}
	c.require(m.Replicate <= collective.MaxRanks, "mesh.replicate", "is %d, want at most %d", m.Replicate, collective.MaxRanks)
	c.require(m.Shard <= collective.MaxRanks, "mesh.shard", "is %d, want at most %d", m.Shard, collective.MaxRanks)
	if max(m.Replicate, m.Shard) <= collective.MaxRanks {
		c.require(m.Size() <= collective.MaxRanks, "mesh", "%v is %d ranks, want at most %d", m, m.Size(), collective.MaxRanks)
	}
	c.words("mesh.wire", "f32", "bf16")
	c.words("mesh.parameters", "resident", "streamed", "auto")
	c.words("mesh.gradients", "late", "early", "auto")
	c.require(r.Mesh.Shard > 1 || r.Mesh.Parameters != "streamed", "mesh.parameters", "streamed needs mesh.shard of at least 2: ranks that hold a part each")
	c.require(r.Mesh.Shard > 1 || r.Mesh.Gradients != "early", "mesh.gradients", "early needs mesh.shard of at least 2: ranks that hold a part each")
	c.require(r.Train.Sync != "every" || r.Mesh.Shard == 1, "train.sync", "every needs mesh.shard: 1: shares of a gradient are summed once a step")
	e := r.Eval
	c.checkFusion(r)
	c.checkNano(r)
	const untimed = "is a time, which only save.every may be: want a number of steps, a share of the run such as 0.1, or epoch"
	c.require(e.Every.Time == 0, "eval.every", untimed)
	c.checkTasks(e, r.Model.Kind)
	c.checkHeldOut(r)
	c.require(r.Save.Dir != "" || r.Save.unsaved, "save.dir", noDir)
	measured, task := len(e.tasks())+len(e.Loss) > 0, "eval.retrieval, eval.nanobeir, eval.sts, eval.pair_classification, eval.triplets, eval.paraphrases, eval.candidates or eval.loss"
	if r.Model.Kind == "reranker" {
		task = strings.Replace(task, "retrieval", "rerank", 1)
	}
	c.require(!r.Save.Best || measured, "save.best", "needs %s: it is by that metric", task)
	c.require(!e.AtStart || measured, "eval.at_start", "needs %s", task)
	if s := e.EarlyStopping; s != nil {
		c.positive("eval.early_stopping.patience", s.Patience)
		c.require(s.MinDelta >= 0, "eval.early_stopping.min_delta", "is negative")
		c.require(measured && e.Every != (Period{}), "eval.early_stopping", "needs eval.every, and %s", task)
	}
	c.positive("save.keep", r.Save.Keep)
	c.words("save.precision", "f32", "bf16", "f16")
	c.require(r.Log.Every.Time == 0, "log.every", untimed)
}
