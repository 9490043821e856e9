//go:build cuda

package cuda

// #cgo LDFLAGS: -lcuda
// #include "driver.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"gorgonia.org/cu"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/kernels"
	"contraflow/gpustage/cuda/launch"
	"contraflow/gpustage/cuda/nvrtc"
)

// Device is one GPU.
type Device struct {
	index   int
	device  cu.Device
	context cu.CUContext
	arch    string // "sm_90"
	about   string
	ranks   int // that have this GPU
	repeats bool
	shared  bool // its memory is the host's
	zeroes  cu.Stream

	loading  sync.Mutex // while kernels are loaded; behind whole, before mu
	compiled nvrtc.Cache
	modules  map[string]cu.Module

	mu        sync.Mutex
	given     int64 // bytes that Alloc has given out
	most      int64 // at a time
	functions map[string]function
	events    []cu.Event // all there are
	unused    []cu.Event // of them, to be used again
	refused   sync.Once  // a product of cuBLASLt's, which is told
}

// function is a kernel that is loaded.
type function struct {
	handle C.CUfunction
	shared int // bytes of shared memory that it may have beside what its code declares
}

// unasked is how much shared memory a block may have without asking for more, declared and dynamic together.
const unasked = 48 << 10

// oldest is the first generation with bf16 on tensor cores.
const oldest = 8

// DriverVersion is the driver's version of CUDA, 12090 for 12.9, and not above 0 where there is no driver.
func DriverVersion() int { return cu.Version() }

// gpus is how many there are.
func gpus() (int, error) {
	n, err := cu.NumDevices()
	switch {
	case err == cu.NoDevice || err == nil && n == 0:
		return 0, fmt.Errorf("an NVIDIA GPU: %w", gpustage.ErrAbsent)
	case err != nil:
		return 0, fmt.Errorf("NVIDIA's driver does not answer as it should: %w", err)
	}
	return n, nil
}

// tried are the GPUs on which the conformance suite, goldens and trainings have run: Hopper, by an H200.
const tried = "sm_90"

// New opens the GPU of a share: they are given out in turn.
func New(share gpustage.Share) (*Device, error) {
	n, err := gpus()
	if err != nil {
		return nil, err
	}
	d := &Device{modules: map[string]cu.Module{}, functions: map[string]function{}}
	d.index, d.ranks = share.On(n)
	fail := func(err error) (*Device, error) { return nil, fmt.Errorf("GPU %d: %w", d.index, err) }
	if d.device, err = cu.GetDevice(d.index); err != nil {
		return fail(err)
	}
	if d.repeats, err = enabled("CONTRAFLOW_CUDA_GRAPHS", "the default: sub-batches of one shape are recorded as a CUDA graph", true); err != nil {
		return fail(err)
	}
	name, err := d.device.Name()
	if err != nil {
		return fail(err)
	}
	major, minor, err := d.device.ComputeCapability()
	if err != nil {
		return fail(err)
	}
	d.arch = fmt.Sprintf("sm_%d%d", major, minor)
	d.about = fmt.Sprintf("%s, %s", name, d.arch)
	groups, err := warpgroups()
	if err != nil {
		return fail(err)
	}
	setCompiled(&d.compiled, d.arch, groups, DriverVersion())
	if major < oldest {
		return fail(fmt.Errorf("%s: it %w, as its tensor cores have no bf16; GPUs from sm_%d0 on (A100, RTX 30) have; device: cpu computes on the processor", d.about, gpustage.ErrUnfit, oldest))
	}
	if d.arch != tried && os.Getenv("CONTRAFLOW_CUDA") != "try" {
		return fail(fmt.Errorf("%s: the CUDA device %w; CONTRAFLOW_CUDA=try opens it nevertheless, device: cpu computes on the processor", d.about, gpustage.ErrUntried))
	}
	integrated, err := d.device.Attribute(cu.Integrated)
	if err != nil {
		return fail(err)
	}
	d.shared = integrated != 0
	if err := loadProducts(); err != nil {
		return fail(err)
	}
	if d.context, err = d.device.RetainPrimaryCtx(); err != nil {
		return fail(err)
	}
	unbind, err := d.bind()
	if err == nil {
		d.zeroes, err = cu.MakeStream(nonBlocking)
		unbind()
	}
	if err != nil {
		return fail(errors.Join(err, driverError(C.release_context(C.CUdevice(d.device)))))
	}
	return d, nil
}

