//go:build linux && (amd64 || arm64)

// Package nvrtc compiles CUDA C++ with NVIDIA's run-time compiler, a library that PyTorch, the CUDA toolkit and PyPI's
// nvidia-cuda-nvrtc bring along. It is loaded when first needed; neither a GPU nor a driver nor cgo is.
package nvrtc

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Compiler is a loaded library.
type Compiler struct {
	Path         string
	Major, Minor int
	calls        map[string]uintptr
}

var names = []string{
	"nvrtcVersion", "nvrtcCreateProgram", "nvrtcDestroyProgram", "nvrtcCompileProgram", "nvrtcGetProgramLogSize", "nvrtcGetProgramLog",
	"nvrtcGetCUBINSize", "nvrtcGetCUBIN", "nvrtcGetErrorString",
	"nvrtcGetNumSupportedArchs", "nvrtcGetSupportedArchs",
}

// Open loads the library that CONTRAFLOW_NVRTC names, or the newest one that the system's loader finds and the driver can do with.
func Open(driver int) (*Compiler, error) {
	files := Versions(driver, "libnvrtc")
	if named := os.Getenv("CONTRAFLOW_NVRTC"); named != "" {
		files = []string{named}
	}
	var first error
	for _, f := range files {
		c, err := open(f)
		if err == nil {
			return c, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, fmt.Errorf("NVRTC: %w (%s)", first, Mend)
}

func open(file string) (*Compiler, error) {
	// NVRTC opens its built-in functions by name when it compiles: where the loader does not look, they must be there already.
	if dir := filepath.Dir(file); dir != "." {
		for _, b := range within(dir, "libnvrtc-builtins.so", "") {
			_, _ = purego.Dlopen(b, purego.RTLD_NOW|purego.RTLD_GLOBAL) // if it fails, compiling says so
		}
	}
	lib, err := purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, err
	}
	c := &Compiler{Path: file, calls: map[string]uintptr{}}
	for _, n := range names {
		if c.calls[n], err = purego.Dlsym(lib, n); err != nil {
			return nil, err
		}
	}
	var major, minor int32
	if err := c.call("nvrtcVersion", uintptr(unsafe.Pointer(&major)), uintptr(unsafe.Pointer(&minor))); err != nil {
		return nil, err
	}
	c.Major, c.Minor = int(major), int(minor)
	return c, nil
}

func (c *Compiler) version() string { return fmt.Sprintf("%d.%d", c.Major, c.Minor) }

// Architectures are those that Compile makes code for, "sm_90".
func (c *Compiler) Architectures() (all []string, err error) {
	n := new(int32)
	if err := c.call("nvrtcGetNumSupportedArchs", uintptr(unsafe.Pointer(n))); err != nil {
		return nil, err
	}
	numbers := make([]int32, max(*n, 1))
	if err := c.call("nvrtcGetSupportedArchs", uintptr(unsafe.Pointer(&numbers[0]))); err != nil {
		return nil, err
	}
	for _, a := range numbers[:*n] {
		all = append(all, fmt.Sprintf("sm_%d", a))
	}
	return all, nil
}

// target is what Compile makes code for that a GPU of some architecture runs: that one, if the library knows it, or the nearest older one of its
// generation (CUDA C++ programming guide, "Binary Compatibility"). An older generation's code it does not run, and PTX is not made.
func (c *Compiler) target(arch string) (string, error) {
	known, err := c.Architectures()
	if err != nil {
		return "", err
	}
	if t := nearest(known, arch); t != "" {
		return t, nil
	}
	return "", fmt.Errorf("NVRTC %s (%s) does not know %s, it compiles for %s; a newer one does: %s", c.version(), c.Path, arch, strings.Join(known, ", "), Mend)
}

// nearest is that of the known architectures; "" if there is none. Features of one architecture alone, sm_90a's, no other has.
func nearest(known []string, arch string) string {
	if slices.Contains(known, strings.TrimSuffix(arch, "a")) {
		return arch
	}
	number := func(arch string) int {
		n, _ := strconv.Atoi(strings.TrimPrefix(arch, "sm_"))
		return n
	}
	best, want := 0, number(arch)
	for _, k := range known {
		if n := number(k); n/10 == want/10 && n < want {
			best = max(best, n)
		}
	}
	if best == 0 {
		return ""
	}
	return fmt.Sprint("sm_", best)
}

// call calls a function. Pointers converted to uintptr in its arguments stay valid until it returns.
//
//go:uintptrescapes
func (c *Compiler) call(name string, args ...uintptr) error {
	r, _, _ := purego.SyscallN(c.calls[name], args...)
	if int32(r) == 0 {
		return nil
	}
	text, _, _ := purego.SyscallN(c.calls["nvrtcGetErrorString"], r)
	return fmt.Errorf("%s: %s", name, goString(text))
}

func goString(at uintptr) string {
	var b strings.Builder
	for p := *(*unsafe.Pointer)(unsafe.Pointer(&at)); *(*byte)(p) != 0; p = unsafe.Add(p, 1) {
		b.WriteByte(*(*byte)(p))
	}
	return b.String()
}

func cString(s string) *byte { return &append([]byte(s), 0)[0] }

// always are options of every compilation. 177 is about functions of a header that a file does not use.
var always = []string{"--std=c++17", "-diag-suppress=177"}

// Variant names, for folders of compiled code, what but the sources and the architecture decides what Compile makes: the version of CUDA whose
// libraries a driver takes, and the options.
func Variant(driver int) string {
	sum := sha256.Sum256([]byte(strings.Join(always, " ")))
	return fmt.Sprintf("cuda%d-%s", driver/1000, hex.EncodeToString(sum[:2]))
}

// Compile makes machine code for one architecture, "sm_90", of a source that includes nothing. The log has the
// compiler's words; with verbose these include each kernel's registers, spills and shared memory.
func (c *Compiler) Compile(name, source, arch string, verbose bool) (cubin []byte, log string, err error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	keep := func(s string) uintptr {
		p := cString(s)
		pin.Pin(p)
		return uintptr(unsafe.Pointer(p))
	}
	options := []uintptr{keep("-arch=" + arch)}
	for _, o := range always {
		options = append(options, keep(o))
	}
	if verbose {
		options = append(options, keep("--ptxas-options=-v"))
	}
	pin.Pin(&options[0])
	program := new(uintptr)
	pin.Pin(program)
	at := uintptr(unsafe.Pointer(program))
	if err := c.call("nvrtcCreateProgram", at, keep(source), keep(name), 0, 0, 0); err != nil {
		return nil, "", err
	}
	defer c.call("nvrtcDestroyProgram", at)
	err = c.call("nvrtcCompileProgram", *program, uintptr(len(options)), uintptr(unsafe.Pointer(&options[0])))
	text, logErr := c.bytes("nvrtcGetProgramLogSize", "nvrtcGetProgramLog", *program)
	log = strings.TrimRight(string(bytes.TrimRight(text, "\x00")), "\n")
	if err != nil {
		return nil, log, fmt.Errorf("%s for %s: %w\n%s", name, arch, err, log)
	}
	if logErr != nil {
		return nil, log, logErr
	}
	if cubin, err = c.bytes("nvrtcGetCUBINSize", "nvrtcGetCUBIN", *program); err == nil && len(cubin) == 0 {
		err = fmt.Errorf("%s for %s: NVRTC %d.%d gives no code", name, arch, c.Major, c.Minor)
	}
	return cubin, log, err
}

func (c *Compiler) bytes(size, get string, program uintptr) ([]byte, error) {
	n := new(uintptr)
	if err := c.call(size, program, uintptr(unsafe.Pointer(n))); err != nil {
		return nil, err
	}
	if *n == 0 {
		return nil, nil
	}
	b := make([]byte, *n)
	return b, c.call(get, program, uintptr(unsafe.Pointer(&b[0])))
}
