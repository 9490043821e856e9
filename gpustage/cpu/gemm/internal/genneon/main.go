// Command genneon writes the assembly of package gemm for arm64: run `go generate` in the package's folder after a change here.
package main

import "contraflow/gpustage/cpu/internal/neon"

const (
	rows, cols = 6, 16
	vectors    = cols / 4 // of a row
)

// acc is the accumulator of vector v of row i: 24 of 32 registers. Four hold B, four elements of A.
func acc(i, v int) neon.V { return neon.V(8 + vectors*i + v) }

func main() {
	neon.Main("gemm", func(f *neon.File) {
		tile(f)
		transpose(f)
		round(f)
		probe(f)
	})
}

// tile has A's rows' addresses in R2 to R7; a row that is not there is the first one again, and is not written.
func tile(f *neon.File) {
	f.Func("tileNEON", "(c *float32, ldc int, a *float32, rs, ks int, b *float32, k int, alpha float32, add bool, rows int)",
		`computes up to 6 rows and 16 columns of C: alpha times A by a panel of B, added to C if add is set. Of A, rows are rs elements
apart and steps of k ks. k and rows are at least 1; 16 columns of C are there.`, func() {
			const c, ldc, index, ks, b, k, n, tmp = 0, 1, 8, 9, 10, 11, 12, 13
			f.Arg("c", c)
			f.Arg("ldc", ldc)
			f.Go("LSL $2, R%d, R%d", ldc, ldc)
			f.Arg("a", 2)
			f.Arg("rs", tmp)
			f.Go("LSL $2, R%d, R%d", tmp, tmp)
			f.Arg("ks", ks)
			f.Go("LSL $2, R%d, R%d", ks, ks)
			f.Arg("b", b)
			f.Arg("k", k)
			f.Arg("rows", n)
			for i := 1; i < rows; i++ {
				f.Go("ADD R%d, R%d, R%d", tmp, 1+i, 2+i)
				f.Go("CMP $%d, R%d", i, n)
				f.Go("CSEL GT, R%d, R2, R%d", 2+i, 2+i)
			}
			for i := range rows {
				for v := range vectors {
					f.Zero(acc(i, v))
				}
			}
			f.Go("MOVD $0, R%d", index)
			multiply := func(rows int) { // goes along K
				loop := f.Label("step")
				f.At(loop)
				f.Go("FLDPQ.P 32(R%d), (F0, F1)", b)
				f.Go("FLDPQ.P 32(R%d), (F2, F3)", b)
				element := func(i int) neon.V { return neon.V(4 + i%4) }
				for i := range min(rows, 4) {
					f.LoadOne(element(i), neon.R(2+i), index)
				}
				for i := range rows {
					for v := range vectors {
						f.By("fmla", acc(i, v), neon.V(v), element(i), 0)
					}
					if i+4 < rows {
						f.LoadOne(element(i+4), neon.R(2+i+4), index)
					}
				}
				f.Go("ADD R%d, R%d, R%d", ks, index, index)
				f.Go("SUBS $1, R%d, R%d", k, k)
				f.Go("BNE %s", loop)
			}
			all, multiplied := f.Label("all"), f.Label("multiplied")
			f.Go("CMP $%d, R%d", rows/2, n)
			f.Go("BGT %s", all)
			multiply(rows / 2)
			f.Go("B %s", multiplied)
			f.At(all)
			multiply(rows)
			f.At(multiplied)

			only, done := f.Label("only"), f.Label("done")
			f.Float("alpha", 7)
			write := func(add bool) {
				for i := range rows {
					op := "fmul"
					if add {
						op = "fmla"
						f.Go("FLDPQ (R%d), (F0, F1)", c)
						f.Go("FLDPQ 32(R%d), (F2, F3)", c)
					}
					for v := range vectors {
						f.By(op, neon.V(v), acc(i, v), 7, 0)
					}
					f.Go("FSTPQ (F0, F1), (R%d)", c)
					f.Go("FSTPQ (F2, F3), 32(R%d)", c)
					f.Go("CMP $%d, R%d", i+1, n)
					f.Go("BLE %s", done)
					f.Go("ADD R%d, R%d, R%d", ldc, c, c)
				}
			}
			f.Bool("add", tmp)
			f.Go("CBZ R%d, %s", tmp, only)
			write(true)
			f.At(only)
			write(false)
			f.At(done)
		})
}

func transpose(f *neon.File) {
	f.Func("transposeNEON", "(dst *float32, ds int, rows *[16]*float32, k int)",
		"reads k >= 1 elements of each of the first 4 rows and writes k rows of 4 elements to dst, ds apart.", func() {
			const dst, ds, k, tmp = 0, 1, 6, 7
			f.Arg("dst", dst)
			f.Arg("ds", ds)
			f.Go("LSL $2, R%d, R%d", ds, ds)
			f.Arg("rows", tmp)
			f.Go("LDP (R%d), (R2, R3)", tmp)
			f.Go("LDP 16(R%d), (R4, R5)", tmp)
			f.Arg("k", k)
			one, done := f.Label("one"), f.Label("done")
			f.While(k, 4, func() {
				for i := range 4 {
					f.Load(neon.V(i), neon.R(2+i))
				}
				rows := [4]neon.V{0, 1, 2, 3}
				f.Transpose(rows, rows, [4]neon.V{4, 5, 6, 7})
				for i := range 4 {
					f.Go("FMOVQ F%d, (R%d)", i, dst)
					f.Go("ADD R%d, R%d, R%d", ds, dst, dst)
				}
			})
			f.Go("ADDS $4, R%d, R%d", k, k)
			f.Go("BLE %s", done)
			f.At(one)
			for i := range 4 {
				f.Go("FMOVS.P 4(R%d), F%d", 2+i, i)
			}
			for i := range 4 {
				f.Go("FMOVS F%d, %d(R%d)", i, 4*i, dst)
			}
			f.Go("ADD R%d, R%d, R%d", ds, dst, dst)
			f.Go("SUBS $1, R%d, R%d", k, k)
			f.Go("BNE %s", one)
			f.At(done)
		})
}

func round(f *neon.File) {
	f.Func("roundNEON", "(dst, src *float32, n int)",
		"rounds n elements, a multiple of 4, to the nearest bf16, ties to even, and keeps them as float32. dst may be src.", func() {
			const dst, src, n = 0, 1, 2
			f.Arg("dst", dst)
			f.Arg("src", src)
			f.Arg("n", n)
			f.While(n, 4, func() {
				f.Load(0, src)
				f.RoundBF16(1, 0, 2, 3)
				f.Bits("and", 1, 1, f.HeldBits(0xffff0000))
				f.Store(1, dst)
			})
		})
}

func probe(f *neon.File) {
	f.Func("probeNEON", "(n int)", "does n times 24 multiply-adds on registers of 128 bits.", func() {
		f.Arg("n", 0)
		for v := range neon.V(32) {
			f.Zero(v)
		}
		loop := f.Label("probe")
		f.At(loop)
		for i := range rows {
			for v := range vectors {
				f.By("fmla", acc(i, v), neon.V(v), 4, 0)
			}
		}
		f.Go("SUBS $1, R0, R0")
		f.Go("BGT %s", loop)
	})
}
