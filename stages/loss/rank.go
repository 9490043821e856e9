package loss

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	"contraflow/gpustage"
)

// Groups are the objectives of rerankers: of the scores of a row's documents, which are a group, and of nothing else. A batch holds
// scores [N, 1] for embeddings; those of its rows, the first B, are not used. Groups may be of any sizes.
//
// A layer-wise reranker's scores are [N, Layers]. Its loss is the sum over layers of the loss of each one's scores, and with SelfDistill, for each
// layer but the last, of -sum q log softmax(s) besides, where q, the softmax of the last layer's scores, has no gradient (FlagEmbedding's
// layer-wise rerankers).
//
// What is relevant the data says: Scores, one for each document, or Labels of rows that have one document each, or with margin_mse, without Scores, Labels that
// are l_0 - l_j for all j of a row; or else the first document of a group is, with label 1, and the others are not. l is a document's label, s its score, p = softmax(s):
//
//	cross_entropy  -log p of the first document (FlagEmbedding's rerankers)
//	mnrl           cross_entropy of Scale times Activation of s, where documents of other rows are in the group (sentence-transformers')
//	kl             -sum q log p, q = softmax(l): what a teacher's scores l teach, up to a constant
//	distill        both (FlagEmbedding's knowledge distillation)
//	list_net       kl by its other name: labels in the teacher's place (Cao et al., ICML 2007)
//	list_mle       -sum over i of log softmax(s_i, s_i+1, ...)_i, documents in their order, or with ByLabel by label (Xia et al., ICML 2008)
//	p_list_mle     list_mle with weights 2^(n-i) - 1 that sum to 1 (Lan et al., UAI 2014)
//	bce            mean of -l log sigmoid(s) - (1-l) log sigmoid(-s), the first times PosWeight
//	mse            mean of (s - l)^2
//	margin_mse     mean over the others of ((s_0 - s_j) - (l_0 - l_j))^2 (Hofstätter et al., arXiv 2010.02666)
//	adr_mse        mean over the documents of (r - a)^2 / log2(1 + r), r the rank by label, of equal ones the mean of theirs, and a the approximate
//	               one by score, 1 + sum over the others of sigmoid(Alpha (s_j - s_i)) (Rank-DistiLLM: Schlatt et al., arXiv 2405.07920)
//	rank_net       mean over pairs l_i > l_j of -log2 sigmoid(Sigma (s_i - s_j)) (Burges et al., ICML 2005)
//	lambda         likewise, weighted by what a swap would change of nDCG (Wang et al., CIKM 2018); see Scheme
//
// With Activation sigmoid, s is a score's sigmoid, in those of Activating. sentence-transformers' losses of CrossEncoder have these names, and the values are theirs. A group counts as its row's weight says, but
// with rank_net and lambda as many times as it has pairs, and with adr_mse as it has documents: they are means over a batch's pairs, and documents.
type Groups struct {
	Name      GroupLoss
	Scheme    Scheme  // lambda: NDCGLoss2PP if empty
	K         int     // rank_net, lambda: pairs with a document among the first K by score; 0: all
	Sigma     float64 // 0: 1
	Alpha     float64 // adr_mse; 0: 1
	Mu        float64 // of ndcg_loss2pp; 0: 10
	PosWeight float64 // bce; 0: 1
	ByLabel   bool    // list_mle, p_list_mle

	Scale      float64    // mnrl; 0: 10
	Activation Activation // what becomes of scores first; empty: Sigmoid for mnrl, Identity for others

	// SelfDistill has a layer-wise reranker's last layer teach those below: with cross_entropy, kl, distill and list_net, which are of softmax(s) too.
	SelfDistill bool
}

// GroupLoss is one of the objectives of Groups.
type GroupLoss string

