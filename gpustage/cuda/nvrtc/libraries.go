package nvrtc

import "fmt"

// Versions are a library's names by its major version, the newest first, as far as a driver of some CUDA version (12090 is 12.9; 0: there is
// none) can do with what it makes. A driver runs code of its own major version and of older ones.
func Versions(driver int, name string) []string {
	files := []string{name + ".so.13", name + ".so.12", "/usr/local/cuda/lib64/" + name + ".so"}
	if driver > 0 && driver < 13000 {
		files = files[1:]
	}
	return files
}

// FromPyPI is the command that gets one of NVIDIA's libraries from PyPI into a folder of its own, and names it in a variable: file is its place
// within.
func FromPyPI(module, file, env string) string {
	const dir = "~/.cache/contraflow/nvidia"
	return fmt.Sprintf("pip install --no-deps --target %s %s && export %s=%s/%s", dir, module, env, dir, file)
}

// Mend is what to do when there is no NVRTC.
var Mend = FromPyPI("nvidia-cuda-nvrtc-cu12", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "CONTRAFLOW_NVRTC")
