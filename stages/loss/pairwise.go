package loss

import (
	"cmp"
	"fmt"
	"math"

	"contraflow/gpustage"
)

// The losses of this file compare each query with its own documents alone. Their names, defaults and means are those of
// sentence-transformers' losses; where rows have several negatives, or different numbers of them, a row's loss is the mean over them.

// CosineSimilarity is the squared difference of a pair's cosine and its label.
type CosineSimilarity struct{ meanOverRows }

// CheckLabel finds a label that no cosine can have. Compute takes it nevertheless, as the peer does; dataset.Source.CheckLabel refuses it.
func (CosineSimilarity) CheckLabel(y float64) error {
	if !(y >= -1 && y <= 1) {
		return fmt.Errorf("cosine_similarity takes cosines, from -1 to 1: scores from 0 to 5 want to be divided by 5, and cosent takes any")
	}
	return nil
}

func (CosineSimilarity) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	if err := b.need(needs{labels: true, pairs: true}); err != nil {
		return Result{}, err
	}
	return computeRows(s, a, b, Cosine, 0, func(g *groups) func(int, []int32) float64 {
		return func(row int, own []int32) float64 {
			d := g.values[own[0]] - b.Labels[row]
			g.coef[own[0]] = 2 * d
			return d * d
		}
	})
}

func (CosineSimilarity) Memory(z Size) int { return rowsMemory(z, Cosine) }

// Contrastive pulls pairs of label 1 together and pushes those of label 0 apart, up to a margin (Hadsell, Chopra and LeCun, 2006). With
// the distance d and the label y,
//
//	l = (y d^2 + (1-y) max(0, Margin-d)^2) / 2
//
// Online takes the hard pairs of the batch alone, and sums instead: negatives nearer than the farthest positive, and positives farther
// than the nearest negative (or than the pairs' mean, if all labels are the same). The loss of the batch is
//
//	sum over positives d^2 + sum over negatives max(0, Margin-d)^2
type Contrastive struct {
	meanOverRows
	Metric Metric  // Cosine (the distance is 1 - cosine) if empty; Euclidean, Manhattan
	Margin float64 // 0.5 if 0
	Online bool
}

// Check finds settings that make no sense.
func (l Contrastive) Check() error {
	if err := checkMetric(l.Metric, Cosine, Euclidean, Manhattan); err != nil {
		return fmt.Errorf("distance %w", err)
	}
	return checkNotNegative("margin", l.Margin)
}

func (l Contrastive) metric() Metric { return cmp.Or(l.Metric, Cosine) }

func (l Contrastive) margin() float64 { return cmp.Or(l.Margin, 0.5) }

func (l Contrastive) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	if err := l.Check(); err != nil {
		return Result{}, err
	}
	if err := b.need(needs{labels: true, pairs: true, unweighted: l.Online}); err != nil {
		return Result{}, err
	}
	m := l.metric()
	eps := 1e-6 // PyTorch's pairwise_distance
	if m == Cosine {
		eps = 0
	}
	if l.Online {
		return l.online(s, a, b, eps)
	}
	return computeRows(s, a, b, m, eps, func(g *groups) func(int, []int32) float64 {
		return func(row int, own []int32) float64 {
			k, y := own[0], b.Labels[row]
			d, sign := distance(m, g.values[k])
			short := max(0, l.margin()-d)
			g.coef[k] = sign * (y*d - (1-y)*short)
			return (y*d*d + (1-y)*short*short) / 2
		}
	})
}

// CheckLabel finds a label that is no degree of likeness: by others a term would have no least value, or be one to get away from. Compute takes
// them nevertheless, as the peer does, unless Online; dataset.Source.CheckLabel refuses them.
func (l Contrastive) CheckLabel(y float64) error {
	switch {
	case l.Online && y != 0 && y != 1: // the peer warns, and leaves such pairs out
		return fmt.Errorf("online contrastive takes 1 (alike) and 0 (not alike); contrastive takes what is between")
	case !(y >= 0 && y <= 1):
		return fmt.Errorf("contrastive takes 1 (alike), 0 (not alike) and what is between; cosent and cosine_similarity are for scores")
	}
	return nil
}

// distance makes a distance of a metric's value, with its derivative.
func distance(m Metric, v float64) (d, sign float64) {
	if m == Cosine {
		return 1 - v, -1
	}
	return v, 1
}