const (
	GroupCrossEntropy GroupLoss = "cross_entropy"
	GroupMNRL         GroupLoss = "mnrl"
	GroupKL           GroupLoss = "kl"
	GroupDistill      GroupLoss = "distill"
	GroupListNet      GroupLoss = "list_net"
	GroupListMLE      GroupLoss = "list_mle"
	GroupPListMLE     GroupLoss = "p_list_mle"
	GroupBCE          GroupLoss = "bce"
	GroupMSE          GroupLoss = "mse"
	GroupMarginMSE    GroupLoss = "margin_mse"
	GroupADRMSE       GroupLoss = "adr_mse"
	GroupRankNet      GroupLoss = "rank_net"
	GroupLambda       GroupLoss = "lambda"
)

// Activation is what becomes of a model's scores before a loss sees them.
type Activation string

const (
	Sigmoid  Activation = "sigmoid"
	Identity Activation = "identity" // scores as they are
)

// Scheme is how lambda weights pairs, as sentence-transformers' classes of these names do.
type Scheme string

const (
	NDCGLoss2PP Scheme = "ndcg_loss2pp"
	NDCGLoss2   Scheme = "ndcg_loss2"
	NDCGLoss1   Scheme = "ndcg_loss1"
	LambdaRank  Scheme = "lambda_rank"
)

// GroupLosses, Schemes and Activations list them.
var (
	GroupLosses = []GroupLoss{GroupCrossEntropy, GroupMNRL, GroupKL, GroupDistill, GroupListNet, GroupListMLE, GroupPListMLE, GroupBCE, GroupMSE, GroupMarginMSE, GroupADRMSE, GroupRankNet, GroupLambda}
	// SelfDistilling are the losses that SelfDistill can be added to.
	SelfDistilling = []GroupLoss{GroupCrossEntropy, GroupKL, GroupDistill, GroupListNet}
	// Activating are those that have an Activation: sentence-transformers'.
	Activating  = []GroupLoss{GroupMNRL, GroupListNet, GroupListMLE, GroupPListMLE, GroupBCE, GroupMSE, GroupMarginMSE, GroupADRMSE, GroupRankNet, GroupLambda}
	Schemes     = []Scheme{NDCGLoss2PP, NDCGLoss2, NDCGLoss1, LambdaRank}
	Activations = []Activation{Sigmoid, Identity}
)

// CheckLayers finds settings that a model with so many scores for each document has no use for.
func (g Groups) CheckLayers(scores int) error {
	switch {
	case g.SelfDistill && scores < 2:
		return errors.New("self_distill is for a layer-wise reranker, whose last layer teaches those below: this model scores by one layer")
	case g.K > 0 && scores > 1:
		return fmt.Errorf("k is for a reranker with one score: %s is a mean over pairs, and which are among the first %d differs from layer to layer", g.Name, g.K)
	}
	return nil
}

