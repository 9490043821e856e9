// Package loss holds the objectives: functions from a contrastive batch's embeddings to a number and to the gradient with
// respect to those embeddings.
//
// # What a loss sees
//
// A [Batch] is one global contrastive batch after all its sub-batches have been embedded: one matrix with a row per
// sequence, the B queries first, then the B positives, then the negatives of each column. Sub-batches, caching and replicas
// are none of its business; they are ways of filling that matrix and of using the gradient.
//
// # The tiled loss
//
// With many thousands of rows the B x D score matrix would be larger than the model. [InfoNCE] does not hold it. It goes through blocks of
// some hundred rows, or some thousand on a GPU, in an order fixed by the sizes alone. A block's scores with all candidates are computed tile by tile, and each tile folded into a
// running log-sum-exp per row (the online softmax of Milakov and Gimelshein, used this way by Inf-CL, arXiv 2410.17243). Then its rows' losses
// are known, and each tile becomes probabilities, which are multiplied with both sides into the gradient: a row's softmax sees that row alone, so no score
// is computed twice. Memory is O(rows x E) and one block.
//
// # A guide
//
// GISTEmbed's rule ([Guide]) leaves out candidates by a second model's similarities. It is a condition in the same walk: beside each tile of
// scores there is a tile of the guide's cosines, and where these are above a row's limit the score becomes -Inf. Everything behind
// that is InfoNCE, and so are caching, gathering and splitting rows.
//
// # Losses of pairs
//
// Most other losses compare few pairs: each query with its own documents ([CrossEntropy], [DistillKL], [MarginMSE], [Triplet], ...). They are
// functions from these pairs' values to a number and to a coefficient for each pair, computed on the host, where it is one number a
// document; pairs.go turns embeddings into values and coefficients into the gradient, a chunk of pairs at a time. [CoSENT], whose sum
// runs over pairs of pairs, takes B log B steps. [BatchTriplet] compares all texts of a batch, and [MegaBatchMargin] all queries with all
// positives, a strip of anchors at a time. [GlobalOrthogonal] is of a batch's means.
// [Matryoshka] wraps any loss, [Flops] adds what keeps embeddings sparse, [Sum] adds several, and splits rows where all of them are means over rows ([RowMean]).
//
// # Parts
//
// [LateInteraction], and [DistillKL] and [MarginMSE] with the metric [MaxSim], are of a model that gives vectors of tokens alone, [M3] of one
// that gives parts of tokens besides embeddings. Its scores of two texts, of lexical weights and of tokens' vectors
// (MaxSim), take too long to be computed twice, so it goes through strips of queries, keeps what it needs of a strip's scores, and
// goes back through it at once: see lexical.go and maxsim.go.
//
// All of these compute the terms of some rows alone when asked to ([RowSplitter]), which is how ranks share the work; there is no second
// implementation for caching, sub-batches or several ranks. [CheckGradient] verifies a loss, the project's and one's own, by finite differences.
//
// # Normalization
//
// A loss returns sum w_i l_i and sum w_i; gradients are those of the sum. The division happens once per optimizer step, after
// every reduction, so nothing depends on how rows were divided among devices or batches.
package loss

import (
	"errors"
	"fmt"
	"slices"
	"sort"

	"contraflow/gpustage"
)

// TextID is the identity of a text: a 128-bit hash.
type TextID [2]uint64

