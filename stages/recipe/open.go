package recipe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"contraflow/gpustage"
	"contraflow/io/checkpoint"
	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/io/spelling"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
	"contraflow/stages/reranker"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// Observer is told what happens; each function may be nil. Step and Eval are called from one goroutine.
type Observer struct {
	Download func(hfmodel.Progress)
	Index    func(done, total int64) // rows, of the first pass over the data
	Step     func(Metrics)
	Eval     func(Evaluation)
	Note     func(message string) // what a user should know
}

func (o Observer) note(format string, args ...any) {
	if o.Note != nil {
		o.Note(fmt.Sprintf(format, args...))
	}
}

// Run is a recipe with everything that it names loaded: ready to train. Close it.
type Run struct {
	Recipe Recipe
	Steps  int    // optimizer steps
	Memory Memory // predicted

	obs      Observer
	folder   *hfmodel.Folder
	tok      *tokenize.Tokenizer
	device   gpustage.Device
	stream   gpustage.Stream
	model    *transformer.Model
	sharding sharding
	data     []*dataset.Dataset
	sampler  *dataset.Mixer
	longest  int                 // bytes of the longest text; 0: nobody has looked
	skipped  []*dataset.RowError // rows that can't be used
	skips    [][]int64           // their ids, by dataset
	plan     stages.Plan
	text     stages.Text
	own      own    // what a program has put in the place of the recipe's
	tasks    []task // what the model is measured on
	epochs   []int  // steps, counted from 1, with which they end; nil if nothing is done then
	heldOut  []heldOut
	unread   []string // of both, the keys of what a plan does without

	guide *guide // nil without

	reranker *reranker.Spec // nil for an embedder
	heads    transformer.TokenHeads
	mlm      transformer.MLMHead // of sparse embeddings
	queries  transformer.QueryWeights

	vectors    *hfmodel.MultiVector // of a multi_vector, with what the recipe changes; nil for others
	projection []transformer.Dense  // of it, where it is new

	pairs []*tokenize.Pairs // by dataset

	content  map[string]string                   // hashes of what checkpoints rely on and lack
	frozen   string                              // hash of the parameters that don't train: a checkpoint lacks them
	engine   *embedder.Engine                    // with which that graph evaluates
	saves    *checkpoints                        // while training
	fs       checkpoint.FS                       // where checkpoints go; nil: the disk
	ledger   func(*pipeline.Task, *stages.Batch) // sees every batch; for tests
	ranks    *stages.Replicas                    // nil alone
	measured *Evaluation                         // of the parameters as they are, or were a few steps ago
	share    gpustage.Share                      // of this machine, if other ranks are in this process
	began    bool                                // Train has begun: weights and the data's order are not those of the beginning
	closed   bool
	ending   *atomic.Pointer[ending] // why the run ends, while what it came to is saved, of all ranks of the process; nil alone
	paper    bool                    // nothing computes, and no weights are loaded: see OpenOnPaper
	planned  bool                    // and does not train: see OpenToPlan
	loaded   string                  // hash of the parameters that this rank has read, if it holds a part of them
}

// Open loads what a recipe names and checks that it fits together. All that can be known to be wrong before the first step is
// an error here.
//
// It opens the recipe for one rank on its own, whatever its mesh: OnRanks opens all.
func Open(ctx context.Context, r Recipe, obs Observer) (*Run, error) {
	return openAlone(ctx, &Run{Recipe: r, obs: obs})
}

// OpenToPlan is Open for a run that is planned, by Calibrate and Forecast: what the model is measured on is read where it is here, and not downloaded.
// The run can't train.
func OpenToPlan(ctx context.Context, r Recipe, obs Observer) (*Run, error) {
	return openAlone(ctx, &Run{Recipe: r, obs: obs, planned: true})
}

