package launch

import (
	"fmt"

	"contraflow/gpustage"
)

// attentionArgs has the layout of attention.cuh's Attention.
type attentionArgs struct {
	ctx, lse, q, k, v, dctx, delta, dq, dk, dv, bias, dbias, cu, keys   uintptr
	sctx, slse, sq, sk, sv, sdctx, sdelta, sdq, sdk, sdv, sbias, sdbias int32
	heads, group, dim, causal, window, reach, bf16, tokens, rows, vec   int32
	site, threshold                                                     uint32
	scale, cap, keep                                                    float32
}

const maxHeadDim = 256 // of attention.cu

// attention fills what both directions need. flash tells whether flash.cu takes the call.
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
		bf16: flag(o.BF16), tokens: int32(o.Seqs.Tokens), rows: int32(o.Seqs.Rows), vec: flag(s.wide(q, k, v, ctx)),
		scale: float32(o.Scale), cap: float32(o.SoftCap), keep: 1,
	}
	if !o.Bias.IsZero() {
		a.reach = int32(o.Reach())
	}
	if d := o.Dropout; d.Active() {
		a.keys, a.site, a.threshold, a.keep = s.address(d.Seqs.Keys), site(d), d.Threshold(), float32(d.KeepScale())
	}
	flash = o.BF16 && o.SoftCap == 0 && o.Bias.IsZero() && (o.HeadDim == 32 || o.HeadDim == 64 || o.HeadDim == 128)
	return a, flash
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

// The tiles of attention.cu (OWN, OTHER), and flash.cu's of keys in the forward pass.
const (
	ownRows, otherRows = 16, 32
	flashKeys          = 64
)

// flashBlock is a block of flash.cu, 16 rows to a warp, and how many rows that is: 64 while one or two such blocks have a sequence, and
// otherwise the most that the kernel's launch bounds allow.
func flashBlock(o gpustage.Attention, most int) (block [3]int, rows int) {
	rows = 64
	if o.Seqs.MaxLen > 2*rows {
		rows = most
	}
	return [3]int{2 * rows, 1, 1}, rows
}

var attentionBlock = [3]int{128, 1, 1}

// Attention chooses the kernel by type, head size and what scores go through.
func (s *Stream) Attention(ctx, lse, q, k, v tensor, o gpustage.Attention) {
	if s.Refuse(gpustage.CheckAttention("attention", ctx, lse, q, k, v, o)) || !s.f32("attention", q) {
		return
	}
	a, flash := s.attention(ctx, lse, q, k, v, o)
	d := o.HeadDim
	if flash {
		most := 128
		if d == 128 {
			most = 96 // registers, as below
		}
		block, rows := flashBlock(o, most)
		s.launch(fmt.Sprintf("flash_%d", d), grid(o, o.Heads, rows), block, flashBytes(2*flashKeys, d), a)
		return
	}
	shared := 4 * (ownRows*d + otherRows*(d+1) + otherRows*d + ownRows*otherRows)
	s.launch(fmt.Sprintf("attention_%d", family(d)), grid(o, o.Heads, ownRows), attentionBlock, shared, a)
}

// flashBytes is what rows of bf16 take in shared memory.
func flashBytes(rows, dim int) int { return 2 * rows * (dim + 8) }

// AttentionBackward is <dctx, ctx> for each query, then the gradients by query and by key, and the bias's.
func (s *Stream) AttentionBackward(dq, dk, dv, dctx, ctx, lse, q, k, v tensor, o gpustage.Attention) {
	const op = "attention backward"
	if s.Refuse(gpustage.CheckAttention(op, dctx, lse, dq, dk, dv, o)) || s.Refuse(gpustage.CheckAttention(op, ctx, lse, q, k, v, o)) || !s.f32(op, q) {
		return
	}
	a, flash := s.attention(ctx, lse, q, k, v, o)
	delta := s.scratch(gpustage.F32, o.Heads, o.Seqs.Tokens)
	if s.err != nil {
		return
	}
	a.dctx, a.delta, a.dq, a.dk, a.dv, a.dbias = s.address(dctx), s.address(delta), s.address(dq), s.address(dk), s.address(dv), s.address(o.DBias)
	a.sdctx, a.sdelta, a.sdq, a.sdk, a.sdv, a.sdbias = int32(dctx.Stride), int32(delta.Stride), int32(dq.Stride), int32(dk.Stride), int32(dv.Stride), int32(o.DBias.Stride)
	a.vec = flag(s.wide(q, k, v, dctx, dq, dk, dv))
	s.eachRow("attention_delta", o.Heads*o.Seqs.Tokens, a)
	d, kv := o.HeadDim, o.Heads/int(a.group)
	if flash {
		tile, most := 64, 96
		if d == 128 {
			tile, most = 32, 128
		}
		block, rows := flashBlock(o, most)
		s.launch(fmt.Sprintf("flash_backward_q_%d", d), grid(o, o.Heads, rows), block, flashBytes(2*tile, d), a)
		block, rows = flashBlock(o, 128)
		s.launch(fmt.Sprintf("flash_backward_kv_%d", d), grid(o, kv, rows), block, flashBytes(2*rows+2*tile, d)+8*tile, a)
		return
	}
	tiles := 4 * (2*ownRows*d + 2*otherRows*(d+1) + ownRows*otherRows)
	s.launch(fmt.Sprintf("attention_backward_q_%d", family(d)), grid(o, o.Heads, ownRows), attentionBlock, tiles, a)
	s.launch(fmt.Sprintf("attention_backward_kv_%d", family(d)), grid(o, kv, ownRows), attentionBlock, tiles+4*ownRows*otherRows, a)
	if !o.DBias.IsZero() {
		s.launch("attention_dbias", [3]int{o.Bias.Rows, o.Heads, 1}, attentionBlock, 0, a)
	}
}
