//go:build linux && amd64

package onhost

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"contraflow/gpustage/cuda/kernels"
)

// library is compiled kernels, which run one at a time.
type library struct {
	names                          []string // of its kernels
	mu                             sync.Mutex
	launch, memory, count, traffic uintptr
}

// These compile all kernels, or find them compiled, and load them.
var (
	compile          = sync.OnceValues(func() (*library, error) { return compileAll(checked...) })
	compileRounding  = sync.OnceValues(func() (*library, error) { return compileAll(append(slices.Clone(checked), rounding...)...) })
	compileUnchecked = sync.OnceValues(func() (*library, error) { return compileAll(unchecked...) })
)

// Of checked kernels the compiler instruments what they read and write; host_main.h has what is called then.
var (
	checked   = []string{"-O1", "-fsanitize=thread"}
	unchecked = []string{"-O2", "-DHOST_UNCHECKED"}
)

// rounding are options for numbers that are as far off as a GPU's may be (kernels/host_rounding.h). gcc only adds products without rounding them
// among what it calls expensive, which is not in -O1.
var rounding = []string{"-DHOST_ROUNDING", "-ffp-contract=fast", "-fexpensive-optimizations"}

func compileAll(options ...string) (*library, error) {
	modules := allModules()
	object, err := compiled(modules, options)
	if err != nil {
		return nil, err
	}
	l, err := load(object)
	if err != nil {
		return nil, err
	}
	for _, m := range modules {
		l.names = append(l.names, m.names...)
	}
	return l, nil
}

// unused is how long kernels are kept that nobody has loaded since.
const unused = 14 * 24 * time.Hour

// compiled is a library of the user's cache, named by a hash of all that makes it: several packages load it, and it takes half a minute to compile.
func compiled(modules []module, options []string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	key, err := fingerprint(options)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "contraflow", "onhost")
	object := filepath.Join(dir, key+".so")
	now := time.Now()
	if os.Chtimes(object, now, now) == nil {
		return object, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	old, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for _, f := range old {
		if i, err := f.Info(); err == nil && now.Sub(i.ModTime()) > unused {
			os.RemoveAll(filepath.Join(dir, f.Name()))
		}
	}
	work, err := os.MkdirTemp(dir, "compiling-") // where others, who do the same, may be
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	made := filepath.Join(work, "kernels.so")
	if err := build(made, modules, options...); err != nil {
		return "", err
	}
	return object, os.Rename(made, object)
}

// fingerprint is a hash of the kernels' sources and headers, of how they are compiled, and of the compiler and the processor.
func fingerprint(options []string) (string, error) {
	folder, err := kernelFolder()
	if err != nil {
		return "", err
	}
	cxx, err := compiler()
	if err != nil {
		return "", err
	}
	version, err := exec.Command(cxx, "--version").Output()
	if err != nil {
		return "", err
	}
	processor, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%q\n%s\n", version, options, regexp.MustCompile(`(?m)^flags.*$`).Find(processor))
	files, err := os.ReadDir(folder)
	if err != nil {
		return "", err
	}
	for _, f := range files {
		if strings.HasSuffix(f.Name(), ".go") || f.IsDir() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, f.Name()))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", f.Name(), len(text), text)
	}
	// And what is beside them: the list of kernels, and the calls that are made for them.
	text, err := os.ReadFile(filepath.Join(folder, "..", "onhost", "compile.go"))
	fmt.Fprintf(h, "%q\n%s", allModules(), text)
	return fmt.Sprintf("%x", h.Sum(nil)[:12]), err
}

// module is a file and its kernels' names.
type module struct {
	file  string
	names []string
}

func allModules() (modules []module) {
	for _, m := range kernels.Modules() {
		modules = append(modules, module{m, kernels.Names(m)})
	}
	return modules
}

// build compiles modules with the host's compiler.
func build(object string, modules []module, options ...string) error {
	compiled, err := objects(object, modules, options...)
	if err != nil {
		return err
	}
	// Two may be in one process, and would share what C++ calls inline, variables too.
	exports, err := exporting(object, "host_launch", "host_memory", "host_count", "host_traffic")
	if err != nil {
		return err
	}
	return run(append(compiled, "-shared", exports, "-o", object)) // and not the sanitizer's library
}

// exporting is an option for the linker, of a file beside another: nothing but these names is seen from outside.
func exporting(beside string, names ...string) (string, error) {
	file := beside + ".exports"
	return "-Wl,-Bsymbolic,--version-script=" + file, os.WriteFile(file, []byte("{ global: "+strings.Join(names, "; ")+"; local: *; };\n"), 0o644)
}

