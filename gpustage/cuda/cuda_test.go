//go:build cuda

package cuda

import (
	"bytes"
	"errors"
	"os"
	"reflect"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"gorgonia.org/cu"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/launch"
	"contraflow/gpustage/devicetest"
	"contraflow/testdata/harness"
)

// driver tells that this machine has NVIDIA's driver; a container may show only its device.
func driver() bool {
	for _, file := range []string{"/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg"} {
		if _, err := os.Stat(file); err == nil {
			return true
		}
	}
	return false
}

// gpu opens one. On a machine with a GPU, and where CI is true, whatever keeps the GPU from being used is a failure.
func gpu(t *testing.T) *Device {
	t.Helper()
	t.Setenv("CONTRAFLOW_CUDA", "try")
	d, err := New(gpustage.Share{})
	if !driver() && errors.Is(err, gpustage.ErrAbsent) {
		harness.Missing(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// gpuStream opens one, and a stream of it.
func gpuStream(t *testing.T) (*Device, *Stream) {
	t.Helper()
	d := gpu(t)
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); d.Close() })
	return d, s.(*Stream)
}

func TestConformance(t *testing.T) {
	d := gpu(t)
	devicetest.Run(t, func() (gpustage.Device, error) { return d, nil })
}

// Without a GPU, opening one says that there is none, so that "auto" looks further.
func TestAbsent(t *testing.T) {
	if driver() {
		t.Skip("this machine has an NVIDIA driver")
	}
	if _, err := New(gpustage.Share{}); !errors.Is(err, gpustage.ErrAbsent) {
		t.Errorf("error %v", err)
	}
}

// Pinned memory takes part in copies itself. What came in may be written over at once, what comes out is there after Sync; and a part of the
// memory will do, where more than there is of it goes as other memory does.
func TestConformancePinned(t *testing.T) {
	d, s := gpuStream(t)
	const n = 3 << 18
	pinned, err := gpustage.Staging(d, 4*n)
	if err != nil {
		t.Fatal(err)
	}
	x, err := gpustage.NewTensor(d, gpustage.F32, 1, n)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Mem.Free()
	if !isPinned(pinned.Data()[4:8]) || isPinned(make([]byte, 8)) || isPinned(unsafe.Slice(&pinned.Data()[4*n-4], 8)) {
		t.Error("what is pinned is not known, or what is not is taken for it")
	}
	for _, span := range [][2]int{{0, n}, {7, n - 9}} {
		part, host := x.Columns(span[0], span[1]), pinned.Data()[4*span[0]:4*span[1]]
		values := unsafe.Slice((*float32)(unsafe.Pointer(&host[0])), len(host)/4)
		for i := range values {
			values[i] = float32(i)
		}
		ring := s.ring
		s.CopyIn(part, host)
		if !reflect.DeepEqual(ring, s.ring) {
			t.Error("pinned memory goes through the stream's ring")
		}
		clear(host)
		s.Add(part, part, part)
		s.CopyOut(host, part)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		for i, v := range values {
			if v != float32(2*i) {
				t.Fatalf("number %d is %v, want %v", i, v, 2*i)
			}
		}
	}
	// Other memory is the garbage collector's: nothing is copied there later.
	own := make([]byte, 8)
	s.CopyOut(own, x.Columns(1, 3))
	if !bytes.Equal(own, pinned.Data()[4:12]) {
		t.Error("a copy to memory that is not pinned goes on when CopyOut has returned")
	}
	at := pinned.Data()[:8]
	if err := errors.Join(pinned.Free(), pinned.Free()); err != nil || isPinned(at) {
		t.Error("memory that was given back is pinned", err)
	}
}

// Memory that was not given back ends with its device, and giving it back then does no harm.
func TestConformancePinnedLeft(t *testing.T) {
	d := gpu(t)
	left, err := d.Pin(100)
	if err != nil {
		t.Fatal(err)
	}
	at := left.Data()
	if _, err := d.Pin(-1); err == nil {
		t.Error("less than nothing is pinned")
	}
	if err := errors.Join(d.Close(), left.Free()); err != nil || isPinned(at) {
		t.Error("memory of a device that is closed is pinned", err)
	}
}

