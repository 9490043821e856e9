package transformer

import (
	"math"

	"contraflow/gpustage"
)

// distances is a relative attention bias (Raffel et al., arXiv 1910.10683): a learned number for each head and bucket of
// distances, added to the scores in all layers.
type distances struct {
	bias     gpustage.Tensor // [2R+1, H]: spread over distances
	gradient gpustage.Tensor // its gradient, in a backward pass, if it trains
	buckets  gpustage.Tensor // i32 [1, 2R+1]: the bucket of each distance
}

// maxReach is more than any model has of buckets, or tells distances apart.
const maxReach = 1 << 16

// bucket is that of keys so far to the right of their query: half of the buckets are for each side, half of those for one
// distance each, and the rest for ranges that grow as a logarithm, up to a distance reach, from which on there is one bucket. The arithmetic is float32's, as PyTorch's is: it decides on which
// side of a boundary a distance lies.
func bucket(distance, buckets, reach int) int32 {
	b, each := 0, buckets/2
	if distance > 0 {
		b = each
	} else {
		distance = -distance
	}
	exact := each / 2
	if distance < exact {
		return int32(b + distance)
	}
	x := float32(math.Log(float64(float32(distance)/float32(exact)))) / float32(math.Log(float64(reach)/float64(exact)))
	return int32(b + min(each-1, exact+int(x*float32(each-exact))))
}

// spreadBias spreads the bias over distances, to the arena's bottom. The longest sequence has so many tokens.
func (m *Model) spreadBias(s gpustage.Stream, a *gpustage.Arena, longest int) distances {
	if m.Config.ALiBi {
		return m.alibi(s, a, longest)
	}
	n, reach := m.Config.RelativeBuckets, m.Config.RelativeReach
	if n == 0 {
		return distances{}
	}
	buckets := make([]int32, 2*reach+1)
	for i := range buckets {
		buckets[i] = bucket(i-reach, n, reach)
	}
	r := distances{buckets: a.Keep(s, gpustage.I32, 1, len(buckets)), bias: a.Keep(s, m.DType, len(buckets), m.Config.Heads)}
	s.CopyIn(r.buckets, gpustage.Bytes(buckets))
	s.Gather(r.bias, m.w.relative, r.buckets, false)
	return r
}

// relativeBackward adds the bias's gradient, which all layers have added to, to g [buckets, H].
func (p *Pass) relativeBackward(g gpustage.Tensor) {
	if r := p.in.distances; !r.gradient.IsZero() {
		p.s.ScatterAdd(g, r.gradient, r.buckets)
	}
}