// openAlone resolves the recipe of a run of one rank, and opens it.
func openAlone(ctx context.Context, x *Run) (_ *Run, err error) {
	if x.Recipe, err = x.Recipe.Resolve(); err != nil {
		return nil, err
	}
	if err := x.open(ctx); err != nil {
		return nil, err
	}
	return x, nil
}

func (x *Run) open(ctx context.Context) (err error) {
	r := x.Recipe
	defer func() {
		if err != nil {
			x.Close()
		}
	}()
	if err := x.openModel(ctx); err != nil {
		return err
	}
	for i := range r.Data.Train {
		if err := x.checkDims(r.lossOf(i), r.lossKey(i)); err != nil {
			return err
		}
	}
	if err := x.openGuide(ctx); err != nil {
		return err
	}
	if err := r.update(0).Check(x.model.Layout); err != nil {
		return err
	}
	if err := x.openData(ctx); err != nil {
		return err
	}
	if err := x.chooseSharding(ctx); err != nil {
		return err
	}
	if r.Save.Best && x.sharding.streamed {
		return errors.New("save.best: not yet with streamed parameters: mesh.parameters: resident goes with it")
	}
	if err := x.loadModel(); err != nil {
		return fmt.Errorf("model.path: %w", err)
	}
	if err := x.openEval(ctx); err != nil {
		return err
	}
	if err := x.openHeldOut(ctx); err != nil {
		return err
	}
	x.Steps = x.plan.Steps()
	if err := x.noSteps(); err != nil {
		return x.leftOut(err, dataset.ErrBatchTooLarge)
	}
	if r.Eval.Every.Epoch || r.Save.Every.Epoch {
		x.epochs = x.plan.EpochEnds()
	}
	if x.Main() {
		x.noteOddities()
		x.notePhases()
	}
	x.Memory = x.predict(x.sharding)
	if err := x.device.Info().Err; err != nil {
		return fmt.Errorf("train.device: what memory it has left: %w", err)
	}
	if x.paper {
		return nil
	}
	return x.fits(x.freeMemory())
}

// noSteps is the error of a plan that makes no step.
func (x *Run) noSteps() error {
	if x.Steps > 0 {
		return nil
	}
	return fmt.Errorf("batch.global_size: %s not fill one batch of %d; a smaller batch.global_size or batch.drop_last: false helps", spelling.Count(x.rows()-int64(len(x.skipped)), "row does", "rows do"), x.Recipe.Batch.GlobalSize)
}

func (x *Run) openDevice() (err error) {
	if x.paper {
		return nil
	}
	if kind := x.Recipe.Train.Device; kind != "auto" {
		x.device, err = gpustage.OpenShare(kind, x.share)
		return err
	}
	kind, d, passed, err := gpustage.OpenAuto(x.share)
	if x.device = d; err == nil && passed != nil {
		x.obs.note("train.device: auto takes %s: %v", kind, passed)
	}
	return err
}

