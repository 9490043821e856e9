package launch

import (
	"fmt"

	"contraflow/gpustage"
)

// attentionArgs has the layout of attention.cuh's Attention.
type attentionArgs struct {
	ctx, lse, q, k, v, dctx, delta, dq, dk, dv, bias, dbias, cu, keys, kept    uintptr
	sctx, slse, sq, sk, sv, sdctx, sdelta, sdq, sdk, sdv, sbias, sdbias, skept int32
	heads, group, dim, causal, window, reach                                   int32
	bf16, half, tokens, rows, vec                                              int32
	site, threshold                                                            uint32
	scale, cap, keep                                                           float32
}

// Of attention.cu; and with positions, whose tiles are to fit into 99 KB.
const maxHeadDim, maxFarDim = 256, 128

// refusesMix refuses q and others if only some are BF16, if they are and the attention does not round, and if they are neither BF16 nor F32.
func (s *Stream) refusesMix(op string, o gpustage.Attention, q tensor, others ...tensor) bool {
	for _, t := range append(others, o.Positions.Keys, o.Positions.Queries) {
		if !t.IsZero() && half(t) != half(q) {
			s.Fail(fmt.Errorf("%s: q is %v and another of its tensors %v: want all of them in bf16, or none", op, q, t))
		}
	}
	if half(q) && !o.BF16 {
		s.Fail(fmt.Errorf("%s: q is %v, and the attention does not round to bf16", op, q))
	}
	return s.err != nil || !s.f32(op, as32(q))
}

// far32 is a call whose positions are as32.
func far32(o gpustage.Attention) gpustage.Attention {
	o.Positions.Keys, o.Positions.Queries = as32(o.Positions.Keys), as32(o.Positions.Queries)
	return o
}

// wideHeads tells whether all tensors' heads may be moved 16 bytes at a time.
func (s *Stream) wideHeads(o gpustage.Attention, ts ...tensor) int32 {
	for _, t := range append(ts, o.Positions.Keys, o.Positions.Queries) {
		if t.IsZero() {
			continue
		}
		n := 16 / t.DType.Size()
		if s.address(t)%16 != 0 || t.Rows > 1 && t.Stride%n != 0 || o.HeadDim%n != 0 {
			return 0
		}
	}
	return 1
}

// attention fills what both directions need. flash tells whether the kernels of flash.cuh take the call.
func (s *Stream) attention(ctx, lse, q, k, v tensor, o gpustage.Attention) (a *attentionArgs, flash bool) {
	kv := o.KVHeads
	if kv == 0 {
		kv = o.Heads
	}
	if o.HeadDim > maxHeadDim {
		s.Fail(fmt.Errorf("attention: heads of %d features; this device has kernels for at most %d", o.HeadDim, maxHeadDim))
	}
	a = &attentionArgs{
		ctx: s.address(ctx), lse: s.address(lse), q: s.address(q), k: s.address(k), v: s.address(v), bias: s.address(o.Bias), cu: s.address(o.Seqs.Cu),
		sctx: int32(ctx.Stride), slse: int32(lse.Stride), sq: int32(q.Stride), sk: int32(k.Stride), sv: int32(v.Stride), sbias: int32(o.Bias.Stride),
		heads: int32(o.Heads), group: int32(o.Heads / kv), dim: int32(o.HeadDim), causal: flag(o.Causal), window: int32(o.Window),
		bf16: flag(o.BF16), half: flag(half(q)), tokens: int32(o.Seqs.Tokens), rows: int32(o.Seqs.Rows), vec: s.wideHeads(o, q, k, v, ctx),
		scale: float32(o.Scale), cap: float32(o.SoftCap), keep: 1,
	}
	if !o.Bias.IsZero() {
		a.reach = int32(o.Reach())
	}
	if !o.Positions.None() && o.HeadDim > maxFarDim {
		s.Fail(fmt.Errorf("attention: heads of %d features that see positions; this device has kernels for at most %d", o.HeadDim, maxFarDim))
	}
	if d := o.Dropout; d.Active() {
		a.keys, a.site, a.threshold, a.keep = s.address(d.Seqs.Keys), site(d), d.Threshold(), float32(d.KeepScale())
	}
	switch d := o.HeadDim; {
	case !o.Positions.None(), !o.Seen.IsZero():
		return a, false
	case !o.Bias.IsZero():
		flash = d == 64 && a.group == 1 && o.SoftCap == 0 && o.Bias.Rows <= mostBias
	case d == 32, d == 64, d == 128:
		flash = o.SoftCap == 0
	default:
		flash = d == 256
	}
	return a, flash && half(q) && a.scale > 0 // the largest score is the largest product
}

