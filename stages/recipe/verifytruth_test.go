package recipe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/io/safetensors"
	"contraflow/testdata/harness"
)

// The worst tensor is the one that is farthest beyond its own limit, and one that is NaN is worse than all.
func TestWorst(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		errors, limits []float64
		want           int
	}{
		{[]float64{1, 3, 2}, nil, 1}, {[]float64{1, 3, 2}, []float64{0.1, 3, 1}, 0}, {[]float64{3, nan, 9}, nil, 1}, {[]float64{3, 1, nan}, []float64{1, 1, 1}, 2}, {[]float64{0, 0}, nil, 1},
	} {
		if got := worst(c.errors, c.limits); got != c.want {
			t.Errorf("%v within %v: tensor %d, want %d", c.errors, c.limits, got, c.want)
		}
	}
}

// Memory is predicted of the longest texts, be they queries.
func TestLongestSub(t *testing.T) {
	j := newJob(t, 30)
	for _, set := range []string{"model.max_length={query: 30, document: 9}", "model.max_length={query: 9, document: 30}"} {
		x := j.opened(t, []string{set, "save.dir=" + j.dir})
		if lengths, _ := x.longestSub(); len(lengths) != 5 || lengths[0] != 30 {
			t.Errorf("%s: %v", set, lengths)
		}
	}
}

// A gradient that only differs by what is near to a jump and beyond it is right, and is told with how much of that; with anything else wrong it is not.
func TestJumps(t *testing.T) {
	harness.Thorough(t)
	t.Parallel()
	for _, c := range []struct {
		name   string
		sets   []string
		jumped [][]int // of what is nearest
	}{
		{"a ReLU", nil, [][]int{{0}, {1, 2, 6}, {3, 17, 25}}},
		{"MaxSim", []string{"model.kind=multi_vector", "loss={scale: 1}"}, [][]int{{0, 2}, {1}}},
		{"a sparse embedding", sparseSets(t), [][]int{{1}, {2, 4, 6}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := newJob(t, 30)
			if c.name == "a sparse embedding" {
				j = sparseJob(t, 30)
			}
			if c.sets == nil {
				j.activate(t, "relu")
			}
			x := j.opened(t, append(c.sets, "save.dir="+j.dir))
			v, want := learned(t, x, 12)
			tr := &truth{verifier: v, is: want, base: 1e-9}
			judged := func(config string, got []float64) VerifyRow {
				c := &comparison{row: VerifyRow{Config: config}, got: got, want: want, errors: deviations(x.model.Layout, got, want.Gradient)}
				if err := tr.judge(t.Context(), c, nil); err != nil {
					t.Fatal(err)
				}
				return c.row
			}
			for _, which := range c.jumped {
				jumped, err := want.jumped(t.Context(), func(i int) bool { return slices.Contains(which, i) })
				if err != nil {
					t.Fatal(err)
				}
				if e := deviations(x.model.Layout, jumped, want.Gradient); e[worst(e, nil)] < 1e-5 {
					t.Errorf("%v changes next to nothing: this shows nothing", which)
				}
				row := judged("some", jumped)
				if says := fmt.Sprintf("some, with %d of the values within %.0e of a jump beyond it", len(which), want.near[which[len(which)-1]].off); row.Error > row.Limit || row.Config != says {
					t.Errorf("%v: %+v, want %s", which, row, says)
				}
				for i := range jumped {
					jumped[i] *= 1.001
				}
				if row = judged("wrong", jumped); row.Error < 5e-4 {
					t.Errorf("%v, and 0.001 more of all: %+v", which, row)
				}
			}
			if row := judged("NaN", slices.Repeat([]float64{math.NaN()}, len(want.Gradient))); !math.IsNaN(row.Error) {
				t.Errorf("NaN: %+v", row)
			}
		})
	}
}

