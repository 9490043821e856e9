package recipe

import (
	"context"
	"math"
	"math/rand/v2"

	"contraflow/stages"
	"contraflow/stages/transformer"
)

// derivative compares a gradient's product with a random direction with a central difference of the loss, relatively; if the gradient is zero, the
// difference has to be. limit is how far it may be off. Where the weights are on a jump of the gradient themselves, as a new model's row for padding is,
// which is zero, as a sparse embedding's weights for it are, a difference is of both sides: where it is too far off, it is moved that counts, of the
// gradient at weights that are changed by a thousandth.
func (v *verifier) derivative(ctx context.Context, w way, is stages.Captured) (off, limit float64, moved bool, err error) {
	m, err := v.model(w, nil)
	if err != nil {
		return 0, 0, false, err
	}
	defer m.Free()
	s, err := m.Device.OpenStream()
	if err != nil {
		return 0, 0, false, err
	}
	defer s.Close()
	host, err := weightsOf(s, m)
	if err != nil {
		return 0, 0, false, err
	}
	rng := rand.New(rand.NewPCG(v.x.Recipe.Train.Seed, 17))
	set := func(weights []float64) { setWeights(s, m, weights) }
	if off, limit, err = v.difference(ctx, w, m, set, host, is, rng); err != nil || off <= limit {
		return off, limit, false, err
	}
	for _, p := range m.Layout.Training() {
		part := host[m.Layout.At(p):][:p.Len()]
		size := extent(part)
		for i := range part {
			part[i] += 1e-3 * size * rng.NormFloat64()
		}
	}
	set(host)
	if is, err = v.step(ctx, w, m, nil, false); err != nil {
		return 0, 0, false, err
	}
	again, limit, err := v.difference(ctx, w, m, set, host, is, rng)
	if again <= limit {
		return again, limit, true, err
	}
	return off, limit, false, err
}

// extent is about how large a tensor's values are, as far as a change that is in proportion to them goes: some are all zero.
func extent(x []float64) float64 { return max(rms(x), 1e-3) }

// difference is derivative's comparison at these weights, which set gives the model.
func (v *verifier) difference(ctx context.Context, w way, m *transformer.Model, set func([]float64), host []float64, is stages.Captured, rng *rand.Rand) (off, limit float64, err error) {
	gradient := is.Gradient
	// Each tensor moves by about its own size, so that all of them count; along the gradient as well, so that the
	// derivative is not lost in the rounding of the loss.
	w.budget = 0 // nothing goes backward
	dir, want := make([]float64, len(host)), 0.0
	for _, p := range m.Layout.Training() {
		from, to := m.Layout.At(p), m.Layout.At(p)+p.Len()
		size, slope := extent(host[from:to]), rms(gradient[from:to])
		for i := from; i < to; i++ {
			dir[i] = rng.NormFloat64()
			if slope > 0 {
				dir[i] += gradient[i] / slope
			}
			dir[i] *= size
			want += dir[i] * gradient[i]
		}
	}
	moved := make([]float64, len(host))
	at := func(by float64) (float64, error) {
		for i := range moved {
			moved[i] = host[i] + by*dir[i]
		}
		set(moved)
		c, err := v.step(ctx, w, m, nil, true)
		return c.Loss, err
	}
	// Steps that change the loss by about so much, or where it is small by so much of it: a model that tells its rows apart has next to none left, and
	// a step by which it would is one to elsewhere. A wrong gradient agrees with none, a right one with some: larger steps curve, smaller ones drown in
	// rounding. Of two steps the curve is known, and with it where a step of 0 would come to (Richardson, 1911).
	best, of := math.Inf(1), math.Abs(want)
	if largest(gradient) <= noGradient {
		want, of = 0, 1
	}
	type quotient struct{ h, slope float64 }
	var before []quotient
	length := func(change float64) float64 {
		h := change / of
		if want != 0 && is.Loss != 0 {
			h *= min(1, math.Abs(is.Loss))
		}
		return h
	}
	changes, limit := []float64{1e-5, 1e-4, 1e-6, 1e-7, 1e-8}, derivativeLimit
	if v.x.own.loss != nil {
		coarse, err := isCoarse(at, length(1e-9))
		if err != nil {
			return 0, 0, err
		}
		if coarse {
			changes, limit = []float64{1e-2, 3e-3, 1e-3, 3e-2, 3e-4, 1e-4}, ownLimit
		}
	}
	for _, change := range changes {
		h := length(change)
		up, err := at(h)
		if err != nil {
			return 0, 0, err
		}
		down, err := at(-h)
		if err != nil {
			return 0, 0, err
		}
		slope := (up - down) / (2 * h)
		best = min(best, math.Abs(slope-want)/of)
		for _, q := range before {
			r := (q.h / h) * (q.h / h)
			best = min(best, math.Abs(slope+(slope-q.slope)/(r-1)-want)/of)
		}
		if best < limit/10 {
			break
		}
		before = append(before, quotient{h, slope})
	}
	return best, limit, nil
}

// isCoarse tells whether a loss rounds to more than f64 does: its values at two such small steps, either way, are then not on one line with that
// at none, or all the same.
func isCoarse(at func(by float64) (float64, error), h float64) (bool, error) {
	var values [3]float64
	for i := range values {
		var err error
		if values[i], err = at(float64(i-1) * h); err != nil {
			return false, err
		}
	}
	down, up := values[1]-values[0], values[2]-values[1]
	return !(math.Abs(up-down) <= 0.05*max(math.Abs(up), math.Abs(down))) || up == 0, nil
}

// derivativeLimit is how much a difference quotient in f64 may differ from the gradient, ownLimit one of a loss of one's own that computes in f32: its eps is 1e-7,
// of which a loss of cosines times 20 makes some 1e-6, and steps that change it by 1e-2 and more curve.
const (
	derivativeLimit = 1e-6
	ownLimit        = 1e-3
)
