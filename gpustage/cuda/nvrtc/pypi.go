package nvrtc

import "fmt"

// FromPyPI is the command that gets one of NVIDIA's libraries from PyPI into a folder of its own, and names it in a variable: file is its place
// within.
func FromPyPI(module, file, env string) string {
	const dir = "~/.cache/contraflow/nvidia"
	return fmt.Sprintf("pip install --no-deps --target %s %s && export %s=%s/%s", dir, module, env, dir, file)
}

// Mend is what to do when there is no NVRTC.
var Mend = FromPyPI("nvidia-cuda-nvrtc-cu12", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "CONTRAFLOW_NVRTC")
