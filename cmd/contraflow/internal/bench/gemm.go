package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"text/tabwriter"
	"time"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
)

// Shape is a linear layer: M tokens, N outputs, K inputs.
type Shape struct{ M, N, K int }

func (s Shape) String() string { return fmt.Sprintf("%dx%dx%d", s.M, s.N, s.K) }

// Shapes are those of small encoders: the projections and the feed-forward layers of MiniLM, and BERT-base's.
var Shapes = []Shape{{4096, 384, 384}, {4096, 1536, 384}, {4096, 384, 1536}, {2048, 3072, 768}}

// GEMMOptions choose what is measured.
type GEMMOptions struct {
	Shapes  []Shape
	Threads int // besides one
}

// GEMMReport is what `bench gemm` prints.
type GEMMReport struct {
	Bench   string     `json:"bench"`
	Machine Machine    `json:"machine"`
	Rounds  int        `json:"rounds"`
	Cases   []GEMMCase `json:"cases"`
}

// GEMMCase is one product. Forms are named as their operands are stored:
//
//	NT  y[M, N] = x[M, K] Wᵀ      forward, W [N, K] packed once
//	NN  c[M, N] = a[M, K] W       backward to the input, W [K, N] packed once
//	TN  dW[N, K] += dyᵀ[N, M] x   the weight's gradient of the same layer
type GEMMCase struct {
	Shape     string   `json:"shape"` // MxNxK
	Form      string   `json:"form"`
	Precision string   `json:"precision"`
	At        []GEMMAt `json:"at"` // one thread, and if asked for several
	// Scaling is the rate on all threads over that on one; the probe's is what the machine allows.
	Scaling        float64 `json:"scaling,omitempty"`
	ScalingOfProbe float64 `json:"scaling_of_probe,omitempty"`
}

// GEMMAt is a product on a number of threads: the best run, the probe's best run, and the ratio.
type GEMMAt struct {
	Threads       int     `json:"threads"`
	GFLOPS        float64 `json:"gflop_per_s"`
	PeakGFLOPS    float64 `json:"peak_gflop_per_s"`
	PercentOfPeak float64 `json:"percent_of_peak"`
}

// GEMM measures products round by round: each round has every case, on one thread and on several, with the probe before
// each. Making it takes memory for operands; Close gives it back.
type GEMM struct {
	report  GEMMReport
	engines []*gemmEngine
	layers  []*layer
	cases   []*gemmCase
}

// gemmEngine is a number of threads.
type gemmEngine struct {
	threads int
	device  *cpu.Device
	stream  gpustage.Stream
	probe   *probe
	version *gpustage.Version // of all weights, which never change here
}

// layer holds one shape's operands: all forms and precisions share them, as nobody looks at the numbers.
type layer struct {
	x, y, w, dw gpustage.Tensor   // [M, K], [M, N], [N, K], [N, K]
	forms       []*gpustage.Forms // of w, by engine
}

type gemmCase struct {
	layer   *layer
	c, a, b gpustage.Tensor
	o       gpustage.MatMul
	work    float64   // floating-point operations
	best    []float64 // GFLOP/s, by engine
	peak    []float64
	took    []time.Duration
}

// NewGEMM prepares the products.
func NewGEMM(o GEMMOptions) (_ *GEMM, err error) {
	g := &GEMM{report: GEMMReport{Bench: "gemm"}}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
		}
	}()
	if g.report.Machine, err = ThisMachine(); err != nil {
		return nil, err
	}
	k, err := kernels()
	if err != nil {
		return nil, err
	}
	threads := []int{1}
	if o.Threads > 1 {
		threads = append(threads, o.Threads)
	}
	for _, n := range threads {
		e := &gemmEngine{threads: n, version: gpustage.NewVersion(1 << 40)}
		if e.device, err = cpu.New(cpu.Threads(n)); err != nil {
			return nil, err
		}
		e.probe = newProbe(k, n)
		g.engines = append(g.engines, e)
		if e.stream, err = e.device.OpenStream(); err != nil {
			return nil, err
		}
	}
	for _, s := range o.Shapes {
		if s.M < 1 || s.N < 1 || s.K < 1 {
			return nil, fmt.Errorf("a product of shape %v: M, N and K must be positive", s)
		}
		m, n, k := float64(s.M), float64(s.N), float64(s.K)
		if err := affordable(fmt.Sprintf("a product of shape %v", s), 4*(m*k+m*n+4*n*k)); err != nil { // W: itself, packed two ways, its gradient
			return nil, err
		}
		l := &layer{}
		g.layers = append(g.layers, l)
		for t, shape := range map[*gpustage.Tensor][2]int{&l.x: {s.M, s.K}, &l.y: {s.M, s.N}, &l.w: {s.N, s.K}, &l.dw: {s.N, s.K}} {
			if *t, err = randomTensor(g.engines[0].device, shape[0], shape[1], 0.02); err != nil {
				return nil, err
			}
		}
		for _, e := range g.engines {
			l.forms = append(l.forms, e.version.Forms())
		}
		for _, bf16 := range []bool{false, true} {
			precision := map[bool]string{false: "f32", true: "bf16"}[bf16]
			for _, c := range []struct {
				form    string
				c, a, b gpustage.Tensor
				o       gpustage.MatMul
			}{
				{"NN", l.y, l.x, l.w.Reshape(s.K, s.N), gpustage.MatMul{BF16: bf16}},
				{"NT", l.y, l.x, l.w, gpustage.MatMul{BF16: bf16, TransB: true}},
				{"TN", l.dw, l.y, l.x, gpustage.MatMul{BF16: bf16, TransA: true, Add: true}},
			} {
				n := len(threads)
				g.cases = append(g.cases, &gemmCase{
					layer: l, c: c.c, a: c.a, b: c.b, o: c.o, work: 2 * float64(s.M) * float64(s.N) * float64(s.K),
					best: make([]float64, n), peak: make([]float64, n), took: make([]time.Duration, n),
				})
				g.report.Cases = append(g.report.Cases, GEMMCase{Shape: s.String(), Form: c.form, Precision: precision})
			}
		}
	}
	return g, nil
}

