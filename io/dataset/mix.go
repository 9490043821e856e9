package dataset

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Mixing says how the batches of several datasets take turns. Each batch has the rows of one dataset (batch.one_dataset).
type Mixing struct {
	Kind        MixKind
	Weights     []float64 // Weighted: of each dataset
	Temperature float64   // Tempered: more than 0
}

// MixKind is a way of mixing.
type MixKind uint8

const (
	// Proportional: an epoch has every batch of every dataset once, in random order. Its length is the sum of theirs.
	Proportional MixKind = iota
	// RoundRobin: one batch of each in turn, until one dataset has no more. The length is the number of datasets times the
	// shortest one's; what is left of the others is dropped and counted.
	RoundRobin
	// Weighted: an epoch is as long as with Proportional, and each dataset has its weight's share of it, to the nearest batch, in
	// random order. A dataset goes on in the next epoch where it was, and begins its next pass when it has no more.
	Weighted
	// Tempered: Weighted by rows^(1/temperature): 1 is proportional to the rows, larger ones favour small datasets.
	Tempered
)

// String is the recipe's word.
func (k MixKind) String() string {
	return [...]string{"proportional", "round_robin", "weighted", "tempered"}[k]
}

func (m Mixing) String() string {
	switch m.Kind {
	case Weighted:
		return fmt.Sprint(m.Kind, " ", m.Weights)
	case Tempered:
		return fmt.Sprint(m.Kind, " ", m.Temperature)
	}
	return m.Kind.String()
}

// Mixer yields the batches of all epochs of one or more datasets, as [Sampler] does of one: a function of the data, the seed and
// the configuration alone. With one dataset it yields what its Sampler does. Not for concurrent use.
type Mixer struct {
	parts []*Sampler
	cfg   SamplerConfig
	mix   Mixing

	epoch int
	index int
	order []uint32 // the dataset of each of the epoch's batches
}

// Part is what a mixer needs to know of a dataset.
type Part struct {
	Layout  Layout
	Texts   TextHashes  // for NoDuplicates; may be nil otherwise
	Lengths TextLengths // makes batches of rows of similar length; may be nil
	Skip    []int64     // rows that are left out, ascending
}

// A PartError says which of a mixer's parts an error is of.
type PartError struct {
	Part int // from 0, as NewMixer has them
	Err  error
}

func (e *PartError) Error() string { return fmt.Sprintf("dataset %d: %v", e.Part, e.Err) }
func (e *PartError) Unwrap() error { return e.Err }

// A WeightError says with which of a mixer's parts its weights are none to divide batches by.
type WeightError struct {
	Part    int // from 0, as NewMixer has them
	Weights []float64
	Parts   int
}

func (e *WeightError) Error() string {
	want := "want a positive number for each"
	if len(e.Weights) != e.Parts {
		return fmt.Sprintf("the weights of %d datasets are %v: %s", e.Parts, e.Weights, want)
	}
	if w := e.Weights[e.Part]; w > 0 && !math.IsInf(w, 0) {
		want = "want a sum that is finite"
	}
	return fmt.Sprintf("the weights of %d datasets are %v: %s (number %d)", e.Parts, e.Weights, want, e.Part)
}

// NewMixer starts at the first batch of the first epoch. The configuration's own Lengths and Skip are not used: each part has its. Of several parts,
// errors that are one's are a PartError.
func NewMixer(parts []Part, cfg SamplerConfig, mix Mixing) (*Mixer, error) {
	if len(parts) == 0 {
		return nil, errors.New("a mixer of no datasets")
	}
	m := &Mixer{cfg: cfg, mix: mix}
	for i, p := range parts {
		c := cfg
		c.Seed, c.Lengths, c.Skip = m.Seed(i), p.Lengths, p.Skip
		if m.continues() {
			c.Epochs = math.MaxInt
		}
		s, err := NewSampler(p.Layout, p.Texts, c)
		if err != nil && len(parts) > 1 {
			err = &PartError{i, err}
		}
		if err != nil {
			return nil, err
		}
		m.parts = append(m.parts, s)
	}
	if m.continues() {
		w, sum := m.weights(), 0.0
		if len(w) != len(m.parts) {
			return nil, &WeightError{0, w, len(m.parts)}
		}
		for i, x := range w {
			if sum += x; !(x > 0) || math.IsInf(sum, 0) {
				return nil, &WeightError{i, w, len(m.parts)}
			}
		}
	}
	m.startEpoch(0)
	return m, nil
}

