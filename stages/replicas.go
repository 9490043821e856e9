package stages

import (
	"bytes"
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"slices"

	"contraflow/collective"
	"contraflow/gpustage"
	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages/loss"
	"contraflow/stages/transformer"
)

// Several replicas train as one: each takes its slice of every global batch, and its graph has four more stages,
//
//	header       what every rank must know of a batch before its first collective: rows, sub-batches, texts, weights
//	gather       each sub-batch's embeddings to all ranks, while the next one is computed
//	scatter      the gradient of the embeddings, summed over ranks, back to the ranks that the rows belong to
//	reduce ...   the parameters' gradients, bucket by bucket, while the step's last sub-batch still goes backward
//
// The header makes one schedule of everyone's sizes: all ranks run as many sub-batches as the one with the most, the others
// with zero rows at the end. So every rank issues the same collectives in the same order, whatever its rows.
//
// # Complete gradients
//
// Each rank computes the loss of its own rows against all candidates, and the gradient of that sum with respect to all
// embeddings; summed over ranks (a reduce-scatter) it is the gradient of the global loss, for queries, positives and negatives
// alike. The alternative is to compute, besides own rows x all candidates, all rows x own candidates, and to exchange
// log-sum-exps alone. For N sequences of E dimensions, B rows and W ranks:
//
//	                  products of B/W x N x E    bytes sent by a rank    memory beside embeddings
//	reduce-scatter    4                          4 N E (W-1)/W           N E (everyone's gradient)
//	own columns       5                          4 B (W-1)/W             N E / W
//
// At 16,384 pairs of 384 dimensions on 2 ranks that is 25 MB sent against 1e11 more operations: 2 ms on a 100 Gb/s link
// against 0.4 s on two cores at 250 GFLOP/s, or 0.3 ms on a GPU. So it is the reduce-scatter.
//
// # The word embeddings
//
// A table of word embeddings is half of a small model, and its gradient is the last to be complete. What earlier sub-batches
// have added to it is reduced while the step's last sub-batch still runs; that one's own gradient goes to a small matrix with a row for each
// distinct token, and only these rows travel at the end. A step of one sub-batch never sends the table. Where these rows are
// more than the table (many ranks, a small vocabulary), the whole table is reduced at the end instead.

// Replicas is a run's place among the ranks that train with it.
type Replicas struct {
	Comm   *collective.Comm
	Params collective.Group // of the shard axis, for streamed parameters; nil without shards
	Exchanging

	header, totals, saves collective.Group
	keepFrom              func(b *Batch) int // the first sub-batch that this rank has memory to keep, where ranks must agree
	tokens                bool               // the model gives parts of tokens
	terms                 map[string]string  // see tell
	compared              bool               // see ComparedWeights
}

// Exchanging says how replicas exchange embeddings and gradients.
type Exchanging struct {
	Wire           gpustage.DType // of embeddings and gradients: F32 or BF16; F64 models use F64
	LocalNegatives bool           // negatives stay on their rank
	Early          bool           // reduce gradients to their shares sub-batch by sub-batch, where there is a shard axis
	Streamed       bool           // hold shares of the parameters alone, where there is a shard axis
	EverySubBatch  bool           // reduce gradients after every sub-batch instead of once a step: to show what it costs
	NoOverlap      bool           // communicate on the compute lane, with nothing hidden: likewise
	BucketBytes    int            // reduce that much at once, or a layer if it is more; 0: a 24th of the gradient, but 256 KiB to 4 MiB
}

