package loss

import (
	"math/rand/v2"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
)

// Memory is what Compute takes, where that is beyond what alignment leaves room for: with a guide, with a row's own negatives apart, in all directions and in
// a sum.
func TestMemoryOfLargerBatches(t *testing.T) {
	s, _ := ref.New().OpenStream()
	b := randomBatch(t, s, gpustage.F64, rand.New(rand.NewPCG(4, 5)), 150, 100, 24)
	guide := append([]float64(nil), gpustage.Slice[float64](b.Embeddings)[:3*b.N()]...)
	b.Guide = tensor(t, s, gpustage.F64, b.N(), 3, unitRows(guide, 3))
	for _, l := range []Loss{
		InfoNCE{Guide: &Guide{}, Dot: true}, InfoNCE{Guide: &Guide{}, Directions: []Direction{QueryToDoc, PositiveToPositive}, TileRows: 80, TileCols: 90},
		InfoNCE{Directions: Directions}, InfoNCE{}, summed(t, Term{InfoNCE{Dot: true}, 1}, Term{GlobalOrthogonal{SecondMoment: 1, Metric: Dot}, 2}),
	} {
		a := newArena(t, s, 1<<23)
		if _, err := l.Compute(s, a, b); err != nil {
			t.Fatal(err)
		}
		if took, said := a.Peak(), l.Memory(b.Size()); took > said || said > took+took/20+12<<10 {
			t.Errorf("%T %+v: it takes %d bytes, Memory says %d", l, l, took, said)
		}
		a.Free()
	}
}