// randomTensor holds numbers between -scale and scale, the same ones each time.
func randomTensor(d gpustage.Device, rows, cols int, scale float32) (gpustage.Tensor, error) {
	t, err := gpustage.NewTensor(d, gpustage.F32, rows, cols)
	if err != nil {
		return t, err
	}
	rng := rand.New(rand.NewPCG(uint64(rows), uint64(cols)))
	x := gpustage.Slice[float32](t)
	for i := range x {
		x[i] = (2*rng.Float32() - 1) * scale
	}
	return t, nil
}

// shortest is how long a run is at least, so that the clock and the first fork do not count.
const shortest = 5 * time.Millisecond

// Round measures every case once and returns what there is so far. The first round of a case is a warm-up: it packs.
func (g *GEMM) Round(ctx context.Context) (*GEMMReport, error) {
	if g.report.Rounds == 0 {
		for _, c := range g.cases {
			for i, e := range g.engines {
				if _, err := c.run(e, i, 1); err != nil {
					return nil, err
				}
			}
		}
	}
	for _, c := range g.cases {
		for i, e := range g.engines {
			if err := ctx.Err(); err != nil {
				return nil, context.Cause(ctx)
			}
			if err := c.measure(e, i); err != nil {
				return nil, err
			}
		}
	}
	g.report.Rounds++
	return g.sum(), nil
}

func (c *gemmCase) run(e *gemmEngine, i, times int) (time.Duration, error) {
	o := c.o
	if !o.TransA {
		o.Forms = c.layer.forms[i]
	}
	start := time.Now()
	for range times {
		e.stream.MatMul(c.c, c.a, c.b, o)
	}
	err := e.stream.Sync()
	c.took[i] = time.Since(start) / time.Duration(times)
	return c.took[i], err
}

func (c *gemmCase) measure(e *gemmEngine, i int) error {
	times := int(shortest/max(c.took[i], 1)) + 1
	c.peak[i] = max(c.peak[i], e.probe.gflops(c.o.BF16, c.took[i]*time.Duration(times)))
	took, err := c.run(e, i, times)
	c.best[i] = max(c.best[i], c.work/took.Seconds()/1e9)
	return err
}

// sum writes the report.
func (g *GEMM) sum() *GEMMReport {
	for n, c := range g.cases {
		r := &g.report.Cases[n]
		r.At = r.At[:0]
		for i, e := range g.engines {
			r.At = append(r.At, GEMMAt{e.threads, c.best[i], c.peak[i], 100 * c.best[i] / c.peak[i]})
		}
		if len(g.engines) > 1 {
			r.Scaling, r.ScalingOfProbe = c.best[1]/c.best[0], c.peak[1]/c.peak[0]
		}
	}
	return &g.report
}

// Run measures for about d, three rounds at least.
func (g *GEMM) Run(ctx context.Context, d time.Duration) (*GEMMReport, error) {
	err := repeat(ctx, d, 3, func() error {
		_, err := g.Round(ctx)
		return err
	})
	return g.sum(), err
}

// Close gives everything back.
func (g *GEMM) Close() error {
	var errs []error
	for _, l := range g.layers {
		for _, t := range []gpustage.Tensor{l.x, l.y, l.w, l.dw} {
			if !t.IsZero() {
				errs = append(errs, t.Mem.Free())
			}
		}
	}
	for _, e := range g.engines {
		errs = append(errs, e.version.Free(), e.device.Close())
		e.probe.close()
	}
	return errors.Join(errs...)
}

// Print writes a table for people.
func (r *GEMMReport) Print(w io.Writer) error {
	fmt.Fprintf(w, "%s\nbest of %d rounds; %% of the multiply-adds between registers that as many threads do; weights of NN and NT packed before\n\n", r.Machine, r.Rounds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "MxNxK\tform\tprecision\tthreads\tGFLOP/s\tpeak\t%\t")
	if len(r.Cases[0].At) > 1 {
		fmt.Fprint(t, "threads\tGFLOP/s\tpeak\t%\tscaling\tof the probe\t")
	}
	fmt.Fprintln(t)
	for _, c := range r.Cases {
		fmt.Fprintf(t, "%s\t%s\t%s\t", c.Shape, c.Form, c.Precision)
		for _, a := range c.At {
			fmt.Fprintf(t, "%d\t%.0f\t%.0f\t%.1f\t", a.Threads, a.GFLOPS, a.PeakGFLOPS, a.PercentOfPeak)
		}
		if len(c.At) > 1 {
			fmt.Fprintf(t, "%.2f\t%.2f\t", c.Scaling, c.ScalingOfProbe)
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}
