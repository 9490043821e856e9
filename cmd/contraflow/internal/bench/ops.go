package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"contraflow/gpustage"
	"contraflow/io/spelling"
	"contraflow/stages/loss"
	"contraflow/stages/recipe"
)

// What a training step of MiniLM-L6 has, of pairs of 39 and 97 tokens.
const (
	opQuery   = 39
	opDoc     = 97
	opHidden  = 384
	opForward = 1536
	opHeads   = 12
	opVocab   = 30522
	opParams  = 22_713_216
	opDropout = 0.1
)

// OpsOptions choose what is measured.
type OpsOptions struct {
	BF16     bool   // round the inputs of products
	Pairs    int    // of the step
	LossRows int    // pairs of the loss's batch
	Only     string // ops whose name contains it
}

// OpsReport is what `bench ops` prints.
type OpsReport struct {
	Bench         string   `json:"bench"`
	Machine       Machine  `json:"machine"`
	Precision     string   `json:"precision"`
	Threads       int      `json:"threads"`
	Pairs         int      `json:"pairs"`
	Ops           []OpTime `json:"ops"`
	ResidentBytes int64    `json:"peak_resident_bytes"`
}

// OpTime is one op. Rates are those of the best run; bytes are counted as if each tensor moved once.
type OpTime struct {
	Op            string  `json:"op"`
	Shape         string  `json:"shape"`
	Ms            Spread  `json:"ms"`
	GBPerS        float64 `json:"gb_per_s,omitempty"`
	GFLOPS        float64 `json:"gflop_per_s,omitempty"`
	PercentOfPeak float64 `json:"percent_of_peak,omitempty"`
	TensorBytes   int64   `json:"tensor_bytes"` // what the op's operands and scratch take
}

// work is an op made ready.
type work struct {
	shape string
	bytes float64
	flop  float64
	run   func(s gpustage.Stream)
}

// ops makes operands. The first error stays, as with a stream.
type ops struct {
	o       OpsOptions
	device  gpustage.Device
	stream  gpustage.Stream
	version *gpustage.Version // of weights
	held    []gpustage.Memory
	err     error
}

// tokens is T.
func (o *ops) tokens() int { return o.o.Pairs * (opQuery + opDoc) }

func (o *ops) hold(t gpustage.Tensor, err error) gpustage.Tensor {
	if err == nil {
		o.held = append(o.held, t.Mem)
	} else if o.err == nil {
		o.err = err
	}
	return t
}

// random is a [rows, cols] tensor of numbers between -1 and 1.
func (o *ops) random(rows, cols int) gpustage.Tensor {
	return o.hold(randomTensor(o.device, rows, cols, 1))
}

// zero is a [rows, cols] tensor of zeros, in memory that has been touched.
func (o *ops) zero(rows, cols int) gpustage.Tensor {
	t := o.hold(gpustage.NewTensor(o.device, gpustage.F32, rows, cols))
	if o.err == nil {
		o.stream.Fill(t, 0)
	}
	return t
}

func hold[T gpustage.Element](o *ops, d gpustage.DType, vs []T) gpustage.Tensor {
	t := o.hold(gpustage.NewTensor(o.device, d, 1, len(vs)))
	if o.err == nil {
		o.stream.CopyIn(t, gpustage.Bytes(vs))
	}
	return t
}

// release frees everything held.
func (o *ops) release() error {
	errs := []error{o.version.Free()}
	for _, m := range o.held {
		errs = append(errs, m.Free())
	}
	o.held = nil
	return errors.Join(errs...)
}

// sequences are the step's: the queries, then the documents.
func (o *ops) sequences() gpustage.Sequences {
	var cu, row, pos []int32
	var keys []uint64
	cu = append(cu, 0)
	for b := range 2 * o.o.Pairs {
		n := opQuery
		if b >= o.o.Pairs {
			n = opDoc
		}
		for p := range n {
			row, pos = append(row, int32(b)), append(pos, int32(p))
		}
		cu, keys = append(cu, int32(len(row))), append(keys, gpustage.RowKey(1, 0, int64(b%o.o.Pairs), b/o.o.Pairs))
	}
	return gpustage.Sequences{
		Rows: 2 * o.o.Pairs, Tokens: o.tokens(), MaxLen: opDoc, Cu: hold(o, gpustage.I32, cu), Row: hold(o, gpustage.I32, row),
		Pos: hold(o, gpustage.I32, pos), Keys: hold(o, gpustage.U64, keys),
	}
}

