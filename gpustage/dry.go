package gpustage

import "math"

// Dry is a device that computes nothing and has all the memory in the world. Running a pass on it costs nothing and
// leaves in the arena's peak exactly what the pass takes on a real device: predictions come from the code that they are
// about.
type Dry struct {
	Like Device // whose habits it has; may be nil
	Free int64  // bytes that it says it has left, as a device that is planned for would; 0: it does not say
}

// PackedBytes is that of the device that it is like.
func (d Dry) PackedBytes(k, n int, bf16 bool) int {
	if p, ok := d.Like.(Packer); ok {
		return p.PackedBytes(k, n, bf16)
	}
	return 0
}

// RoundedCols is that of the device that it is like.
func (d Dry) RoundedCols(cols int) int {
	if r, ok := d.Like.(Rounder); ok {
		return r.RoundedCols(cols)
	}
	return 0
}

// KeepsBF16 is the answer of the device that it is like.
func (d Dry) KeepsBF16() bool { return KeepsBF16(d.Like) }

// TakesBF16 is the answer of the device that it is like.
func (d Dry) TakesBF16() bool { return TakesBF16(d.Like) }

// Bags is the answer of the device that it is like.
func (d Dry) Bags() bool { return Bags(d.Like) }

// Repeats is the answer of the device that it is like.
func (d Dry) Repeats() bool { return Repeats(d.Like) }

// DryArena is an arena without bounds for a dry run.
func DryArena() *Arena {
	a, _ := NewArena(Dry{}, math.MaxInt/2) // can't fail: it holds nothing
	return a
}

// Name is "dry".
func (Dry) Name() string { return "dry" }

// Info describes the device. What it would be able to do and would take besides tensors is the answer of the one that it is like; it has as many
// threads, too: none means a GPU.
func (d Dry) Info() Info {
	i := Info{Kind: "dry", Description: "computes nothing"}
	if d.Like != nil {
		like := d.Like.Info()
		i.Threads, i.TF32, i.HostMemory, i.Besides = like.Threads, like.TF32, like.HostMemory, like.Besides
	}
	return i
}

// FreeMemory is what it was given.
func (d Dry) FreeMemory() (int64, error) { return d.Free, nil }

// Alloc gives memory that can't be touched.
func (Dry) Alloc(bytes int) (Memory, error) { return dryMemory(bytes), nil }

// OpenStream returns a stream whose ops check nothing and do nothing.
func (Dry) OpenStream() (Stream, error) { return &dryStream{}, nil }

// Close does nothing.
func (Dry) Close() error { return nil }

type dryMemory int

func (m dryMemory) Bytes() int { return int(m) }
func (dryMemory) Free() error  { return nil }

type dryStream struct{ err error }

func (*dryStream) Device() Device { return Dry{} }
func (*dryStream) Record() Event  { return nil }
func (*dryStream) Wait(Event)     {}
func (s *dryStream) Sync() error  { return s.err }
func (s *dryStream) Fail(err error) {
	if s.err == nil {
		s.err = err
	}
}
func (*dryStream) Close() error { return nil }

func (*dryStream) CopyIn(Tensor, []byte)                                             {}
func (*dryStream) CopyOut([]byte, Tensor)                                            {}
func (*dryStream) Copy(Tensor, Tensor)                                               {}
func (*dryStream) Fill(Tensor, float64)                                              {}
func (*dryStream) Add(Tensor, Tensor, Tensor)                                        {}
func (*dryStream) Scale(Tensor, Tensor, float64)                                     {}
func (*dryStream) MatMul(Tensor, Tensor, Tensor, MatMul)                             {}
func (*dryStream) ColumnSum(Tensor, Tensor)                                          {}
func (*dryStream) Gather(Tensor, Tensor, Tensor, bool)                               {}
func (*dryStream) ScatterAdd(Tensor, Tensor, Tensor)                                 {}
func (*dryStream) Embed(_, _, _, _ Tensor, _ Embed)                                  {}
func (*dryStream) LayerNorm(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, float64) {}
func (*dryStream) LayerNormWith(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)      {}
func (*dryStream) LayerNormBackward(_, _, _, _, _, _, _, _ Tensor, _ Dropped)        {}
func (*dryStream) RMSNorm(_, _, _, _ Tensor, _, _ float64)                           {}
func (*dryStream) RMSNormBackward(_, _, _, _, _, _ Tensor, _ float64)                {}
func (*dryStream) Activate(Tensor, Tensor, Activation)                               {}
func (*dryStream) ActivateBackward(Tensor, Tensor, Tensor, Activation)               {}
func (*dryStream) Gate(_, _, _ Tensor, _ Activation)                                 {}
func (*dryStream) GateBackward(_, _, _, _, _, _ Tensor, _ Activation)                {}
func (*dryStream) Rotary(_, _ Tensor, _ Rotary)                                      {}
func (*dryStream) Dropout(Tensor, Tensor, Tensor, Dropout)                           {}
func (*dryStream) Attention(Tensor, Tensor, Tensor, Tensor, Tensor, Attention)       {}
func (*dryStream) AttentionBackward(_, _, _, _, _, _, _, _, _ Tensor, _ Attention)   {}
func (*dryStream) Pool(Tensor, Tensor, Sequences, Pooling)                           {}
func (*dryStream) PoolBackward(Tensor, Tensor, Sequences, Pooling)                   {}
func (*dryStream) Bag(_, _, _ Tensor, _ Sequences)                                   {}
func (*dryStream) BagBackward(_, _, _ Tensor, _ Sequences)                           {}
func (*dryStream) Normalize(Tensor, Tensor, Tensor)                                  {}
func (*dryStream) NormalizeBackward(Tensor, Tensor, Tensor, Tensor)                  {}
func (*dryStream) RowDot(Tensor, Tensor, Tensor, float64)                            {}
func (*dryStream) RowAxpy(Tensor, Tensor, Tensor, float64)                           {}
func (*dryStream) Mask(Tensor, Mask)                                                 {}
func (*dryStream) MaskAbove(Tensor, Tensor, Tensor)                                  {}
func (*dryStream) OnlineLSE(Tensor, Tensor, Tensor)                                  {}
func (*dryStream) SoftmaxTile(_, _, _, _ Tensor)                                     {}
func (*dryStream) SegmentMax(_, _, _, _ Tensor)                                      {}
func (*dryStream) MaxSimBackward(_, _, _, _, _, _ Tensor)                            {}
func (*dryStream) Splade(_, _, _, _ Tensor, _ bool)                                  {}
func (*dryStream) SpladeBackward(_, _, _, _ Tensor, _ bool)                          {}
func (*dryStream) CountActive(Tensor, Tensor)                                        {}
func (*dryStream) SumSquares(Tensor, Tensor)                                         {}
func (*dryStream) AdamW(Tensor, Tensor, Tensor, Tensor, AdamW)                       {}
func (*dryStream) SGD(Tensor, Tensor, Tensor, SGD)                                   {}