// online needs the distances of all rows to know which are hard.
func (l Contrastive) online(s gpustage.Stream, a *gpustage.Arena, b *Batch, eps float64) (Result, error) {
	mark := a.Mark()
	defer a.Release(mark)
	m := l.metric()
	g := groupsOf(s, a, b, m, 0, b.Rows)
	g.eps = eps
	if err := g.compare(); err != nil {
		return Result{}, err
	}
	// Of labels 0 and 1: the nearest, the farthest, the mean.
	nearest, farthest, sum, count := [2]float64{math.Inf(1), math.Inf(1)}, [2]float64{math.Inf(-1), math.Inf(-1)}, [2]float64{}, [2]float64{}
	for i, y := range b.Labels {
		if err := l.CheckLabel(y); err != nil {
			return Result{}, &LabelError{i, fmt.Sprintf("the label is %v: %v", y, err)}
		}
		d, _ := distance(m, g.values[i])
		c := int(y)
		nearest[c], farthest[c], sum[c], count[c] = min(nearest[c], d), max(farthest[c], d), sum[c]+d, count[c]+1
	}
	below, above := farthest[1], nearest[0]
	if count[1] == 0 {
		below = sum[0] / count[0]
	}
	if count[0] == 0 {
		above = sum[1] / count[1]
	}
	n := float64(b.Rows) // the sum is the batch's loss: each row's share of a mean is n times its term
	r, err := g.rows(func(i int, own []int32) float64 {
		d, sign := distance(m, g.values[i])
		switch y := b.Labels[i]; {
		case y == 1 && d > above:
			g.coef[i] = sign * 2 * d * n
			return n * d * d
		case y == 0 && d < below:
			short := max(0, l.margin()-d)
			g.coef[i] = -sign * 2 * short * n
			return n * short * short
		}
		return 0
	})
	if err != nil {
		return r, err
	}
	g.backward()
	g.v.finish(s, b)
	return r, nil
}

func (l Contrastive) Memory(z Size) int { return rowsMemory(z, l.metric()) }

// Triplet wants each negative farther from the query than the positive is, by a margin (FaceNet, arXiv 1503.03832):
// l = max(0, d(q, p) - d(q, n) + Margin).
type Triplet struct {
	meanOverRows
	Metric Metric  // Euclidean if empty; Cosine (the distance is 1 - cosine), Manhattan
	Margin float64 // 5 if 0
}

// CheckNegatives refuses a row without negatives, of which there is no mean. Compute takes it, with a loss of 0; dataset.Source.CheckNegatives refuses it.
func (Triplet) CheckNegatives(n int) error { return checkNegatives("triplet", n) }

// Check finds settings that make no sense.
func (l Triplet) Check() error {
	if err := checkMetric(l.Metric, Cosine, Euclidean, Manhattan); err != nil {
		return fmt.Errorf("distance %w", err)
	}
	return checkNotNegative("margin", l.Margin)
}

func (l Triplet) metric() Metric { return cmp.Or(l.Metric, Euclidean) }

func (l Triplet) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	if err := l.Check(); err != nil {
		return Result{}, err
	}
	if err := b.need(needs{negatives: true}); err != nil {
		return Result{}, err
	}
	m, margin := l.metric(), cmp.Or(l.Margin, 5)
	return computeRows(s, a, b, m, 0, func(g *groups) func(int, []int32) float64 {
		return func(row int, own []int32) (sum float64) {
			positive, sign := distance(m, g.values[own[0]])
			share := 1 / float64(len(own)-1)
			for _, k := range own[1:] {
				negative, _ := distance(m, g.values[k])
				if t := positive - negative + margin; t > 0 {
					sum += share * t
					g.coef[own[0]] += sign * share
					g.coef[k] = -sign * share
				}
			}
			return sum
		}
	})
}

func (l Triplet) Memory(z Size) int { return rowsMemory(z, l.metric()) }

// MarginMSE wants the difference between the scores of positive and negative to be a teacher's (Hofstätter et al., arXiv
// 2010.02666): l = (s(q, p) - s(q, n) - margin)^2, with the margin from the teacher's scores, or given as the row's label.
type MarginMSE struct {
	meanOverRows
	Metric Metric // Dot if empty; Cosine, MaxSim, MeanMaxSim
}

// CheckNegatives is Triplet's.
func (MarginMSE) CheckNegatives(n int) error { return checkNegatives("margin_mse", n) }

// Check finds settings that make no sense.
func (l MarginMSE) Check() error {
	if err := checkMetric(l.Metric, Cosine, Dot, MaxSim, MeanMaxSim); err != nil {
		return fmt.Errorf("similarity %w", err)
	}
	return nil
}

func (l MarginMSE) metric() Metric { return cmp.Or(l.Metric, Dot) }

func (l MarginMSE) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	if err := l.Check(); err != nil {
		return Result{}, err
	}
	if err := b.need(needs{tokens: l.Metric.ofTokens(), negatives: true, scores: b.Labels == nil}); err != nil {
		return Result{}, err
	}
	return computeRows(s, a, b, l.metric(), 0, func(g *groups) func(int, []int32) float64 {
		return func(row int, own []int32) (sum float64) {
			share := 1 / float64(len(own)-1)
			for _, k := range own[1:] {
				want := 0.0
				if b.Scores != nil {
					want = g.score(own[0]) - g.score(k)
				} else {
					want = b.Labels[row]
				}
				d := g.values[own[0]] - g.values[k] - want
				sum += share * d * d
				g.coef[own[0]] += 2 * share * d
				g.coef[k] = -2 * share * d
			}
			return sum
		}
	})
}

