package recipe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"contraflow/collective"
	"contraflow/gpustage"
	"contraflow/gpustage/ref"
	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/loss"
	"contraflow/stages/transformer"
)

// Fault is something wrong that verify-grads can plant, to show that it would be found.
type Fault string

const (
	FaultFactor  Fault = "factor"  // gradients twice what they should be, as from a forgotten division by the number of ranks
	FaultMask    Fault = "mask"    // duplicates are not masked (or masked, where the recipe says not to)
	FaultRemote  Fault = "remote"  // rows of another half of the batch are detached, as if gathered without their gradient
	FaultDropout Fault = "dropout" // replayed passes drop other elements
)

// Faults lists them; those of ranks are MeshFaults.
var Faults = slices.Concat(lossFaults, []Fault{FaultDropout})

// lossFaults are in the loss, so that they change the truth as well.
var lossFaults = []Fault{FaultFactor, FaultMask, FaultRemote}

// VerifyOptions choose what is compared. DefaultVerify is a start.
type VerifyOptions struct {
	Rows       int   // rows of a contrastive batch
	SubBatches []int // sub-batch sizes in sequences
	Accumulate []int // contrastive batches per step
	Replicas   []int // ranks along the mesh's axes
	Shards     []int
	Plant      Fault
	Report     func(VerifyRow) // called as results come in: it alone is told which are not OK
}

// DefaultVerify compares on one rank.
func DefaultVerify() VerifyOptions {
	return VerifyOptions{Rows: 12, SubBatches: []int{5, 16}, Accumulate: []int{1, 3}, Replicas: []int{1}, Shards: []int{1}}
}

// Check finds options that make no sense.
func (o VerifyOptions) Check() error {
	if o.Rows < 2 {
		return fmt.Errorf("rows is %d, want at least 2: a row alone has no negatives", o.Rows)
	}
	for _, l := range []struct {
		option string
		values []int
	}{{"sub-batch", o.SubBatches}, {"accumulate", o.Accumulate}, {"replicas", o.Replicas}, {"shards", o.Shards}} {
		for _, n := range l.values {
			if n < 1 {
				return fmt.Errorf("%s is %d, want at least 1", l.option, n)
			}
		}
	}
	if faults := slices.Concat(Faults, MeshFaults); o.Plant != "" && !slices.Contains(faults, o.Plant) {
		return fmt.Errorf("there is no fault %q to plant; there are %v", o.Plant, faults)
	}
	return nil
}

// VerifyRow is one configuration compared with another.
type VerifyRow struct {
	Number    int // of the comparison, from 1 to Of; 0: of a row that is beside them
	Of        int
	Config    string
	Against   string  // what it is compared with
	Error     float64 // the largest transformer.GradientError of its tensors
	Parameter string  // where it is largest
	Limit     float64
	OK        bool
	Noise     bool // of what f32 rounds, whoever computes: what others are held against. Where it is not OK nothing can be said of them, which is Verify's error
}

// plain64 is what most rows are compared with: the computation in double precision without cache, sub-batches and tiles.
const plain64 = "plain, f64"

// String is the row as a line: its error beside the limit, of which computation, what that is compared with if it is not the plain one in double
// precision, and where the error is largest if that matters.
func (r VerifyRow) String() string {
	verdict, at := "ok", fmt.Sprintf("%d of %d", r.Number, r.Of)
	switch {
	case r.Noise:
		verdict, at = "noise", ""
	case !r.OK:
		verdict = "WRONG"
	}
	line := fmt.Sprintf("%-5s  %-9s  %-7.2g  limit %-7.2g  %s", verdict, at, r.Error, r.Limit, r.Config)
	if r.Against != plain64 {
		line += ", against " + r.Against
	}
	if verdict != "ok" {
		line += ", largest in " + r.Parameter
	}
	return line
}

// verifyDropout acts where the model has none, so that masks are tested too.
const verifyDropout = 0.1

