#!/usr/bin/env bash
# toolkit.sh DIR: what `go build -tags cuda` needs, on Linux for x86-64 or aarch64 without CUDA's toolkit or a driver: headers and libraries from
# PyPI, and a libcuda.a to link, by $CC (cc). Prints the variables to export. A program for aarch64 has been built and started under QEMU, no more.
#
# The driver's library exists only where a driver is installed, and a program linked with it starts nowhere else. libcuda.a
# forwards instead: it opens libcuda.so.1 when the program starts, and where there is none, or a function is missing in it, calls answer
# an error (100, no device; 801, not supported). cuInit always answers 0, because gorgonia.org/cu ends the process otherwise; where the driver's
# does not, all other calls answer what it did.
#
# The headers are CUDA 12.9's whatever is installed: with 13's gorgonia.org/cu v0.9.6 does not compile (cuCtxCreate, cuMemAdvise, cuMemPrefetchAsync,
# cuGraphAddDependencies and cuGraphGetEdges have other arguments there).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mkdir -p "$1" && cd "$1" && pwd)
version=12.9
if [ ! -e "$dir/done" ]; then
	test -x "$dir/venv/bin/pip" || python3 -m venv "$dir/venv"
	"$dir/venv/bin/pip" install --quiet --no-deps "nvidia-cuda-runtime-cu12==$version.79" "nvidia-cublas-cu12==$version.3.13" \
		"nvidia-cuda-nvrtc-cu12==$version.86" "nvidia-cuda-nvcc-cu12==$version.86" "nvidia-cuda-cccl-cu12==$version.27"
	touch "$dir/done"
fi
nvidia=$(echo "$dir"/venv/lib/python3*/site-packages/nvidia)
{
	cat <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
static int no_device(void) { return 100; }
static int not_supported(void) { return 801; }
static int (*init)(unsigned), failed;
static int as_init(void) { return failed; }
static const char *names[] = {
C
	grep -vx cuInit "$here/driver_symbols.txt" | sed 's/.*/	"&",/'
	n=$(grep -vxc cuInit "$here/driver_symbols.txt")
	cat <<C
};
__attribute__((visibility("hidden"))) void *contraflow_driver[$n];
#define GLOBAL(name) ".globl " name "\n.type " name ",%function\n" name ": "
#if defined(__x86_64__)
#define FORWARD(name, at) __asm__(GLOBAL(name) "jmp *contraflow_driver+" at "(%rip)\n")
#elif defined(__aarch64__)
#define FORWARD(name, at) __asm__(GLOBAL(name) "adrp x16, contraflow_driver+" at "\nldr x16, [x16, :lo12:contraflow_driver+" at "]\nbr x16\n")
#else
#error no jump to functions of the driver is written for this processor
#endif
int cuInit(unsigned flags) {
	if (init) failed = init(flags);
	for (int i = 0; failed && i < $n; i++) contraflow_driver[i] = (void *)as_init;
	return 0;
}
__attribute__((constructor)) static void load(void) {
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	for (int i = 0; i < $n; i++) {
		contraflow_driver[i] = lib ? dlsym(lib, names[i]) : (void *)no_device;
		if (!contraflow_driver[i]) contraflow_driver[i] = (void *)not_supported;
	}
	if (lib) init = (int (*)(unsigned))dlsym(lib, "cuInit");
}
C
	i=0
	grep -vx cuInit "$here/driver_symbols.txt" | while read -r s; do
		echo "FORWARD(\"$s\", \"$((8 * i))\");"
		i=$((i + 1))
	done
} >"$dir/forward.c"
${CC:-cc} -O2 -fPIC -c -o "$dir/forward.o" "$dir/forward.c"
rm -f "$dir/libcuda.a"
ar rcs "$dir/libcuda.a" "$dir/forward.o"
include=
for part in cuda_runtime cublas cuda_nvcc cuda_cccl; do include="$include -I$nvidia/$part/include"; done
cat <<END
export CGO_CFLAGS="-O2$include"
export CGO_LDFLAGS="-L$dir"
export CONTRAFLOW_NVRTC=$nvidia/cuda_nvrtc/lib/libnvrtc.so.12
export CONTRAFLOW_CUBLASLT=$nvidia/cublas/lib/libcublasLt.so.12
END
