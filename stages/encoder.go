package stages

import (
	"errors"
	"fmt"
	"strconv"
	"sync"

	"contraflow/gpustage"
	"contraflow/pipeline"
	"contraflow/stages/loss"
	"contraflow/stages/transformer"
)

// lanes makes pipeline lanes of a device's streams.
type lanes struct{ gpustage.Device }

// OnDevice adapts a device to what pipeline.Devices takes. No device, nil, stays nil, which Build refuses.
func OnDevice(d gpustage.Device) pipeline.Device {
	if d == nil {
		return nil
	}
	return lanes{d}
}

// OpenLane opens a stream, an urgent one for what other ranks wait for.
func (l lanes) OpenLane(kind pipeline.LaneKind) (pipeline.Lane, error) {
	open := gpustage.Device.OpenStream
	if kind == pipeline.Comm || kind == pipeline.Fetch {
		open = gpustage.OpenUrgent
	}
	s, err := open(l.Device)
	if err != nil {
		return nil, err
	}
	return &lane{s, l.Info().Threads > 0}, nil
}

type lane struct {
	gpustage.Stream
	host bool
}

func (l *lane) Mark() pipeline.Mark { return l.Record() }

func (l *lane) Await(m pipeline.Mark) error {
	l.Wait(m.(gpustage.Event))
	return nil
}

// Err returns what is known without waiting. On host devices that is everything, on others what was refused or could not be started.
func (l *lane) Err() error {
	if l.host {
		return l.Sync()
	}
	if s, ok := l.Stream.(interface{ Err() error }); ok {
		return s.Err()
	}
	return nil
}

// Stream is the stream of the lane that a task runs on. A stage of one's own that is placed on a device computes with it. It panics in a
// stage that is not placed on a device from [OnDevice]: the run then ends with an error that names the stage.
func Stream(t *pipeline.Task) gpustage.Stream {
	switch l := t.Lane().(type) {
	case *lane:
		return l.Stream
	case nil:
		panic("stages.Stream: the stage runs in the host pool, which has no stream: place it with pipeline.On(device, lane)")
	default:
		panic(fmt.Sprintf("stages.Stream: the stage's lane is a %T: pass Build the device from stages.OnDevice", l))
	}
}

// Encoder is a model in training on one device: what its stages share. All of it belongs to the device's compute lane.
type Encoder struct {
	Model  *transformer.Model
	Budget int64 // bytes of activations that may be kept between embed and backward; 0: none, negative: all of them
	Seed   uint64

	// BudgetOf, if it is set, says the budget of each batch by what its sub-batches take: for who wants some of them kept in each way.
	BudgetOf func(subs []transformer.Memory) int64

	graph   *pipeline.Graph
	device  int
	replay  uint64 // the dropout seed of replayed passes: Seed, unless a fault is planted
	loss    loss.Loss
	update  Update
	weights pipeline.Port[Weights]

	grads gpustage.Tensor // flat, the sum over the step so far
	parts []*part         // of the batch at hand, embeddings first
	arena *gpustage.Arena

	// Ask, if it is set, is called once a step on every rank: what any of them answers is done after that step.
	Ask func() Asked

	ranks    *Replicas
	began    string // a hash of the weights before the first step, among ranks
	restored int    // steps that the checkpoint had made from which Restore has the state
	applied  bool   // the graph has an update
	wired    wired
	replication
	guided guided
	shares []share // of this rank, where there is a shard axis
	frozen []share // likewise of what is frozen, where parameters are streamed
	earlyGradients
	streamedParameters
	optimizerState

	keeps  keeping             // of the batch at hand
	kept   []*transformer.Pass // of sub-batches from keeps.from on
	passes Passes              // since the last Capture

	mu      sync.Mutex // several lanes allocate
	buffers []*slot
	held    int64 // bytes of everything but the arena
	scratch int64 // bytes of the arena
	peak    int64 // bytes held at once, at most

	closers []func() error // of what stages added to it
	engines int            // of those
}

// Weights stands for a model's parameters as a step's update has left them: who reads the parameters depends on it.
type Weights struct{}