// MakeCurrent makes the GPU that New would open for a share current on the calling thread, where NCCL is called then. The context is
// the process's to keep.
func MakeCurrent(share gpustage.Share) error {
	n, err := gpus()
	if err != nil {
		return err
	}
	index, _ := share.On(n)
	kept.Lock()
	defer kept.Unlock()
	context, ok := kept.contexts[index]
	if !ok {
		d, err := cu.GetDevice(index)
		if err != nil {
			return err
		}
		if context, err = d.RetainPrimaryCtx(); err != nil {
			return err
		}
		kept.contexts[index] = context
	}
	return cu.SetCurrentContext(context)
}

// kept are the contexts that MakeCurrent has made or found, by GPU.
var kept = struct {
	sync.Mutex
	contexts map[int]cu.CUContext
}{contexts: map[int]cu.CUContext{}}

// bind makes the context current until the returned function is called.
func (d *Device) bind() (func(), error) {
	runtime.LockOSThread()
	if err := cu.SetCurrentContext(d.context); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	return runtime.UnlockOSThread, nil
}

// raw is the context as C has it.
func (d *Device) raw() C.CUcontext { return *(*C.CUcontext)(unsafe.Pointer(&d.context)) }

// Name is "cuda:0" for the first GPU.
func (d *Device) Name() string { return fmt.Sprintf("cuda:%d", d.index) }

// Info describes the GPU.
func (d *Device) Info() gpustage.Info {
	d.mu.Lock()
	defer d.mu.Unlock()
	return gpustage.Info{Kind: "cuda", Description: d.about, Ranks: d.ranks, TF32: true, HostMemory: d.shared, PeakAllocated: d.most, Besides: launch.Besides}
}

// FreeMemory is the GPU's, 1 where it is full.
func (d *Device) FreeMemory() (free int64, err error) {
	unbind, err := d.bind()
	if err == nil {
		free, _, err = cu.MemInfo()
		unbind()
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", d.Name(), err)
	}
	return max(free, 1), nil
}

// PackedBytes is what bf16 mode keeps of a parameter.
func (d *Device) PackedBytes(k, n int, bf16 bool) int { return launch.PackedBytes(k, n, bf16) }

// RoundedCols is what a product's input takes in bf16.
func (d *Device) RoundedCols(cols int) int { return launch.BF16Cols(cols) }

// TakesBF16 is true: see package launch.
func (*Device) TakesBF16() bool { return true }

type memory struct {
	d     *Device
	at    cu.DevicePtr
	bytes int
}

func (m *memory) Bytes() int { return m.bytes }

// Pointer is where it begins, for NCCL.
func (m *memory) Pointer() uintptr { return uintptr(m.at) }

func (m *memory) Free() error {
	if m.at == 0 {
		return nil
	}
	unbind, err := m.d.bind()
	if err != nil {
		return err
	}
	defer unbind()
	at := m.at
	m.at = 0
	m.d.count(-m.bytes)
	whole.Lock()
	defer whole.Unlock()
	return cu.MemFree(at)
}

func (d *Device) count(bytes int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.given += int64(bytes)
	d.most = max(d.most, d.given)
}

// Alloc gives zeroed memory.
func (d *Device) Alloc(bytes int) (gpustage.Memory, error) {
	unbind, err := d.bind()
	if err != nil {
		return nil, err
	}
	defer unbind()
	m := &memory{d: d, bytes: bytes}
	if m.at, err = d.allocZeroed(int64(max(bytes, 256))); err == nil {
		d.count(bytes)
	} else if err == cu.OutOfMemory {
		err = gpustage.ErrOutOfMemory
	}
	if err != nil {
		return nil, fmt.Errorf("%s: allocating %d bytes: %w", d.Name(), bytes, err)
	}
	return m, nil
}

// allocZeroed waits for nothing but its own zeroes: other streams may be at work with other ranks, who wait for this one.
func (d *Device) allocZeroed(bytes int64) (cu.DevicePtr, error) {
	whole.Lock()
	defer whole.Unlock()
	at, err := cu.MemAlloc(bytes)
	if err != nil {
		return 0, err
	}
	if err = cu.MemsetD8Async(at, 0, bytes, d.zeroes); err == nil {
		err = d.zeroes.Synchronize()
	}
	if err != nil {
		return 0, errors.Join(err, cu.MemFree(at))
	}
	return at, nil
}