// Check finds settings that make no sense.
func (g Groups) Check() error {
	switch {
	case !slices.Contains(GroupLosses, g.Name):
		return fmt.Errorf("there is no loss %q for rerankers: want %s", g.Name, joinNames(GroupLosses))
	case g.Scheme != "" && !slices.Contains(Schemes, g.Scheme):
		return fmt.Errorf("there is no weighting %q: want %s", g.Scheme, joinNames(Schemes))
	case g.Activation != "" && !slices.Contains(Activations, g.Activation):
		return fmt.Errorf("there is no activation %q: want %s", g.Activation, joinNames(Activations))
	case g.Activation == Sigmoid && !slices.Contains(Activating, g.Name):
		return fmt.Errorf("%s: activation is of %s", g.Name, joinNames(Activating))
	case g.Activation == Sigmoid && g.SelfDistill:
		return fmt.Errorf("%s: activation and self_distill don't go together: the last layer teaches what its scores are", g.Name)
	case g.K < 0:
		return fmt.Errorf("%s: k is %d, want 0 or more", g.Name, g.K)
	case g.SelfDistill && !slices.Contains(SelfDistilling, g.Name):
		return fmt.Errorf("%s: self_distill is of %s, which are of a softmax as what the last layer teaches is", g.Name, joinNames(SelfDistilling))
	case g.Mu != 0 && g.Scheme != "" && g.Scheme != NDCGLoss2PP:
		return fmt.Errorf("mu is of the weighting %s, and not of %s", NDCGLoss2PP, g.Scheme)
	}
	for _, o := range []struct {
		what string
		set  bool
		of   []GroupLoss
	}{
		{"weighting", g.Scheme != "", []GroupLoss{GroupLambda}}, {"mu", g.Mu != 0, []GroupLoss{GroupLambda}},
		{"k", g.K != 0, []GroupLoss{GroupRankNet, GroupLambda}}, {"sigma", g.Sigma != 0, []GroupLoss{GroupRankNet, GroupLambda}},
		{"alpha", g.Alpha != 0, []GroupLoss{GroupADRMSE}}, {"pos_weight", g.PosWeight != 0, []GroupLoss{GroupBCE}},
		{"by_label", g.ByLabel, []GroupLoss{GroupListMLE, GroupPListMLE}}, {"scale", g.Scale != 0, []GroupLoss{GroupMNRL}},
	} {
		if o.set && !slices.Contains(o.of, g.Name) {
			return fmt.Errorf("%s: %s is of %s, and does nothing here", g.Name, o.what, joinNames(o.of))
		}
	}
	for _, p := range []struct {
		what string
		of   float64
	}{{"scale", g.Scale}, {"sigma", g.Sigma}, {"alpha", g.Alpha}, {"mu", g.Mu}, {"pos_weight", g.PosWeight}} {
		if err := checkPositive(p.what, p.of); err != nil {
			return fmt.Errorf("%s: %w", g.Name, err)
		}
	}
	return nil
}

// Pairs tells that a loss is a mean over pairs of documents: of a step without any, there is nothing to learn, which is no error.
func (g Groups) Pairs() bool { return g.Name == GroupRankNet || g.Name == GroupLambda }

// SplitsRows tells that Groups is a RowSplitter: groups don't see each other.
func (Groups) SplitsRows() {}

// MeansRows tells that it is a mean over groups, and not over documents or pairs of them.
func (g Groups) MeansRows() bool { return !g.Pairs() && g.Name != GroupADRMSE }

// Memory is what the scores' gradient is added from.
func (Groups) Memory(z Size) int { return z.Sequences*z.Dim*z.DType.Size() + 64 }

// CheckLabel finds a label that the objective has no meaning for.
func (g Groups) CheckLabel(y float64) error {
	switch {
	case g.Name == GroupBCE && !(y >= 0 && y <= 1):
		return errors.New("bce takes labels from 0 to 1")
	case g.Name == GroupLambda && !(y <= mostGain):
		return fmt.Errorf("lambda takes degrees of relevance, whose gain is 2^label - 1: at most %d", mostGain)
	}
	return nil
}

// mostGain is the largest label whose gain, and the sum of any number of documents', is a number in float64.
const mostGain = 900

// CheckScore is CheckLabel of a document's score, which is its label.
func (g Groups) CheckScore(y float64) error { return g.CheckLabel(y) }

// CheckNegatives refuses a row of one document where the objective is a mean over the others. Compute takes it, with a loss of 0; dataset.Source.CheckNegatives refuses it.
func (g Groups) CheckNegatives(n int) error {
	if g.Name == GroupMarginMSE {
		return checkNegatives(string(g.Name), n)
	}
	return nil
}

// LabelError is about a row whose labels a loss can't take.
type LabelError struct {
	Row int // of the batch that Compute was given
	Why string
}

func (e *LabelError) Error() string { return fmt.Sprintf("row %d of the batch: %s", e.Row, e.Why) }