// mostBias is how many biases the kernels of flash.cuh take of a head: flash_dbias_64 has five times as many beside 19 KB in shared memory, and two blocks
// of it fit where there are 99 KB.
const mostBias = 1025

// biasBytes is what a head's biases take in shared memory.
func biasBytes(o gpustage.Attention) int { return 4 * o.Bias.Rows }

// flashName is a kernel of flash.cuh.
func flashName(kernel string, o gpustage.Attention) string {
	if !o.Bias.IsZero() {
		return fmt.Sprintf("%s_%d_bias", kernel, o.HeadDim)
	}
	return fmt.Sprintf("%s_%d", kernel, o.HeadDim)
}

// family is the size of attention.cu's kernels for a head.
func family(dim int) int {
	size := 32
	for size < dim {
		size *= 2
	}
	return size
}

// grid has a block for every so many rows of each sequence and head; sequences shorter than the longest leave some with nothing to do.
func grid(o gpustage.Attention, heads, rows int) [3]int {
	return [3]int{o.Seqs.Rows, heads, ceil(o.Seqs.MaxLen, rows)}
}

// plainRows is how many rows a block of attention.cu has (OWN, 16 times R) in kernels for heads of n features: far, those that see positions; two, those that
// hold the block's rows of two tensors. More rows share more of what lanes read. With these, two blocks at least fit where there are 227 KB of shared memory,
// and one into 99 KB.
func plainRows(n int, far, two bool) int {
	switch {
	case n <= 64:
		return 64
	case n == 128 && !(far && two):
		return 32
	}
	return 16
}

// plainBytes is what so many rows of so many tensors take in shared memory there beside a tile (OTHER) of two, the weights of their pairs, and with far the
// tile's distances (FAR) once.
func plainBytes(n, tensors, rows int, far bool) int {
	const others = 32
	pitch, own := n+4, n+4
	if n == maxHeadDim {
		own = n
	}
	floats := tensors*rows*own + 2*others*pitch + rows*others
	if far {
		floats += (rows + others - 1) * pitch
	}
	return 4 * floats
}

// plain starts a kernel of attention.cu, whose blocks have rows of so many tensors.
func (s *Stream) plain(kernel string, heads, tensors int, a *attentionArgs, o gpustage.Attention) {
	n, far := family(o.HeadDim), !o.Positions.None()
	rows := plainRows(n, far, tensors > 1)
	grid, shared := grid(o, heads, rows), plainBytes(n, tensors, rows, far)
	if far {
		s.launch(fmt.Sprintf("positions%s_%d", kernel, n), grid, attentionBlock, shared, a, s.far(o))
		return
	}
	s.launch(fmt.Sprintf("attention%s_%d", kernel, n), grid, attentionBlock, shared, a, flat(o.Seen))
}

// farArgs has the layout of attention.cu's Far.
type farArgs struct {
	keys, queries, rows             uintptr
	skeys, squeries, reach, longest int32
}