// Epochs is how many there are.
func (m *Mixer) Epochs() int { return m.cfg.Epochs }

// Window is that of the shuffle, by which readers know how much to keep.
func (m *Mixer) Window() Window { return m.cfg.Window }

// Seed is what a dataset's order and the choices from its lists are keyed by.
func (m *Mixer) Seed(source int) uint64 {
	if source == 0 {
		return m.cfg.Seed
	}
	return uint64(keyed(m.cfg.Seed, forParts, uint64(source)))
}

// continues tells whether datasets go on from epoch to epoch, each at its own pace.
func (m *Mixer) continues() bool { return m.mix.Kind == Weighted || m.mix.Kind == Tempered }

func (m *Mixer) weights() []float64 {
	if m.mix.Kind == Weighted {
		return m.mix.Weights
	}
	w := make([]float64, len(m.parts))
	for i, p := range m.parts {
		w[i] = math.Pow(float64(p.layout.total()), 1/m.mix.Temperature)
	}
	return w
}

// shares is how many of an epoch's batches each dataset has.
func (m *Mixer) shares(epoch int) []int64 {
	out := make([]int64, len(m.parts))
	total := int64(0)
	for i, p := range m.parts {
		e := epoch
		if m.continues() {
			e = 0
		}
		out[i] = p.Len(e)
		total += out[i]
	}
	switch {
	case m.mix.Kind == RoundRobin:
		least := slices.Min(out)
		for i := range out {
			out[i] = least
		}
	case m.continues(): // to the nearest batch: the largest remainders are rounded up
		sum := 0.0
		for _, w := range m.weights() {
			sum += w
		}
		type rest struct {
			part int
			left float64
		}
		var rests []rest
		given := int64(0)
		for i, w := range m.weights() {
			exact := float64(total) * w / sum
			out[i] = int64(exact)
			given += out[i]
			rests = append(rests, rest{i, exact - float64(out[i])})
		}
		slices.SortStableFunc(rests, func(a, b rest) int { return cmp.Compare(b.left, a.left) })
		for _, r := range rests[:total-given] {
			out[r.part]++
		}
	}
	return out
}

// Shares is how many of an epoch's batches each dataset has.
func (m *Mixer) Shares(epoch int) []int64 { return m.shares(epoch) }

// startEpoch sets the order of the datasets.
func (m *Mixer) startEpoch(epoch int) {
	m.epoch, m.index, m.order = epoch, 0, m.order[:0]
	if epoch >= m.cfg.Epochs {
		return
	}
	shares := m.shares(epoch)
	if m.mix.Kind == RoundRobin {
		for range shares[0] {
			for i := range m.parts {
				m.order = append(m.order, uint32(i))
			}
		}
		return
	}
	for i, n := range shares {
		for range n {
			m.order = append(m.order, uint32(i))
		}
	}
	if len(m.parts) > 1 {
		s := keyed(m.cfg.Seed, forMixture, uint64(epoch))
		for i := len(m.order) - 1; i > 0; i-- {
			j := s.below(uint64(i + 1))
			m.order[i], m.order[j] = m.order[j], m.order[i]
		}
	}
}

// Next returns the next batch, and false after the last epoch's last.
func (m *Mixer) Next() (Batch, bool) {
	for m.epoch < m.cfg.Epochs {
		if m.index < len(m.order) {
			source := int(m.order[m.index])
			b, ok := m.parts[source].Next()
			if !ok { // its length has promised one
				return Batch{}, false
			}
			b.Source, b.Epoch, b.Index = source, m.epoch, m.index
			m.index++
			return b, true
		}
		if !m.continues() {
			for _, p := range m.parts {
				p.leave()
			}
		}
		m.startEpoch(m.epoch + 1)
	}
	return Batch{}, false
}

// Len returns the number of batches of an epoch, exactly: see [MixKind] and [Sampler.Len].
func (m *Mixer) Len(epoch int) int64 {
	if epoch < 0 || epoch >= m.cfg.Epochs {
		return 0
	}
	n := int64(0)
	for _, k := range m.shares(epoch) {
		n += k
	}
	return n
}

// Restart is a mixer of the same sequence at its beginning.
func (m *Mixer) Restart() *Mixer {
	r := &Mixer{cfg: m.cfg, mix: m.mix}
	for _, p := range m.parts {
		r.parts = append(r.parts, p.Restart())
	}
	r.startEpoch(0)
	return r
}