// Verify compares the gradient of the recipe's model on rows from all over each dataset, computed in every way that the recipe could compute
// it, with an f64 computation without cache, sub-batches and tiles, and that one with a finite difference. One row of each
// batch comes twice, so that duplicates are there to be masked. It returns whether everything agrees: of gradients that
// are wrong that is false and no error, which is of a comparison that could not be made, so both are to be looked at. What does not agree, and by how much,
// o.Report is told, which DefaultVerify leaves nil.
//
// Hardness and self-distillation take similarities and scores for numbers that have no gradient, of which a finite difference knows nothing:
// it is taken of the loss without them. Rows that can't be used are left out, as in training.
//
// With WithLoss, of Train's options, it is the gradient of that loss, and with WithRow the rows are changed first; the others are Train's alone. A loss that
// computes in f32, as loss.Host has it, gives differences that are coarse: its finite difference may be off by as much as 1e-3, which finds
// a gradient that is wrong, and none that is slightly so.
func (x *Run) Verify(ctx context.Context, o VerifyOptions, opts ...TrainOption) (bool, error) {
	if x.closed {
		return false, errClosed
	}
	var t trainOptions
	for _, f := range opts {
		f(&t)
	}
	defer func(was own) { x.own = was }(x.own)
	x.own = t.own
	if err := o.Check(); err != nil {
		return false, err
	}
	if err := x.checkPlant(o.Plant); err != nil {
		return false, err
	}
	meshes, err := x.checkMeshes(o)
	if err != nil {
		return false, err
	}
	var wrong []VerifyRow
	report := func(r VerifyRow) {
		if r.OK = r.Error <= r.Limit; !r.OK && !r.Noise { // a NaN is not
			wrong = append(wrong, r)
		}
		if o.Report != nil {
			o.Report(r)
		}
	}
	made, all := 0, x.comparisons(o, meshes)
	counted := func(r VerifyRow) {
		if !r.Noise {
			made++
			r.Number, r.Of = made, all
		}
		report(r)
	}
	precise, ok := x.device.(ref.Jumper)
	if !ok { // a GPU: its results are held against the processor's
		host, err := gpustage.Open("cpu")
		if err == nil {
			defer host.Close()
		}
		if precise, ok = host.(ref.Jumper); !ok {
			precise = ref.New()
		}
	}
	acts := !slices.Contains(lossFaults, o.Plant)
	for _, accumulate := range o.Accumulate {
		for first := 0; first < len(x.data); first += accumulate {
			v, err := x.newVerifier(ctx, o, accumulate, first)
			if err != nil {
				return false, err
			}
			v.meshes, v.precise = meshes, precise
			if err := v.run(ctx, counted); err != nil {
				return false, err
			}
			acts = acts || v.acts
		}
	}
	if !acts {
		return false, fmt.Errorf("the gradient of these rows is the same with the fault %q, as where a guide leaves out the candidates that a mask does: it can't be planted", o.Plant)
	}
	return x.tellWrong(ctx, wrong, report)
}

// checkPlant refuses a fault that would change nothing, where that is known before anything is computed.
func (x *Run) checkPlant(f Fault) error {
	if own := x.own.loss; own != nil {
		_, splits := own.(loss.RowSplitter)
		switch {
		case f == FaultMask:
			return fmt.Errorf("a program's own loss (recipe.WithLoss), %T, masks what it does: the fault %q can't be planted", own, f)
		case f == FaultRemote && !splits:
			return fmt.Errorf("a program's own loss (recipe.WithLoss), %T, is no loss.RowSplitter, and computed of whole batches: the fault %q can't be planted", own, f)
		}
	}
	losses := x.Recipe.terms()
	none := func(is func(stated) bool) bool { return x.own.loss == nil && !slices.ContainsFunc(losses, is) }
	switch {
	case f == FaultMask && none(func(l stated) bool { return l.kind().has("mask_duplicates") }):
		return fmt.Errorf("%s.name: %s masks no duplicates: the fault %q can't be planted", losses[0].key, losses[0].Name, f)
	case f == FaultRemote && x.reranker != nil:
		return fmt.Errorf("a reranker's loss is computed of each row's group, and nothing comes back from other ranks: the fault %q can't be planted", f)
	case (f == FaultRemote || f == FaultGather || f == FaultScatter) && x.reranker == nil && none(func(l stated) bool { return !l.kind().rowwise() }):
		return fmt.Errorf("%s.name: %s takes of a row its own texts alone, and nothing of other rows: the fault %q can't be planted", losses[0].key, losses[0].Name, f)
	case (f == FaultRemote || f == FaultScatter) && x.reranker == nil && none(func(l stated) bool { return l.kind().comesBack() }):
		return fmt.Errorf("%s.name: %s has each rank compute the gradient of its own rows, and nothing comes back from other ranks: the fault %q can't be planted", losses[0].key, losses[0].Name, f)
	case f == FaultDropout && x.folder.Static():
		return fmt.Errorf("static embeddings drop nothing: the fault %q can't be planted", f)
	}
	return nil
}