// NewEncoder prepares a model for training in graph g, on the device at the given place of Build's list. budget is how many bytes of activations
// may be kept between embed and backward, beside those of the sub-batch that is computed: what is not kept is computed again, with the same
// gradient. 0 keeps none, a negative budget all. seed is that of dropout and of what a loss draws. Close gives the encoder's memory back; where
// there is an error there is nothing to give back.
func NewEncoder(g *pipeline.Graph, m *transformer.Model, device int, budget int64, seed uint64, opts ...EncoderOption) (*Encoder, error) {
	if m == nil {
		return nil, errors.New("stages: there is no model to train: it is nil, or has been closed")
	}
	e := &Encoder{Model: m, Budget: budget, Seed: seed, replay: seed, graph: g, device: device, weights: pipeline.Later[Weights](g, "weights", "the graph trains nothing: stages.Loss, Backward and Apply do")}
	for _, o := range opts {
		o(e)
	}
	e.ranks.tell("the model", layoutTerm(m))
	e.ranks.tell("the encoder's seed", strconv.FormatUint(seed, 10))
	e.held = int64(m.Params.Mem.Bytes()) + m.PartialBytes() + m.PackedBytes(true)
	for _, p := range m.Parts() {
		e.parts = append(e.parts, &part{Part: p})
	}
	if e.ranks != nil {
		e.ranks.tokens = !m.Config.Tokens.None()
	}
	if e.ranks.early() && m.Config.TiedDecoder() && e.tableTrains() {
		return nil, errors.New("stages: early gradients (mesh.gradients) are not for sparse embeddings whose decoder is the word embeddings: of these the rows of a sub-batch's tokens alone would travel, and all have a gradient; late gradients are")
	}
	if e.ranks.early() && m.Config.Queries.There {
		return nil, errors.New("stages: early gradients (mesh.gradients) are not for a model whose queries are weights of tokens, which have a gradient in sub-batches that go through no layer; late gradients are")
	}
	e.shares, e.frozen = e.ranks.shares(m.Layout, m.DType), e.ranks.frozen(m.Layout)
	if m.Partial() != e.ranks.streams() {
		return nil, errors.New("stages: with streamed parameters, and only then, a model must have been made with the option Own of its ranks")
	}
	if err := e.open(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// open allocates what does not depend on batches.
func (e *Encoder) open() error {
	n := e.Model.Layout.Trained()
	if e.ranks.early() {
		_, n = e.owned(nil)
		if err := e.openEarly(); err != nil {
			return fmt.Errorf("gradients: %w", err)
		}
	}
	if err := e.grow(&e.grads, 1, n); err != nil {
		return fmt.Errorf("gradients: %w", err)
	}
	if e.ranks.streams() {
		if err := e.openStreamed(); err != nil {
			return fmt.Errorf("layers under way: %w", err)
		}
	}
	return nil
}

// EncoderOption configures NewEncoder.
type EncoderOption func(*Encoder)

// With makes the encoder train with other ranks; nil changes nothing.
func With(r *Replicas) EncoderOption { return func(e *Encoder) { e.ranks = r } }

// claim takes the model for the run of a task: another graph that trains it at the same time is an error in one of the two.
func (e *Encoder) claim(t *pipeline.Task) error {
	if err := e.Model.Claim(t.Context(), fmt.Sprintf("graph %q", e.graph.Name())); err != nil {
		return fmt.Errorf("%w, which has not ended: run one after the other, or load the folder once for each", err)
	}
	return nil
}

// on places a stage on the encoder's compute lane.
func (e *Encoder) on() pipeline.Option { return pipeline.On(e.device, pipeline.Compute) }

// ShiftReplay plants a fault: replayed passes drop other elements than the passes they replay. For the test of what is to
// find such faults.
func (e *Encoder) ShiftReplay() { e.replay++ }

// Gradients is the flat gradient, a sum that no weight has divided yet, for stages that look at it between backward and update (AfterSync says where
// these stand); with early gradients this rank's shares of it, side by side: see Complete.
func (e *Encoder) Gradients() gpustage.Tensor { return e.grads }

// Arena is scratch memory of the compute lane, empty between steps.
func (e *Encoder) Arena() *gpustage.Arena { return e.arena }

// PeakBytes is the most device memory that the encoder has held: parameters, gradients, embeddings, arena.
func (e *Encoder) PeakBytes() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.peak
}

// begin makes room for a batch: embeddings, and an arena for the passes that its sub-batches need. Larger batches than any
// before allocate; later ones of the same size do not.
func (e *Encoder) begin(b *Batch) error {
	for _, p := range e.parts {
		n := p.at(b, b.N())
		if err := errors.Join(e.grow(&p.emb, n, p.Size), e.grow(&p.dEmb, n, p.Size)); err != nil {
			return fmt.Errorf("%s of %d sequences: %w", p.Name, b.N(), err)
		}
		if !e.gathers() {
			p.all, p.dAll = p.emb, p.dEmb
		}
	}
	if err := e.beginGuided(b); err != nil {
		return fmt.Errorf("a guide's embeddings of %d sequences: %w", b.N(), err)
	}
	if e.ranks != nil {
		if err := e.beginReplicated(b); err != nil {
			return err
		}
	}
	if b.memory == nil {
		e.measure(b)
	}
	lossBytes := 0
	if lb, _ := e.lossBatch(b); e.loss != nil && lb.N() > 0 {
		size := lb.Size()
		size.GPU = e.Model.Device.Info().Threads == 0 // of a device on paper, what it is like
		lossBytes = e.loss.Memory(size)
	}
	var need int
	agreed := 0
	if b.Global != nil {
		agreed = b.Global.keepFrom
	}
	e.keeps, need = planReplay(b.memory, b.budget, lossBytes, agreed)
	return e.reserve(need)
}

// measure says what each of a batch's sub-batches takes, and what of it may be kept.
func (e *Encoder) measure(b *Batch) {
	for _, s := range b.Subs {
		m := transformer.Memory{}
		if s.Len() > 0 {
			if s.weighed() {
				m = e.Model.WeighedMemory(s.lengths())
			} else {
				m = e.Model.Memory(s.lengths())
			}
		}
		b.memory = append(b.memory, m)
	}
	if e.Model.Buckets() {
		equalPlaces(b.memory)
	}
	if b.budget = e.Budget; e.BudgetOf != nil {
		b.budget = e.BudgetOf(b.memory)
	}
}

// equalPlaces gives kept passes places of one size, and lean ones: where each lies does then not depend on the sizes of those before it, and passes
// of a shape have the same few places in every step.
func equalPlaces(subs []transformer.Memory) {
	kept, lean := 0, 0
	for _, m := range subs {
		kept, lean = max(kept, m.Kept), max(lean, m.Lean)
	}
	for i, m := range subs {
		if m.Kept > 0 { // other ranks have it otherwise
			subs[i] = m.Keeping(kept, lean)
		}
	}
}

// grow makes t a tensor of the model's type with at least the given rows. What it held is lost if it grows.
func (e *Encoder) grow(t *gpustage.Tensor, rows, cols int) error {
	return e.growTyped(t, e.Model.DType, rows, cols)
}

func (e *Encoder) growTyped(t *gpustage.Tensor, dtype gpustage.DType, rows, cols int) error {
	if rows <= t.Rows && !t.IsZero() {
		return nil
	}
	if !t.IsZero() {
		e.hold(-int64(t.Mem.Bytes()))
		if err := t.Mem.Free(); err != nil {
			return err
		}
	}
	var err error
	if *t, err = gpustage.NewTensor(e.Model.Device, dtype, rows, cols); err == nil {
		e.hold(int64(t.Mem.Bytes()))
	}
	return err
}

// hold counts memory outside of the arena.
func (e *Encoder) hold(bytes int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held += bytes
	e.peak = max(e.peak, e.held+e.scratch)
}

// reserve gives the arena at least the given size.
func (e *Encoder) reserve(bytes int) error {
	if e.arena == nil || e.arena.Size() < bytes {
		if e.arena != nil {
			if err := e.arena.Free(); err != nil {
				return err
			}
			e.arena = nil
		}
		a, err := gpustage.NewArena(e.Model.Device, bytes)
		if errors.Is(err, gpustage.ErrOutOfMemory) {
			return fmt.Errorf("%w; a smaller batch.sub_batch or batch.replay_budget needs less", err)
		}
		if err != nil {
			return err
		}
		e.arena = a
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.scratch = int64(e.arena.Size())
	e.peak = max(e.peak, e.held+e.scratch)
	return nil
}

// keeping is what stays of a batch's passes for the way back: nothing of sub-batches before from, all of those from there to lean, and of those from
// lean on what a lean pass keeps.
//
// Within a budget a batch is to be computed again as little as possible. A lean pass computes half again and takes two fifths of the memory, or
// less, so two of them save more than one that keeps all: first as many are lean as fit, then, of what is left, as many as fit are made whole.
// What is kept is the end of the batch, where the way back begins. On a processor, where most of a pass is products, that is 1.5 to 2 % of a
// step's time (MiniLM-L6 in f32, 256 pairs, a budget of a third of their activations, three runs in turns). On a GPU a lean pass takes a quarter:
// by its kernels' times and 128 GiB, an estimate for an H200, that is 7 % of BERT-base's step of 16,384 pairs.
type keeping struct{ from, lean int }

func keepWithin(subs []transformer.Memory, budget int64, atLeast int) keeping {
	total := int64(0)
	fits := func(bytes int) bool {
		if budget >= 0 && total+int64(bytes) > budget {
			return false
		}
		total += int64(bytes)
		return true
	}
	k := keeping{from: len(subs)}
	for k.from > atLeast && fits(subs[k.from-1].Lean) {
		k.from--
	}
	for k.lean = k.from; k.lean < len(subs) && fits(subs[k.lean].Kept-subs[k.lean].Lean); {
		k.lean++
	}
	return k
}

// left is what stays of a sub-batch's pass.
type left int8

const (
	nothing left = iota // it is replayed
	lean
	whole
)

// of is what stays of sub-batch i.
func (k keeping) of(i int) left {
	switch {
	case i < k.from:
		return nothing
	case i < k.lean:
		return whole
	}
	return lean
}

// Passes counts sub-batches by what stays of their passes for the way back.
type Passes struct{ Replayed, Lean, Whole int }

func (p *Passes) count(of left) {
	switch of {
	case nothing:
		p.Replayed++
	case lean:
		p.Lean++
	case whole:
		p.Whole++
	}
}

// bytes are those of what stays of a sub-batch, and the peak of its passes.
func (of left) bytes(m transformer.Memory) (kept, peak int) {
	switch of {
	case lean:
		return m.Lean, m.LeanBackward
	case whole:
		return m.Kept, m.Backward
	}
	return 0, max(m.Forward, m.Backward)
}

// planReplay chooses what is kept within the budget, and returns with it the arena that the whole batch needs. The first atLeast sub-batches are
// replayed in any case.
func planReplay(subs []transformer.Memory, budget int64, lossBytes, atLeast int) (k keeping, arena int) {
	k = keepWithin(subs, budget, atLeast)
	below := 0 // kept under sub-batch i
	for i, m := range subs {
		kept, peak := k.of(i).bytes(m)
		arena = max(arena, below+peak)
		below += kept
	}
	return k, max(arena, below+lossBytes)
}

// Close gives the encoder's memory back, but for the model's parameters.
func (e *Encoder) Close() error {
	errs := []error{e.optimizerState.close(), e.closeGuided()}
	for _, f := range e.closers {
		errs = append(errs, f())
	}
	e.closers = nil
	tensors := append(e.tensors(), &e.complete)
	for _, p := range e.parts {
		if !e.gathers() {
			p.all, p.dAll = gpustage.Tensor{}, gpustage.Tensor{} // names of emb and dEmb
		}
		tensors = append(tensors, &p.emb, &p.dEmb, &p.all, &p.dAll, &p.arriving)
	}
	for _, x := range e.buffers {
		tensors = append(tensors, &x.mem, &x.rows, &x.index, &x.ids)
	}
	for _, t := range append(tensors, &e.grads, &e.guided.own, &e.guided.all) {
		if !t.IsZero() {
			errs = append(errs, t.Mem.Free())
			*t = gpustage.Tensor{}
		}
	}
	if e.arena != nil {
		errs = append(errs, e.arena.Free())
		e.arena = nil
	}
	return errors.Join(errs...)
}