func (s *Stream) far(o gpustage.Attention) *farArgs {
	p := o.Positions
	return &farArgs{
		keys: s.address(p.Keys), queries: s.address(p.Queries), rows: s.address(p.Rows),
		skeys: int32(p.Keys.Stride), squeries: int32(p.Queries.Stride), reach: int32(p.Reach()), longest: int32(o.Seqs.MaxLen),
	}
}

// flashBlock is a block of flash.cu or hopper.cu, whose warps have 16 rows or 32, and how many rows that is: 64 while one or two such blocks have a
// sequence, and otherwise the most that the kernel's launch bounds allow.
func flashBlock(o gpustage.Attention, warp, most int) (block [3]int, rows int) {
	rows = 64
	if o.Seqs.MaxLen > 2*rows {
		rows = most
	}
	return [3]int{rows / warp * 32, 1, 1}, rows
}

var attentionBlock = [3]int{128, 1, 1}

// Attention chooses the kernel by type, head size and what scores go through.
func (s *Stream) Attention(ctx, lse, q, k, v tensor, o gpustage.Attention) {
	const op = "attention"
	if s.Refuse(gpustage.CheckAttention(op, as32(ctx), lse, as32(q), as32(k), as32(v), far32(o))) || s.refusesMix(op, o, q, k, v, ctx) {
		return
	}
	a, flash := s.attention(ctx, lse, q, k, v, o)
	d := o.HeadDim
	if rows := s.short(a, o); flash && rows > 0 {
		s.launch(s.shortName("", o), [3]int{o.Seqs.Rows, o.Heads, 1}, [3]int{128, 1, 1}, 3*s.shortBytes(rows, o), a)
		return
	}
	if flash && s.grouped(o) {
		const keys = 64 // that a block reads at a time
		block, rows := flashBlock(o, 16, 128)
		s.launch(flashName("flash_group", o), grid(o, o.Heads, rows), block, 2*2*groupBytes(keys, d)+biasBytes(o), a)
		return
	}
	if flash {
		tile, warp, most := 64, 32, 128 // partners that a block reads at a time, and rows of a warp and, at most, of a block
		switch d {                      // registers, as below
		case 128:
			tile = 32
		case 256:
			tile, warp, most = 32, 16, 64
		}
		block, rows := flashBlock(o, warp, most)
		partners := 2 * 2 * tile
		if d == 128 {
			partners += rows // queries are beside them
		}
		s.launch(flashName("flash", o), grid(o, o.Heads, rows), block, flashBytes(partners, d)+biasBytes(o), a)
		return
	}
	s.plain("", o.Heads, 1, a, o)
}

// grouped tells whether hopper.cu has the kernels for what flash.cu takes.
func (s *Stream) grouped(o gpustage.Attention) bool {
	return s.Warpgroups && (o.HeadDim == 64 || o.HeadDim == 128)
}

// short is how many rows a block has whose sequence is all its own, if there are kernels for that and the sequences are short enough: else 0.
func (s *Stream) short(a *attentionArgs, o gpustage.Attention) int {
	switch there := o.HeadDim == 32 || o.HeadDim == 64 && s.grouped(o); {
	case !there || a.group != 1 || !o.Bias.IsZero() || o.Seqs.MaxLen > 128:
		return 0
	case o.Seqs.MaxLen > 64:
		return 128
	}
	return 64
}

// shortName is such a kernel.
func (s *Stream) shortName(kernel string, o gpustage.Attention) string {
	if s.grouped(o) {
		return fmt.Sprintf("flash_group_short_%s%d", kernel, o.HeadDim)
	}
	return fmt.Sprintf("flash_short_%s%d", kernel, o.HeadDim)
}

// shortBytes is what rows take in its shared memory.
func (s *Stream) shortBytes(rows int, o gpustage.Attention) int {
	if s.grouped(o) {
		return groupBytes(rows, o.HeadDim)
	}
	return flashBytes(rows, o.HeadDim)
}

// groupBytes is what rows take in hopper.cu's shared memory.
func groupBytes(rows, dim int) int { return 2 * rows * dim }