// Close gives the context back. Memory and streams must not be used any more.
func (d *Device) Close() error {
	unbind, err := d.bind()
	if err != nil {
		return err
	}
	defer unbind()
	// The context may outlive the device: others in the process use it as well.
	errs := []error{d.zeroes.Destroy(), d.unload()}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.events {
		errs = append(errs, cu.DestroyEvent(&d.events[i]))
	}
	errs = append(errs, d.unpinAll()...)
	clear(d.functions)
	d.events, d.unused = nil, nil
	return errors.Join(append(errs, driverError(C.release_context(C.CUdevice(d.device))))...)
}

// unload gives all modules back, for which the context may be synchronized. It is current.
func (d *Device) unload() error {
	whole.Lock()
	defer whole.Unlock()
	d.loading.Lock()
	defer d.loading.Unlock()
	var errs []error
	for _, m := range d.modules {
		errs = append(errs, m.Unload())
	}
	clear(d.modules)
	return errors.Join(errs...)
}

// function is a kernel that may have so much shared memory. Modules are compiled or read on first use; only who needs one waits for that. Loading
// one may synchronize the context (what a kernel needs of the device is loaded with it), so it comes before or behind others' captures: see whole,
// which a stream that captures holds already.
func (d *Device) function(kernel string, shared int, captures bool) (C.CUfunction, error) {
	known := func() (f function, ok bool) {
		d.mu.Lock()
		defer d.mu.Unlock()
		f, ok = d.functions[kernel]
		return f, ok && shared <= f.shared
	}
	if f, ok := known(); ok {
		return f.handle, nil
	}
	if _, err := d.compiled.Code(kernels.ModuleOf(kernel)); err != nil { // compiling, which takes seconds, synchronizes nothing
		return nil, err
	}
	if !captures {
		whole.Lock()
		defer whole.Unlock()
	}
	d.loading.Lock() // behind whole
	defer d.loading.Unlock()
	f, ok := known() // another stream may have been ahead
	if ok {
		return f.handle, nil
	}
	if f.handle == nil {
		unbind, err := d.bind()
		if err != nil {
			return nil, err
		}
		defer unbind()
		module, err := d.module(kernels.ModuleOf(kernel))
		if err != nil {
			return nil, err
		}
		fn, err := module.Function(kernel)
		if err != nil {
			return nil, err
		}
		f.handle = *(*C.CUfunction)(unsafe.Pointer(&fn))
		var declared C.int
		if err := driverError(C.static_shared(d.raw(), f.handle, &declared)); err != nil {
			return nil, err
		}
		f.shared = unasked - int(declared)
	}
	if shared > f.shared {
		if err := driverError(C.allow_shared(d.raw(), f.handle, C.int(shared))); err != nil {
			return nil, fmt.Errorf("%d bytes of shared memory on %s: %w", shared, d.about, err)
		}
		f.shared = shared
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.functions[kernel] = f
	return f.handle, nil
}

// module loads compiled kernels. The context is current.
func (d *Device) module(file string) (cu.Module, error) {
	if m, ok := d.modules[file]; ok {
		return m, nil
	}
	for again := false; ; again = true {
		code, err := d.compiled.Code(file)
		if err != nil {
			return cu.Module{}, err
		}
		m, err := cu.LoadData(string(code))
		if err == nil {
			d.modules[file] = m
			return m, nil
		}
		switch err {
		case cu.InvalidImage, cu.InvalidSource, cu.InvalidPtx, cu.NoBinaryForGpu: // it may have come from elsewhere
			if !again {
				d.compiled.Forget(file)
				continue
			}
		case cu.OutOfMemory:
			err = gpustage.ErrOutOfMemory
		}
		return cu.Module{}, fmt.Errorf("loading %s: %w", file, err)
	}
}

func init() {
	// Above the processor: "auto" takes a GPU of a kind that has passed the conformance suite (see tried).
	gpustage.Register("cuda", 20, func(share gpustage.Share) (gpustage.Device, error) { return New(share) })
}