// Compute works on the host, in float64: a score is a number a document, beside which a model's pass over the document is long.
func (g Groups) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	if err := g.Check(); err != nil {
		return Result{}, err
	}
	if err := b.check(); err != nil {
		return Result{}, err
	}
	n, layers := b.N(), max(1, b.Layers)
	if err := g.CheckLayers(layers); err != nil {
		return Result{}, err
	}
	if b.Embeddings.Cols != layers {
		return Result{}, fmt.Errorf("loss.name: %s is for rerankers, which give a score; this model gives %d numbers", g.Name, b.Embeddings.Cols)
	}
	mark := a.Mark()
	defer a.Release(mark)
	scores, err := download(s, b.Embeddings)
	if err != nil {
		return Result{}, err
	}
	grads := make([]float64, len(scores))
	r, err := g.ofBatch(b, scores, grads)
	if err != nil {
		return Result{}, err
	}
	add := a.Scratch(s, b.Gradient.DType, n, layers)
	gpustage.Upload(s, add, grads)
	s.Add(b.Gradient, b.Gradient, add)
	return r, s.Sync()
}

// ofBatch goes through the groups in the order of rows.
func (g Groups) ofBatch(b *Batch, scores, grads []float64) (r Result, err error) {
	if b.N() < 2*b.Rows {
		return r, fmt.Errorf("%s needs documents", g.Name)
	}
	layers := max(1, b.Layers)
	docs, scores, grads := b.documents(), scores[b.Rows*layers:], grads[b.Rows*layers:]
	lo, hi := b.Own()
	for i := lo; i < hi; i++ {
		n := len(docs[i])
		l := make([]float64, n)
		for k, at := range docs[i] {
			switch {
			case b.Scores != nil:
				l[k] = b.Scores[at]
			case b.Labels != nil && (k == 0 || g.Name != GroupMarginMSE):
				l[k] = b.Labels[i]
			case b.Labels != nil: // whose difference to the first is the label
			case k == 0:
				l[k] = 1
			}
		}
		if b.Scores == nil && b.Labels != nil && n > 1 && g.Name != GroupMarginMSE {
			return r, &LabelError{i, fmt.Sprintf("it has a label and %d documents: labels are for rows of one; scores are one for each document", n)}
		}
		for _, v := range l {
			if err := g.CheckLabel(v); err != nil {
				return r, &LabelError{i, fmt.Sprintf("the label is %v: %v", v, err)}
			}
		}
		for _, at := range docs[i] { // a sigmoid would make a number of one that is infinite
			for _, v := range scores[at*layers : (at+1)*layers] {
				if !finite(v) {
					return r, &RowError{i, v}
				}
			}
		}
		of := func(layer int) []float64 {
			s := make([]float64, n)
			for k, at := range docs[i] {
				s[k] = scores[at*layers+layer]
			}
			return s
		}
		w := b.Weight(i)
		sum, weight := 0.0, 0.0
		var last []float64 // what the last layer teaches
		if g.SelfDistill {
			last = softmax(of(0))
		}
		for layer := range layers {
			s, d := of(layer), make([]float64, n)
			more := 0.0
			more, weight = g.ofGroup(s, l, d)
			sum += more
			if g.SelfDistill && layer > 0 {
				taught := make([]float64, n)
				sum += crossEntropy(s, last, taught)
				for k := range d {
					d[k] += taught[k]
				}
			}
			for k, at := range docs[i] {
				grads[at*layers+layer] = w * d[k]
			}
		}
		if v := w * sum; !finite(v) {
			return r, &RowError{Row: i, Loss: sum}
		}
		r.Sum, r.Weight = r.Sum+w*sum, r.Weight+w*weight
	}
	return r, nil
}

// ofGroup returns a group's loss and what it counts, and writes the gradient to d.
func (g Groups) ofGroup(s, l, d []float64) (sum, weight float64) {
	s, slopes := g.activated(s)
	sum, weight = g.ofActivated(s, l, d)
	for i, slope := range slopes {
		d[i] *= slope
	}
	return sum, weight
}