func (o *ops) ids() gpustage.Tensor {
	ids := make([]int32, o.tokens())
	for i := range ids {
		ids[i] = int32(uint32(i) * 2654435761 % opVocab)
	}
	return hold(o, gpustage.I32, ids)
}

// op has a name and makes its operands.
type op struct {
	name string
	make func(o *ops) work
}

// opTable lists the ops in about the order in which a step has them.
var opTable = []op{
	{"gather", func(o *ops) work {
		y, table, ids := o.zero(o.tokens(), opHidden), o.random(opVocab, opHidden), o.ids()
		return work{shape: dims(y), bytes: moved(y, y), run: func(s gpustage.Stream) { s.Gather(y, table, ids, false) }}
	}},
	{"layer norm", func(o *ops) work {
		y, x, c := o.zero(o.tokens(), opHidden), o.random(o.tokens(), opHidden), o.random(4, opHidden)
		m, r := o.zero(1, o.tokens()), o.zero(1, o.tokens())
		return work{shape: dims(y), bytes: moved(y, x), run: func(s gpustage.Stream) {
			s.LayerNorm(y, m, r, x, c.Span(0, 1), c.Span(1, 2), 1e-12)
		}}
	}},
	{"linear, bias", func(o *ops) work { return o.linear(3*opHidden, opHidden, gpustage.MatMul{}) }},
	{"attention", func(o *ops) work {
		qkv, ctx, lse, a := o.random(o.tokens(), 3*opHidden), o.zero(o.tokens(), opHidden), o.zero(opHeads, o.tokens()), o.attention()
		return work{shape: o.attentionShape(), flop: o.attentionWork(4), run: func(s gpustage.Stream) {
			s.Attention(ctx, lse, column(qkv, 0), column(qkv, 1), column(qkv, 2), a)
		}}
	}},
	{"linear, bias, dropout, residual", func(o *ops) work {
		return o.linear(opHidden, opForward, gpustage.MatMul{Dropout: o.dropout(), Residual: o.random(o.tokens(), opHidden)})
	}},
	{"linear, bias, gelu", func(o *ops) work {
		return o.linear(opForward, opHidden, gpustage.MatMul{PreAct: o.zero(o.tokens(), opForward), Act: gpustage.GELU})
	}},
	{"dropout, residual", func(o *ops) work {
		y, x, r, d := o.zero(o.tokens(), opHidden), o.random(o.tokens(), opHidden), o.random(o.tokens(), opHidden), o.dropout()
		return work{shape: dims(y), bytes: moved(y, x, r), run: func(s gpustage.Stream) { s.Dropout(y, x, r, d) }}
	}},
	{"gelu", func(o *ops) work {
		y, x := o.zero(o.tokens(), opForward), o.random(o.tokens(), opForward)
		return work{shape: dims(y), bytes: moved(y, x), run: func(s gpustage.Stream) { s.Activate(y, x, gpustage.GELU) }}
	}},
	{"loss, forward and backward", (*ops).loss},
	{"layer norm backward", func(o *ops) work {
		dx, dy, x, c := o.zero(o.tokens(), opHidden), o.random(o.tokens(), opHidden), o.random(o.tokens(), opHidden), o.random(4, opHidden)
		m, r := o.zero(1, o.tokens()), o.random(1, o.tokens())
		return work{shape: dims(x), bytes: moved(dx, dy, x), run: func(s gpustage.Stream) {
			s.LayerNormBackward(dx, c.Span(0, 1), c.Span(1, 2), dy, x, m, r, c.Span(2, 3), gpustage.Dropped{})
		}}
	}},
	{"gelu backward", func(o *ops) work {
		dx, dy, x := o.zero(o.tokens(), opForward), o.random(o.tokens(), opForward), o.random(o.tokens(), opForward)
		return work{shape: dims(x), bytes: moved(dx, dy, x), run: func(s gpustage.Stream) { s.ActivateBackward(dx, dy, x, gpustage.GELU) }}
	}},
	{"linear backward, gelu backward", func(o *ops) work {
		dx, dy, w, pre := o.zero(o.tokens(), opForward), o.random(o.tokens(), opHidden), o.random(opHidden, opForward), o.random(o.tokens(), opForward)
		m := gpustage.MatMul{GradOf: pre, Act: gpustage.GELU, BF16: o.o.BF16, Forms: o.version.Forms()}
		return work{shape: product(dx, opHidden), flop: flops(dx, opHidden), run: func(s gpustage.Stream) { s.MatMul(dx, dy, w, m) }}
	}},
	{"linear's weight gradient", func(o *ops) work {
		dw, dy, x := o.zero(opForward, opHidden), o.random(o.tokens(), opForward), o.random(o.tokens(), opHidden)
		m := gpustage.MatMul{TransA: true, Add: true, BF16: o.o.BF16}
		return work{shape: product(dw, o.tokens()), flop: flops(dw, o.tokens()), run: func(s gpustage.Stream) { s.MatMul(dw, dy, x, m) }}
	}},
	{"bias gradient", func(o *ops) work {
		sum, x := o.zero(1, opForward), o.random(o.tokens(), opForward)
		return work{shape: dims(x), bytes: moved(x), run: func(s gpustage.Stream) { s.ColumnSum(sum, x) }}
	}},
	{"attention backward", func(o *ops) work {
		qkv, ctx, lse, a := o.random(o.tokens(), 3*opHidden), o.zero(o.tokens(), opHidden), o.zero(opHeads, o.tokens()), o.attention()
		d, dctx := o.zero(o.tokens(), 3*opHidden), o.random(o.tokens(), opHidden)
		q, k, v := column(qkv, 0), column(qkv, 1), column(qkv, 2)
		if o.err == nil {
			o.stream.Attention(ctx, lse, q, k, v, a)
		}
		return work{shape: o.attentionShape(), flop: o.attentionWork(10), run: func(s gpustage.Stream) {
			s.AttentionBackward(column(d, 0), column(d, 1), column(d, 2), dctx, ctx, lse, q, k, v, a)
		}}
	}},
	{"scatter add", func(o *ops) work {
		table, dy, ids := o.zero(opVocab, opHidden), o.random(o.tokens(), opHidden), o.ids()
		return work{shape: dims(dy), bytes: moved(dy, dy, dy), run: func(s gpustage.Stream) { s.ScatterAdd(table, dy, ids) }}
	}},
	{"gradient norm", func(o *ops) work {
		out, x := o.hold(gpustage.NewTensor(o.device, gpustage.F64, 1, 1)), o.random(1, opParams)
		return work{shape: dims(x), bytes: moved(x), run: func(s gpustage.Stream) { s.SumSquares(out, x) }}
	}},
	{"adamw", func(o *ops) work {
		p, m, v, g := o.random(1, opParams), o.zero(1, opParams), o.zero(1, opParams), o.random(1, opParams)
		h := gpustage.AdamW{LR: 1e-5, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01, Step: 9, GradScale: 1}
		return work{shape: dims(p), bytes: moved(p, p, m, m, v, v, g), run: func(s gpustage.Stream) { s.AdamW(p, m, v, g, h) }}
	}},
}

