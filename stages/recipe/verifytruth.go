package recipe

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"contraflow/gpustage"
	"contraflow/stages"
	"contraflow/stages/transformer"
)

// verifyLimit is how much a gradient in f32 may differ from the truth in f64: package stages' 1e-5, for the usual scale of 20.
// Embeddings in f32 are some eps off, so a cosine is, and the loss multiplies cosines by its scale before it exponentiates them: a
// probability is off in proportion to the scale, whoever computes it.
//
// Some models and losses amplify rounding more than that. The embeddings of a fresh model are nearly the same: where their rows' gradients cancel
// (the last LayerNorm's bias sums them), what is left is small and carries the rounding of what was not; of a loss of distances between embeddings,
// which all of them may move together, nothing is left. So a way that is beyond the limit is held against noise: what f32 on ref, which no optimization
// has touched, differs from the truth, in the plain way and by sub-batches of one row, whose sums don't cancel before they are rounded (of a new
// reranker's last bias 0.0006 was left, and below 4e-6 in the plain way). A way may differ noiseFactor times as much: ref sums in double precision and rounds once,
// the others round at every term, of which there are thousands. That is so up to noiseMost for all tensors, by the one with the most noise, and
// beyond that, up to tensorMost, for each by its own: the faults that can be planted differ by 0.05 and more. A tensor whose noise alone is beyond
// that is one of which nothing can be said. Of 50 fresh models of 3 layers of 64, 10 had a way beyond the limit, by up to 1.7, 1.2 to 4.1 times
// their noise; fresh ones with cls pooling are up to 0.008 off, 1.5 times theirs; of 190 recipes of all kinds, of models whose matrices were four
// times a fresh one's, 13 had a way that was up to 3.7 times the limit, and 0.2 to 13 times the noise.
//
// What ref rounds once may by chance be next to nothing where a model amplifies it by thousands: of 285 T5s whose matrices were several times a fresh one's,
// three had a way that was 37 to 53 times ref's noise off. So what is still beyond the limit is held against the truth of weights that are half an eps of f32
// off, twice, too. Those three are 2 to 15 times as far off as that; of a BERT, whose layers normalize what they give, it is less than ref's noise.
func verifyLimit(scale float64) float64 { return 1e-5 * max(1, scale/20) }

const (
	noiseFactor = 30
	noiseMost   = 10 // times verifyLimit
	tensorMost  = 0.02

	stirredLess = 0x1p16 // see stir
)

// truth is what ways to compute a step are compared with.
type truth struct {
	*verifier
	is     *standard
	sliced map[int]*standard // where ranks keep their negatives to themselves, by how many there are
	base   float64           // how far a gradient may be off
	noise  []float64         // how far each tensor is off by rounding alone; nil: not looked at
	limits []float64         // of each tensor, where that is further off than base; nil: base

	stirred bool // noise has what stirrings do
}

func (t *truth) run(ctx context.Context, plain way, report func(VerifyRow)) (err error) {
	if t.is, err = t.learn(ctx, plain); err != nil {
		return err
	}
	nothing := ""
	if largest(t.is.Gradient) <= noGradient {
		if nothing = ", whose gradient is zero"; t.o.Plant != "" {
			return fmt.Errorf("the gradient of these rows is zero: the fault %q can't be planted", t.o.Plant)
		}
		if plain.dropout == t.x.dropoutRate() { // once
			t.x.obs.note("%sthe gradient of the rows that are looked at is zero, so that nothing is proved by ways that agree on it: it may be that they share one query or one text", t.verifier)
		}
	}
	t.base = t.usualLimit()
	if slices.Contains(lossFaults, t.o.Plant) {
		spoiled := plain
		spoiled.plant = t.o.Plant
		got, err := t.gradient(ctx, spoiled)
		if err != nil {
			return err
		}
		off := deviations(t.x.model.Layout, got.Gradient, t.is.Gradient)
		t.acts = t.acts || !(off[worst(off, nil)] <= t.base)
	}
	if !t.meshOnly() {
		row, err := t.slope(ctx)
		if err != nil {
			return err
		}
		row.Config += nothing
		report(row)
	}
	for _, w := range t.ways(plain.dropout) {
		c, err := t.compare(ctx, w)
		if err != nil {
			return err
		}
		if err := t.weigh(ctx, c, report); err != nil {
			return err
		}
		report(c.row)
	}
	return nil
}

// weigh judges what a way has computed, and looks at noise first where that may tell. A loss of one's own may round to f32, and would drown in it what
// weights do that are a little off.
func (t *truth) weigh(ctx context.Context, c *comparison, report func(VerifyRow)) error {
	if t.noise == nil && !(c.errors[worst(c.errors, nil)] <= t.base) {
		if err := t.hear(ctx, report, t.roundings()...); err != nil {
			return err
		}
	}
	config, errors := c.row.Config, c.errors
	if err := t.judge(ctx, c, t.limits); err != nil || c.row.Error <= c.row.Limit || t.noise == nil || t.stirred || t.x.own.loss != nil {
		return err
	}
	t.stirred = true
	if err := t.hear(ctx, report, t.stirrings()...); err != nil {
		return err
	}
	c.row.Config, c.errors = config, errors
	return t.judge(ctx, c, t.limits)
}