// activated is what the loss is of, with its derivatives by the scores; nil: it is the scores.
func (g Groups) activated(s []float64) (x, slopes []float64) {
	activation, scale := cmp.Or(g.Activation, Identity), 1.0
	if g.Name == GroupMNRL {
		activation, scale = cmp.Or(g.Activation, Sigmoid), cmp.Or(g.Scale, 10)
	}
	if activation == Identity && scale == 1 {
		return s, nil
	}
	x, slopes = make([]float64, len(s)), make([]float64, len(s))
	for i, v := range s {
		if x[i], slopes[i] = scale*v, scale; activation == Sigmoid {
			p := sigmoid(v)
			x[i], slopes[i] = scale*p, scale*p*sigmoid(-v)
		}
	}
	return x, slopes
}

func (g Groups) ofActivated(s, l, d []float64) (sum, weight float64) {
	n := float64(len(s))
	switch g.Name {
	case GroupCrossEntropy, GroupMNRL:
		sum = ofFirst(s, d)
	case GroupKL, GroupListNet:
		sum = crossEntropy(s, softmax(l), d)
	case GroupDistill:
		target := softmax(l)
		sum = crossEntropy(s, target, d)
		more := make([]float64, len(s))
		sum += ofFirst(s, more)
		for i := range d {
			d[i] += more[i]
		}
	case GroupListMLE, GroupPListMLE:
		sum = g.listMLE(s, l, d)
	case GroupBCE:
		pos := cmp.Or(g.PosWeight, 1)
		for i := range s {
			sum -= (pos*l[i]*logSigmoid(s[i]) + (1-l[i])*logSigmoid(-s[i])) / n
			d[i] = ((1-l[i])*sigmoid(s[i]) - pos*l[i]*sigmoid(-s[i])) / n
		}
	case GroupMSE:
		for i := range s {
			e := s[i] - l[i]
			sum, d[i] = sum+e*e/n, 2*e/n
		}
	case GroupMarginMSE:
		for j := 1; j < len(s); j++ {
			e := (s[0] - s[j]) - (l[0] - l[j])
			sum += e * e / (n - 1)
			d[0] += 2 * e / (n - 1)
			d[j] -= 2 * e / (n - 1)
		}
	case GroupADRMSE:
		return g.ranks(s, l, d), n
	case GroupRankNet, GroupLambda:
		return g.pairwise(s, l, d)
	}
	return sum, 1
}

// crossEntropy is -sum target log softmax(s), and its gradient for a target that sums to 1.
func crossEntropy(s, target, d []float64) (sum float64) {
	lse := logSumExp(s)
	for i := range s {
		sum -= target[i] * (s[i] - lse)
		d[i] = math.Exp(s[i]-lse) - target[i]
	}
	return sum
}

// ofFirst is crossEntropy where the first document is the relevant one.
func ofFirst(s, d []float64) float64 {
	target := make([]float64, len(s))
	target[0] = 1
	return crossEntropy(s, target, d)
}

func (g Groups) listMLE(s, l, d []float64) (sum float64) {
	n := len(s)
	order := ordered(n, func(i, j int) bool { return g.ByLabel && l[i] > l[j] })
	weights := make([]float64, n)
	for i := range weights {
		weights[i] = 1
	}
	if g.Name == GroupPListMLE {
		// 2^(n-rank) - 1, scaled so that long lists don't overflow, as the peer has it.
		total, scale := 0.0, math.Max(0, float64(n-127))
		for i := range weights {
			weights[i] = math.Exp2(float64(n-i-1)-scale) - math.Exp2(-scale)
			total += weights[i]
		}
		for i := range weights {
			weights[i] /= total + 1e-10
		}
	}
	rest := make([]float64, 0, n)
	for i := n - 1; i >= 0; i-- {
		rest = append(rest, s[order[i]])
		lse := logSumExp(rest)
		sum -= weights[i] * (s[order[i]] - lse)
		d[order[i]] -= weights[i]
		for k, v := range rest {
			d[order[n-1-k]] += weights[i] * math.Exp(v-lse)
		}
	}
	return sum
}