func (l MarginMSE) Memory(z Size) int { return rowsMemory(z, l.metric()) }

// CrossEntropy is InfoNCE without the texts of other rows: with s = Scale * similarity,
//
//	l = log sum over the row's own documents of exp s(query, document) - s(query, positive)
//
// FlagEmbedding takes it of datasets whose files' names end in no_in_batch_neg, such as those of classes, where another row's documents may be right as well.
type CrossEntropy struct {
	meanOverRows
	Scale  float64 // 20 if 0; 1/temperature
	Metric Metric  // Cosine if empty; Dot
}

// CheckNegatives is DistillKL's.
func (CrossEntropy) CheckNegatives(n int) error { return checkNegatives("cross_entropy", n) }

// Check finds settings that make no sense.
func (l CrossEntropy) Check() error {
	if err := checkPositive("scale", l.Scale); err != nil {
		return err
	}
	if err := checkMetric(l.Metric, Cosine, Dot); err != nil {
		return fmt.Errorf("similarity %w", err)
	}
	return nil
}

func (l CrossEntropy) metric() Metric { return cmp.Or(l.Metric, Cosine) }

func (l CrossEntropy) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	if err := l.Check(); err != nil {
		return Result{}, err
	}
	if err := b.need(needs{negatives: true}); err != nil {
		return Result{}, err
	}
	scale := cmp.Or(l.Scale, 20)
	return computeRows(s, a, b, l.metric(), 0, func(g *groups) func(int, []int32) float64 {
		var q []float64
		return func(_ int, own []int32) float64 {
			q = q[:0]
			for _, k := range own {
				q = append(q, scale*g.values[k])
			}
			logSoftmax(q)
			for i, k := range own {
				g.coef[k] = scale * math.Exp(q[i])
			}
			g.coef[own[0]] -= scale
			return -q[0]
		}
	})
}

func (l CrossEntropy) Memory(z Size) int { return rowsMemory(z, l.metric()) }

// DistillKL wants the distribution over a row's own documents to be a teacher's: with p = softmax(scores / TeacherTemperature) and
// q = softmax(s(query, documents) / StudentTemperature),
//
//	l = StudentTemperature^2 * sum p (log p - log q)
//
// as sentence-transformers' DistillKLDivLoss. FlagEmbedding's kl_div is its gradient for temperature 1 of the teacher, without the factor.
// The group is the row's, so replicas change nothing about its weight.
type DistillKL struct {
	meanOverRows
	Metric             Metric  // Dot if empty; Cosine, MaxSim, MeanMaxSim
	Temperature        float64 // of both; 1 if 0
	StudentTemperature float64 // Temperature if 0
	TeacherTemperature float64 // Temperature if 0
}

// CheckNegatives refuses a row without negatives: a distribution over one document is the teacher's whatever its score is. As for Triplet, Compute takes it.
func (DistillKL) CheckNegatives(n int) error { return checkNegatives("distill_kl", n) }

// Check finds settings that make no sense.
func (l DistillKL) Check() error {
	if err := checkMetric(l.Metric, Cosine, Dot, MaxSim, MeanMaxSim); err != nil {
		return fmt.Errorf("similarity %w", err)
	}
	for _, t := range []float64{l.Temperature, l.StudentTemperature, l.TeacherTemperature} {
		if err := checkPositive("temperature", t); err != nil {
			return err
		}
	}
	return nil
}

func (l DistillKL) metric() Metric { return cmp.Or(l.Metric, Dot) }

func (l DistillKL) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	if err := l.Check(); err != nil {
		return Result{}, err
	}
	if err := b.need(needs{tokens: l.Metric.ofTokens(), negatives: true, scores: true}); err != nil {
		return Result{}, err
	}
	both := cmp.Or(l.Temperature, 1)
	student, teacher := cmp.Or(l.StudentTemperature, both), cmp.Or(l.TeacherTemperature, both)
	return computeRows(s, a, b, l.metric(), 0, func(g *groups) func(int, []int32) float64 {
		var p, q []float64
		return func(row int, own []int32) (sum float64) {
			p, q = p[:0], q[:0]
			for _, k := range own {
				p, q = append(p, g.score(k)/teacher), append(q, g.values[k]/student)
			}
			logSoftmax(p)
			logSoftmax(q)
			for i, k := range own {
				w := math.Exp(p[i])
				sum += student * student * w * (p[i] - q[i])
				g.coef[k] = student * (math.Exp(q[i]) - w)
			}
			return sum
		}
	})
}