// While a stream captures, memory is neither taken nor pinned nor given back, which may synchronize the context.
func TestConformancePinnedCapture(t *testing.T) {
	d, s := gpuStream(t)
	pinned, err := d.Pin(1)
	if err != nil {
		t.Fatal(err)
	}
	taken, err := d.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	for name, use := range map[string]func() error{
		"pinned": func() error {
			m, err := d.Pin(1)
			if err == nil {
				err = m.Free()
			}
			return err
		},
		"taken": func() error {
			m, err := d.Alloc(1)
			if err == nil {
				err = m.Free()
			}
			return err
		},
		"pinned, and given back": pinned.Free, "given back": taken.Free,
	} {
		if err := s.Begin(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- use() }()
		select {
		case err := <-ended:
			t.Errorf("memory is %s while a stream captures", name)
			ended <- err
		case <-time.After(20 * time.Millisecond):
		}
		if _, err := s.End(); err != nil {
			t.Error(name, err)
		}
		if err := <-ended; err != nil {
			t.Error(name, err)
		}
	}
}

// While a stream captures, no kernel is loaded, neither ours nor the library's. The stream that captures may use one for the first time.
func TestConformanceLoadingCapture(t *testing.T) {
	d, s := gpuStream(t)
	opened, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	other := opened.(*Stream)
	defer other.Close()
	x, err := gpustage.NewTensor(d, gpustage.F32, 64, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Mem.Free()
	y, err := gpustage.NewTensor(d, gpustage.F32, 64, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer y.Mem.Free()
	other.MatMul(y.Span(0, 32), x.Span(0, 32), x, gpustage.MatMul{}) // the library's handle and workspace
	s.Fill(x, 1)
	if err := errors.Join(other.Sync(), s.Sync()); err != nil {
		t.Fatal(err)
	}
	if err := other.Begin(); err != nil { // it has captured before
		t.Fatal(err)
	}
	other.Fill(y, 1)
	if _, err := other.End(); err != nil {
		t.Fatal(err)
	}
	for name, use := range map[string]func(){
		"a kernel":  func() { other.Scale(y, x, 2) },
		"a product": func() { other.MatMul(y, x, x, gpustage.MatMul{}) },
	} {
		if err := s.Begin(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			use()
			ended <- other.Sync()
		}()
		select {
		case err := <-ended:
			t.Error(name, "is loaded while another stream captures:", err)
			ended <- err
		case <-time.After(20 * time.Millisecond):
		}
		s.Fill(x, 1)
		if _, err := s.End(); err != nil {
			t.Error(name, err)
		}
		if err := <-ended; err != nil {
			t.Error(name, err)
		}
	}
}

// A stream that communicates is ahead of one that computes.
func TestConformanceUrgent(t *testing.T) {
	d := gpu(t)
	defer d.Close()
	unbind, err := d.bind()
	if err != nil {
		t.Fatal(err)
	}
	defer unbind()
	_, greatest, err := cu.StreamPriorityRange()
	if err != nil {
		t.Fatal(err)
	}
	for want, open := range map[int]func() (gpustage.Stream, error){0: d.OpenStream, greatest: func() (gpustage.Stream, error) { return gpustage.OpenUrgent(d) }} {
		s, err := open()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.(*Stream).stream.Priority(); err != nil || got != want {
			t.Errorf("priority %d, %v; want %d", got, err, want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What a stream could not do, a stream that waits for it does not go on without.
func TestConformanceErrors(t *testing.T) {
	d := gpu(t)
	defer d.Close()
	var streams [2]gpustage.Stream
	for i := range streams {
		var err error
		if streams[i], err = d.OpenStream(); err != nil {
			t.Fatal(err)
		}
		defer streams[i].Close()
	}
	streams[0].Add(gpustage.Tensor{}, gpustage.Tensor{}, gpustage.Tensor{})
	event := streams[0].Record()
	streams[1].Wait(event)
	if streams[1].Sync() == nil || event.Sync() == nil {
		t.Error("work that an event stands for has failed, and who waits for the event does not know")
	}
}

// The library sums columns beside products where it can and is told to.
func TestConformanceSums(t *testing.T) {
	d, _ := gpuStream(t)
	x, err := gpustage.NewTensor(d, gpustage.F32, 64, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Mem.Free()
	for _, on := range []string{"", "off", "on"} {
		t.Setenv("CONTRAFLOW_CUDA_SUMS", on)
		opened, err := d.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		s := opened.(*Stream)
		defer s.Close()
		m := launch.Matrix{At: s.Address(x.Mem), Rows: 64, Cols: 64, Stride: 64}
		p := launch.Product{C: m, D: m, A: m, B: m, TransA: true, BF16: true, Alpha: 1, Epilogue: launch.ColumnSums, Bias: m.At}
		plan, err := s.plan(p)
		if err != nil {
			t.Fatal(err)
		}
		if sums, err := s.Fuses(p); err != nil || sums != (on == "on" && plan.made != nil) {
			t.Errorf("CONTRAFLOW_CUDA_SUMS=%s: sums beside a product: %v, %v; the library has them: %v", on, sums, err, plan.made != nil)
		}
	}
}

// What is given back, twice does no harm, is no longer counted.
func TestConformanceCounted(t *testing.T) {
	d := gpu(t)
	defer d.Close()
	for range 3 {
		m, err := d.Alloc(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(m.Free(), m.Free()); err != nil {
			t.Error(err)
		}
	}
	if most := d.Info().PeakAllocated; most != 1<<20 {
		t.Errorf("at most %d bytes were given out at a time, want %d", most, 1<<20)
	}
}

// A stream that is closed has given back its memory, the pinned too, and its events.
func TestConformanceClosed(t *testing.T) {
	d := gpu(t)
	defer d.Close()
	x, err := gpustage.NewTensor(d, gpustage.F32, 64, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Mem.Free()
	given := d.given
	s, err := d.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	s.CopyIn(x, make([]byte, 4*x.Len()))
	s.MatMul(x.Span(0, 32), x.Span(32, 64).Columns(0, 32), x.Span(32, 64), gpustage.MatMul{BF16: true})
	if err := errors.Join(s.Sync(), s.Close()); err != nil {
		t.Fatal(err)
	}
	pinned := 0
	for _, p := range pins.at {
		if p.d == d {
			pinned++
		}
	}
	if d.given != given || pinned > 0 || len(d.events) == 0 || len(d.unused) != len(d.events) {
		t.Errorf("%d bytes are given out, before the stream %d; %d pieces are pinned; %d of %d events can be used again", d.given, given, pinned, len(d.unused), len(d.events))
	}
}

// Go may have moved a goroutine to a thread that has no context before each call.
func TestConformanceThreads(t *testing.T) {
	d, s := gpuStream(t)
	const n = 64
	x, err := gpustage.NewTensor(d, gpustage.F32, 2*n, n)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Mem.Free()
	x, y := x.Span(0, n), x.Span(n, 2*n)
	got := make([]float32, n*n)
	var graph launch.Recording
	for i, call := range []func() error{
		func() error { s.Fill(x, 1); return nil },
		func() error { s.MatMul(y, x, x, gpustage.MatMul{}); return nil },
		func() error { s.Add(y, y, y); return nil },
		s.Sync, // what follows is known
		func() error { s.Fill(x, 2); return nil },
		func() error { s.MatMul(y, x, x, gpustage.MatMul{}); return nil },
		s.Begin,
		func() error { s.Add(y, y, y); return nil },
		func() (err error) { graph, err = s.End(); return err },
		func() error { return graph.Start() },
		func() error { s.Wait(s.Record()); return nil },
		func() error { return s.Record().Sync() },
		func() error { s.CopyOut(gpustage.Bytes(got), y); return nil },
		func() error { return graph.Free() },
	} {
		runtime.LockOSThread()
		err := cu.SetCurrentContext(cu.CUContext{})
		if err == nil {
			err = call()
		}
		runtime.UnlockOSThread()
		if err = errors.Join(err, s.Err()); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
	if got[n] != 8*n {
		t.Errorf("an element is %v, want %d", got[n], 8*n)
	}
}
