package recipe

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
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

// A gradient that only differs by what is near to a jump is right, once as much is allowed for as is near; with anything else wrong it is not, however
// much is.
func TestJumps(t *testing.T) {
	for _, c := range []struct {
		name   string
		sets   []string
		within float64
	}{{"a ReLU", nil, 1e-4}, {"MaxSim", []string{"model.kind=multi_vector", "loss={scale: 1}"}, 1e-3}, {"a sparse embedding", sparseSets(t), 1e-3}} {
		t.Run(c.name, func(t *testing.T) {
			j := newJob(t, 30)
			if c.name == "a sparse embedding" {
				j = sparseJob(t, 30)
			}
			if c.sets == nil {
				file := filepath.Join(j.dir, "model", "config.json")
				config, err := os.ReadFile(file)
				if err == nil {
					err = os.WriteFile(file, bytes.Replace(config, []byte(`"gelu"`), []byte(`"relu"`), 1), 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			x := j.opened(t, append(c.sets, "save.dir="+j.dir))
			v, err := x.newVerifier(t.Context(), VerifyOptions{Rows: 12}, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			v.precise = ref.New()
			plain := way{dtype: gpustage.F64, budget: -1, tile: oneTile}
			learned := func(jump float64) *standard {
				w := plain
				w.ref, w.jump = true, jump
				is, err := v.learn(t.Context(), w)
				if err != nil {
					t.Fatal(err)
				}
				return is
			}
			want, jumped := learned(0), learned(c.within)
			tr := &truth{verifier: v, is: want, base: 1e-9}
			measured := func(config string, got []float64) *comparison {
				c := &comparison{row: VerifyRow{Config: config}, got: got, want: want}
				tr.measure(c)
				return c
			}
			judged := func(config string, got []float64) (VerifyRow, error) {
				c := measured(config, got)
				err := tr.judge(t.Context(), c, nil)
				return c.row, err
			}
			if e := measured("", jumped.Gradient).errors; e[worst(e, nil)] <= tr.base {
				t.Fatalf("nothing is within %.0e of a jump: this shows nothing", c.within)
			}
			row, err := judged("one", jumped.Gradient)
			if err != nil || row.Error > row.Limit || row.Config != fmt.Sprintf("one, but for what jumps within %.0e", c.within) {
				t.Errorf("what jumped: %+v, %v", row, err)
			}
			wrong := slices.Clone(jumped.Gradient)
			for i := range wrong {
				wrong[i] *= 1.001
			}
			if row, err = judged("wrong", wrong); err != nil || row.Error < 5e-4 || want.near != len(nearness) {
				t.Errorf("0.001 more of all: %+v, %v", row, err)
			}
			if row, err = judged("NaN", slices.Repeat([]float64{math.NaN()}, len(wrong))); err != nil || !math.IsNaN(row.Error) {
				t.Errorf("NaN: %+v, %v", row, err)
			}
		})
	}
}
