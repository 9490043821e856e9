//go:build linux && (amd64 || arm64)

package nvrtc

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"contraflow/gpustage/cuda/kernels"
	"contraflow/testdata/harness"
)

var rewrite = flag.Bool("rewrite", false, "rewrite kernels/resources.txt")

func compiler(t *testing.T) *Compiler {
	t.Helper()
	c, err := Open(0)
	if err != nil {
		harness.Missing(t, "%v", err)
	}
	return c
}

var (
	parts  = regexp.MustCompile(`(?s)Compiling entry function.*?Compile time`)
	entry  = regexp.MustCompile(`Compiling entry function '(\w+)'`)
	stack  = regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads`)
	used   = regexp.MustCompile(`Used (\d+) registers`)
	shared = regexp.MustCompile(`(\d+) bytes smem`)
)

// architectures are those that kernels are compiled for here: the first with bf16 on tensor cores, Hopper, Blackwell; and of two others what isn't left
// out to save time.
var architectures = []string{"sm_80", "sm_90", "sm_100", "sm_89", "sm_120"}

// leftOut is what nobody compiles here for an architecture: of sm_89, which has the instructions and nearly the numbers of sm_80, all but the module on
// which CUDA 12.9's assembler once crashed, and of sm_120 the module that takes longest.
func leftOut(module, arch string) bool {
	return arch == "sm_89" && module != "rows.cu" || arch == "sm_120" && module == "attention.cu"
}

// resources is the table's lines of a module's kernels on an architecture; none if that has no use for it, or if it is left out.
func resources(c *Compiler, module, arch string) (string, error) {
	if arch = kernels.Target(module, arch); arch == "" || leftOut(module, arch) {
		return "", nil
	}
	_, log, err := c.Compile(module, kernels.Source(module), arch, true)
	if err != nil {
		return "", err
	}
	if i := strings.Index(log, "warning"); i >= 0 {
		return "", fmt.Errorf("%s for %s: %.300s", module, arch, log[i:])
	}
	if i := strings.Index(log, "(C75"); i >= 0 { // of wgmma, such as that products wait for each other
		return "", fmt.Errorf("%s for %s: %.300s", module, arch, log[i:])
	}
	lines := map[string]string{}
	for _, part := range parts.FindAllString(log, -1) {
		number := func(r *regexp.Regexp, i int) string {
			if m := r.FindStringSubmatch(part); m != nil {
				return m[i]
			}
			return "0"
		}
		name := number(entry, 1)
		lines[name] = fmt.Sprintf("%-32s %-7s %9s %6s %13s %13s\n", name, arch, number(used, 1), number(stack, 1), number(stack, 2), number(shared, 1))
	}
	table := ""
	for _, k := range kernels.Names(module) {
		if lines[k] == "" {
			return "", fmt.Errorf("%s for %s: the compiler says nothing of %s", module, arch, k)
		}
		table += lines[k]
		delete(lines, k)
	}
	for k := range lines {
		return "", fmt.Errorf("%s has a kernel %s that package kernels does not name", module, k)
	}
	return table, nil
}

// Every kernel compiles for three generations of GPUs, and most for two more architectures, and takes what kernels/resources.txt says: registers, bytes of stack and of spills,
// and static shared memory. More registers mean fewer threads at a time, and spills mean traffic, which nobody would notice here
// without a GPU. The table is that of CUDA 12.9's compiler; others must compile too but may differ in numbers.
func TestResources(t *testing.T) {
	c := compiler(t)
	modules := kernels.Modules()
	tables, errs := make([]string, len(architectures)*len(modules)), make([]error, len(architectures)*len(modules))
	// Concurrently, the longest first: a minute and a half on one core.
	var wait sync.WaitGroup
	cores := make(chan struct{}, runtime.GOMAXPROCS(0))
	compile := func(i int) { tables[i], errs[i] = resources(c, modules[i%len(modules)], architectures[i/len(modules)]) }
	for i := range slices.Backward(tables) {
		cores <- struct{}{}
		wait.Go(func() {
			compile(i)
			<-cores
		})
	}
	wait.Wait()
	for i, err := range errs {
		if err != nil { // alone: beside another one the compiler has once lost words of its log
			compile(i)
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	const renew = "CONTRAFLOW_NVRTC=.../libnvrtc.so.12 go test ./gpustage/cuda/nvrtc -rewrite"
	table := fmt.Sprintf("# What NVRTC 12.9 makes of the kernels. %s writes it.\n# %-30s %-7s %9s %6s %13s %13s\n", renew,
		"kernel", "arch", "registers", "stack", "spilled bytes", "shared bytes") + strings.Join(tables, "")
	if c.Major != 12 || c.Minor != 9 {
		t.Logf("NVRTC %d.%d compiles everything; the table is 12.9's", c.Major, c.Minor)
		return
	}
	file := filepath.Join("..", "kernels", "resources.txt")
	if *rewrite {
		if err := os.WriteFile(file, []byte(table), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (%s writes it)", err, renew)
	}
	had := map[string]bool{}
	for line := range strings.Lines(string(want)) {
		had[line] = true
	}
	for line := range strings.Lines(table) {
		if !had[line] {
			t.Errorf("not in %s:\n%s", file, line)
		}
		delete(had, line)
	}
	for line := range had {
		t.Errorf("no longer so, in %s:\n%s", file, line)
	}
	if t.Failed() {
		t.Logf("Look at why kernels take other resources than the table says; if that is well, %s", renew)
	}
}

// A mistake comes out with its file and line.
func TestMistake(t *testing.T) {
	_, log, err := compiler(t).Compile("wrong.cu", "\n\nextern \"C\" __global__ void f() { undefined(); }\n", "sm_90", false)
	if err == nil || !strings.Contains(err.Error(), "wrong.cu(3)") {
		t.Errorf("error %v, log %s", err, log)
	}
}

// The compiler tells what it compiles for: what the kernels are tested on is among it.
func TestArchitectures(t *testing.T) {
	all, err := compiler(t).Architectures()
	for _, a := range architectures {
		if !slices.Contains(all, a) || slices.Contains(all, "sm_999") {
			t.Errorf("%s, error %v; want %s among them", all, err, a)
		}
	}
}

// A GPU that is younger than the compiler gets code of the nearest older architecture of its generation, and of no other; where there is none, the error
// says what to do.
func TestNearest(t *testing.T) {
	known := []string{"sm_75", "sm_80", "sm_86", "sm_90", "sm_100"}
	for arch, want := range map[string]string{
		"sm_80": "sm_80", "sm_86": "sm_86", "sm_89": "sm_86", "sm_90": "sm_90", "sm_90a": "sm_90a", "sm_103": "sm_100", "sm_100": "sm_100", "sm_120": "", "sm_70": "", "sm_103a": "", "sm_91a": "",
	} {
		if got := nearest(known, arch); got != want {
			t.Errorf("%s: %q, want %q", arch, got, want)
		}
	}
	_, err := (&Cache{Sources: map[string]Source{"a.cu": {"", "sm_990"}}, compiler: compiler(t)}).Code("a.cu")
	if err == nil || !strings.Contains(err.Error(), "does not know sm_990, it compiles for sm_") || !strings.Contains(err.Error(), "pip install") {
		t.Errorf("error %v", err)
	}
	const text = `extern "C" __global__ void a(int *x) { *x = 1; }`
	all, err := compiler(t).Architectures()
	if err != nil || slices.Contains(all, "sm_109") {
		t.Fatal(all, err)
	}
	if code, err := (&Cache{Sources: map[string]Source{"a.cu": {text, "sm_109"}}, compiler: compiler(t)}).Code("a.cu"); err != nil || len(code) == 0 {
		t.Errorf("a GPU of a known generation: %d bytes of code, error %v", len(code), err)
	}
}

func TestMissing(t *testing.T) {
	t.Setenv("CONTRAFLOW_NVRTC", "/nowhere/libnvrtc.so.12")
	_, err := Open(0)
	if err == nil || errors.Unwrap(err) == nil || !strings.Contains(err.Error(), "/nowhere/libnvrtc.so.12") || !strings.Contains(err.Error(), "pip install") {
		t.Errorf("error %v", err)
	}
}