func dims(t gpustage.Tensor) string { return fmt.Sprintf("%dx%d", t.Rows, t.Cols) }

// product is the shape of a product, MxNxK.
func product(c gpustage.Tensor, k int) string { return fmt.Sprintf("%dx%dx%d", c.Rows, c.Cols, k) }

// column is q, k or v of [T, 3C].
func column(t gpustage.Tensor, i int) gpustage.Tensor {
	return t.Columns(i*opHidden, (i+1)*opHidden)
}

func moved(ts ...gpustage.Tensor) float64 {
	n := 0
	for _, t := range ts {
		n += t.Len() * t.DType.Size()
	}
	return float64(n)
}

func flops(c gpustage.Tensor, k int) float64 { return 2 * float64(c.Len()) * float64(k) }

func (o *ops) attentionShape() string {
	return fmt.Sprintf("%dx%d, %dx%d, %d heads", o.o.Pairs, opQuery, o.o.Pairs, opDoc, opHeads)
}

// attentionWork is the arithmetic of products over pairs of tokens: 4 per pair and feature forward (q kᵀ, p v), 10 backward
// (q kᵀ again, dp, dv, dq, dk).
func (o *ops) attentionWork(perPair float64) float64 {
	return perPair * float64(o.o.Pairs) * (opQuery*opQuery + opDoc*opDoc) * opHidden
}