func (x *Run) openModel(ctx context.Context) error {
	m := x.Recipe.Model
	dir, err := x.openFolder(ctx, m.Path, &x.folder)
	if err != nil {
		return fmt.Errorf("model.path: %w", err)
	}
	if x.tok, err = embedder.LoadTokenizer(x.folder); err != nil {
		return fmt.Errorf("model.path: %w", err)
	}
	if err := x.endTexts(); err != nil {
		return err
	}
	if err := x.openDevice(); err != nil {
		return fmt.Errorf("train.device: %w", err)
	}
	if err := x.Recipe.Train.CheckPrecision(x.device); err != nil {
		return fmt.Errorf("train.precision: %w", err)
	}
	if x.stream, err = x.device.OpenStream(); err != nil {
		return err
	}
	if err := x.openReranker(); err != nil {
		return err
	}
	if err := x.openM3(); err != nil {
		return err
	}
	if err := x.openMultiVector(); err != nil {
		return err
	}
	if err := x.openSparse(); err != nil {
		return err
	}
	if x.model, err = x.paperModel(x.Recipe.modelOptions()); err != nil { // until it is known what this rank holds of it
		var option *transformer.OptionError
		if errors.As(err, &option) {
			return fmt.Errorf("model.%w", err)
		}
		return fmt.Errorf("model: %w", err)
	}
	if !x.paper {
		if err := embedder.CheckMLMHead(x.folder, x.model); err != nil { // before the data is read, and the weights
			return fmt.Errorf("model.path: %w", err)
		}
	}
	if err := x.checkPooling(); err != nil {
		return err
	}
	if err := x.goesOn(); err != nil {
		return err
	}
	if err := embedder.CheckVocabulary(x.tok, x.model.Config); err != nil {
		return fmt.Errorf("model.path: %s: %w", dir, err)
	}
	if note := embedder.VocabularyNote(x.folder, x.tok, x.model.Config); note != "" {
		x.obs.note("%s", note)
	}
	x.text = stages.Text{Tokenizer: x.tok, Vocab: x.model.Config.Vocab, Threads: max(1, x.share.Of(runtime.GOMAXPROCS(0))/2), Pairs: x.pairs, Heads: x.heads, Weighed: x.queries.There}
	if x.reranker != nil {
		x.text.QueryLength, x.text.DocumentLength = x.reranker.MaxLength, x.reranker.MaxLength
		x.text.Head, x.text.TooLong = x.reranker.Scorer.Tied(), "a larger model.max_length in another save.dir takes it"
		if x.reranker.Folder.Template == nil { // it would say what is cut
			x.text.TooLong = "in the recipe that is model.truncation, which --resume may change; or else a larger model.max_length in another save.dir takes it"
		}
		return nil
	}
	c := x.model.Config
	if x.text.QueryLength, x.text.DocumentLength, err = embedder.LengthsOf(x.folder, x.vectors, c, m.MaxLength.Query, m.MaxLength.Document); err != nil {
		return fmt.Errorf("model.max_length: %w", err)
	}
	if err := embedder.CheckLengths(x.tok, x.text.QueryLength, x.text.DocumentLength, x.queries.There); err != nil {
		return fmt.Errorf("model.max_length: %w", err)
	}
	// The recipe's prompts, or else the model's. The first dataset's are those of evaluation, and of the saved model.
	for _, src := range x.Recipe.Data.Train {
		var p stages.Prompts
		p.Query, p.Document = x.folder.RolePrompts()
		if src.Prompts != nil {
			p = stages.Prompts(*src.Prompts)
		}
		x.text.Prompts = append(x.text.Prompts, p)
	}
	x.text.QueryPrompt, x.text.DocumentPrompt = evaluationPrompts(x.text.Prompts[0])
	return nil
}

// evaluationPrompts are those with which a model that trains with p is evaluated and saved: documents have the positives'.
func evaluationPrompts(p stages.Prompts) (query, document string) {
	return p.Query, cmp.Or(p.Positive, p.Document)
}

// goesOn finds a model.lora that is not of what the adapter in model.path has, with which training would go on.
func (x *Run) goesOn() error {
	a, r := x.folder.Adapter, x.Recipe
	if a == nil || r.Model.LoRA == nil {
		return nil
	}
	err := embedder.CheckAdapter(x.folder, x.model)
	if err == nil {
		return nil
	}
	way := fmt.Sprintf("to train a new one on what the adapter makes of its base: contraflow merge --model %s --adapter %s --out DIR", x.folder.Base.Dir, x.folder.Dir)
	for _, like := range adapterKeys(a) {
		tried := *x
		tried.Recipe.Model.LoRA = &like
		m, wrong := tried.paperModel(tried.Recipe.modelOptions())
		if wrong == nil && embedder.CheckAdapter(x.folder, m) == nil {
			text := fmt.Sprintf("rank: %d, alpha: %v, dropout: %v, targets: [%s]", like.Rank, like.Alpha, r.Model.LoRA.Dropout, strings.Join(like.Targets, ", "))
			if like.RSLoRA {
				text += ", rslora: true"
			}
			if len(like.ModulesToSave) > 0 {
				text += fmt.Sprintf(", modules_to_save: [%s]", strings.Join(like.ModulesToSave, ", "))
			}
			way = fmt.Sprintf("to go on with it: model.lora: {%s}; %s", text, way)
			break
		}
	}
	return fmt.Errorf("model.lora: model.path is an adapter of something else: %w; %s", err, way)
}