// Join prepares a rank for training with the others. All ranks call it.
func Join(ctx context.Context, c *collective.Comm, x Exchanging) (*Replicas, error) {
	r := &Replicas{Comm: c, Exchanging: x}
	r.tell("what ranks exchange", Settings(x))
	ctx = collective.For(ctx, "joining the ranks that train")
	var err error
	for _, g := range []*collective.Group{&r.header, &r.totals, &r.saves} { // host stages that exchange at the same time
		if *g, err = c.World.Split(ctx, 0); err != nil {
			return nil, err
		}
	}
	if r.sharded() {
		replicate, _ := c.Mesh.Place(r.Rank())
		if r.Params, err = c.World.Split(ctx, replicate); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Rank is this rank's number, Size how many there are; 0 and 1 for nil.
func (r *Replicas) Rank() int {
	if r == nil {
		return 0
	}
	return r.Comm.World.Rank()
}

func (r *Replicas) Size() int {
	if r == nil {
		return 1
	}
	return r.Comm.World.Size()
}

// MeshName is the mesh as checkpoints spell it; "1 rank" for nil.
func (r *Replicas) MeshName() string {
	if r == nil {
		return "1 rank"
	}
	return r.Comm.Mesh.String()
}

// ErrDisagree is wrapped when ranks were started with different things.
var ErrDisagree = errors.New("ranks disagree")

// Most is the largest of all ranks' numbers.
func (r *Replicas) Most(ctx context.Context, n int) (int, error) {
	all, err := exchange(collective.For(ctx, "choosing what all ranks can do"), r.header, n)
	if err != nil {
		return 0, err
	}
	return slices.Max(all), nil
}

// purpose is what errors of ranks say of a task's collectives.
func purpose(t *pipeline.Task) string {
	return fmt.Sprintf("stage %q of step %d", t.Stage(), t.Index.Step+1)
}

// exchange gives every rank everyone's value.
func exchange[T any](ctx context.Context, g collective.Group, v T) ([]T, error) {
	var buf bytes.Buffer
	if err := gob.NewEncoder(&buf).Encode(v); err != nil {
		return nil, err
	}
	messages, err := g.Exchange(ctx, buf.Bytes())
	if err != nil {
		return nil, err
	}
	all := make([]T, len(messages))
	for rank, m := range messages {
		if err := gob.NewDecoder(bytes.NewReader(m)).Decode(&all[rank]); err != nil {
			return nil, fmt.Errorf("the message of rank %d: %w; does it run the same program?", rank, err)
		}
	}
	return all, nil
}

// Peer is what a batch looks like on one rank.
type Peer struct {
	Step, Batch int // as the rank counts them
	First       int // its first row's place in the global batch
	Rows        int
	Total       int   // rows of all ranks, as the rank knows it
	Cuts        []int // [subs+1]: its sub-batch u is its sequences Cuts[u] to Cuts[u+1]
	Tokens      int
	SubTokens   []int             // of each sub-batch
	Counts      []int             // its sequences of each column
	Texts       []loss.TextID     // of its sequences, column by column
	Owner       []int32           // which of its rows each negative belongs to
	Weights     []float64         // of its rows; nil if all are 1
	Labels      []float64         // of its rows; nil without labels
	Scores      []float64         // a teacher's, of its documents; nil without scores
	SubIDs      [][]int32         // the distinct token ids of each sub-batch, ascending, where word embeddings travel with each
	KeepFrom    int               // the first sub-batch that the rank can keep, where all must keep the same
	LastIDs     []int32           // the distinct token ids of its sub-batch 0, ascending, if the batch ends a step
	Terms       map[string]string // what its graph was given: see Replicas.tell
	Order       string            // which rows the whole batch has; "" of a source of one's own
	Truncated   int
	Drawn       drawn
	Padding     int // tokens that padding each sub-batch to its longest sequence would add

	Bad    string // why it has rows that can't be used, and nothing else but Step, Batch and Terms is set; "": it has none
	BadRow bool   // see RowsError

	// Where parts of tokens travel.
	PartRows []int32 // rows of each sequence
	IDs      []int32 // their token ids

	cu []int32 // [sequences+1], of PartRows
}

// subSize is how many sequences a rank has in sub-batch u.
func (p *Peer) subSize(u int) int {
	if u+1 >= len(p.Cuts) {
		return 0
	}
	return p.Cuts[u+1] - p.Cuts[u]
}

// Global is what the header made known of a batch.
type Global struct {
	Peers   []Peer
	Rows    int
	Starts  []int         // [C+1] of N: column c's sequences are Starts[c] to Starts[c+1]-1, in the order of ranks
	Texts   []loss.TextID // [N], in the global order
	Owner   []int32       // [N-2*Rows] the row that each negative belongs to
	Weights []float64     // [Rows]; nil if all are 1
	Labels  []float64     // [Rows]; nil without labels
	Scores  []float64     // [N-Rows] of the documents; nil without scores
	IDs     []int32       // [T'] tokens of the parts' rows, in the global order; nil without such parts

	cu       []int32 // [N+1]: a sequence's rows of such parts
	keepFrom int     // the first sub-batch that is kept, where all ranks keep the same
}

// Header adds the stage that tells all ranks of each other's part of a batch. Without replicas it passes batches on.
func Header(g *pipeline.Graph, batches pipeline.Port[*Batch], size Size, r *Replicas) pipeline.Port[*Batch] {
	if r == nil {
		return batches
	}
	wrong := size.check()
	s := g.Stage("header")
	in := pipeline.In(s, "header", batches)
	out := pipeline.Out[*Batch](s, "header")
	s.Do(func(t *pipeline.Task) error {
		if wrong != nil {
			return wrong
		}
		b := in.Get(t)
		p := Peer{Step: t.Index.Step, Batch: t.Index.Batch}
		if b != nil && b.bad != nil {
			p.Bad, p.BadRow = b.bad.Error(), b.bad.Row
		} else {
			if err := b.check(); err != nil {
				return err
			}
			p = b.peer(t.Index, size, r.byLayer(), r.tokens)
			if r.keepFrom != nil {
				p.KeepFrom = r.keepFrom(b)
			}
		}
		p.Terms = r.terms
		peers, err := exchange(collective.For(t.Context(), purpose(t)), r.header, p)
		if err != nil {
			return err
		}
		if err := termsAlike(peers); err != nil {
			return err
		}
		if err := b.ofPeers(peers, r.Rank()); err != nil {
			t.EndBefore(err)
			return nil
		}
		if err := b.join(peers); err != nil {
			return err
		}
		out.Put(t, b)
		return nil
	})
	return out.Port
}

// peer cuts a batch and says what others must know of it.
func (b *Batch) peer(at pipeline.Index, size Size, words, tokens bool) Peer {
	b.Subs = size.Cut(b)
	p := Peer{
		Step: at.Step, Batch: at.Batch, First: b.First, Rows: len(b.Rows), Total: b.Total, Cuts: []int{b.first()},
		Tokens: len(b.IDs), Texts: b.Texts, Owner: b.Owner, Weights: b.Weights, Labels: b.Labels, Scores: b.Scores, Truncated: b.Truncated, Drawn: b.drawn,
	}
	for c := range b.Columns {
		p.Counts = append(p.Counts, b.Starts[c+1]-b.Starts[c])
	}
	for _, s := range b.Subs {
		p.Cuts, p.SubTokens = append(p.Cuts, s.Hi), append(p.SubTokens, s.Tokens())
		p.Padding += s.padding()
	}
	for _, s := range b.Subs {
		if words {
			d := distinct(s)
			b.distinct, p.SubIDs = append(b.distinct, d), append(p.SubIDs, d.ids)
		}
	}
	if tokens {
		p.IDs = b.tokenIDs()
		for n := range b.N() {
			p.PartRows = append(p.PartRows, int32(b.at(n+1)-b.at(n)))
		}
	}
	if b.plan != nil {
		p.Order = b.plan.order
	}
	if b.EndsStep {
		b.last = distinct(b.Subs[0])
		p.LastIDs = b.last.ids
	}
	return p
}

// join makes a batch one of several ranks'.
func (b *Batch) join(peers []Peer) (err error) {
	if b.Global, err = joinPeers(peers, len(b.Columns)); err != nil {
		return err
	}
	for subs := b.Global.Subs(); len(b.Subs) < subs; {
		b.Subs = append(b.Subs, SubBatch{b, b.N(), b.N()})
		if b.memory != nil {
			b.memory = append(b.memory, transformer.Memory{})
		}
	}
	return nil
}

// rowsApart goes on from an error about ranks' rows that do not make one batch.
const rowsApart = "; each rank's are to be those that its plan gives it: rows are left out with dataset.Part.Skip, not by a stage behind Ingest, " +
	"and Plan.Rank and Plan.Ranks are those of Replicas"

// joinPeers checks that the ranks' parts make one batch and puts what they say of rows and texts into its order.
func joinPeers(peers []Peer, columns int) (*Global, error) {
	g := &Global{Peers: peers, Rows: peers[0].Total, Starts: make([]int, columns+1)}
	at, weighted, labelled, scored := 0, false, false, false
	for rank, p := range peers {
		first := peers[0]
		if p.Step != first.Step || p.Batch != first.Batch || p.Total != first.Total {
			return nil, fmt.Errorf("%w: rank 0 is at batch %d.%d of %d rows, rank %d at batch %d.%d of %d rows",
				ErrDisagree, first.Step, first.Batch, first.Total, rank, p.Step, p.Batch, p.Total)
		}
		if p.Order != first.Order {
			return nil, fmt.Errorf("%w: the rows of batch %d.%d are %s on rank 0, %s on rank %d: give all ranks the same datasets, and samplers of the same settings and seed that are at the same place",
				ErrDisagree, p.Step, p.Batch, cmp.Or(first.Order, "of no plan"), cmp.Or(p.Order, "of no plan"), rank)
		}
		texts := 0
		for _, n := range p.Counts {
			texts += n
		}
		if p.First != at {
			return nil, fmt.Errorf("%w: rank %d has rows %d to %d of the batch, want rows from %d%s", ErrDisagree, rank, p.First, p.First+p.Rows, at, rowsApart)
		}
		if len(p.Counts) != columns || len(p.Texts) != texts || len(p.Owner) != max(0, texts-2*p.Rows) {
			return nil, fmt.Errorf("%w: rank %d has rows %d to %d of the batch with %d texts in %d columns, want %d columns",
				ErrDisagree, rank, p.First, p.First+p.Rows, len(p.Texts), len(p.Counts), columns)
		}
		if first := peers[0].PartRows == nil; (first != (p.PartRows == nil) && texts > 0 && len(peers[0].Texts) > 0) || (p.PartRows != nil && len(p.PartRows) != texts) {
			return nil, fmt.Errorf("%w: rank %d says %d lengths of %d texts, rank 0 %d", ErrDisagree, rank, len(p.PartRows), texts, len(peers[0].PartRows))
		}
		at += p.Rows
		g.keepFrom = max(g.keepFrom, p.KeepFrom)
		weighted, labelled, scored = weighted || p.Weights != nil, labelled || p.Labels != nil, scored || p.Scores != nil
		for c, n := range p.Counts {
			g.Starts[c+1] += n
		}
	}
	if at != g.Rows {
		return nil, fmt.Errorf("%w: the ranks have %d of the batch's %d rows%s", ErrDisagree, at, g.Rows, rowsApart)
	}
	for rank, p := range peers { // a rank without rows has none of either
		if p.Rows > 0 && labelled != (p.Labels != nil) || scored != (p.Scores != nil) && len(p.Texts) > p.Rows {
			return nil, fmt.Errorf("%w: rank %d of some has no labels or no scores, which others have", ErrDisagree, rank)
		}
	}
	for c := range columns {
		g.Starts[c+1] += g.Starts[c]
	}
	g.Texts = make([]loss.TextID, g.N())
	if n := g.N() - 2*g.Rows; n > 0 {
		g.Owner = make([]int32, n)
	}
	make64 := func(ok bool, n int) []float64 {
		if !ok {
			return nil
		}
		return make([]float64, n)
	}
	g.Weights, g.Labels, g.Scores = make64(weighted, g.Rows), make64(labelled, g.Rows), make64(scored, g.N()-g.Rows)
	for rank := range peers {
		p := &peers[rank]
		from := 0
		g.runs(rank, 0, len(p.Texts), func(place, n int) {
			copy(g.Texts[place:], p.Texts[from:from+n])
			if scored && place >= g.Rows {
				copy(g.Scores[place-g.Rows:], p.Scores[from-p.Rows:from-p.Rows+n])
			}
			if place >= 2*g.Rows {
				for k := range n {
					g.Owner[place-2*g.Rows+k] = int32(p.First) + p.Owner[from-2*p.Rows+k]
				}
			}
			from += n
		})
		copy(g.Labels[min(p.First, len(g.Labels)):], p.Labels)
		for i := range p.Rows {
			if weighted {
				g.Weights[p.First+i] = 1
				if p.Weights != nil {
					g.Weights[p.First+i] = p.Weights[i]
				}
			}
		}
	}
	g.joinTokens()
	return g, nil
}

// N is the number of all ranks' sequences.
func (g *Global) N() int { return g.Starts[len(g.Starts)-1] }

func (g *Global) columns() int { return len(g.Starts) - 1 }

// lastRows are the distinct token ids of a sub-batch.
type lastRows struct {
	ids   []int32 // [U], ascending
	index []int32 // [T]: each token's place in ids
}

func distinct(s SubBatch) lastRows {
	return distinctIDs(slices.Concat(s.Batch.IDs[s.Batch.Cu[s.Lo]:s.Batch.Cu[s.Hi]], s.Batch.Head))
}

func distinctIDs(ids []int32) lastRows {
	at := map[int32]int32{}
	for _, id := range ids {
		at[id] = 0
	}
	var l lastRows
	for id := range at {
		l.ids = append(l.ids, id)
	}
	slices.Sort(l.ids)
	for i, id := range l.ids {
		at[id] = int32(i)
	}
	for _, id := range ids {
		l.index = append(l.index, at[id])
	}
	return l
}

// Slice is rank's part of a batch of n rows: parts differ by one row at most.
func Slice(n, rank, ranks int) (lo, hi int) { return n * rank / ranks, n * (rank + 1) / ranks }

// sliceOf is rank's rows of a batch.
func (p Plan) sliceOf(b dataset.Batch) (rows []int64, first int) {
	lo, hi := Slice(len(b.Rows), p.Rank, max(1, p.Ranks))
	return b.Rows[lo:hi], lo
}

// OnComm is where the encoder's ranks communicate: a stage that issues collectives, or reads what they are about, runs there.
func (e *Encoder) OnComm() pipeline.Option {
	if e.ranks == nil || e.ranks.NoOverlap {
		return e.on()
	}
	return pipeline.On(e.device, pipeline.Comm)
}

// gathers tells whether ranks see each other's negatives.
func (e *Encoder) gathers() bool { return e.ranks != nil && !e.ranks.LocalNegatives }

// wire is the type of what travels.
func (e *Encoder) wire() gpustage.DType {
	if e.ranks.Wire == gpustage.BF16 {
		return gpustage.BF16
	}
	return e.Model.DType
}

// Gather adds the stage that gives each sub-batch's embeddings to all ranks. Without replicas it passes them on.
func Gather(g *pipeline.Graph, embedded pipeline.Port[Embedded], e *Encoder) pipeline.Port[Embedded] {
	e.wired.gather = true
	if !e.gathers() {
		return embedded
	}
	return pipeline.Map(g, "gather", embedded, func(t *pipeline.Task, x Embedded) (Embedded, error) {
		s, g, u := Stream(t), x.Sub.Batch.Global, t.Index.Sub
		defer e.count(t)()
		for _, p := range e.parts {
			rows := g.subRows(u, p.Tokens)
			e.ranks.Comm.World.AllGather(s, p.arriving.Span(0, sum(rows)), p.of(x.Sub, p.emb), rows, e.wire())
			at := 0
			for r := range g.Peers {
				g.runs(r, g.Peers[r].start(u), g.Peers[r].subSize(u), func(place, n int) {
					from, to := p.inAll(g, place), p.inAll(g, place+n)
					s.Copy(p.all.Span(from, to), p.arriving.Span(at, at+to-from))
					at += to - from
				})
			}
		}
		return x, nil
	}, e.OnComm())
}

func (p *Peer) start(u int) int { return p.Cuts[min(u, len(p.Cuts)-1)] }

// runs cuts n of a rank's sequences into those that lie side by side in the global order, and says where.
func (g *Global) runs(rank, from, n int, f func(place, n int)) {
	p := &g.Peers[rank]
	begin := 0 // of the column, among the rank's sequences
	for column, count := range p.Counts {
		if k := min(n, begin+count-from); k > 0 {
			place := g.Starts[column] + from - begin
			for _, other := range g.Peers[:rank] {
				place += other.Counts[column]
			}
			f(place, k)
			from, n = from+k, n-k
		}
		begin += count
	}
}

// Scatter adds the stage that sums the gradient of the embeddings over ranks and leaves each rank that of its own rows.
// Without replicas it passes the gradient on.
func Scatter(g *pipeline.Graph, grads pipeline.Port[Gradient], e *Encoder) pipeline.Port[Gradient] {
	e.wired.scatter = true
	if !e.gathers() {
		return grads
	}
	return pipeline.Map(g, "scatter", grads, func(t *pipeline.Task, x Gradient) (Gradient, error) {
		s, b := Stream(t), x.Batch
		g := b.Global
		defer e.count(t)()
		for c := range b.Columns { // a column's sequences lie in the order of ranks
			if g.Starts[c] == g.Starts[c+1] {
				continue
			}
			for _, p := range e.parts {
				mine, all := p.dEmb.Span(p.at(b, b.Starts[c]), p.at(b, b.Starts[c+1])), p.dAll.Span(p.inAll(g, g.Starts[c]), p.inAll(g, g.Starts[c+1]))
				rows := g.columnRows(c, p.Tokens)
				if x.whole {
					first := sum(rows[:e.ranks.Rank()])
					s.Copy(mine, all.Span(first, first+mine.Rows))
				} else {
					e.ranks.Comm.World.ReduceScatter(s, mine, all, rows, e.wire())
				}
			}
		}
		return x, nil
	}, e.OnComm())
}

// bucket is a part of the flat gradient that is reduced at once, when it is complete: at mark from.
type bucket struct {
	name     string
	from, to int
	ready    pipeline.Output[struct{}]
}

// defaultBucket is large enough that latency does not matter (4 MiB on a 10 Gb/s link take 3 ms), and small enough that the
// last one, which nothing hides, is a small part of all.
func defaultBucket(total int) int { return min(4<<20, max(256<<10, total/24)) }

// tableOf is where the word embeddings lie in the gradient: nowhere if they are frozen.
func tableOf(l *transformer.Layout) (from, to int) {
	word := l.Word()
	if !l.Trains(word) {
		return 0, 0
	}
	return l.At(word), l.At(word) + word.Len()
}

func (e *Encoder) table() (from, to int) { return tableOf(e.Model.Layout) }

// tableTrains tells whether the word embeddings do.
func (e *Encoder) tableTrains() bool { return e.Model.Layout.Trains(e.Model.Layout.Word()) }

// cut cuts the parameters that train, but for the word embeddings, at the marks where a backward pass completes gradients, from the top
// layer down: a bucket ends with the first mark at which it is large enough; a quarter is enough for the last four, which have little left to
// be hidden behind. What is outside of layers, which comes last, is one of its own.
// Where layers travel one by one, a bucket is a layer.
func (r *Replicas) cut(l *transformer.Layout, t gpustage.DType) []bucket {
	if r.byLayer() {
		return layers(l)
	}
	size := r.BucketBytes
	if size == 0 {
		from, to := tableOf(l)
		size = defaultBucket((l.Trained() - (to - from)) * t.Size())
	}
	marks := l.Marks()
	last := len(marks) - 1 // in layers
	if from, to := l.Span(transformer.Outside); from < to {
		last--
	}
	var out []bucket
	to, first := l.Trained(), 0
	for i, mark := range marks {
		enough := size
		if i > last-4 {
			enough = size / 4
		}
		if (to-mark)*t.Size() < enough && i < last {
			continue
		}
		name := l.MarkName(i)
		if i > first {
			name = l.MarkName(first) + " to " + name
		}
		out = append(out, bucket{name: name, from: mark, to: to})
		to, first = mark, i+1
	}
	return out
}

func layers(l *transformer.Layout) (out []bucket) {
	for layer := topLayer(l); layer >= 0; layer-- {
		if from, to := l.Span(layer); from < to {
			out = append(out, bucket{name: fmt.Sprintf("layer %d", layer), from: from, to: to})
		}
	}
	if from, to := l.Span(transformer.Outside); from < to {
		out = append(out, bucket{name: "embeddings", from: from, to: to})
	}
	return out
}

// topLayer is the last layer's number.
func topLayer(l *transformer.Layout) (top int) {
	for _, p := range l.Params {
		top = max(top, p.Layer)
	}
	return top
}

// Sync adds the stages that sum the parameters' gradients over ranks. Without replicas there are none.
func Sync(g *pipeline.Graph, contributions pipeline.Port[Contribution], e *Encoder) pipeline.Port[Contribution] {
	e.wired.sync = true
	if e.ranks == nil || e.ranks.EverySubBatch || e.ranks.early() {
		return contributions
	}
	reduce := func(name string, ready func(*pipeline.Stage) func(*pipeline.Task) error) {
		s := g.Stage("reduce "+name, e.OnComm(), pipeline.At(pipeline.Step))
		do := ready(s)
		out := pipeline.Out[struct{}](s, "reduced")
		e.reduced = append(e.reduced, out.Port)
		s.Do(func(t *pipeline.Task) error {
			end := e.part(t, "")
			err := do(t)
			end()
			out.Put(t, struct{}{})
			return err
		})
	}
	if e.tableTrains() {
		reduce("table", func(s *pipeline.Stage) func(*pipeline.Task) error {
			in := pipeline.In(s, "ready", e.tableReady.Port)
			return func(t *pipeline.Task) error {
				if earlier := in.Get(t); earlier {
					from, to := e.table()
					e.reduce(Stream(t), from, to)
				}
				return nil
			}
		})
	}
	for _, b := range e.buckets {
		reduce(b.name, func(s *pipeline.Stage) func(*pipeline.Task) error {
			pipeline.In(s, "ready", b.ready.Port)
			return func(t *pipeline.Task) error {
				e.reduce(Stream(t), b.from, b.to)
				return nil
			}
		})
	}
	if e.tableTrains() {
		reduce("last rows", func(s *pipeline.Stage) func(*pipeline.Task) error {
			in := pipeline.In(s, "ready", e.rowsReady.Port)
			return func(t *pipeline.Task) error {
				e.addLastRows(Stream(t), in.Get(t))
				return nil
			}
		})
	}
	return contributions
}

// count notes what a task sends through some groups, or those of the communication lane, and tells them for what: its beginning, and by the
// function it returns its end.
func (e *Encoder) count(t *pipeline.Task, groups ...collective.Group) func() {
	if len(groups) == 0 {
		groups = e.groups()
	}
	await := func() {
		if e.ranks.NoOverlap { // on a GPU: communication's time is all of its own, and nothing issued before. The stream keeps its error
			_ = Stream(t).Sync()
		}
	}
	await()
	told := e.For(t, groups...)
	end := t.Communicating()
	calls, bytes := sent(groups)
	return func() {
		await()
		c, b := sent(groups)
		t.Note(pipeline.Collectives, float64(c-calls))
		t.Note(pipeline.BytesSent, float64(b-bytes))
		told()
		end()
	}
}

// groups are those of the communication lane.
func (e *Encoder) groups() []collective.Group {
	return []collective.Group{e.ranks.Comm.World, e.ranks.Comm.Replicate, e.ranks.Comm.Shard}
}

// For has errors of ranks say that a task is what they communicate for, through some groups or those of the communication lane, until the function
// is called that it returns.
func (e *Encoder) For(t *pipeline.Task, groups ...collective.Group) (end func()) {
	if e.ranks == nil {
		return func() {}
	}
	if len(groups) == 0 {
		groups = e.groups()
	}
	say := func(what string) {
		for _, g := range groups {
			g.For(what)
		}
	}
	say(purpose(t))
	return func() { say("") }
}

// sent is how many data collectives this rank has issued and what it has sent through them.
func sent(groups []collective.Group) (calls, bytes int64) {
	for _, g := range groups {
		t := g.Traffic()
		for op, n := range t.Calls {
			if op != collective.OpExchange {
				calls += n
				bytes += t.Bytes[op]
			}
		}
	}
	return calls, bytes
}

// addLastRows gathers the last sub-batch's rows of the word embeddings' gradient and adds them to the table, in the order of ranks.
func (e *Encoder) addLastRows(s gpustage.Stream, b *Batch) {
	if e.wholeTable(b.Global) {
		from, to := e.table()
		e.reduce(s, from, to)
		return
	}
	rows, total := b.Global.lastRows()
	e.ranks.Comm.World.AllGather(s, e.rowsIn.Span(0, total), e.rowsOut.Span(0, rows[e.ranks.Rank()]), rows, e.wire())
	word := e.Model.Layout.Word()
	table := e.Model.Layout.View(e.grads, word)
	at := 0
	for r, n := range rows {
		if n == 0 {
			continue
		}
		ids := e.ids.Span(at, at+n).Vector()
		s.CopyIn(ids, gpustage.Bytes(b.Global.Peers[r].LastIDs))
		s.ScatterAdd(table, e.rowsIn.Span(at, at+n), ids)
		at += n
	}
}

// wholeTable tells whether the word embeddings' gradient is reduced as a whole: its all-reduce brings each rank twice the table,
// the rows of the last sub-batches once each. Where the embeddings are the decoder of a head as well, all rows have a gradient.
func (e *Encoder) wholeTable(g *Global) bool {
	if e.Model.Config.TiedDecoder() {
		return true
	}
	_, total := g.lastRows()
	return total > 2*e.Model.Layout.Word().Rows
}

// lastRows is how many distinct tokens each rank's last sub-batch has.
func (g *Global) lastRows() (rows []int, total int) {
	for _, p := range g.Peers {
		rows = append(rows, len(p.LastIDs))
		total += len(p.LastIDs)
	}
	return rows, total
}