func (o *ops) dropout() gpustage.Dropout {
	return gpustage.Dropout{P: opDropout, Seqs: o.sequences(), Site: gpustage.SiteFeedForward}
}

func (o *ops) attention() gpustage.Attention {
	q := o.sequences()
	d := gpustage.Dropout{P: opDropout, Seqs: q, Site: gpustage.SiteAttention}
	return gpustage.Attention{Seqs: q, Heads: opHeads, HeadDim: opHidden / opHeads, Scale: 0.2, Dropout: d, BF16: o.o.BF16}
}

// linear is y = x Wᵀ + b for all of the step's tokens, and what else m says.
func (o *ops) linear(out, in int, m gpustage.MatMul) work {
	y, x, w := o.zero(o.tokens(), out), o.random(o.tokens(), in), o.random(out, in)
	m.TransB, m.Bias, m.BF16, m.Forms = true, o.random(1, out), o.o.BF16, o.version.Forms()
	return work{shape: product(y, in), flop: flops(y, in), run: func(s gpustage.Stream) { s.MatMul(y, x, w, m) }}
}

// loss is MNRL over unit embeddings of o.Rows queries and as many documents, and their gradient: three products, one of scores
// and two of gradients.
func (o *ops) loss() work {
	rows := o.o.LossRows
	l := loss.InfoNCE{Scale: 20, MaskDuplicates: true}
	x, dx, norm := o.random(2*rows, opHidden), o.zero(2*rows, opHidden), o.zero(1, 2*rows)
	b := &loss.Batch{Rows: rows, Embeddings: x, Gradient: dx, Normalized: true, Texts: make([]loss.TextID, 2*rows)}
	for i := range b.Texts {
		b.Texts[i] = loss.TextID{uint64(i), 0}
	}
	if o.err != nil {
		return work{}
	}
	o.stream.Normalize(x, norm, x)
	arena, err := gpustage.NewArena(o.device, l.Memory(b.Size()))
	if err != nil {
		o.err = err
		return work{}
	}
	o.hold(gpustage.Tensor{Mem: arenaMemory{arena}}, nil)
	return work{
		shape: fmt.Sprintf("%d pairs of %d", rows, opHidden), flop: 2 * loss.Products * float64(rows) * float64(rows) * opHidden,
		run: func(s gpustage.Stream) {
			s.Fill(dx, 0)
			if _, err := l.Compute(s, arena, b); err != nil {
				s.Fail(err)
			}
		},
	}
}

// arenaMemory lets an arena be held like a tensor. What of it was never used is not resident.
type arenaMemory struct{ *gpustage.Arena }

func (a arenaMemory) Bytes() int { return a.Peak() }