func (l DistillKL) Memory(z Size) int { return rowsMemory(z, l.metric()) }

func logSoftmax(x []float64) {
	lse := logSumExp(x)
	for i := range x {
		x[i] -= lse
	}
}

// CoSENT wants pairs in the order of their labels (Su, 2022): with s = Scale * similarity,
//
//	loss = log(1 + sum over pairs i, j of rows with label i < label j of exp(s_i - s_j))
//
// It is a loss of the batch as a whole. With Angle it is AnglE (arXiv 2309.12871). A row's negatives make pairs of label 1 - label, or 0,
// with a positive of 1, if there are no labels.
//
// The sum has B^2 terms but takes B log B steps: rows are sorted by label, and a running log-sum-exp of those with smaller labels and one of those with larger ones
// give every row's terms.
type CoSENT struct {
	meanOverRows
	Scale  float64 // 20 if 0
	Metric Metric  // Cosine if empty; Dot, Angle
}

// Check finds settings that make no sense.
func (l CoSENT) Check() error {
	if err := checkMetric(l.Metric, Cosine, Dot, Angle); err != nil {
		return fmt.Errorf("similarity %w", err)
	}
	return checkPositive("scale", l.Scale)
}

func (l CoSENT) metric() Metric { return cmp.Or(l.Metric, Cosine) }

func (l CoSENT) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	if err := l.Check(); err != nil {
		return Result{}, err
	}
	if err := b.need(needs{labels: true, orNegatives: true, unweighted: true}); err != nil {
		return Result{}, err
	}
	mark := a.Mark()
	defer a.Release(mark)
	g := groupsOf(s, a, b, l.metric(), 0, b.Rows)
	if err := g.compare(); err != nil {
		return Result{}, err
	}
	scale := cmp.Or(l.Scale, 20)
	scores, labels := make([]float64, len(g.values)), make([]float64, len(g.values))
	for k, v := range g.values {
		row := g.row[k]
		if !finite(v) {
			return Result{}, &RowError{int(row), v}
		}
		scores[k], labels[k] = scale*v, 1
		if b.Labels != nil {
			labels[k] = b.Labels[row]
		}
		if k >= b.Rows {
			labels[k] = 1 - labels[k]
		}
	}
	value := cosent(scores, labels, g.coef)
	lo, hi := b.Own()
	r := Result{Sum: value * float64(hi-lo), Weight: float64(hi - lo)}
	for k := range g.coef {
		if row := int(g.row[k]); row >= lo && row < hi {
			g.coef[k] *= scale * float64(b.Rows) // the mean over rows, each of which has the batch's loss
		} else {
			g.coef[k] = 0
		}
	}
	g.backward()
	g.v.finish(s, b)
	return r, nil
}

// cosent returns the loss of scores with labels and writes its derivatives.
func cosent(scores, labels, ds []float64) float64 {
	n := len(scores)
	order := ordered(n, func(i, j int) bool { return labels[i] < labels[j] })
	lower, higher := make([]float64, n), make([]float64, n) // of each: log-sum-exp of s of smaller labels, of -s of larger ones
	run := func(from, to, step int, sign float64, out []float64) {
		sum := math.Inf(-1)
		for i := from; i != to; {
			j := i // one label
			for ; j != to && labels[order[j]] == labels[order[i]]; j += step {
				out[order[j]] = sum
			}
			for ; i != j; i += step {
				sum = logAdd(sum, sign*scores[order[i]])
			}
		}
	}
	run(0, n, 1, 1, lower)
	run(n-1, -1, -1, -1, higher)
	total := 0.0 // exp(0) = 1
	for _, k := range order {
		total = logAdd(total, scores[k]+higher[k])
	}
	for k := range ds {
		ds[k] = math.Exp(scores[k]+higher[k]-total) - math.Exp(lower[k]-scores[k]-total)
	}
	return total
}

// logAdd is log(exp(a) + exp(b)).
func logAdd(a, b float64) float64 {
	if a < b {
		a, b = b, a
	}
	if math.IsInf(b, -1) {
		return a
	}
	return a + math.Log1p(math.Exp(b-a))
}

func (l CoSENT) Memory(z Size) int { return rowsMemory(z, l.metric()) }

func checkNotNegative(what string, v float64) error {
	if v < 0 || !finite(v) {
		return fmt.Errorf("%s is %v, want 0 or more", what, v)
	}
	return nil
}

// checkPositive takes 0 for a setting that is left out.
func checkPositive(what string, v float64) error {
	if v < 0 || !finite(v) {
		return fmt.Errorf("%s is %v, want a positive number", what, v)
	}
	return nil
}

func joinNames[T ~string](names []T) string {
	out := ""
	for i, n := range names {
		if i > 0 {
			out += ", "
		}
		out += string(n)
	}
	return out
}
