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
	"contraflow/io/hfmodel"
	"contraflow/io/spelling"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/optim"
	"contraflow/stages/reranker"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// Observer is told what happens; each function may be nil. Step and Eval are called from one goroutine.
type Observer struct {
	Download func(hfmodel.Progress)       // of models, and of data that is elsewhere
	Index    func(done, total int64)      // rows, of the first pass over the data
	Texts    func(done, total int64)      // rows, of queries and corpora that rows name by ids
	Reading  func(what string, texts int) // of the files that the model is measured on: what is done with so many of their texts
	Counting func(done, total int64)      // rows, of an epoch whose batches are counted, where that takes long
	Repeats  func(done, total int64)      // rows, of LookOver's for rows that repeat others
	Lengths  func(done, total int64)      // rows, of its pass for texts that are cut
	Step     func(Metrics)
	Eval     func(Evaluation)
	Measured func(done, total int64) // texts, or a reranker's pairs, that an evaluation has passed through the model
	Note     func(message string)    // what a user should know
}

func (o Observer) note(format string, args ...any) {
	if o.Note != nil {
		o.Note(fmt.Sprintf(format, args...))
	}
}

// tell is note of what has been found about a key; "": nothing.
func (o Observer) tell(key, found string) {
	if found != "" {
		o.note("%s%s", key, found)
	}
}

