package onhost

import (
	"contraflow/gpustage"
	"contraflow/gpustage/cuda/launch"
)

// IdleDevice is one whose launches do nothing and whose memory can't be touched: what it takes is what issuing them takes. It is given what a
// GPU is given.
type IdleDevice struct {
	gpustage.Dry
	mode   Mode
	counts Counts
	next   uintptr // where the next memory begins
}

// place is memory that can't be touched, and has an address.
type place struct {
	gpustage.Memory
	at uintptr
}

// Alloc gives such memory.
func (d *IdleDevice) Alloc(bytes int) (gpustage.Memory, error) {
	m, err := d.Dry.Alloc(bytes)
	p := place{m, d.next}
	d.next += uintptr(bytes+255) &^ 255
	return p, err
}

// Idle is such a device. It belongs to one goroutine.
func Idle(m Mode) *IdleDevice { return &IdleDevice{mode: m, next: 1 << 20} }

// Repeats tells whether models round their shapes up.
func (d *IdleDevice) Repeats() bool { return d.mode != Plain }

// PackedBytes is the real device's.
func (*IdleDevice) PackedBytes(k, n int, bf16 bool) int { return launch.PackedBytes(k, n, bf16) }

// RoundedCols is the real device's.
func (*IdleDevice) RoundedCols(cols int) int { return launch.BF16Cols(cols) }

// TakesBF16 is the real device's.
func (*IdleDevice) TakesBF16() bool { return true }

// Counts is what the device has been asked for.
func (d *IdleDevice) Counts() Counts { return d.counts }

// OpenStream opens a stream.
func (d *IdleDevice) OpenStream() (gpustage.Stream, error) {
	i := idle{&d.counts}
	s := idleStream{launch.NewStream(d, i)}
	if d.mode != Recorded {
		s.Stream = launch.NewStream(d, struct{ launch.Driver }{i})
	}
	return s, nil
}

type idleStream struct{ *launch.Stream }

func (s idleStream) Record() gpustage.Event {
	s.Issue()
	return happened{}
}

func (s idleStream) Wait(gpustage.Event)             { s.Issue() }
func (s idleStream) CopyIn(gpustage.Tensor, []byte)  { s.Issue() }
func (s idleStream) CopyOut([]byte, gpustage.Tensor) { s.Issue() }
func (s idleStream) Close() error                    { return s.Free() }

func (s idleStream) Sync() error {
	s.Issue()
	return s.Err()
}

type happened struct{}

func (happened) Sync() error { return nil }

// idle is a driver that counts.
type idle struct{ counts *Counts }

func (i idle) Launch(string, [3]int, [3]int, int, []uint64, []int32) error {
	i.counts.Started++
	return nil
}

func (i idle) Multiply(launch.Product) error {
	i.counts.Products++
	return nil
}

// Fuses is the real device's answer while CONTRAFLOW_CUDA_SUMS is not on.
func (idle) Fuses(p launch.Product) (bool, error) {
	return p.Epilogue != launch.ColumnSums && fuses(p), nil
}

// fuses is what cuBLASLt's heuristic answers, from what its documentation demands of aux and of sums.
func fuses(p launch.Product) bool {
	inner := p.A.Cols
	if p.TransA {
		inner = p.A.Rows
	}
	thin := p.C.Rows == 1 || p.C.Cols == 1 || inner == 1
	switch {
	case p.Bias != 0 && thin: // see launch's takesBias
		return false
	case p.Epilogue == launch.NoEpilogue:
		return true
	case p.Epilogue == launch.ColumnSums:
		return p.Bias != 0 && p.Bias%16 == 0
	}
	return p.Aux.Stride >= p.Aux.Cols && p.Aux.Stride%8 == 0 && p.Aux.At%16 == 0 && (p.Epilogue == launch.GELU || p.Bias == 0)
}

func (idle) Address(m gpustage.Memory) uintptr { return m.(place).at }

func (i idle) Begin() error                   { return nil }
func (i idle) End() (launch.Recording, error) { return i, nil }
func (i idle) Free() error                    { return nil }

func (i idle) Start() error {
	i.counts.Replayed++
	return nil
}
