package gemm

import "time"

// Peak measures how many floating-point operations a second the threads of r do at best, on multiply-adds between
// registers: what Multiply can be held against. It takes about d. Processors change their speed and share it with others:
// measure it right before and after what is compared with it, on as many threads, and compare the best of several.
//
// AMX's is measured with zeros, of which it multiplies up to a fifth more than of other numbers; in float32 it is a sixth of that in bf16. The portable
// kernels' peak is that of a loop in Go, and so is float64's, whatever its kernels.
func Peak[T Float](k Kernels, bf16 bool, d time.Duration, r Runner) float64 {
	s := setOf[T](k, bf16 && !isFloat64[T]())
	n := 1000
	took := time.Duration(0)
	for took < time.Millisecond { // long enough to be timed
		n *= 2
		start := time.Now()
		s.probe(n)
		took = time.Since(start)
	}
	n = int(float64(n) * float64(d) / float64(took))
	start := time.Now()
	r.Run(r.Threads(), func(_, _ int) { s.probe(n) })
	return float64(n) * float64(s.probeWork) * float64(r.Threads()) / time.Since(start).Seconds()
}

// probeSink and different starts keep the compiler from leaving out the loop, or parts of it.
var probeSink float64

// probePortable does n times 8 multiply-adds, none of which waits for another of the same round.
func probePortable[T Float](n int) {
	x := T(0.5)
	a := T(probeSink)
	b, c, d, e, f, g, h := a+1, a+2, a+3, a+4, a+5, a+6, a+7
	for range n {
		a = a*x + x
		b = b*x + x
		c = c*x + x
		d = d*x + x
		e = e*x + x
		f = f*x + x
		g = g*x + x
		h = h*x + x
	}
	if sum := a + b + c + d + e + f + g + h; sum > 1e9 {
		probeSink = float64(sum)
	}
}
