package gemm

import (
	"math"
	"unsafe"
)

// plan is how a product is cut.
//
// The loops are those of Goto and van de Geijn ("Anatomy of high-performance matrix multiplication", 2008), the roles of
// A and B exchanged: a block of B, kc x nc, stays in the second-level cache, and strips of A pass by it. K is always cut
// at multiples of kc: that fixes the order of every sum.
//
// B of the usual kind, weights or a batch's embeddings, meets many rows of A: it is packed once, by all threads, and tiles
// of mc rows are the tasks. For a weight's gradient (A transposed) K is the long side, and packing all of B first, tens of
// megabytes to be read back from memory once, costs time (384 x 1536 x 4096, f32: 76 % of the peak). There C is cut into
// few large tiles, and each packs for itself, block by block, the parts of A and B that it needs (88 %).
type plan struct {
	tilesM, tilesN int
	threads        int
	private        bool // each tile packs its own B
	packA          bool
	depth          int // work on at most so much of K at a time
}

const (
	// largeB is the packed B, in bytes, from which tiles are four times as high: all of it passes by every tile.
	// f32, one thread: 4096 x 384 x 384 (B 0.6 MB) 95 % of the peak with tiles of 140 rows and 95 with 560;
	// 4096 x 384 x 1536 (2.4 MB) 94 and 93; 2048 x 3072 x 768 (9.4 MB) 84 and 91.
	largeB = 4 << 20
	// taskWork is the least work that a task is worth, in multiply-adds: a few microseconds.
	taskWork = 1 << 19
	// mostRows is the most rows that a tile with its own B has: 6 MB of packed A, in pieces 9.
	mostRows = 4096
)

// mostB is the most of B, in bytes, that is packed at once. A test sets it.
var mostB = 16 << 20

// plan cuts a product for a number of threads.
func (s *set[T]) plan(j *Job[T], threads int) plan {
	p := plan{threads: max(1, min(threads, j.M*j.N*j.K/taskWork)), packA: s.packsA(j), depth: max(1, j.K)}
	if j.TransA && j.Packed == nil {
		p.private = true
		p.tilesM, p.tilesN = s.grid(j.M, j.N, p.threads)
		return p
	}
	size := int(unsafe.Sizeof(j.Alpha)) * s.group / s.span
	mc := s.mc
	if j.K*j.N*size > largeB {
		mc *= 4
	}
	if j.Packed == nil {
		p.depth = max(1, mostB/(j.N*size*s.kc)) * s.kc
	}
	p.tilesM, p.tilesN = ceil(j.M, mc), 1
	if p.threads > 1 {
		p.tilesM = ceil(p.tilesM, p.threads) * p.threads
	}
	// A few strips to a tile, or reading B becomes the work; then it is B's columns that the threads share.
	if most := ceil(j.M, 2*s.rows); p.tilesM > most {
		p.tilesM = most
		p.tilesN = ceil(p.threads, most)
	}
	return p
}

// packsA tells whether A has to be packed: because the kernel wants it in another form, or because the cache would not hold
// what it goes over again and again. Rows that lie a multiple of 4 KiB apart compete for the same lines of the first-level
// cache, which has 8 or 12 ways (some of Arm's have 4, with which nobody has measured). A's transpose is read where it lies only if it is
// small and gone over a few times, as in attention's backward pass (136 x 32 x 136: 89 % of the peak, 73 % packed).
func (s *set[T]) packsA(j *Job[T]) bool {
	size := int(unsafe.Sizeof(j.Alpha))
	if j.TransA {
		return s.roundsA || j.N > 2*s.cols || j.K*j.LDA*size > 512<<10
	}
	return s.roundsA || s.rows > 8 && j.LDA*size%4096 == 0
}

// grid cuts C into tiles that each pack for themselves. The more tiles, the more packing; but with a few for each thread,
// one that the operating system takes away for a while, or a slow core, doesn't hold up the others: an eighth of a tile is
// what the wait at the end is taken for.
func (s *set[T]) grid(m, n, threads int) (tilesM, tilesN int) {
	tilesM, tilesN = 1, 1
	if threads > 1 {
		least := math.MaxInt
		for tm := 1; tm <= 4*threads; tm++ {
			for tn := 1; tm*tn <= 4*threads; tn++ {
				rows := ceil(ceil(m, s.rows), tm) * s.rows
				cols := ceil(ceil(n, s.cols), tn) * s.cols
				work := rows*cols + s.packWork*(rows+cols)
				if cost := 8*ceil(tm*tn, threads)*work + work; cost < least {
					least, tilesM, tilesN = cost, tm, tn
				}
			}
		}
	}
	return max(tilesM, ceil(m, mostRows)), tilesN
}

// tileRows is the rows of C that a task has.
func (p *plan) tileRows(task, unit, m int) (int, int) { return share(task/p.tilesN, p.tilesM, unit, m) }

// tileCols is its columns.
func (p *plan) tileCols(task, unit, n int) (int, int) { return share(task%p.tilesN, p.tilesN, unit, n) }

// share is part i of n equal parts, in whole units, of a dimension.
func share(i, n, unit, size int) (int, int) {
	units := ceil(size, unit)
	return min(units*i/n*unit, size), min(units*(i+1)/n*unit, size)
}

func ceil(a, b int) int { return (a + b - 1) / b }