// adapterKeys are what model.lora may be to have what an adapter has: the shortest first.
func adapterKeys(a *hfmodel.Adapter) (all []LoRA) {
	l := LoRA{Rank: a.Rank, Alpha: a.Alpha, RSLoRA: a.RSLoRA}
	var modules, whole []string
	for _, f := range a.Factors {
		l.Rank = f.A.Shape[0]
		modules = append(modules, f.Module)
	}
	for _, t := range a.Whole {
		name := strings.TrimPrefix(t.Name, hfmodel.AdapterPrefix)
		name = strings.TrimSuffix(strings.TrimSuffix(name, ".weight"), ".bias")
		if !slices.Contains(whole, name) {
			whole = append(whole, name)
		}
	}
	for _, l.ModulesToSave = range [][]string{a.Save, whole} {
		for _, l.Targets = range [][]string{{transformer.AllLinear}, a.Targets, modules} {
			all = append(all, l)
		}
	}
	return all
}

// tuning is what trains.
func (r Recipe) tuning() transformer.Tuning {
	t := transformer.Tuning{FreezeEmbeddings: r.Model.Freeze.Embeddings, FreezeLayers: r.Model.Freeze.Layers}
	if l := r.Model.LoRA; l != nil {
		t.LoRA = &transformer.LoRA{
			Rank: l.Rank, Alpha: l.Alpha, Dropout: l.Dropout, RSLoRA: l.RSLoRA, Targets: l.Targets, Save: l.ModulesToSave, Seed: r.Train.Seed,
		}
	}
	return t
}

func (r Recipe) modelOptions() transformer.Options {
	o := r.Train.Rounding()
	o.CheckpointEvery, o.Tuning = r.Model.ActivationCheckpointing.Every, r.tuning()
	return o
}

// Rounding is the precision as a model's options have it.
func (t Train) Rounding() transformer.Options {
	return transformer.Options{BF16: t.Precision == "bf16", TF32: t.Precision == "tf32"}
}

// computesIn is the precision as it is computed with.
func (t Train) computesIn() string {
	if t.Precision == "auto" {
		return "f32"
	}
	return t.Precision
}

// CheckPrecision tells whether a device has the precision.
func (t Train) CheckPrecision(d gpustage.Device) error {
	if t.Precision == "tf32" && !d.Info().TF32 {
		return fmt.Errorf("tf32 is how NVIDIA's GPUs multiply f32 on tensor cores; %s has f32 and bf16", d.Name())
	}
	return nil
}

// openFolder finds a model's folder and opens it, without its weights where nothing computes.
func (x *Run) openFolder(ctx context.Context, path string, f **hfmodel.Folder) (dir string, err error) {
	if dir, err = hfmodel.Resolve(ctx, path, hfmodel.Options{Progress: x.obs.Download, Warn: x.obs.Note, NoWeights: x.paper}); err != nil {
		return "", err
	}
	open := hfmodel.Open
	if x.paper {
		open = hfmodel.OpenSettings
	}
	*f, err = open(dir)
	return dir, err
}

// paperModel is the folder's model on a device that computes nothing.
func (x *Run) paperModel(o transformer.Options) (*transformer.Model, error) {
	head, err := x.head()
	if err != nil {
		return nil, err
	}
	c, err := embedder.ConfigOf(x.folder, x.configure(nil))
	if err != nil {
		return nil, err
	}
	return transformer.New(gpustage.Dry{Like: x.device}, c, head, o)
}