// numberBytes is what the numbers of so many queries take there by key (number_floats).
func numberBytes(queries int) int { return queries * (8 + 24) }

// flashBytes is what rows take in flash.cu's shared memory.
func flashBytes(rows, dim int) int { return 2 * rows * (dim + 8) }

// AttentionBackward is <dctx, ctx> for each query, the gradients by query and by key, and the bias's.
func (s *Stream) AttentionBackward(dq, dk, dv, dctx, ctx, lse, q, k, v tensor, o gpustage.Attention) {
	const op = "attention backward"
	if s.Refuse(gpustage.CheckAttention(op, as32(dctx), lse, as32(dq), as32(dk), as32(dv), far32(o))) ||
		s.Refuse(gpustage.CheckAttention(op, as32(ctx), lse, as32(q), as32(k), as32(v), far32(o))) || s.refusesMix(op, o, q, k, v, ctx, dctx, dq, dk, dv) {
		return
	}
	a, flash := s.attention(ctx, lse, q, k, v, o)
	d, kv := o.HeadDim, o.Heads/int(a.group)
	a.dctx, a.dq, a.dk, a.dv, a.dbias = s.address(dctx), s.address(dq), s.address(dk), s.address(dv), s.address(o.DBias)
	a.sdctx, a.sdq, a.sdk, a.sdv, a.sdbias = int32(dctx.Stride), int32(dq.Stride), int32(dk.Stride), int32(dv.Stride), int32(o.DBias.Stride)
	a.vec = s.wideHeads(o, q, k, v, ctx, dctx, dq, dk, dv)
	if rows := s.short(a, o); flash && rows > 0 {
		const scores = 64 // keys, of a query
		s.launch(s.shortName("backward_", o), [3]int{o.Seqs.Rows, o.Heads, 1}, [3]int{2 * rows, 1, 1}, 4*s.shortBytes(rows, o)+2*groupBytes(rows, scores), a)
		return
	}
	delta := s.scratch(gpustage.F32, o.Heads, o.Seqs.Tokens)
	if s.err != nil {
		return
	}
	a.delta, a.sdelta = s.address(delta), int32(delta.Stride)
	if flash && a.keys != 0 { // a bit a key, of tiles of 64 that begin at a multiple of 32
		kept := s.scratch(gpustage.I32, o.Heads*o.Seqs.Tokens, ceil(o.Seqs.MaxLen+32, 32))
		if s.err != nil {
			return
		}
		a.kept, a.skept = s.address(kept), int32(kept.Stride)
	}
	if !flash || d == 256 { // the others' kernel by query makes delta of what it has in registers
		lanes := 32 // of a warp, for each head and token; fewer where each takes 8 features
		for half(q) && a.vec != 0 && lanes > 1 && lanes/2*8 >= d {
			lanes /= 2
		}
		s.eachRow("attention_delta", ceil(o.Heads*o.Seqs.Tokens*lanes, 32), a, lanes)
	}
	if flash && d == 256 {
		// One buffer, and the block's own rows beside it; by key a block has half of their features. Rows are what fits into 99 KB.
		const tile, queries, keys = 32, 64, 48
		s.launch("flash_backward_q_256", grid(o, o.Heads, queries), [3]int{2 * queries, 1, 1}, flashBytes(2*tile+2*queries, d), a)
		halves := grid(o, kv, keys)
		halves[2] *= 2
		s.launch("flash_backward_kv_256", halves, [3]int{2 * keys, 1, 1}, flashBytes(2*tile+2*keys, d)+numberBytes(tile), a)
		return
	}
	if flash && s.grouped(o) {
		keys, queries, most := 64, 64, 192 // that a block reads at a time; its rows at most
		if d == 128 {
			queries, most = 32, 128
		}
		block, rows := flashBlock(o, 16, most)
		s.launch(flashName("flash_group_backward_q", o), grid(o, o.Heads, rows), block, 2*2*groupBytes(keys, d)+biasBytes(o), a)
		s.launch(flashName("flash_group_backward_kv", o), grid(o, kv, rows), block, groupBytes(2*2*queries+2*rows, d)+2*numberBytes(queries)+biasBytes(o), a)
	} else if flash {
		const tile = 32
		warp, most := 32, 128
		if d == 128 {
			warp = 16
		}
		block, rows := flashBlock(o, warp, most)
		s.launch(flashName("flash_backward_q", o), grid(o, o.Heads, rows), block, flashBytes(2*2*tile, d)+biasBytes(o), a)
		if d == 128 {
			most = 64 // two such blocks are as many warps as one of 128 rows, and it fits into 99 KB, which sm_86, sm_89 and sm_120 have
		}
		block, rows = flashBlock(o, warp, most)
		s.launch(flashName("flash_backward_kv", o), grid(o, kv, rows), block, flashBytes(2*rows+2*2*tile, d)+2*numberBytes(tile)+biasBytes(o), a)
	}
	if flash {
		if !o.DBias.IsZero() {
			s.flashBias(a, o)
		}
		return
	}
	s.plain("_backward_q", o.Heads, 2, a, o)
	s.plain("_backward_kv", kv, 2, a, o)
	if p := o.Positions; !p.DKeys.IsZero() || !p.DQueries.IsZero() {
		s.farGradients(a, o)
	}
	if !o.DBias.IsZero() {
		s.launch("attention_dbias", [3]int{o.Bias.Rows, o.Heads, 1}, attentionBlock, 0, a, flat(o.Seen))
	}
}

