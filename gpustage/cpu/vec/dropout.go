package vec

import "contraflow/gpustage"

// Dropout names the random numbers of one row, as gpustage.Dropout.Element defines them, and what is done with them.
type Dropout struct {
	Key       uint64  // the sequence's
	Pos, Head uint32  // a token and 0, or a query and its head
	Place     uint32  // layer and site
	Threshold uint32  // an element whose number is below it is dropped
	Scale     float32 // what the others are multiplied by
}

// NewDropout is what is common to all rows of d.
func NewDropout(d gpustage.Dropout) Dropout {
	return Dropout{Place: uint32(d.Layer)<<8 | uint32(d.Site), Threshold: d.Threshold(), Scale: float32(d.KeepScale())}
}

// Dropout is y = residual + x*f, where f is d.Scale, or 0 for the elements that are dropped. x[0] is element first of the
// row: 0 for a token's features, the position of the first key for a query's probabilities. residual may be nil. The
// results are the same bits with all kernels.
func (k *Kernels) Dropout(y, x, residual []float32, first int, d Dropout) {
	x = x[:len(y)]
	if residual != nil {
		residual = residual[:len(y)]
	}
	if n := min(-first&15, len(y)); n > 0 { // up to a whole group of 16
		var r []float32
		if residual != nil {
			r, residual = residual[:n], residual[n:]
		}
		dropElements(y[:n], x[:n], r, first, d)
		y, x, first = y[n:], x[n:], first+n
	}
	k.dropout(y, x, residual, uint32(first/16), uint32(d.Key), uint32(d.Key>>32), d.Pos, d.Head, d.Place, d.Threshold, d.Scale)
}

func dropoutPortable(y, x, residual []float32, group, keyLo, keyHi, pos, head, place, threshold uint32, scale float32) {
	key := uint64(keyHi)<<32 | uint64(keyLo)
	dropElements(y, x, residual, int(group)*16, Dropout{key, pos, head, place, threshold, scale})
}

// dropElements drops elements from first on.
func dropElements(y, x, residual []float32, first int, d Dropout) {
	var words [4]uint32
	for i := range y {
		e := first + i
		if i == 0 || e%16 == 0 {
			words = gpustage.Philox(d.Key, [4]uint32{uint32(e / 16), d.Pos, d.Head, d.Place})
		}
		f := d.Scale
		if gpustage.DropoutNumber(words, e%16) < d.Threshold {
			f = 0
		}
		v := float32(x[i] * f) // rounded here on every processor, as the conversion demands
		if residual != nil {
			v += residual[i]
		}
		y[i] = v
	}
}