// MeasureOps measures ops one after another for about d in all, each five times at least, or once if a run takes seconds.
func MeasureOps(ctx context.Context, o OpsOptions, d time.Duration) (_ *OpsReport, err error) {
	r := &OpsReport{Bench: "ops", Pairs: o.Pairs, Precision: map[bool]string{false: "f32", true: "bf16"}[o.BF16]}
	if r.Machine, err = ThisMachine(); err != nil {
		return nil, err
	}
	k, err := kernels()
	if err != nil {
		return nil, err
	}
	device, err := gpustage.Open("cpu")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	r.Threads = device.Info().Threads
	p := newProbe(k, r.Threads)
	defer p.close()
	stream, err := device.OpenStream()
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	chosen := slices.DeleteFunc(slices.Clone(opTable), func(e op) bool { return !strings.Contains(e.name, o.Only) })
	if len(chosen) == 0 {
		var names []string
		for _, e := range opTable {
			names = append(names, e.name)
		}
		return nil, fmt.Errorf("no op has %q in its name; there are: %s", o.Only, strings.Join(names, "; "))
	}
	// Of a pair's tokens the feed-forward layer's ops hold most, of the loss's batch embeddings, their gradient and identities.
	perPair, perRow := (opQuery+opDoc)*4*(3.*opForward), 2*(4*2*opHidden+32.)
	if err := affordable(fmt.Sprintf("%d pairs, a loss of %d rows", o.Pairs, o.LossRows), max(perPair*float64(o.Pairs), perRow*float64(o.LossRows))); err != nil {
		return nil, err
	}
	for _, e := range chosen {
		x := &ops{o: o, device: device, stream: stream, version: gpustage.NewVersion(1 << 40)}
		w := e.make(x)
		t := OpTime{Op: e.name, Shape: w.shape}
		if x.err == nil {
			x.err = t.measure(ctx, x, w, p, d/time.Duration(len(chosen)))
		}
		for _, m := range x.held {
			t.TensorBytes += int64(m.Bytes())
		}
		if err := errors.Join(x.err, x.release()); err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
		r.Ops = append(r.Ops, t)
	}
	r.ResidentBytes = gpustage.HostPeakMemory()
	return r, nil
}

// slow is from when on a run is not repeated, nor warmed up for.
const slow = 5 * time.Second

func (t *OpTime) measure(ctx context.Context, o *ops, w work, p *probe, d time.Duration) error {
	var ms []float64
	peak := 0.0
	start := time.Now()
	w.run(o.stream)
	if err := o.stream.Sync(); err != nil {
		return err
	}
	took := time.Since(start)
	if took > slow {
		ms = append(ms, took.Seconds()*1e3)
		for range 5 { // a probe alone may meet threads that still wake up
			peak = max(peak, p.gflops(o.o.BF16, probeFor))
		}
	} else {
		err := repeat(ctx, d, 5, func() error {
			if w.flop > 0 {
				peak = max(peak, p.gflops(o.o.BF16, took))
			}
			start := time.Now()
			w.run(o.stream)
			if err := o.stream.Sync(); err != nil {
				return err
			}
			took = time.Since(start)
			ms = append(ms, took.Seconds()*1e3)
			return nil
		})
		if err != nil {
			return err
		}
	}
	t.Ms = SpreadOf(ms)
	t.GBPerS, t.GFLOPS = w.bytes/t.Ms.Min/1e6, w.flop/t.Ms.Min/1e6
	if w.flop > 0 {
		t.PercentOfPeak = 100 * t.GFLOPS / peak
	}
	return nil
}

// Print writes a table for people.
func (r *OpsReport) Print(w io.Writer) error {
	fmt.Fprintf(w, "%s\n%s, %s; rates are the best run's; tokens, features and heads of a step of MiniLM-L6 with %s\n\n", r.Machine, r.Precision, threads(r.Threads), spelling.Count(r.Pairs, "pair", "pairs"))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "op\tshape\tms: median (least to most)\tGB/s\tGFLOP/s\t% of peak")
	for _, o := range r.Ops {
		if o.GFLOPS > 0 {
			fmt.Fprintf(t, "%s\t%s\t%s\t\t%s\t%.1f\n", o.Op, o.Shape, o.Ms, digits(o.GFLOPS), o.PercentOfPeak)
		} else {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t\t\n", o.Op, o.Shape, o.Ms, digits(o.GBPerS))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nlargest op: %s of tensors", recipe.Size(slices.MaxFunc(r.Ops, func(a, b OpTime) int { return int(a.TensorBytes - b.TensorBytes) }).TensorBytes))
	if r.ResidentBytes > 0 {
		fmt.Fprintf(w, "; peak memory of the process %s", recipe.Size(r.ResidentBytes))
	}
	fmt.Fprintln(w)
	return nil
}
