// Package kernels is the CUDA device's arithmetic: every op of package gpustage as CUDA C++.
//
// The sources travel inside the program and are compiled by NVRTC when a device is opened, for the very GPU at hand, and the result is kept
// on disk. The alternative, PTX embedded at build time, would need NVIDIA's compiler wherever contraflow is built, a file to keep
// current by hand, and the driver's own compiler at the start; NVRTC is one library, which comes with PyTorch, and a kernel that
// does not compile is found by CI, which compiles all of them for three generations of GPUs, and some for more, and holds their registers and spills
// against resources.txt.
//
// No header of the CUDA toolkit is needed. With host_cuda.h instead of the GPU's own, the same files compile for the
// processor, a block's threads as fibers: package launch's tests run the whole conformance suite on them that way, without a GPU, and with results
// as far off as a GPU's may be (host_rounding.h).
//
// What warps ask for at once is counted there too, for a training step (package transformer's TestKernelTraffic): sectors of global memory as a whole,
// and shared memory without bank conflicts.
//
// # What is fused, and what is not
//
// Estimates, for an H200 (4.8 TB/s, 790 TFLOP/s in bf16 of which 45 % are had) and a sub-batch of 16,384 tokens, 50 MB a [T, C] of BERT-base
// (768 columns), half of that of MiniLM. Forward and backward, with the second forward pass of a cached batch, take the one about 30 ms
// and the other 4, so that a launch saved, 3 us, or a [T, C] not read, 10 us, is worth something where every layer has it, or MiniLM's 4 ms
// show it. None has been measured.
//
//   - Attention keeps no scores, and its backward pass neither: flash.cuh, by warps (flash.cu) or on Hopper by warpgroups (hopper.cu). What dropout keeps
//     waits as bits between that pass's two kernels.
//   - Embeddings, their layer norm and dropout are one kernel (embed, rows.cu): 0.15 ms of 30, 0.09 of 4.
//   - AdamW updates all parameters in one launch (pointwise.cu).
//   - A residual is added by the product before it. With dropout, which takes a pass of its own, the layer norm behind is in that pass
//     (epilogue_norm, rows.cu): 0.6 ms of 30, 0.2 of 4.
//   - In bf16, what products and attention read has been written so by what made it; hidden states, which are residuals too, have a copy that
//     the norm before writes (rows.cu): no pass rounds. What a norm's backward pass reads waits in bf16 as well, and so does the copy, unless a lean
//     pass makes it again of that (layer_norm_with): by bytes 20 us of a layer, and two fifths less to keep. So the copy is of the rounded sum; gradients are
//     as near the truth as with one of the norm's output: 1.00 times as far in the mean of nine models, 0.89 to 1.13, with LoRA 1.07 (TestOperandsInBF16).
//   - A norm's backward pass makes dx, what comes through the dropout behind it, as products read it, and the sums over rows of all of these
//     (norm_backward, reduce.cu), up to 2,048 columns. By bytes, with bf16 in its place, 0.1 ms of a layer's 1.8 (forward and backward).
//   - The pass that multiplies with the activation's derivative makes the activation again as well, and the bias's gradient (gradient_sums,
//     reduce.cu; epilogue and gate_backward, pointwise.cu): 0.03 ms of 1.8.
//   - A product that dropout, a residual and a norm follow stays in f32 on its way there. Rounding it, as torch's autocast does, would save 0.05 ms
//     of 1.8, and took the gradients' error in one family from 1.28 to 1.53 times that of products that round what they read (TestOperandsInBF16).
//   - Pooling and normalizing are two kernels, the second on a row a text: one launch.
//   - The loss computes tiles of scores with the products' library: loss.InfoNCE says why there is no kernel for it.
package kernels

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

//go:embed *.cu *.cuh
var files embed.FS

// Modules are all files that are compiled, each into a module of its own.
func Modules() []string {
	return []string{"pointwise.cu", "rows.cu", "reduce.cu", "maxsim.cu", "attention.cu", "flash.cu", "hopper.cu"}
}