// Batch is a contrastive batch with its embeddings.
type Batch struct {
	Rows int // B

	// Embeddings is [N, E]: rows 0..B-1 are the queries, B..2B-1 the positives, in the same order, the rest negatives. A batch of
	// single texts, which have a label or a teacher's embedding, has queries alone: N is B. Of a model that gives vectors of tokens alone,
	// which are in Parts, there are none, nor a Gradient.
	Embeddings gpustage.Tensor
	// Gradient is [N, E]; a loss adds the gradient of its sum to it. It comes zeroed.
	Gradient gpustage.Tensor
	// Normalized tells that Embeddings have unit length.
	Normalized bool
	// Rounded tells that Embeddings come of products in bf16: of scores 16 bits then do (gpustage.MatMul's Pairs).
	Rounded bool

	// Layers is how many scores a layer-wise reranker gives a sequence, which Embeddings then are, the last layer's first; 0 of other models.
	Layers int

	// Guide is [N, G], of Embeddings' type: a guide model's embeddings, of unit length. Absent unless the loss has a guide.
	Guide gpustage.Tensor

	Owner   []int32   // [N-2B]: the row that each negative belongs to; a row may have any number of them
	Texts   []TextID  // [N]
	Weights []float64 // [B]; nil means 1 each

	// What the data says besides, for losses that ask for it: nil otherwise.
	Labels  []float64 // [B]: of the rows
	Scores  []float64 // [N-B]: a teacher's, of each document with its row's query: the positives, then the negatives
	Teacher []float32 // [rows that are asked for, D]: a teacher's embeddings of the rows' queries

	// Of a model that gives parts of tokens; nil otherwise.
	Parts   []Part
	IDs     []int32 // [T']: the token of each of their rows
	Special []int32 // tokens that have no lexical weight
	Step    int     // of training, from 0

	// Ragged tells that rows have any number of negatives: that nobody has one here does not mean that the data has none.
	Ragged bool

	Dataset int // which one the rows are from, of several

	// Draw is a number that is another one for every batch, and the same on all replicas: what a loss draws at random follows from it.
	Draw uint64

	// Only are the rows whose loss is asked for, against all candidates: the others are other replicas' business. nil means all
	// rows. Only a loss that is a [RowSplitter] gets less than all.
	Only *Rows
}

// Rows are rows Lo to Hi-1.
type Rows struct{ Lo, Hi int }

// RowSplitter is a loss that computes the terms of some of a batch's rows alone, and the gradient of their sum with respect to
// all embeddings. Replicas then share the work, and their gradients add up. Any other loss is computed as a whole by each.
type RowSplitter interface {
	Loss
	SplitsRows()
}

// RowMean is a RowSplitter that tells whether it is a mean over rows: its Result.Weight is then the weight of the rows that it was asked for,
// whatever they hold. A [Sum] of such losses splits rows.
type RowMean interface {
	RowSplitter
	MeansRows() bool
}

// meanOverRows is in every loss that is a RowMean.
type meanOverRows struct{}

// SplitsRows tells that the loss is a [RowSplitter].
func (meanOverRows) SplitsRows() {}

// MeansRows tells that it is a mean over rows.
func (meanOverRows) MeansRows() bool { return true }

// Check finds settings of a loss, and of those in it, that make no sense: by its method Check, if it has one.
func Check(l Loss) error {
	if c, ok := l.(interface{ Check() error }); ok {
		return c.Check()
	}
	return nil
}

// OfEmbeddings tells whether a loss of this package, or one in it, compares embeddings: of a reranker's scores it would learn nothing, from which [Groups]
// learns. Of a loss of one's own nobody knows, and it is false.
func OfEmbeddings(l Loss) bool {
	switch l := l.(type) {
	case InfoNCE, CrossEntropy, DistillKL, MarginMSE, Triplet, Contrastive, CosineSimilarity, CoSENT, BatchTriplet, MegaBatchMargin,
		GlobalOrthogonal, TeacherEmbedding, LateInteraction, M3, Flops, matryoshka, splitMatryoshka:
		return true
	case ByDataset:
		return slices.ContainsFunc(l, func(own RowSplitter) bool { return OfEmbeddings(own) })
	case sum:
		return slices.ContainsFunc(l, func(t Term) bool { return OfEmbeddings(t.Loss) })
	case splitSum:
		return OfEmbeddings(l.sum)
	}
	return false
}