// usualLimit is how far a gradient may be off where rounding is not amplified more than by the losses' scales.
func (t *truth) usualLimit() (limit float64) {
	if t.x.own.loss != nil {
		limit = verifyLimit(0) // what it multiplies is not known: noise tells
	}
	for _, k := range t.sources {
		for _, l := range t.terms(k) {
			limit = max(limit, verifyLimit(t.x.amplified(l.Loss)))
		}
	}
	return limit
}

// slope holds the truth against a finite difference.
func (t *truth) slope(ctx context.Context) (row VerifyRow, err error) {
	smooth, is := t.is.way, t.is
	if smooth.without = t.stopped(); smooth.without != "" {
		if is, err = t.learn(ctx, smooth); err != nil {
			return row, err
		}
	}
	row = VerifyRow{Config: t.String() + smooth.String(), Against: "finite difference", Parameter: "a random direction"}
	moved := false
	if row.Error, row.Limit, moved, err = t.derivative(ctx, smooth, is.Captured); moved {
		row.Config += ", weights moved by 0.001"
	}
	return row, err
}

// comparison is of a gradient that is computed in a way with what it is held against.
type comparison struct {
	row    VerifyRow
	got    []float64
	want   *standard
	errors []float64 // how far each tensor is off
}

// compare computes a gradient in a way.
func (t *truth) compare(ctx context.Context, w way) (*comparison, error) {
	compute := t.gradient
	if w.mesh.Size() > 1 {
		compute = t.onMesh
	}
	is, err := compute(ctx, w)
	if err != nil {
		return nil, err
	}
	want, err := t.of(ctx, w)
	if err != nil {
		return nil, err
	}
	w.passes = is.Passes
	c := &comparison{row: VerifyRow{Config: t.String() + w.String(), Against: plain64}, got: is.Gradient, want: want}
	c.errors = deviations(t.x.model.Layout, c.got, want.Gradient)
	if w.wire == gpustage.BF16 {
		c.row.Config += fmt.Sprintf(" (%.1g from f64)", c.errors[worst(c.errors, nil)])
		c.row.Against = "rounded before"
		w.rounded, w.plant = true, ""
		rounded, err := t.onMesh(ctx, w)
		if err != nil {
			return nil, err
		}
		c.want = &standard{Captured: rounded}
		c.errors = deviations(t.x.model.Layout, c.got, rounded.Gradient)
	}
	return c, nil
}

// of is what a way is compared with: the truth, or where ranks keep their negatives to themselves that of their slices, each a contrastive batch of its own.
func (t *truth) of(ctx context.Context, w way) (*standard, error) {
	size := w.mesh.Size()
	if size <= 1 || t.x.reranker != nil || !t.x.exchanging().LocalNegatives {
		return t.is, nil
	}
	if is, ok := t.sliced[size]; ok {
		return is, nil
	}
	alone := *t.verifier
	alone.chunks, alone.draws = nil, map[uint64]uint64{}
	draw := func(batch int) uint64 { return stages.Draw(t.x.Recipe.Train.Seed, 0, batch) }
	for b, c := range t.chunks {
		for rank := range size {
			part := *c
			lo, hi := stages.Slice(len(c.Examples), rank, size)
			part.Examples, part.EndsStep = c.Examples[lo:hi], false
			if lo < hi {
				alone.draws[draw(len(alone.chunks))] = draw(b) // ranks draw what is the batch's
				alone.chunks = append(alone.chunks, &part)
			}
		}
	}
	alone.chunks[len(alone.chunks)-1].EndsStep = true
	is, err := alone.learn(ctx, t.is.way)
	if err == nil {
		t.sliced[size] = is
	}
	return is, err
}

// roundings are ways that do nothing but round.
func (t *truth) roundings() (out []way) {
	for _, rows := range []int{0, 1} {
		out = append(out, way{dtype: gpustage.F32, size: stages.Size{Rows: rows}, budget: -1, tile: t.is.way.tile, dropout: t.is.way.dropout, ref: true})
	}
	return out
}

// stirrings are ways that compute as the truth is computed, of weights that f32 hardly tells from the model's.
func (t *truth) stirrings() []way {
	one, another := t.is.way, t.is.way
	one.stirred, another.stirred = 1, 2
	return []way{one, another}
}