// Driver makes libcuda.so.1 and libcublasLt.so.13 in a folder: a driver that runs the kernels on the processor, and a library that multiplies
// there, for tests of package cuda (testdata/driver.cpp and cublaslt.c). They want CUDA's headers, where CGO_CFLAGS has them. What kernels
// touch is not checked, which takes most of the time that they take here; this package's devices do that.
func Driver(dir string) error {
	folder, err := kernelFolder()
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "contraflow-driver-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	compiled, err := objects(filepath.Join(work, "kernels"), allModules(), unchecked...)
	if err != nil {
		return err
	}
	// Everybody in the process sees the driver's names, NVRTC's C++ too.
	exports, err := exporting(filepath.Join(work, "libcuda"), "cu*", "contraflow_enqueue")
	if err != nil {
		return err
	}
	options := append(strings.Fields(os.Getenv("CGO_CFLAGS")), "-O2", "-w", "-fPIC", "-shared")
	return run(
		append(append(slices.Clone(options), "-std=c++17", "-static-libstdc++", "-static-libgcc", exports, "-o", filepath.Join(dir, "libcuda.so.1"), filepath.Join(folder, "..", "testdata", "driver.cpp")), compiled...),
		append(options, "-Wl,-Bsymbolic", "-march=native", "-o", filepath.Join(dir, "libcublasLt.so.13"), "-x", "c", filepath.Join(folder, "..", "testdata", "cublaslt.c"), "-lm"),
	)
}

// objects compiles modules, with these options, and what they need on the processor.
func objects(name string, modules []module, how ...string) ([]string, error) {
	folder, err := kernelFolder()
	if err != nil {
		return nil, err
	}
	var main strings.Builder
	main.WriteString("#define HOST_CUDA\n")
	for i, m := range modules {
		// Files have helpers of the same names.
		fmt.Fprintf(&main, "#include \"attention.cuh\"\nnamespace module%d {\n#include %q\n}\n#undef FOR_DIM\n", i, m.file)
	}
	main.WriteString("extern const Entry host_entries[] = {\n")
	for i, m := range modules {
		for _, k := range m.names {
			fmt.Fprintf(&main, "\t{%q, [](void **a) { host_invoke(module%d::%s, a); }, [](unsigned *to) { return host_sizes(module%d::%s, to); }},\n", k, i, k, i, k)
		}
	}
	main.WriteString("\t{nullptr, nullptr, nullptr},\n};\n")
	source, kernel, host := name+".cpp", name+".kernels.o", name+".host.o"
	if err := os.WriteFile(source, []byte(main.String()), 0o644); err != nil {
		return nil, err
	}
	options := append([]string{"-std=c++17", "-march=native", "-ffp-contract=off", "-w", "-fPIC", "-I", folder, "-c"}, how...)
	return []string{kernel, host}, run(
		append(slices.Clone(options), "-o", kernel, source),
		append(options, "-fno-sanitize=thread", "-O3", "-o", host, "-x", "c++", filepath.Join(folder, "host_main.h")),
	)
}

func compiler() (string, error) {
	if cxx, err := exec.LookPath("g++"); err == nil {
		return cxx, nil
	}
	return exec.LookPath("clang++")
}

// run calls the host's compiler.
func run(calls ...[]string) error {
	cxx, err := compiler()
	if err != nil {
		return err
	}
	for _, args := range calls {
		if out, err := exec.Command(cxx, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %v\n%s", cxx, err, out)
		}
	}
	return nil
}

func load(object string) (*library, error) {
	lib, err := purego.Dlopen(object, purego.RTLD_NOW)
	if err != nil {
		return nil, err
	}
	l := &library{}
	for name, to := range map[string]*uintptr{"host_launch": &l.launch, "host_memory": &l.memory, "host_count": &l.count, "host_traffic": &l.traffic} {
		if *to, err = purego.Dlsym(lib, name); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// kernelFolder is package kernels' folder, looked for in the working folder and upwards.
func kernelFolder() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		folder := filepath.Join(dir, "gpustage", "cuda", "kernels")
		if _, err := os.Stat(folder); err == nil {
			return folder, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no gpustage/cuda/kernels above %s", start)
		}
	}
}

// mayTouch lets kernels touch memory.
func (l *library) mayTouch(memory []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	purego.SyscallN(l.memory, uintptr(unsafe.Pointer(unsafe.SliceData(memory))), uintptr(len(memory)))
}

// counted is what kernels ask of memory while f runs.
func (l *library) counted(f func()) map[string]Traffic {
	count := func(on uintptr) {
		l.mu.Lock()
		defer l.mu.Unlock()
		purego.SyscallN(l.count, on)
	}
	count(1)
	defer count(0)
	f()
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[string]Traffic{}
	for _, name := range l.names {
		var t Traffic
		text := append([]byte(name), 0)
		purego.SyscallN(l.traffic, uintptr(unsafe.Pointer(&text[0])), uintptr(unsafe.Pointer(&t)))
		if t != (Traffic{}) {
			out[name] = t
		}
	}
	return out
}

// start runs a kernel. What it must not do ends the process, with words on standard error.
func (l *library) start(kernel string, grid, block [3]int, shared int, words []uint64, at []int32) error {
	args := make([]unsafe.Pointer, len(at))
	for i, w := range at {
		args[i] = unsafe.Pointer(&words[w])
	}
	name := append([]byte(kernel), 0)
	var g, b [3]uint32
	for i := range 3 {
		g[i], b[i] = uint32(grid[i]), uint32(block[i])
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r, _, _ := purego.SyscallN(l.launch, uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(&g)), uintptr(unsafe.Pointer(&b)),
		uintptr(shared), uintptr(unsafe.Pointer(unsafe.SliceData(args))))
	if r != 0 {
		return fmt.Errorf("there is no such kernel")
	}
	return nil
}