func meansRows(l Loss) bool {
	m, ok := l.(RowMean)
	return ok && m.MeansRows()
}

// Own is the rows that are asked for.
func (b *Batch) Own() (lo, hi int) {
	if b.Only == nil {
		return 0, b.Rows
	}
	return b.Only.Lo, b.Only.Hi
}

// N is the number of sequences.
func (b *Batch) N() int {
	if b.Embeddings.IsZero() && len(b.Parts) > 0 {
		return len(b.Parts[0].Cu) - 1
	}
	return b.Embeddings.Rows
}

// given is what the model gives of the batch, or a part of it.
func (b *Batch) given() gpustage.Tensor {
	if b.Embeddings.IsZero() && len(b.Parts) > 0 {
		return b.Parts[0].X
	}
	return b.Embeddings
}

// errNoEmbeddings is of a batch that a loss can make nothing of.
var errNoEmbeddings = errors.New("the model gives vectors of tokens and no embeddings (model.kind: multi_vector): LateInteraction, and DistillKL and MarginMSE with the metric maxsim or mean_maxsim, are losses of it")

// documents are each row's own, its positive first, by their places among all documents: those of Embeddings' rows B on.
func (b *Batch) documents() [][]int {
	own := make([][]int, b.Rows)
	for i := range own {
		own[i] = []int{i}
	}
	for k, o := range b.Owner {
		own[o] = append(own[o], b.Rows+k)
	}
	return own
}

// Weight is row i's weight.
func (b *Batch) Weight(i int) float64 {
	if b.Weights == nil {
		return 1
	}
	return b.Weights[i]
}

// weigh is the weight of rows lo to hi-1.
func (b *Batch) weigh(lo, hi int) (sum float64) {
	for i := lo; i < hi; i++ {
		sum += b.Weight(i)
	}
	return sum
}

func (b *Batch) check() error {
	if b.Embeddings.IsZero() && len(b.Parts) > 0 {
		return errNoEmbeddings
	}
	return b.checkRows()
}

// checkRows is check of all but embeddings.
func (b *Batch) checkRows() error {
	n := b.N()
	lo, hi := b.Own()
	switch {
	case b.Rows < 1 || n < 2*b.Rows && n != b.Rows:
		return fmt.Errorf("a batch of %d rows has %d sequences, want at least 2 a row", b.Rows, n)
	case len(b.Owner) != max(0, n-2*b.Rows):
		return fmt.Errorf("%d negatives have %d owners", n-2*b.Rows, len(b.Owner))
	case len(b.Texts) != n:
		return fmt.Errorf("%d sequences have %d text identities", n, len(b.Texts))
	case lo < 0 || lo > hi || hi > b.Rows:
		return fmt.Errorf("rows %d to %d of a batch of %d", lo, hi, b.Rows)
	case b.Weights != nil && len(b.Weights) != b.Rows:
		return fmt.Errorf("%d rows have %d weights", b.Rows, len(b.Weights))
	case !b.Guide.IsZero() && (b.Guide.Rows != n || b.Guide.DType != b.Embeddings.DType):
		return fmt.Errorf("a guide's embeddings are %v, want %d rows of %v", b.Guide, n, b.Embeddings.DType)
	}
	switch {
	case b.Labels != nil && len(b.Labels) != b.Rows:
		return fmt.Errorf("%d rows have %d labels", b.Rows, len(b.Labels))
	case b.Scores != nil && len(b.Scores) != n-b.Rows:
		return fmt.Errorf("%d documents have %d scores", n-b.Rows, len(b.Scores))
	case len(b.Teacher) > 0 && (hi == lo || len(b.Teacher)%(hi-lo) != 0):
		return fmt.Errorf("%d rows have %d numbers of a teacher's embeddings, want as many for each", hi-lo, len(b.Teacher))
	}
	for _, of := range []struct {
		what string
		vs   []float64
	}{{"label", b.Labels}, {"score", b.Scores}} {
		for i, v := range of.vs {
			if !finite(v) {
				return fmt.Errorf("%s %d is %v", of.what, i, v)
			}
		}
	}
	for i, w := range b.Weights {
		if !(w >= 0) {
			return fmt.Errorf("row %d has weight %v, want a number of at least 0", i, w)
		}
	}
	for k, o := range b.Owner {
		if o < 0 || int(o) >= b.Rows {
			return fmt.Errorf("negative %d belongs to row %d of %d", k, o, b.Rows)
		}
	}
	return nil
}