// hear sets limits by what ways do that are no more wrong than f32 is.
func (t *truth) hear(ctx context.Context, report func(VerifyRow), ways ...way) error {
	if t.noise == nil {
		t.noise = make([]float64, len(t.x.model.Layout.Training()))
	}
	for _, w := range ways {
		c, err := t.compare(ctx, w)
		if err != nil {
			return err
		}
		limits := slices.Repeat([]float64{noiseMost * t.base}, len(t.noise))
		if w.stirred > 0 {
			for i := range c.errors {
				c.errors[i] *= stirredLess
			}
			t.tell(c, c.errors, limits)
		} else if err := t.judge(ctx, c, limits); err != nil {
			return err
		}
		c.row.Noise, c.row.Limit = true, tensorMost
		report(c.row)
		if !(c.row.Error <= tensorMost) {
			return fmt.Errorf("in f32, rounding alone makes the gradient of %s %.2g wrong, so that nothing can be said of it: where a model's embeddings are nearly all the same, a trained model tells, or one that drops (model.dropout)",
				c.row.Parameter, c.row.Error)
		}
		for i, e := range c.errors {
			t.noise[i] = max(t.noise[i], e)
		}
	}
	all := max(t.base, min(noiseFactor*slices.Max(t.noise), noiseMost*t.base))
	t.limits = nil
	for _, e := range t.noise {
		t.limits = append(t.limits, max(all, min(noiseFactor*e, tensorMost)))
	}
	return nil
}

// judge completes a row by the tensor that is farthest beyond its limit, base if there are none; where that is so, with what may have jumped.
func (t *truth) judge(ctx context.Context, c *comparison, limits []float64) error {
	row, config := &c.row, c.row.Config
	if limits == nil {
		limits = slices.Repeat([]float64{t.base}, len(c.errors))
	}
	if t.tell(c, c.errors, limits) || !(row.Error <= jumpMost) {
		return nil
	}
	return c.want.explain(ctx, c.got, limits, func(want []float64, n int, off float64) (nearer, enough bool) {
		errors := deviations(t.x.model.Layout, c.got, want)
		i := worst(errors, limits)
		if !(errors[i]/limits[i] < row.Error/row.Limit) {
			return false, false
		}
		row.Config = fmt.Sprintf("%s, with %d of the values within %.0e of a jump beyond it", config, n, off)
		return true, t.tell(c, errors, limits)
	})
}

// tell says of a way the tensor that is farthest beyond its limit, and whether that is within it.
func (t *truth) tell(c *comparison, errors, limits []float64) bool {
	i := worst(errors, limits)
	c.errors, c.row.Parameter, c.row.Error, c.row.Limit = errors, t.x.model.Layout.Training()[i].Name, errors[i], limits[i]
	return c.row.Error <= c.row.Limit
}

// noGradient is what all of a gradient is below that is zero but for rounding, as that of texts without tokens, or of normalized embeddings of one
// number. Nothing can be in proportion to it: errors are then what they are.
const noGradient = 1e-9

func largest(x []float64) (most float64) {
	for _, v := range x {
		most = max(most, math.Abs(v))
	}
	return most
}

func rms(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	return math.Sqrt(sum / float64(len(x)))
}

// deviations are the errors of the tensors that train, by transformer.GradientError; where the whole gradient is zero, differences as they are. A bias's
// gradient is a sum over all rows or tokens that may cancel by chance, or always, as a reranker's last one does, which moves all scores of a group
// alike, or the last norm's where a loss is one of distances, which all embeddings may move together. So a bias is taken for one more column of its
// weight.
func deviations(l *transformer.Layout, got, want []float64) (out []float64) {
	for i, top := range tops(l, want) {
		p := l.Training()[i]
		at, end := l.At(p), l.At(p)+p.Len()
		out = append(out, transformer.GradientError(got[at:end], want[at:end], top))
	}
	return out
}

// tops are what the errors of the tensors that train are in proportion to.
func tops(l *transformer.Layout, want []float64) (out []float64) {
	floor := 1.0
	if top := largest(want); !(top <= noGradient) {
		floor = transformer.GradientFloor * top
	}
	weights := map[string]transformer.Param{} // by the name of the bias beside them
	for _, p := range l.Training() {
		if layer, ok := strings.CutSuffix(p.Name, "weight"); ok {
			weights[layer+"bias"] = p
		}
	}
	for _, p := range l.Training() {
		top := max(floor, largest(want[l.At(p):][:p.Len()]))
		if w, ok := weights[p.Name]; ok {
			top = max(top, largest(want[l.At(w):][:w.Len()]))
		}
		out = append(out, top)
	}
	return out
}

// worst is the tensor that is farthest beyond its limit, or off where all have the same; one that is NaN before all others.
func worst(errors, limits []float64) (at int) {
	most := math.Inf(-1)
	for i, e := range errors {
		if math.IsNaN(e) {
			return i
		}
		if limits != nil {
			e /= limits[i]
		}
		if e >= most {
			at, most = i, e
		}
	}
	return at
}