// verifier compares one step's gradients.
type verifier struct {
	x          *Run
	o          VerifyOptions
	accumulate int
	sources    []int           // each contrastive batch's dataset
	chunks     []*stages.Chunk // one per contrastive batch
	meshes     []collective.Mesh
	precise    ref.Jumper        // computes in f64
	draws      map[uint64]uint64 // what a batch's loss draws from, by what it would be; nil: that. See truth.of
	acts       bool              // a fault that is planted in the loss changes the gradient
}

// fromAllOver is up to n rows of a dataset that can be used, from all over it: files are often sorted by query, and of the rows of one query, whose documents are
// no negatives of each other, a contrastive loss has no gradient to verify.
func (x *Run) fromAllOver(source, n int) []int64 {
	usable := x.usable(source)
	n = int(min(int64(n), usable))
	rows := make([]int64, n)
	for i := range rows {
		row := int64(i)*(usable/int64(n)) + int64(i)*(usable%int64(n))/int64(n)
		for _, skipped := range x.parts[source].Skip { // ascending
			if skipped > row {
				break
			}
			row++
		}
		rows[i] = row
	}
	return rows
}

// newVerifier takes rows of the datasets, which take turns from one of them on.
func (x *Run) newVerifier(ctx context.Context, o VerifyOptions, accumulate, first int) (*verifier, error) {
	v := &verifier{x: x, o: o, accumulate: accumulate}
	for b := range accumulate {
		v.sources = append(v.sources, (first+b)%len(x.data))
	}
	v.chunks = make([]*stages.Chunk, accumulate)
	for k, data := range x.data {
		var batches []int
		for b, source := range v.sources {
			if source == k {
				batches = append(batches, b)
			}
		}
		if len(batches) == 0 {
			continue
		}
		usable := x.fromAllOver(k, o.Rows*len(batches))
		rows := len(usable) / len(batches)
		if rows < 2 {
			return nil, fmt.Errorf("data.train[%d]: %d rows are too few to verify with %d batches", k, len(usable), len(batches))
		}
		reader := data.NewReader(dataset.ReaderConfig{Seed: x.Recipe.Train.Seed})
		defer reader.Close()
		for i, b := range batches {
			var ids []int64             // from all over the data in each batch
			for n := range rows - b%2 { // unequal batches: a mean of means would show
				ids = append(ids, usable[n*len(batches)+i])
			}
			ids = append(ids, ids[0])
			examples, err := reader.Read(ctx, 0, ids)
			if err != nil {
				return nil, err
			}
			offset := x.plan.Offset(k)
			for e := range examples {
				examples[e].Row += offset
			}
			c := &stages.Chunk{Source: k, Data: data, Offset: offset, Examples: examples, EndsBatch: true, EndsStep: b+1 == accumulate}
			if n := x.Recipe.lossOf(k).inBatch(); n != 0 {
				c.InBatch = &stages.InBatch{N: n, Seed: x.Recipe.Train.Seed} // of which rows, slice says
			}
			if x.own.row != nil {
				if c, err = c.MapRows(nil, x.ownRow); err != nil {
					return nil, err
				}
			}
			v.chunks[b] = c
		}
	}
	return v, nil
}

// String says how many batches are verified, and of which datasets if there are several.
func (v *verifier) String() string {
	s := fmt.Sprintf("accumulate %d: ", v.accumulate)
	if len(v.x.data) == 1 {
		return s
	}
	var of []string
	for _, k := range v.sources {
		of = append(of, fmt.Sprintf("data.train[%d]", k))
	}
	return strings.Join(of, ", ") + ", " + s
}

// way is one way to compute a step.
type way struct {
	dtype   gpustage.DType
	size    stages.Size
	budget  int64
	keep    func(subs []transformer.Memory) int64 // the budget of each batch, in budget's place
	passes  stages.Passes                         // what came of it
	every   int
	tile    [2]int
	dropout float64
	plant   Fault
	mesh    collective.Mesh // Size 0 or 1: one process
	wire    gpustage.DType  // of a mesh; F32 or BF16
	rounded bool            // what travels is rounded before, and the wire takes it as it is
	sharding
	ref     bool     // on the reference device instead of the recipe's
	stirred uint64   // of weights that are a little off (see stir), by draws of this number; 0: of the model's own
	jump    ref.Jump // asked, where it is computed in f64
	without string   // key of what is left out of the loss: see Loss.stopped
}

// oneTile has all of a batch's scores.
var oneTile = [2]int{1 << 20, 1 << 20}