// flashBias adds to the gradient of biases. A head has 44 blocks, which share the sequences: with 12 heads, four blocks to each of 132
// multiprocessors. Few sequences have few blocks.
func (s *Stream) flashBias(a *attentionArgs, o gpustage.Attention) {
	const tile, rows = 32, 16 // of keys; of a warp, of which there are 4
	workers := min(o.Seqs.Rows, 44)
	parts := s.scratch(gpustage.F32, workers, o.Heads*o.Bias.Rows)
	if s.err != nil {
		return
	}
	s.launch("flash_dbias_64", [3]int{workers, o.Heads, 1}, [3]int{128, 1, 1}, flashBytes(2*tile, 64)+4*4*rows*(tile+8)+5*biasBytes(o), a, flat(parts))
	s.launch("flash_dbias_sum", [3]int{ceil(o.Bias.Rows, 128), o.Heads, 1}, [3]int{128, 1, 1}, 0, a, flat(parts), workers)
}

// farGradients adds to the gradients of positions' keys and queries. Blocks with the same distances of a head share the sequences: four, or as many as make
// 528 of all, four for each of 132 multiprocessors, where texts are short. Their sums are 25 MB for 12 heads of 64 features and texts of 512 tokens.
func (s *Stream) farGradients(a *attentionArgs, o gpustage.Attention) {
	p, d, longest := o.Positions, o.HeadDim, o.Seqs.MaxLen
	if longest == 0 {
		return
	}
	n := family(d)
	rows := plainRows(n, true, true)
	blocks := ceil(2*longest-1, rows)
	workers := min(o.Seqs.Rows, max(4, ceil(528, o.Heads*blocks)))
	parts := s.scratch(gpustage.F32, workers*o.Heads, (2*longest-1)*2*d)
	if s.err != nil {
		return
	}
	s.launch(fmt.Sprintf("positions_gradients_%d", n), [3]int{workers, o.Heads, blocks}, attentionBlock, plainBytes(n, 2, rows, true), a, s.far(o), flat(parts))
	s.launch("positions_sum", [3]int{p.Count(), o.Heads, 1}, attentionBlock, 0, a, s.far(o), flat(parts), workers, p.DKeys, p.DQueries)
}
