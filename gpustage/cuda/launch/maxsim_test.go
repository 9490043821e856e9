//go:build linux && amd64

package launch_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/onhost"
)

// What a row's segments have is found however many warps share them: one for each, some, or one for all. On the way back rows that go to one row of dy
// are added in their order, whether a thread has them under way at once, not all of them, or apart.
func TestMaxSimShared(t *testing.T) {
	d := onhost.Open(t, onhost.Plain)
	r := rand.New(rand.NewPCG(17, 17))
	s := streamOf(t, d)
	const docs, cols = 19, 5
	cu := make([]int32, docs+1)
	for i := range docs {
		cu[i+1] = cu[i] + int32(r.IntN(4))
	}
	cus, err := gpustage.NewTensor(d, gpustage.I32, 1, docs+1)
	if err != nil {
		t.Fatal(err)
	}
	copy(gpustage.Slice[int32](cus), cu)
	tokens := int(cu[docs])
	row := func(x gpustage.Tensor, i int) []float32 { return gpustage.Slice[float32](x.Span(i, i+1)) }
	for _, c := range []struct{ rows, multiprocessors int }{{1, 1}, {7, 1}, {43, 1}, {43, 2}, {9, 132}} {
		s.(*onhost.Stream).Multiprocessors = c.multiprocessors
		x, top := random(t, d, r, c.rows, tokens, 2), random(t, d, r, c.rows, docs, 1)
		at, err := gpustage.NewTensor(d, gpustage.I32, c.rows, docs)
		if err != nil {
			t.Fatal(err)
		}
		s.SegmentMax(top, at, x, cus)
		g, dx, dy := random(t, d, r, c.rows, docs, 0), random(t, d, r, c.rows, cols, 1), random(t, d, r, tokens, cols, 3)
		q, y := random(t, d, r, c.rows, cols, 2), random(t, d, r, tokens, cols, 0)
		wantX, wantY := make([][]float32, c.rows), make([][]float32, tokens)
		for n := range wantY {
			wantY[n] = slices.Clone(row(dy, n))
		}
		for i := range c.rows {
			places := gpustage.Slice[int32](at.Span(i, i+1))
			wantX[i] = slices.Clone(row(dx, i))
			for j := range docs {
				want := int32(-1)
				for n := cu[j]; n < cu[j+1]; n++ {
					if want < 0 || row(x, i)[n] > row(x, i)[want] {
						want = n
					}
				}
				most := float32(0)
				if want >= 0 {
					most = row(x, i)[want]
				}
				if places[j] != want || row(top, i)[j] != most {
					t.Fatalf("%+v: row %d, segment %d: %v at %d, want %v at %d", c, i, j, row(top, i)[j], places[j], most, want)
				}
				for k := 0; k < cols && want >= 0; k++ {
					wantX[i][k] += float32(row(g, i)[j] * row(y, int(want))[k])
					wantY[want][k] += float32(row(g, i)[j] * row(q, i)[k])
				}
			}
		}
		s.MaxSimBackward(dx, dy, g, at, q, y)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		same := func(what string, got gpustage.Tensor, want [][]float32) {
			for i := range want {
				for k, v := range want[i] {
					if row(got, i)[k] != v {
						t.Fatalf("%+v: %s, row %d, column %d is %v, want %v", c, what, i, k, row(got, i)[k], v)
					}
				}
			}
		}
		same("dx", dx, wantX)
		same("dy", dy, wantY)
	}
}