// Target is what a module is compiled for, of a GPU of this architecture, "sm_90": the same, but for hopper.cu, whose instructions only one
// architecture has, in a form of its own. It is "" if the GPU has no use for the module.
func Target(module, arch string) string {
	switch {
	case module != "hopper.cu":
		return arch
	case Warpgroups(arch):
		return "sm_90a"
	}
	return ""
}

// Warpgroups tells whether GPUs of this architecture have hopper.cu's instructions. Blackwell's have others.
func Warpgroups(arch string) bool { return arch == "sm_90" }

var include = regexp.MustCompile(`(?m)^#include "(\w+\.cuh)"\n`)

// Source is a file's text with the headers that it includes.
func Source(file string) string {
	text, err := files.ReadFile(file)
	if err != nil {
		panic(err) // the names above are those of the files
	}
	return include.ReplaceAllStringFunc(string(text), func(line string) string { return Source(include.FindStringSubmatch(line)[1]) })
}

var (
	plain  = regexp.MustCompile(`(?m)^KERNEL (?:__launch_bounds__\(\d+(?:, \d+)?\) )?(\w+)\(`)
	family = regexp.MustCompile(`(?m)^\s+KERNEL __launch_bounds__\([^)]*\) (\w+)##\w+\(`)
	member = regexp.MustCompile(`(?m)^FOR_DIM\((?:\w+, )*(\w+)\)`)
)

// Names are the kernels of a module, in the order of its text: those written out, then those that FOR_DIM makes.
func Names(module string) []string {
	text := Source(module)
	var names []string
	for _, m := range plain.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	for _, dim := range member.FindAllStringSubmatch(text, -1) {
		for _, f := range family.FindAllStringSubmatch(text, -1) {
			names = append(names, f[1]+dim[1])
		}
	}
	return names
}

var (
	parameters = regexp.MustCompile(`#define FOR_DIM\((.*?)\)`)
	arguments  = regexp.MustCompile(`(?m)^FOR_DIM\((.*)\)`)
	bound      = regexp.MustCompile(`(?m)^\s*KERNEL __launch_bounds__\((\w+)[^)]*\) (\w+)(##)?`)
)

// boundsOf are those of a module's kernels that have some.
func boundsOf(module string) map[string]int {
	text, out := Source(module), map[string]int{}
	of := func(kernel, threads string) {
		n, err := strconv.Atoi(threads)
		if err != nil {
			panic(fmt.Sprintf("%s: the launch bounds of %s are %q", module, kernel, threads)) // these are this package's files
		}
		out[kernel] = n
	}
	for _, k := range bound.FindAllStringSubmatch(text, -1) {
		if k[3] == "" {
			of(k[2], k[1])
			continue
		}
		names := strings.Split(parameters.FindStringSubmatch(text)[1], ", ")
		for _, values := range arguments.FindAllStringSubmatch(text, -1) {
			args, most := strings.Split(values[1], ", "), k[1]
			if i := slices.Index(names, most); i >= 0 {
				most = args[i]
			}
			of(k[2]+args[len(args)-1], most)
		}
	}
	return out
}

// Bound is how many threads __launch_bounds__ allows a kernel's blocks; 0 if it has none. A GPU refuses more, which a processor does not know of.
func Bound(kernel string) int { return bounds()[kernel] }

var bounds = sync.OnceValue(func() map[string]int {
	all := map[string]int{}
	for _, m := range Modules() {
		maps.Copy(all, boundsOf(m))
	}
	return all
})

// ModuleOf is the module that has a kernel.
func ModuleOf(kernel string) string { return moduleOf()[kernel] }

var moduleOf = sync.OnceValue(func() map[string]string {
	of := map[string]string{}
	for _, m := range Modules() {
		for _, n := range Names(m) {
			of[n] = m
		}
	}
	return of
})

// Fingerprint changes whenever any file does.
func Fingerprint() string {
	var all strings.Builder
	for _, f := range Modules() {
		all.WriteString(Source(f))
	}
	return digest(all.String())
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}