// loadModel loads the folder's model, or what this rank holds of it.
func (x *Run) loadModel() (err error) {
	o := x.Recipe.modelOptions()
	o.Own = x.ranks.Own()
	if x.paper {
		x.model, err = x.paperModel(o)
		return err
	}
	if o.Own == nil {
		x.model, err = x.newModelOn(x.device, x.stream, o, nil)
		return err
	}
	h := xxh3.New() // of what this rank has read: what it holds with others is the same on all of them, whatever each has read
	o.Loaded = func(_ transformer.Param, vs []float32) error {
		_, err := h.Write(gpustage.Bytes(vs))
		return err
	}
	x.model, err = x.newModelOn(x.device, x.stream, o, nil)
	x.loaded = stages.Digest(h)
	return err
}

// configure is what the recipe changes in a model's configuration, and change besides.
func (x *Run) configure(change func(*transformer.Config)) func(*transformer.Config) {
	return func(c *transformer.Config) {
		if p := x.Recipe.Model.Dropout; p != nil {
			c.HiddenDropout, c.AttentionDropout = *p, *p
		}
		c.Tokens, c.MLMHead, c.Queries = x.heads, x.mlm, x.queries
		c.Dense = append(c.Dense, x.projection...)
		if x.reranker != nil {
			x.reranker.Configure(c)
		}
		if change != nil {
			change(c)
		}
	}
}

// newModelOn loads the folder's model; change may alter its configuration.
func (x *Run) newModelOn(d gpustage.Device, s gpustage.Stream, o transformer.Options, change func(*transformer.Config)) (*transformer.Model, error) {
	head, err := x.head()
	if err != nil {
		return nil, err
	}
	o.Tuning = x.Recipe.tuning()
	return embedder.LoadModel(x.folder, d, s, head, o, x.configure(change))
}

// noteIdle says how many of so many ranks no batch has a row for.
func (x *Run) noteIdle(ranks int) {
	if rows := x.Recipe.Batch.GlobalSize; ranks > rows {
		x.obs.note("batch.global_size is %d, over all ranks, and there are %d: %d of them have no row in any batch, and compute nothing; a larger batch.global_size or fewer ranks helps", rows, ranks, ranks-rows)
	}
}