// learned is the gradient in f64 of some rows.
func learned(t *testing.T, x *Run, rows int) (*verifier, *standard) {
	t.Helper()
	v, err := x.newVerifier(t.Context(), VerifyOptions{Rows: rows}, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	v.precise = x.device.(ref.Jumper)
	is, err := v.learn(t.Context(), way{dtype: gpustage.F64, budget: -1, tile: oneTile})
	if err != nil {
		t.Fatal(err)
	}
	return v, is
}

// activate has the job's model have another activation.
func (j *job) activate(t *testing.T, name string) {
	t.Helper()
	file := filepath.Join(j.dir, "model", "config.json")
	config, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, bytes.Replace(config, []byte(`"gelu"`), []byte(`"`+name+`"`), 1), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A ReLU's or MaxSim's gradient that is a thousandth too large is wrong: that it jumps is no excuse.
func TestSteep(t *testing.T) {
	harness.Thorough(t)
	t.Parallel()
	for _, factor := range []float64{1, 1.001} {
		for _, sets := range [][]string{nil, {"model.kind=multi_vector", "loss={scale: 1}"}} {
			j := newJob(t, 30)
			j.activate(t, "relu")
			x := j.opened(t, append(sets, "save.dir="+j.dir))
			x.device = steep{x.device.(*cpu.Device), factor, sets != nil}
			ok, err := x.Verify(t.Context(), VerifyOptions{Rows: 8, SubBatches: []int{5}, Accumulate: []int{1}, Replicas: []int{1}, Shards: []int{1}})
			if err != nil || ok != (factor == 1) {
				t.Errorf("%v: %v times the gradient is right: %t, %v", sets, factor, ok, err)
			}
		}
	}
}

// steep is a device on which the gradient of what jumps is too large.
type steep struct {
	*cpu.Device
	factor float64
	maxSim bool // that is MaxSim, or else a ReLU
}

func (d steep) OpenStream() (gpustage.Stream, error) {
	s, err := d.Device.OpenStream()
	return steepStream{s, d}, err
}

type steepStream struct {
	gpustage.Stream
	of steep
}

func (s steepStream) MatMul(c, a, b gpustage.Tensor, o gpustage.MatMul) {
	s.Stream.MatMul(c, a, b, o)
	if !o.GradOf.IsZero() && o.Act == gpustage.ReLU && !s.of.maxSim {
		s.Scale(c, c, s.of.factor)
	}
}

func (s steepStream) ActivateBackward(dx, dy, x gpustage.Tensor, f gpustage.Activation) {
	s.Stream.ActivateBackward(dx, dy, x, f)
	if f == gpustage.ReLU && !s.of.maxSim {
		s.Scale(dx, dx, s.of.factor)
	}
}

func (s steepStream) MaxSimBackward(dx, dy, g, at, x, y gpustage.Tensor) {
	if s.of.maxSim {
		s.Scale(g, g, s.of.factor)
	}
	s.Stream.MaxSimBackward(dx, dy, g, at, x, y)
}

// Where weights are on a jump, as those of a ReLU's input that are zero, a finite difference is of both sides: it is taken beside them.
func TestOnJump(t *testing.T) {
	j := newJob(t, 30)
	j.activate(t, "relu")
	changeTensors(t, filepath.Join(j.dir, "model", "model.safetensors"), func(x safetensors.Tensor) {
		if strings.HasPrefix(x.Name, "encoder.layer.0.intermediate.dense.") {
			clear(x.Data[:len(x.Data)/x.Shape[0]]) // the weight's first row, and the bias's first number
		}
	})
	x := j.opened(t, []string{"save.dir=" + j.dir})
	var rows []string
	o := VerifyOptions{Rows: 8, SubBatches: []int{5}, Accumulate: []int{1}, Replicas: []int{1}, Shards: []int{1}}
	o.Report = func(r VerifyRow) { rows = append(rows, r.String()) }
	if ok, err := x.Verify(t.Context(), o); err != nil || !ok || !strings.Contains(strings.Join(rows, "\n"), ", weights moved by 0.001, against finite difference") {
		t.Errorf("right: %t, %v\n%s", ok, err, strings.Join(rows, "\n"))
	}
}

// What is more than rounding on ref makes wrong is right all the same where weights that f32 hardly tells from the model's have such a gradient.
func TestStirred(t *testing.T) {
	harness.Thorough(t)
	t.Parallel()
	j := newJob(t, 30)
	dir := j.family(t, "t5-gated", nil)
	changeTensors(t, filepath.Join(dir, "model.safetensors"), func(x safetensors.Tensor) { // a layer's gradient is that of the ones before it many times over
		for i := 0; i < len(x.Data) && len(x.Shape) == 2 && strings.Contains(x.Name, ".layer."); i += 4 {
			v := math.Float32frombits(binary.LittleEndian.Uint32(x.Data[i:]))
			binary.LittleEndian.PutUint32(x.Data[i:], math.Float32bits(8*v))
		}
	})
	x := j.opened(t, []string{"save.dir=" + j.dir, "model.path=" + dir})
	v, is := learned(t, x, 8)
	fresh := func() *truth { return &truth{verifier: v, is: is, base: 1e-5} }
	noise := func(ways []way) []float64 {
		tr := fresh()
		if err := tr.hear(t.Context(), func(VerifyRow) {}, ways...); err != nil {
			t.Fatal(err)
		}
		return tr.noise
	}
	rounds, stirs := noise(fresh().roundings()), noise(fresh().stirrings())
	own, err := v.model(is.way, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Free()
	stirred, err := v.model(fresh().stirrings()[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stirred.Free()
	most, weights := 0.0, gpustage.Slice[float64](own.Trained())
	for i, w := range gpustage.Slice[float64](stirred.Trained()) {
		if weights[i] != 0 {
			most = max(most, math.Abs(w/weights[i]-1))
		}
	}
	if most *= stirredLess; !(most > 0.9*0x1p-24 && most < 1.001*0x1p-24) {
		t.Errorf("weights are up to %g off", most)
	}
	at := 0
	for i := range stirs {
		if stirs[i]/rounds[i] > stirs[at]/rounds[at] {
			at = i
		}
	}
	p := x.model.Layout.Training()[at]
	for _, c := range []struct {
		off     float64
		stirred bool // it is as if that had been tried
		ok      bool
	}{
		{noiseFactor * math.Sqrt(stirs[at]*rounds[at]), false, true},
		{noiseFactor * math.Sqrt(stirs[at]*rounds[at]), true, false},
		{noiseFactor * 1.1 * stirs[at], false, false},
	} {
		got := slices.Clone(is.Gradient)
		for i := range got[x.model.Layout.At(p):][:p.Len()] {
			got[x.model.Layout.At(p)+i] *= 1 + c.off
		}
		tr, stirred := fresh(), 0
		tr.stirred = c.stirred
		way := &comparison{got: got, want: is, errors: deviations(x.model.Layout, got, is.Gradient)}
		err := tr.weigh(t.Context(), way, func(r VerifyRow) {
			if strings.Contains(r.Config, "plain, f64, weights half an eps off") {
				stirred++
			}
		})
		if err != nil || way.row.Error <= way.row.Limit != c.ok || stirred == 2 == c.stirred || way.row.Parameter != p.Name && !c.ok {
			t.Errorf("%s %.2g off, where rounding is %.2g and stirred weights %.2g: %+v, %v, stirred %d times", p.Name, c.off, rounds[at], stirs[at], way.row, err, stirred)
		}
	}
}

// changeTensors writes a file anew, with what change makes of each tensor's data.
func changeTensors(t *testing.T, file string, change func(x safetensors.Tensor)) {
	t.Helper()
	f, err := safetensors.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	var tensors []safetensors.Tensor
	for _, name := range f.Names() {
		x, err := f.Tensor(name)
		if err != nil {
			t.Fatal(err)
		}
		x.Data = slices.Clone(x.Data) // the file is mapped
		change(x)
		tensors = append(tensors, x)
	}
	if err := errors.Join(f.Close(), safetensors.Write(file, tensors, nil)); err != nil {
		t.Fatal(err)
	}
}