// checkPairs is check for losses whose rows have a positive each.
func (b *Batch) checkPairs() error {
	if err := b.check(); err != nil {
		return err
	}
	return b.checkPositives()
}

func (b *Batch) checkPositives() error {
	if b.N() < 2*b.Rows {
		return errors.New("the batch has single texts, and this loss is for pairs: data.train[].positive (in Go dataset.Source.Positive) names the other text's column")
	}
	return nil
}

// Result is a loss before normalization, of the rows that were asked for. A step's loss, and gradient, is that of the sums of Sum, over its
// batches and all replicas, divided by the sums of Weight.
type Result struct {
	Sum    float64 // sum of w_i l_i
	Weight float64 // sum of w_i, or of whatever else the loss is the mean over, at least 0; 0 for a whole step is an error

	Sparsity *Sparsity // of a [Flops]; nil of other losses
}

// Check refuses a Weight below 0, by which a step would go uphill. One that is not finite makes a gradient that is not, which is found where that is.
func (r Result) Check() error {
	if r.Weight < 0 {
		return fmt.Errorf("the loss has returned Result.Weight %v: a step's loss, and gradient, is divided by it, want a number of at least 0, such as the sum of the rows' weights", r.Weight)
	}
	return nil
}

// Mean is the loss: NaN of a Weight of 0.
func (r Result) Mean() float64 { return r.Sum / r.Weight }

func finite(v float64) bool { return v-v == 0 }

// add counts a row's loss. That of a row without weight is to be finite as well: the row is in the batch nevertheless, its documents are others' candidates,
// and what is not finite times its weight of 0 is NaN in the gradient of all that it is compared with.
func (r *Result) add(row int, weight, l float64) error {
	if !finite(l) {
		return &RowError{row, l}
	}
	r.Sum, r.Weight = r.Sum+weight*l, r.Weight+weight
	return nil
}

// ErrNotFinite is wrapped by errors about a loss that is NaN or infinite.
var ErrNotFinite = errors.New("the loss is not finite")

// RowError is an ErrNotFinite that knows the row.
type RowError struct {
	Row  int // of the batch that Compute was given
	Loss float64
}

func (e *RowError) Error() string {
	return fmt.Sprintf("%v: row %d of the batch has %v", ErrNotFinite, e.Row, e.Loss)
}

func (e *RowError) Unwrap() error { return ErrNotFinite }

// Loss is an objective. Implementations keep no state between calls.
type Loss interface {
	// Compute returns the loss and adds its gradient to b.Gradient. Scratch memory comes from the arena.
	Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error)
	// Memory is how many bytes Compute takes of the arena for a batch of this size.
	Memory(z Size) int
}

// Size is what a loss's memory depends on.
type Size struct {
	Rows       int // B
	Sequences  int // N
	Dim        int // E
	Normalized bool
	DType      gpustage.DType
	GPU        bool // the batch is in a GPU's memory

	// Of parts of tokens.
	Tokens  int // T'
	Longest int // rows of the longest sequence
}

// Size of a batch.
func (b *Batch) Size() Size {
	z := Size{Rows: b.Rows, Sequences: b.N(), Dim: b.given().Cols, Normalized: b.Normalized, DType: b.given().DType, GPU: b.onGPU()}
	for _, p := range b.Parts {
		z.Tokens = int(p.Cu[len(p.Cu)-1])
		for n := range len(p.Cu) - 1 {
			z.Longest = max(z.Longest, p.tokens(n, n+1))
		}
	}
	return z
}