// noteOddities tells of settings that do what they say, but hardly what was meant.
func (x *Run) noteOddities() {
	o, b, longest := x.Recipe.Optimizer, x.Recipe.Batch, x.Recipe.Model.MaxLength
	x.noteIdle(x.ranks.Size())
	if note := embedder.SkipNote(x.vectors, x.tok); note != "" {
		x.obs.note("model.skiplist: %s", note)
	}
	if note := embedder.ExpansionNote(x.vectors, x.Recipe.Model.MaxLength.Query); note != "" {
		x.obs.note("model.max_length: %s", note)
	}
	if note := embedder.LengthNote(x.folder, x.model.Config, min(longest.Query, longest.Document)); note != "" {
		x.obs.note("%s", note)
	}
	x.noteEnd()
	if x.reranker != nil && x.reranker.Scorer.New {
		x.obs.note("%s has no head that scores: a new one, on %s pooling, begins at random", x.folder.Dir, embedder.PoolingModes[x.reranker.Scorer.Pooling])
	}
	x.noteSparse()
	if m := x.Recipe.Model; x.reranker == nil && m.Kind != "m3" && m.Kind != "sparse" && x.vectors == nil {
		if note := embedder.HeadNote(x.folder, m.Pooling, m.Normalize); note != "" {
			x.obs.note("%s (model.pooling, model.normalize)", note)
		}
		if x.folder.M3 != nil {
			x.obs.note("%s gives lexical weights and tokens' vectors besides: only the embedding trains, and the saved model has nothing else; model.kind: m3 trains and keeps all three", x.folder.TransformerDir)
		}
	}
	if x.projection != nil {
		x.obs.note("%s has no projection of tokens' hidden states: a new one, to %d features, begins at random", x.folder.Dir, x.heads.Dim)
	} else if x.heads.New {
		x.obs.note("%s has no colbert_linear.pt and sparse_linear.pt: both heads of tokens are new, and begin at random", x.folder.TransformerDir)
	}
	if word := x.model.Layout.Word(); x.folder.Static() && x.model.Layout.Trains(word) && o.Name == "adamw" {
		key, lr := "optimizer.lr", o.LR
		if i := slices.IndexFunc(o.Groups, func(g Group) bool {
			return slices.ContainsFunc(g.Params, func(part string) bool { return strings.Contains(word.Name, part) })
		}); i >= 0 {
			key, lr = fmt.Sprintf("optimizer.groups[%d].lr", i), o.Groups[i].LR
		}
		if lr < leastStaticRate {
			x.obs.note("with %s: %.3g static embeddings end about where they begin: they want a large one, such as 0.2 with batches of 512 rows", key, lr)
		}
	}
	if d := o.LayerDecay; x.folder.Static() && d > 0 && d < 1 {
		x.obs.note("optimizer.layer_decay: %v changes nothing: static embeddings have no layers", d)
	}
	if t := x.Recipe.Train; t.MaxSteps > x.Steps {
		x.obs.note("train.max_steps is %d, and the run has %s: with train.epochs: %v its rows end before; larger train.epochs let it go on", t.MaxSteps, spelling.Count(x.Steps, "step", "steps"), t.Epochs)
	}
	if u := x.Recipe.update(x.Steps); u.WarmupSteps >= x.Steps {
		highest := u.LR * u.Factor(x.Steps-1)
		x.obs.note("all of the run, %s, is warm-up (%s): the learning rate comes to %.3g, not to optimizer.lr: %.3g; lower optimizer.warmup_ratio or optimizer.warmup_steps", spelling.Count(x.Steps, "step", "steps"), spelling.Count(u.WarmupSteps, "step", "steps"), highest, o.LR)
	} else if x.Steps == 1 && u.Factor(0) == 0 {
		x.obs.note("the one step has a learning rate of 0, to which optimizer.schedule falls: nothing trains")
	}
	n := x.sampler.Len(0)
	if rows := x.rows() - int64(len(x.skipped)); b.NoDuplicates && x.Recipe.mixing().Kind == dataset.Proportional {
		if full := n * int64(b.GlobalSize); !b.DropLast && full > 2*rows+int64(b.GlobalSize*len(x.data)) {
			x.obs.note("so many rows share a text that the %d batches of an epoch have %.1f rows on average, not %d (batch.no_duplicates): few negatives, and a batch of one row has none; batch.drop_last: true leaves out what does not fill a batch", n, float64(rows)/float64(n), b.GlobalSize)
		} else if b.DropLast && 2*full < rows-int64(b.GlobalSize*len(x.data)) {
			x.obs.note("so many rows share a text that %d of %d can't come into full batches, and are left out (batch.no_duplicates, batch.drop_last)", rows-full, rows)
		}
	}
	for i, k := range x.sampler.Shares(0) {
		if k == 0 {
			x.obs.note("data.train[%d] is never seen: its share of the %d batches of an epoch is less than half of one (data.mixing: %v)", i, n, x.Recipe.mixing().Kind)
		}
	}
	for i, p := range x.text.Prompts {
		query, document := evaluationPrompts(p)
		if query != x.text.QueryPrompt || document != x.text.DocumentPrompt {
			x.obs.note("data.train[%d] has other prompts than data.train[0]: evaluation and the saved model have those of data.train[0] (query %q, document %q)", i, x.text.QueryPrompt, x.text.DocumentPrompt)
			break
		}
		if negative := cmp.Or(p.Negative, p.Document); negative != document && len(x.Recipe.Data.Train[i].Negatives) > 0 {
			x.obs.note("data.train[%d] has other prompts for negatives (%q) than for positives: evaluation and the saved model put the positives' before documents (%q)", i, negative, document)
			break
		}
	}
	x.noteInBatch()
	x.noteLearned()
	if int64(b.Accumulate) > n {
		x.obs.note("batch.accumulate is %d, but an epoch has %s, and no step crosses its end: a step has %d", b.Accumulate, spelling.Count(n, "batch", "batches"), n)
	}
	if e := x.Recipe.Eval; e.byLoss() && e.Metric != lossMetric && e.Metric != Default().Eval.Metric {
		x.obs.note("eval.metric: %s is of ranking documents, and nothing has them ranked: the loss on held-out rows decides", e.Metric)
	}
	for _, l := range x.Recipe.terms() {
		if l.HardnessMode == loss.HardNegatives && len(x.Recipe.Data.Train[l.source].Negatives) == 0 {
			x.obs.note("%s.hardness_mode: %s is of rows' own negatives, and there are none: data.train[%d].negatives names no column", l.key, l.HardnessMode, l.source)
		}
	}
}