// Run is a recipe with everything that it names loaded: ready to train. Close it.
type Run struct {
	Recipe Recipe
	Steps  int    // optimizer steps
	Memory Memory // predicted

	obs     Observer
	own     own  // what a program has put in the place of the recipe's
	planned bool // it does not train: see OpenToPlan
	paper   bool // nor does anything compute, and no weights are loaded: see OpenOnPaper
	began   bool // Train has begun: weights and the data's order are not those of the beginning
	closed  bool

	// Its place among others.
	ranks  *stages.Replicas        // nil alone
	share  gpustage.Share          // of this machine, if other ranks are in this process
	ending *atomic.Pointer[ending] // why the run ends, while what it came to is saved, of all ranks of the process; nil alone
	shared *shared                 // with all ranks of the process

	// The model, and how it reads texts.
	folder   *hfmodel.Folder
	config   transformer.Config // the folder's, as the recipe's kind of model has it
	tok      *tokenize.Tokenizer
	text     stages.Text
	vectors  *hfmodel.MultiVector // of a multi_vector, with what the recipe changes; nil for others
	reranker *reranker.Spec       // nil for an embedder
	device   gpustage.Device
	stream   gpustage.Stream
	model    *transformer.Model
	sharding sharding
	loaded   string // hash of the parameters that this rank has read, if it holds a part of them
	guide    *guide // nil without

	trainingData

	// What the model is measured on.
	tasks    []task
	heldOut  []*heldOut
	unread   []string    // of both, the keys of what a plan does without
	measured *Evaluation // of the parameters as they are, or were a few steps ago
	measures int64       // texts that pass through the model in an evaluation; 0: they have not been counted

	// Training, and going on with it.
	saves   *checkpoints
	epochs  []int                               // steps, counted from 1, with which they end; nil if nothing is done then
	content map[string]string                   // hashes of what checkpoints rely on and lack
	fs      checkpoint.FS                       // where checkpoints go; nil: the disk
	ledger  func(*pipeline.Task, *stages.Batch) // sees every batch; for tests
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
	if x.shared == nil {
		x.shared = newShared(0, 1)
	}
	if err := x.checkFiles(); err != nil {
		return err
	}
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
	if err := x.openTasks(ctx); err != nil {
		return err
	}
	if err := x.openHeldOut(ctx); err != nil {
		return err
	}
	x.Steps = x.plan.Steps()
	if err := x.noSteps(); err != nil {
		return x.leftOut(err)
	}
	if r.Eval.Every.Epoch || r.Save.Every.Epoch || r.Log.Every.Epoch {
		x.epochs = x.plan.EpochEnds()
	}
	if x.Main() {
		x.noteOddities()
	}
	x.Memory = x.predict(x.sharding)
	if _, err := x.device.FreeMemory(); err != nil {
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
	if err := x.openKind(); err != nil {
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
	x.obs.tell("", embedder.VocabularyNote(x.folder, x.tok, x.model.Config))
	return x.readTexts()
}

// readTexts says how texts become tokens.
func (x *Run) readTexts() (err error) {
	x.text = stages.Text{Tokenizer: x.tok, Vocab: x.model.Config.Vocab, Threads: max(1, x.share.Of(runtime.GOMAXPROCS(0))/2), Pairs: x.text.Pairs, Heads: x.config.Tokens, Weighed: x.config.Queries.There}
	if x.reranker != nil {
		x.text.QueryLength, x.text.DocumentLength = x.reranker.MaxLength, x.reranker.MaxLength
		x.text.Head, x.text.TooLong = x.reranker.Scorer.Tied(), "a larger model.max_length in another save.dir takes it"
		if x.reranker.Folder.Template == nil { // it would say what is cut
			x.text.TooLong = "in the recipe that is model.truncation, which --resume may change; or else a larger model.max_length in another save.dir takes it"
		}
		return nil
	}
	longest := x.Recipe.Model.MaxLength
	if x.text.QueryLength, x.text.DocumentLength, err = embedder.LengthsOf(x.folder, x.vectors, x.model.Config, longest.Query, longest.Document); err != nil {
		return fmt.Errorf("model.max_length: %w", err)
	}
	if err := embedder.CheckLengths(x.tok, x.text.QueryLength, x.text.DocumentLength, x.config.Queries.There); err != nil {
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

// openKind finds out what the recipe's kind of model makes of the folder's.
func (x *Run) openKind() (err error) {
	m := x.Recipe.Model
	if err := x.checkKind(); err != nil {
		return err
	}
	if x.config, err = embedder.ConfigOf(x.folder, nil); err != nil {
		return fmt.Errorf("model.path: %w", err)
	}
	var tokens transformer.TokenHeads
	var mlm transformer.MLMHead
	var queries transformer.QueryWeights
	switch m.Kind {
	case "reranker":
		err = x.openReranker()
	case "m3":
		tokens, err = x.openM3()
	case "multi_vector":
		tokens, err = x.openMultiVector()
	case "sparse":
		mlm, queries, err = x.openSparse()
	}
	if err != nil {
		return err
	}
	c := &x.config
	c.Tokens, c.MLMHead, c.Queries = tokens, mlm, queries
	if p := m.Dropout; p != nil {
		c.HiddenDropout, c.AttentionDropout = *p, *p
	}
	if x.reranker != nil {
		x.reranker.Configure(c)
	}
	return nil
}

// checkKind refuses a folder of which the recipe's kind of model can't be made.
func (x *Run) checkKind() error {
	m, f := x.Recipe.Model, x.folder
	is := func(kind string, folder bool) bool { return m.Kind == kind && folder }
	why := ""
	switch adapter := f.Adapter != nil; {
	case is("reranker", adapter):
		why = "is an adapter, and a reranker does not begin with one: PEFT's merge_and_unload merges it into its model"
	case is("multi_vector", adapter):
		why = "is an adapter, and training of a multi_vector does not begin with one: contraflow merge merges it into its base"
	case is("sparse", f.Reranker != nil):
		why = "is a reranker: it embeds no texts"
	case is("sparse", adapter):
		why = "is a LoRA adapter, which sparse embeddings do not begin with: contraflow merge makes a model of it and its base"
	case is("reranker", f.LayerWise() && m.Head != ""):
		return fmt.Errorf("model.head: %s is a layer-wise reranker, which has heads of its own", f.Dir)
	case m.Kind != "multi_vector" && f.MultiVector != nil:
		why = "gives a vector for each token: model.kind: multi_vector trains it"
	case m.Kind != "sparse" && f.Splade != nil:
		why = "is a sparse encoder: model.kind: sparse trains it"
	}
	if why != "" {
		return fmt.Errorf("model.path: %s %s", f.Dir, why)
	}
	if m.Kind == "reranker" {
		if err := f.CheckReranker(); err != nil {
			return fmt.Errorf("model.path: %s: %w", f.Dir, err)
		}
	}
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
	return transformer.New(gpustage.Dry{Like: x.device}, x.config, head, o)
}

// head is the pooling of a model that embeds: what the recipe does not say the folder says, or where it is none of the kind yet what is usual. What its
// embeddings are compared by is the recipe's alone.
func (x *Run) head() (transformer.Head, error) {
	m, f, yes := x.Recipe.Model, x.folder, true
	switch {
	case m.Kind == "reranker":
		return transformer.Head{}, nil
	case m.Kind == "multi_vector" && f.MultiVector == nil:
		m.Normalize = cmp.Or(m.Normalize, &yes)
	case m.Kind == "m3" && f.Pooling == nil: // FlagEmbedding's
		m.Pooling, m.Normalize = cmp.Or(m.Pooling, "cls"), cmp.Or(m.Normalize, &yes)
	case m.Kind == "sparse" && f.Splade == nil: // whatever it says of its embeddings
		m.Normalize = cmp.Or(m.Normalize, new(bool))
	}
	h, err := embedder.TrainableHead(f, m.Pooling, m.Normalize)
	h.Dot = x.Recipe.byProducts()
	switch {
	case m.Kind == "multi_vector" || m.Kind == "sparse": // no hidden states are pooled, whatever the folder says
		h.SkipPrompt = false
	case m.IncludePrompt != nil:
		h.SkipPrompt = !*m.IncludePrompt
	}
	return h, err
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

// newModelOn loads the folder's model; change may alter its configuration.
func (x *Run) newModelOn(d gpustage.Device, s gpustage.Stream, o transformer.Options, change func(*transformer.Config)) (*transformer.Model, error) {
	head, err := x.head()
	if err != nil {
		return nil, err
	}
	o.Tuning = x.Recipe.tuning()
	return embedder.LoadModel(x.folder, d, s, head, o, func(c *transformer.Config) {
		if *c = x.config; change != nil {
			change(c)
		}
	})
}

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
	errs = append(errs, x.trainingData.close())
	for _, h := range x.heldOut {
		errs = append(errs, h.data.Close())
	}
	if x.shared != nil && x.shared.ranks == 1 {
		x.shared.close()
	}
	if x.folder != nil {
		errs = append(errs, x.folder.Close())
	}
	return errors.Join(errs...)
}
