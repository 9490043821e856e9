//go:build cuda

package cuda

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"contraflow/gpustage/cuda/kernels"
	"contraflow/gpustage/cuda/nvrtc"
)

// setCompiled makes a cache that of the kernels for GPUs of an architecture, with warpgroups or without, and a driver of a CUDA version. It lies in the folder
// that CONTRAFLOW_KERNELS names, or in the user's cache, in one of its own for each text of the kernels and for the CUDA of the driver. In the user's cache
// those of other texts are removed in time; a folder that is named may be an image's, which has what it is to have.
func setCompiled(c *nvrtc.Cache, arch string, groups bool, driver int) {
	c.Driver, c.Sources = driver, sources(arch, groups)
	dir := os.Getenv("CONTRAFLOW_KERNELS")
	if cache, err := os.UserCacheDir(); dir == "" && err == nil {
		dir, c.Sweep = filepath.Join(cache, "contraflow", "kernels"), true
	}
	if dir != "" {
		c.Dir = filepath.Join(dir, kernels.Fingerprint()+"-"+nvrtc.Variant(driver))
	}
}

// sources are the modules for GPUs of an architecture, with warpgroups or without.
func sources(arch string, groups bool) map[string]nvrtc.Source {
	all := map[string]nvrtc.Source{}
	for _, m := range kernels.Modules() {
		if target := kernels.Target(m, arch); target != "" && (groups || m != "hopper.cu") {
			all[m] = nvrtc.Source{Text: kernels.Source(m), Arch: target}
		}
	}
	return all
}

// Compile compiles what the GPU's kernels lack of machine code, which the first that uses them would wait for, and says what there was to do.
func (d *Device) Compile() (said string, err error) {
	said, _, err = d.compiled.Ready()
	return said, err
}

// CompileAhead compiles the kernels for GPUs of an architecture ("sm_90") that are not here, and returns the folder that has them. It is for drivers of the
// CUDA version of the NVRTC that is found.
func CompileAhead(arch string) (dir, said string, err error) {
	if err := nameable(arch); err != nil {
		return "", "", err
	}
	compiler, err := nvrtc.Open(0)
	if err != nil {
		return "", "", err
	}
	known, err := compiler.Architectures()
	if err != nil {
		return "", "", err
	}
	if !slices.Contains(known, arch) {
		known = slices.DeleteFunc(known, func(a string) bool { return nameable(a) != nil })
		return "", "", fmt.Errorf("architecture %s: NVRTC %d.%d compiles for %s", arch, compiler.Major, compiler.Minor, strings.Join(known, ", "))
	}
	var c nvrtc.Cache
	setCompiled(&c, arch, true, 1000*compiler.Major)
	said, unkept, err := c.Ready()
	if err == nil {
		err = unkept
	}
	if err != nil {
		return "", "", fmt.Errorf("kernels for %s: %w", arch, err)
	}
	return c.Dir, said, nil
}

var architecture = regexp.MustCompile(`^sm_([1-9]\d?)\d$`)

// nameable refuses what no GPU that New opens is called: code for it would be looked for by none.
func nameable(arch string) error {
	if m := architecture.FindStringSubmatch(arch); m != nil {
		if major, _ := strconv.Atoi(m[1]); major >= oldest {
			return nil
		}
	}
	return fmt.Errorf("architecture %q: want one in the form of sm_90, from sm_%d0 on", arch, oldest)
}