// leastStaticRate is below what moves static embeddings: an update of AdamW moves a number by the learning rate at most, theirs are about 1, and most
// tokens are in few batches.
const leastStaticRate = 1e-3

func (x *Run) size() stages.Size { return x.Recipe.Batch.SubBatch.Size(x.device) }

func (r Recipe) update(steps int) stages.Update {
	o := r.Optimizer
	var groups []stages.Group
	for _, g := range o.Groups {
		groups = append(groups, stages.Group(g))
	}
	u := stages.Update{Groups: groups, LayerDecay: o.LayerDecay, LR: o.LR, Schedule: o.Schedule.of(steps), TotalSteps: steps, MaxGradNorm: o.MaxGradNorm, OnNaN: stages.OnNaN(r.Train.OnNaN), Help: r.lowerRate()}
	if o.WarmupSteps != nil {
		u.WarmupSteps = *o.WarmupSteps
	} else {
		u.WarmupSteps = int(math.Ceil(o.WarmupRatio * float64(steps))) // as transformers does: 0.07 of 100 is a little more than 7
	}
	if o.Name == "sgd" {
		u.Optimizer = optim.SGD{Momentum: o.Momentum, WeightDecay: o.WeightDecay}
	} else {
		u.Optimizer = optim.AdamW{Betas: o.Betas, Eps: o.Eps, WeightDecay: o.WeightDecay}
	}
	return u
}

// lowerRate says which keys may help where steps are not finite.
func (r Recipe) lowerRate() string {
	help := "train.on_nan: skip (the step) or rollback (to the last checkpoint) goes on without its rows"
	if r.Train.OnNaN != string(stages.StopOnNaN) {
		help = fmt.Sprintf("train.on_nan: %s has not been enough", r.Train.OnNaN)
	}
	return fmt.Sprintf("a lower optimizer.lr (it is %v) or optimizer.max_grad_norm (%v; 0 is none) may help, and %s", r.Optimizer.LR, r.Optimizer.MaxGradNorm, help)
}

// errClosed is what a closed Run says.
var errClosed = errors.New("this Run is closed: open the recipe anew")

// Close gives everything back. A second Close does nothing.
func (x *Run) Close() error {
	if x.closed {
		return nil
	}
	err := x.giveBack()
	if x.device != nil {
		err = errors.Join(err, x.device.Close())
	}
	return err
}

// giveBack gives everything back but the device.
func (x *Run) giveBack() error {
	if x.closed {
		return nil
	}
	x.closed = true
	var errs []error
	if x.stream != nil {
		errs = append(errs, x.stream.Close())
	}
	if x.model != nil {
		errs = append(errs, x.model.Free())
	}
	errs = append(errs, x.guide.close())
	for _, d := range x.data {
		errs = append(errs, d.Close())
	}
	for _, h := range x.heldOut {
		errs = append(errs, h.data.Close())
	}
	if x.folder != nil {
		errs = append(errs, x.folder.Close())
	}
	return errors.Join(errs...)
}