// ranks is adr_mse, summed over the group.
func (g Groups) ranks(s, l, d []float64) (sum float64) {
	alpha := cmp.Or(g.Alpha, 1)
	for i := range s {
		rank, found := 0.5, 1.0
		for j := range s {
			switch {
			case l[j] > l[i]:
				rank++
			case l[j] == l[i]:
				rank += 0.5
			}
			if j != i {
				found += sigmoid(alpha * (s[j] - s[i]))
			}
		}
		weight, off := 1/math.Log2(rank+1), found-rank
		sum += weight * off * off
		for j := range s {
			if j != i {
				x := alpha * (s[j] - s[i])
				slope := 2 * weight * off * alpha * sigmoid(x) * sigmoid(-x)
				d[j] += slope
				d[i] -= slope
			}
		}
	}
	return sum
}

// pairwise is RankNet and the lambda loss, which Eq. 18 of its paper cuts at K.
func (g Groups) pairwise(s, l, d []float64) (sum, pairs float64) {
	n := len(s)
	order := ordered(n, func(i, j int) bool { return s[i] > s[j] })
	k := n
	if g.K > 0 {
		k = min(n, g.K)
	}
	discount := make([]float64, n+1) // of rank i + 1
	for i := range discount {
		discount[i] = math.Log2(float64(i + 2))
	}
	ideal := slices.Clone(l)
	sort.Float64s(ideal)
	slices.Reverse(ideal)
	best := 0.0
	for i, v := range ideal[:k] {
		best += (math.Exp2(max(0, v)) - 1) / discount[i]
	}
	best = max(best, 1e-10)
	gain := make([]float64, n)
	for i, at := range order {
		gain[i] = (math.Exp2(max(0, l[at])) - 1) / best
	}
	sigma, mu := cmp.Or(g.Sigma, 1), cmp.Or(g.Mu, 10)
	weight := func(i, j int) float64 {
		apart, swapped := 0.0, 0.0
		if i != j {
			delta := max(i-j, j-i)
			apart = math.Abs(1/discount[delta-1] - 1/discount[delta])
			swapped = math.Abs(1/discount[i] - 1/discount[j])
		}
		gains := math.Abs(gain[i] - gain[j])
		switch {
		case g.Name == GroupRankNet:
			return 1
		case g.Scheme == NDCGLoss1:
			return gain[i] / discount[i]
		case g.Scheme == NDCGLoss2:
			return apart * gains
		case g.Scheme == LambdaRank:
			return swapped * gains
		}
		return (mu*apart + swapped) * gains
	}
	for i := range n {
		for j := range n {
			a, b := order[i], order[j]
			if i >= k && j >= k || !(l[a] > l[b]) && (g.Name == GroupRankNet || g.Scheme != NDCGLoss1) {
				continue
			}
			pairs++
			w := weight(i, j) / math.Ln2
			x := sigma * (s[a] - s[b])
			sum -= w * logSigmoid(x)
			slope := w * sigma * sigmoid(-x)
			d[a] -= slope
			d[b] += slope
		}
	}
	return sum, pairs
}

// ordered are 0 to n-1, sorted; of equal ones the smaller comes first.
func ordered(n int, before func(i, j int) bool) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(a, b int) bool { return before(order[a], order[b]) })
	return order
}

func logSumExp(x []float64) float64 {
	top := slices.Max(x)
	sum := 0.0
	for _, v := range x {
		sum += math.Exp(v - top)
	}
	return top + math.Log(sum)
}

func softmax(x []float64) []float64 {
	lse, out := logSumExp(x), make([]float64, len(x))
	for i, v := range x {
		out[i] = math.Exp(v - lse)
	}
	return out
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// logSigmoid is log(sigmoid(x)) without overflow.
func logSigmoid(x float64) float64 { return min(0, x) - math.Log1p(math.Exp(-math.Abs(x))) }