func (w way) String() string {
	if w.size == (stages.Size{}) {
		s := "plain, " + w.dtype.String()
		if w.ref {
			s += " on ref"
		}
		if w.stirred > 0 {
			s += ", weights half an eps off"
		}
		if w.without != "" {
			s += ", without " + w.without
		}
		return s + w.dropping()
	}
	s := fmt.Sprintf("sub-batches of %d", w.size.Rows)
	some := ""
	for _, part := range []struct {
		name string
		n    int
	}{{"replayed", w.passes.Replayed}, {"lean", w.passes.Lean}, {"kept", w.passes.Whole}} {
		switch part.n {
		case 0:
		case w.passes.Replayed + w.passes.Lean + w.passes.Whole:
			some = ", all " + part.name
		default:
			some += ", some " + part.name
		}
	}
	if s += some; w.ref {
		s += ", f32 on ref"
	}
	if w.every > 0 {
		s += fmt.Sprintf(", activation checkpointing every %d", w.every)
	}
	if w.mesh.Size() > 1 {
		s = fmt.Sprintf("mesh %d x %d, ", w.mesh.Replicate, w.mesh.Shard) + s
	}
	if w.mesh.Shard > 1 {
		s += ", " + w.sharding.String()
	}
	if w.wire == gpustage.BF16 {
		s += ", bf16 wire"
	}
	if w.tile[0] > 0 && w.tile != oneTile {
		s += fmt.Sprintf(", tiles %dx%d", w.tile[0], w.tile[1])
	}
	return s + w.dropping()
}

func (w way) dropping() string {
	if w.dropout == 0 {
		return ""
	}
	return fmt.Sprintf(", dropout %v", w.dropout)
}

// run makes all comparisons, at each rate of dropout.
func (v *verifier) run(ctx context.Context, report func(VerifyRow)) error {
	for _, p := range v.x.dropouts() {
		t := &truth{verifier: v, sliced: map[int]*standard{}}
		if err := t.run(ctx, way{dtype: gpustage.F64, budget: -1, tile: oneTile, dropout: p}, report); err != nil {
			return err
		}
	}
	return nil
}

// stopped are the keys of what its losses take for numbers that have no gradient; "" if there is nothing of the kind.
func (v *verifier) stopped() string {
	var keys []string
	for _, k := range v.sources {
		for _, t := range v.terms(k) {
			if option := t.stopped(); option != "" && !slices.Contains(keys, t.key+"."+option) {
				keys = append(keys, t.key+"."+option)
			}
		}
	}
	return strings.Join(keys, " and ")
}

// terms are those of a dataset's loss as the recipe has it; none in whose place a program has put its own.
func (v *verifier) terms(source int) []stated {
	if v.x.own.loss != nil {
		return nil
	}
	return v.x.Recipe.termsOf(source)
}

// model loads the recipe's model for one way of computing.
func (v *verifier) model(w way, ranks *stages.Replicas) (*transformer.Model, error) {
	device := v.x.device
	switch {
	case w.ref:
		device = ref.New()
	case w.dtype == gpustage.F64:
		device = v.precise.WithJump(w.jump)
	}
	s, err := device.OpenStream() // ranks load at the same time
	if err != nil {
		return nil, err
	}
	defer s.Close()
	m, err := v.x.newModelOn(device, s, transformer.Options{DType: w.dtype, CheckpointEvery: w.every, Own: ranks.Own()}, func(c *transformer.Config) {
		if c.HiddenDropout == 0 && c.AttentionDropout == 0 {
			c.HiddenDropout, c.AttentionDropout = w.dropout, w.dropout
		}
	})
	if err != nil {
		return nil, err
	}
	// LoRA's B begins as zero, where A has no gradient: values that show something.
	rng := rand.New(rand.NewPCG(v.x.Recipe.Train.Seed, 29))
	err = m.LoadFactors(s, func(p transformer.Param, dst []float32) error {
		for i := range dst {
			dst[i] = float32(rng.NormFloat64() * 0.5 / math.Sqrt(float64(p.Cols)))
		}
		return nil
	})
	if err == nil && w.stirred > 0 {
		err = stir(s, m, v.x.Recipe.Train.Seed, w.stirred)
	}
	if err != nil {
		return nil, errors.Join(err, m.Free())
	}
	return m, nil
}

// stir changes each weight that trains of a model in f64 by up to half an eps of f32, in proportion to it, but for the factor stirredLess: so little that
// next to nothing jumps, and what comes of it is in proportion.
func stir(s gpustage.Stream, m *transformer.Model, seed, draw uint64) error {
	weights, err := weightsOf(s, m)
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(seed, draw))
	for i := range weights {
		weights[i] *= 1 + 0x1p-23/stirredLess*(rng.Float64()-0.5)
	}
	setWeights(s, m, weights)
	return s.Sync()
}

