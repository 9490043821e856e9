//go:build linux && (amd64 || arm64)

package nccl

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"

	"contraflow/gpustage"
)

// result is an ncclResult_t.
type result int32

const (
	success    result = 0
	inProgress result = 7
)

// id is an ncclUniqueId.
type id struct{ words [16]uint64 }

// config is an ncclConfig_t as of NCCL 2.18, which later versions understand by its size and version.
type config struct {
	size             uint64
	magic, version   uint32
	blocking         int32
	cgaClusterSize   int32
	minCTAs, maxCTAs int32
	netName          uintptr
	splitShare       int32
	trafficClass     int32 // of 2.26, which takes it out of what was padding
}

const (
	minVersion = 21800      // 2.18, for non-blocking communicators with this config
	undefined  = -1 << 31   // NCCL_CONFIG_UNDEF_INT
	magic      = 0xcafebeef // NCCL_API_MAGIC
	typeF32    = uintptr(7) // ncclFloat32
	typeF64    = uintptr(8) // ncclFloat64
	typeBF16   = uintptr(9) // ncclBfloat16
)

func nonBlocking() *config {
	c := &config{magic: magic, version: minVersion, cgaClusterSize: undefined, minCTAs: undefined, maxCTAs: undefined, splitShare: undefined, trafficClass: undefined}
	c.size = uint64(unsafe.Sizeof(*c))
	return c
}

func typeOf(t gpustage.DType) uintptr {
	switch t {
	case gpustage.F64:
		return typeF64
	case gpustage.BF16:
		return typeBF16
	}
	return typeF32
}

// library is a loaded NCCL. Calls on hot paths go through purego.SyscallN, 255 ns each where a function made by
// RegisterLibFunc takes 2.2 us.
type library struct {
	name    string
	version int

	initRank func(comm *uintptr, ranks int32, id id, rank int32, config *config) result // the id goes by value

	getVersion, getUniqueID, getErrorString, getLastError  uintptr
	groupStart, groupEnd, send, recv, allGather, broadcast uintptr
	asyncError, finalize, destroy, abort                   uintptr
}

// libraries are those loaded so far, by name: they stay.
var libraries struct {
	sync.Mutex
	loaded map[string]*library
}

// load opens a library and finds its functions.
func load(name string) (*library, error) {
	libraries.Lock()
	defer libraries.Unlock()
	if l := libraries.loaded[name]; l != nil {
		return l, nil
	}
	handle, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %v: install it (Debian: libnccl2; pip: nvidia-nccl-cu12) and, if the loader does not find it, set CONTRAFLOW_NCCL to its file", ErrUnavailable, err)
	}
	l := &library{name: name}
	symbols := map[string]*uintptr{
		"ncclGetVersion": &l.getVersion, "ncclGetUniqueId": &l.getUniqueID,
		"ncclGetErrorString": &l.getErrorString, "ncclGetLastError": &l.getLastError,
		"ncclGroupStart": &l.groupStart, "ncclGroupEnd": &l.groupEnd, "ncclSend": &l.send, "ncclRecv": &l.recv,
		"ncclAllGather": &l.allGather, "ncclBroadcast": &l.broadcast, "ncclCommGetAsyncError": &l.asyncError,
		"ncclCommFinalize": &l.finalize, "ncclCommDestroy": &l.destroy, "ncclCommAbort": &l.abort,
	}
	for _, symbol := range slices.Sorted(maps.Keys(symbols)) {
		if *symbols[symbol], err = purego.Dlsym(handle, symbol); err != nil {
			return nil, fmt.Errorf("%w: %s: %v", ErrUnavailable, name, err)
		}
	}
	init, err := purego.Dlsym(handle, "ncclCommInitRankConfig")
	if err != nil {
		return nil, fmt.Errorf("%w: %s is older than 2.18: %v", ErrUnavailable, name, err)
	}
	purego.RegisterFunc(&l.initRank, init)
	var version int32
	if r := ncclCall(l.getVersion, uintptr(unsafe.Pointer(&version))); r != success {
		return nil, l.failure("ncclGetVersion", r, 0)
	}
	l.version = int(version)
	if l.version < minVersion {
		return nil, fmt.Errorf("%w: %s has version %d.%d; contraflow needs 2.18", ErrUnavailable, name, version/10000, version/100%100)
	}
	if libraries.loaded == nil {
		libraries.loaded = map[string]*library{}
	}
	libraries.loaded[name] = l
	return l, nil
}

// ncclCall calls a function. Pointers converted to uintptr in its arguments stay valid until it returns.
//
//go:uintptrescapes
func ncclCall(f uintptr, args ...uintptr) result {
	r, _, _ := purego.SyscallN(f, args...)
	return result(int32(r))
}

// failure is an error in NCCL's words.
func (l *library) failure(what string, r result, comm uintptr) error {
	text, _, _ := purego.SyscallN(l.getErrorString, uintptr(uint32(r)))
	last, _, _ := purego.SyscallN(l.getLastError, comm)
	message := fmt.Sprintf("%s: %s", what, goString(text))
	if more := strings.TrimSpace(goString(last)); more != "" {
		message += " (" + more + ")"
	}
	return errors.New(message)
}

// goString copies a C string.
func goString(p uintptr) string {
	if p == 0 {
		return ""
	}
	at := *(*unsafe.Pointer)(unsafe.Pointer(&p)) // memory of C: it does not move
	n := 0
	for *(*byte)(unsafe.Add(at, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(at), n))
}