// Stats returns what was deferred and dropped so far, of all datasets.
func (m *Mixer) Stats() Stats {
	var s Stats
	for _, p := range m.parts {
		s.Deferred += p.stats.Deferred
		s.Dropped += p.stats.Dropped
	}
	return s
}

// Cursor returns the place before the batch that Next would return, as [Sampler.Cursor] does.
func (m *Mixer) Cursor() Cursor {
	if len(m.parts) == 1 && !m.continues() {
		return m.parts[0].Cursor()
	}
	c := Cursor{Epoch: m.epoch, Batch: m.index, Mixing: m.mix.String(), Stats: m.Stats()}
	for _, p := range m.parts {
		c.Parts = append(c.Parts, p.Cursor())
	}
	return c
}

// Restore goes to a cursor's place, as [Sampler.Restore] does.
func (m *Mixer) Restore(c Cursor) error {
	if len(m.parts) == 1 && !m.continues() {
		if len(c.Parts) > 1 {
			return fail(ErrCursor, "the order of the data can't be continued: there were %d datasets and there is one now", len(c.Parts))
		}
		if c.Mixing != "" {
			return fail(ErrCursor, "the order of the data can't be continued: data.mixing was %s and is %s now", c.Mixing, m.mix)
		}
		if err := m.parts[0].Restore(c); err != nil {
			return err
		}
		m.startEpoch(c.Epoch)
		if c.Batch > len(m.order) && c.Epoch < m.cfg.Epochs {
			return m.damaged(c)
		}
		m.index = c.Batch
		return nil
	}
	if was := max(1, len(c.Parts)); was != len(m.parts) {
		return fail(ErrCursor, "the order of the data can't be continued: the number of datasets was %d and is %d now", was, len(m.parts))
	}
	if c.Mixing != m.mix.String() {
		return fail(ErrCursor, "the order of the data can't be continued: data.mixing was %s and is %s now", cmp.Or(c.Mixing, Proportional.String()), m.mix)
	}
	if len(c.Parts) != len(m.parts) {
		return fail(ErrCursor, "the cursor (epoch %d, batch %d) is damaged: it has no dataset's place", c.Epoch, c.Batch)
	}
	for i, p := range m.parts {
		if err := p.Restore(c.Parts[i]); err != nil {
			return &PartError{i, err}
		}
	}
	m.startEpoch(c.Epoch)
	if c.Epoch < 0 || c.Batch < 0 || c.Batch > len(m.order) {
		return m.damaged(c)
	}
	m.index = c.Batch
	return nil
}

// damaged is the error of a cursor to a batch that its epoch, which has been started, does not have.
func (m *Mixer) damaged(c Cursor) error {
	return fail(ErrCursor, "the cursor (epoch %d, batch %d) is damaged: the epoch has %d batches", c.Epoch, c.Batch, len(m.order))
}

// RestoreSkipping is Restore to a place that was come to while a row that can't be used was an error: before it there was none, so that a mixer
// that skips such rows has come to it by the same batches. Where it has not, since an epoch has other numbers of batches of its datasets without
// those rows, or since the data has changed, that is an error.
func (m *Mixer) RestoreSkipping(c Cursor) error {
	all := &Mixer{cfg: m.cfg, mix: m.mix}
	for _, p := range m.parts {
		f := p.Restart()
		f.cfg.Skip = nil
		all.parts = append(all.parts, f)
	}
	if err := all.Restore(c); err != nil {
		return err
	}
	if was, here := all.shares(c.Epoch), m.shares(c.Epoch); len(m.parts) > 1 && !slices.Equal(was, here) {
		return fail(ErrCursor, "the order of the data can't be continued: the batches of an epoch, by dataset, were %v and are %v without the rows that can't be used", was, here)
	}
	c.Parts = slices.Clone(c.Parts)
	for i, p := range m.parts {
		if row, ok := all.parts[i].taken(p.cfg.Skip); ok {
			return fail(ErrCursor, "the order of the data can't be continued: row %d can't be used, and has been: the data has changed", row)
		}
		if p.texts != nil || p.cfg.Lengths != nil {
			continue // all rows were looked at before the first batch
		}
		if len(c.Parts) > 0 {
			c.Parts[i].Skipped = len(p.cfg.Skip)
		} else {
			c.Skipped = len(p.cfg.Skip)
		}
	}
	return m.Restore(c)
}