// weightsOf are those that train of a model in f64.
func weightsOf(s gpustage.Stream, m *transformer.Model) ([]float64, error) {
	weights := make([]float64, m.Layout.Trained())
	s.CopyOut(gpustage.Bytes(weights), m.Trained())
	return weights, s.Sync()
}

// setWeights gives a model in f64 others.
func setWeights(s gpustage.Stream, m *transformer.Model, weights []float64) {
	m.Change(s, func() { s.CopyIn(m.Trained(), gpustage.Bytes(weights)) })
}

// gradient runs one step of the graph and captures its gradient.
func (v *verifier) gradient(ctx context.Context, w way) (stages.Captured, error) {
	m, err := v.model(w, nil)
	if err != nil {
		return stages.Captured{}, err
	}
	defer m.Free()
	return v.step(ctx, w, m, nil, false)
}

// slice is a rank's part of the batches.
func (v *verifier) slice(ranks *stages.Replicas) []*stages.Chunk {
	var out []*stages.Chunk
	for _, c := range v.chunks {
		mine := *c
		lo, hi := stages.Slice(len(c.Examples), ranks.Rank(), ranks.Size())
		mine.First, mine.Total = lo, len(c.Examples)
		if draws := c.InBatch; draws != nil {
			mine.InBatch = &stages.InBatch{N: draws.N, Lo: lo, Hi: hi, Seed: draws.Seed, Epoch: draws.Epoch}
		} else {
			mine.Examples = c.Examples[lo:hi]
		}
		out = append(out, &mine)
	}
	return out
}

// step runs one step of the graph with a model, or only as far as the loss.
func (v *verifier) step(ctx context.Context, w way, m *transformer.Model, ranks *stages.Replicas, lossOnly bool) (out stages.Captured, err error) {
	x := v.x
	g := pipeline.New("verify")
	enc, err := stages.NewEncoder(g, m, 0, w.budget, x.Recipe.Train.Seed, stages.With(ranks))
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, enc.Close()) }()
	enc.BudgetOf = w.keep
	r := x.Recipe
	r.Loss.SelfDistillFrom = 0 // verified whenever it begins
	var l loss.Loss = r.objective(driving{tile: w.tile, mask: w.plant == FaultMask, differentiable: w.without != ""})
	if x.own.loss != nil {
		l = x.own.loss
	}
	if v.draws != nil {
		l = as(l, redrawn{l, v.draws})
	}
	switch w.plant {
	case FaultFactor:
		l = as(l, scaled{l, 2})
	case FaultRemote:
		l = as(l, detached{l})
	case FaultDropout:
		enc.ShiftReplay()
	}
	next, parts := 0, v.slice(ranks)
	chunks := pipeline.Source(g, "rows", func(context.Context) (*stages.Chunk, error) {
		if next == len(parts) {
			return nil, io.EOF
		}
		next++
		return parts[next-1], nil
	})
	if x.guide != nil { // local ranks compute at the same time, each with its own; its numbers are f32's in every way
		own := *x.guide
		if own.model, err = x.loadGuide(); err != nil {
			return out, err
		}
		defer own.model.Free()
		y := *x
		y.guide, x = &own, &y
	}
	c := stages.Forward(g, chunks, enc, x.step(l, w.size, m.Device))
	captured := stages.Capture(g, stages.Sync(g, contributions(g, c.Subs, c.Gradients, enc, lossOnly), enc), c.Gradients, enc)
	pipeline.Sink(g, "keep", captured, func(_ *pipeline.Task, c stages.Captured) error { out = c; return nil })
	err = enc.Run(ctx)
	return out, err
}

// contributions is the backward stage, or a stage in its place that leaves the gradient zero.
func contributions(g *pipeline.Graph, subs pipeline.Port[stages.SubBatch], grads pipeline.Port[stages.Gradient], enc *stages.Encoder, lossOnly bool) pipeline.Port[stages.Contribution] {
	if !lossOnly {
		return stages.Backward(g, subs, grads, enc)
	}
	s := g.Stage("no backward")
	in := pipeline.In(s, "sub-batches", subs)
	pipeline.In(s, "gradient", grads)
	out := pipeline.Out[stages.Contribution](s, "contributions")
	s.Do(func(t *pipeline.Task) error {
		out.Put(t, stages.Contribution{Tokens: in.Get(t).Tokens()})
		return nil
	})
	return out.Port
}