// culprit goes on from an error about a row's loss: with the first row that has something which is not finite itself, if there is one, for all rows that are
// compared with that have no loss either.
func (b *Batch) culprit(s gpustage.Stream, err error) error {
	var row *RowError
	if !errors.As(err, &row) {
		return err
	}
	look := func(x gpustage.Tensor, sequence func(at int) int) (found bool, err error) {
		values, err := download(s, x)
		for i, v := range values {
			if err == nil && !finite(v) {
				row.Row = b.rowOf(sequence(i / x.Cols))
				return true, nil
			}
		}
		return false, err
	}
	found := false
	var wrong error
	if !b.Embeddings.IsZero() {
		found, wrong = look(b.Embeddings, func(n int) int { return n })
	}
	for _, p := range b.Parts {
		if !found && wrong == nil && p.X.Rows > 0 {
			found, wrong = look(p.X, func(at int) int { return sort.Search(len(p.Cu)-2, func(n int) bool { return int(p.Cu[n+1]) > at }) })
		}
	}
	return errors.Join(err, wrong)
}

// rowOf is the row that a sequence is of.
func (b *Batch) rowOf(n int) int {
	if n < 2*b.Rows {
		return n % b.Rows
	}
	return int(b.Owner[n-2*b.Rows])
}

// onGPU tells whether the batch is somewhere else than in the host's memory.
func (b *Batch) onGPU() bool { return !gpustage.InHost(b.given()) }

// Host makes a loss of a function over embeddings in the host's memory, for objectives of one's own: simple, and as slow
// as moving the embeddings to the host and back. The function writes into gradient's rows, which come zeroed, or puts others of the same length
// in their places; a nil row is zeros. On several replicas each calls it for the whole batch, and it has to give the same on all.
type Host func(b *Batch, embeddings, gradient [][]float32) (Result, error)

// Check refuses one that is no function.
func (f Host) Check() error {
	if f == nil {
		return errors.New("loss.Host(nil): there is no function")
	}
	return nil
}

// Compute copies the embeddings to the host, calls the function with a zeroed gradient and copies that back.
func (f Host) Compute(s gpustage.Stream, a *gpustage.Arena, b *Batch) (Result, error) {
	if err := b.check(); err != nil {
		return Result{}, err
	}
	n, e := b.N(), b.Embeddings.Cols
	mark := a.Mark()
	defer a.Release(mark)
	copied := a.Scratch(s, gpustage.F32, n, e)
	s.Copy(copied, b.Embeddings)
	flat, grad := make([]float32, n*e), make([]float32, n*e)
	s.CopyOut(gpustage.Bytes(flat), copied)
	if err := s.Sync(); err != nil {
		return Result{}, err
	}
	rows := func(x []float32) [][]float32 {
		out := make([][]float32, n)
		for i := range out {
			out[i] = x[i*e : (i+1)*e : (i+1)*e]
		}
		return out
	}
	given := rows(grad)
	r, err := f(b, rows(flat), given)
	if err != nil {
		return Result{}, err
	}
	for i, row := range given {
		if own := grad[i*e : (i+1)*e]; len(row) == 0 {
			clear(own)
		} else if len(row) != e {
			return Result{}, fmt.Errorf("the gradient of sequence %d has %d numbers, its embedding has %d", i, len(row), e)
		} else if &row[0] != &own[0] {
			copy(own, row)
		}
	}
	add := a.Scratch(s, b.Gradient.DType, n, e)
	gpustage.Upload(s, add, grad)
	s.Add(b.Gradient, b.Gradient, add)
	return r, s.Sync()
}

// Memory is the copy that Compute makes.
func (Host) Memory(z Size) int {
	return z.Sequences*z.Dim*(gpustage.F32.Size()+z.DType.Size()) + 128
}
