//go:build cuda

package cuda

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"gorgonia.org/cu"

	"contraflow/gpustage"
	"contraflow/gpustage/cuda/kernels"
	"contraflow/gpustage/cuda/nvrtc"
)

// keptCode is a folder with a module's compiled code, for a fake driver to take. It skips the test where there is a real one.
func keptCode(t *testing.T, module string) string {
	t.Helper()
	if driver() {
		t.Skip("this machine has an NVIDIA driver")
	}
	c := nvrtc.Cache{Dir: t.TempDir(), Sources: map[string]nvrtc.Source{module: {Text: "wrong", Arch: "sm_90"}}}
	if err := c.Keep(module, "12.9", []byte("code")); err != nil {
		t.Fatal(err)
	}
	return c.Dir
}

// Compiled code that a GPU can't take is compiled again, as its file may be damaged; what else keeps it from being loaded is an error.
func TestModule(t *testing.T) {
	if dir := os.Getenv("FAKE_KERNELS"); dir != "" {
		d := &Device{modules: map[string]cu.Module{}}
		d.compiled.Dir, d.compiled.Sources = dir, map[string]nvrtc.Source{"x.cu": {Text: "wrong", Arch: "sm_90"}}
		_, err := d.module("x.cu")
		say(err)
		return
	}
	dir := keptCode(t, "x.cu")
	for answer, want := range map[int]string{
		0:   "load\n<nil>\n",
		2:   "load\nloading x.cu: out of device memory\n",
		200: "load\nNVRTC: ",
		201: "load\nloading x.cu: InvalidContext\n",
		209: "load\nNVRTC: ",
	} {
		got := fakeCalls(t, "TestModule", "FAKE_KERNELS="+dir, fmt.Sprint("FAKE_LOAD=", answer), "CONTRAFLOW_NVRTC=/nowhere/libnvrtc.so.12")
		if len(got) < len(want) || got[:len(want)] != want {
			t.Errorf("loading answers %d: calls\n%swant\n%s", answer, got, want)
		}
	}
}

// A GPU gets the modules that it has instructions for; warpgroups' only if they are wanted.
func TestSources(t *testing.T) {
	for _, c := range []struct {
		arch   string
		groups bool
		want   string // hopper.cu's target
	}{{"sm_80", true, ""}, {"sm_86", true, ""}, {"sm_89", true, ""}, {"sm_90", true, "sm_90a"}, {"sm_90", false, ""}, {"sm_100", true, ""}, {"sm_103", true, ""}, {"sm_120", true, ""}} {
		got := sources(c.arch, c.groups)
		if got["hopper.cu"].Arch != c.want || got["flash.cu"].Arch != c.arch || got["flash.cu"].Text != kernels.Source("flash.cu") {
			t.Errorf("%s, warpgroups %v: hopper.cu for %q, flash.cu for %q", c.arch, c.groups, got["hopper.cu"].Arch, got["flash.cu"].Arch)
		}
		if _, has := got["hopper.cu"]; has != (c.want != "") {
			t.Errorf("%s, warpgroups %v: has hopper.cu: %v", c.arch, c.groups, has)
		}
	}
}

// Compiled kernels lie where they are told to, else in the user's cache, and apart by what they are of.
func TestKernelsFolder(t *testing.T) {
	dir := func(driver int) string {
		var c nvrtc.Cache
		setCompiled(&c, "sm_90", true, driver)
		if named := os.Getenv("CONTRAFLOW_KERNELS") != ""; c.Sweep != (!named && c.Dir != "") {
			t.Errorf("named: %v, old folders are removed: %v", named, c.Sweep)
		}
		return c.Dir
	}
	t.Setenv("XDG_CACHE_HOME", "/cache")
	of := kernels.Fingerprint() + "-" + nvrtc.Variant(13000)
	for named, want := range map[string]string{"": "/cache/contraflow/kernels/" + of, "/image/kernels": "/image/kernels/" + of} {
		t.Setenv("CONTRAFLOW_KERNELS", named)
		if got := dir(13000); got != want || got == dir(12090) {
			t.Errorf("CONTRAFLOW_KERNELS=%s: %s and %s, want %s and another", named, got, dir(12090), want)
		}
	}
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", "")
	t.Setenv("CONTRAFLOW_KERNELS", "")
	if got := dir(13000); got != "" {
		t.Errorf("without a home: %s", got)
	}
}

// While a kernel is compiled and loaded, streams that don't need it go on.
func TestLoading(t *testing.T) {
	if dir := os.Getenv("FAKE_KERNELS"); dir != "" {
		d := &Device{modules: map[string]cu.Module{}, functions: map[string]function{"scale": {}}}
		d.compiled.Dir, d.compiled.Sources = dir, map[string]nvrtc.Source{"pointwise.cu": {Text: "wrong", Arch: "sm_90"}}
		loaded := make(chan error)
		go func() {
			_, err := d.function("fill", 0, false)
			loaded <- err
		}()
		for d.loading.TryLock() {
			d.loading.Unlock()
			time.Sleep(time.Millisecond)
		}
		d.count(1)
		if _, err := d.function("scale", 0, false); err != nil {
			say(err)
		}
		if _, err := d.takeEvent(); err != nil {
			say(err)
		}
		say(<-loaded)
		return
	}
	dir := keptCode(t, "pointwise.cu")
	got := fakeCalls(t, "TestLoading", "FAKE_KERNELS="+dir, "FAKE_SLOW=1", "CONTRAFLOW_NVRTC=/nowhere/libnvrtc.so.12")
	if before, after := "event 1\nload\nloaded\nfunction fill\n<nil>\n", "load\nevent 1\nloaded\nfunction fill\n<nil>\n"; got != before && got != after {
		t.Errorf("calls\n%swant\n%s", got, after)
	}
}

// Where the driver does not tell what memory is left, that is not taken for a device that never tells, nor is a full one.
func TestFreeMemory(t *testing.T) {
	if os.Getenv("CONTRAFLOW_FAKE_DRIVER") != "" {
		say(fmt.Sprint((&Device{}).FreeMemory()))
		return
	}
	if driver() {
		t.Skip("this machine has an NVIDIA driver")
	}
	for answer, want := range map[int]string{0: "1 <nil>\n", 201: "0 cuda:0: InvalidContext\n"} {
		if got := fakeCalls(t, "TestFreeMemory", fmt.Sprint("FAKE_MEMORY=", answer)); got != want {
			t.Errorf("the driver answers %d: %swant %s", answer, got, want)
		}
	}
}

// A GPU without bf16 on its tensor cores is not opened, asked for or not, and the error names it and the way out.
func TestUnfit(t *testing.T) {
	if os.Getenv("CONTRAFLOW_FAKE_DRIVER") != "" {
		_, err := New(gpustage.Share{})
		say(fmt.Sprint(errors.Is(err, gpustage.ErrUnfit), ": ", err))
		return
	}
	if driver() {
		t.Skip("this machine has an NVIDIA driver")
	}
	for _, arch := range []string{"61", "70", "75"} {
		got := fakeCalls(t, "TestUnfit", "CONTRAFLOW_CUDA=try", "FAKE_ARCH="+arch)
		if !strings.HasPrefix(got, "true: GPU 0: a fake, sm_"+arch+": it can't ") || !strings.Contains(got, "from sm_80 on") || !strings.Contains(got, "device: cpu") {
			t.Errorf("sm_%s: %s", arch, got)
		}
	}
}

// A GPU of a kind on which nobody has run the device is not opened unless asked for.
func TestUntried(t *testing.T) {
	if os.Getenv("CONTRAFLOW_FAKE_DRIVER") != "" {
		_, err := New(gpustage.Share{})
		say(fmt.Sprint(errors.Is(err, gpustage.ErrUntried), strings.Contains(fmt.Sprint(err), "a fake, sm_"+os.Getenv("FAKE_ARCH")+": the CUDA device ")))
		return
	}
	if driver() {
		t.Skip("this machine has an NVIDIA driver")
	}
	for _, c := range []struct {
		arch, variable string
		want           bool
	}{{"80", "", true}, {"100", "", true}, {"90", "", false}, {"80", "try", false}, {"75", "", false}} {
		want := fmt.Sprintln(c.want, c.want)
		if got := fakeCalls(t, "TestUntried", "CONTRAFLOW_CUDA="+c.variable, "FAKE_ARCH="+c.arch); got != want {
			t.Errorf("sm_%s, %q: %s, want %s", c.arch, c.variable, got, want)
		}
	}
}

// What a kernel's code declares of shared memory and what it is launched with are 48 KB together, or more is asked for; and each time for more.
func TestShared(t *testing.T) {
	if dir := os.Getenv("FAKE_KERNELS"); dir != "" {
		d := &Device{modules: map[string]cu.Module{}, functions: map[string]function{}}
		d.compiled.Dir, d.compiled.Sources = dir, map[string]nvrtc.Source{"pointwise.cu": {Text: "wrong", Arch: "sm_90"}}
		for _, bytes := range []int{0, 47 << 10, 48 << 10, 48 << 10, 50 << 10, 49 << 10} {
			say(bytes >> 10)
			if _, err := d.function("fill", bytes, false); err != nil {
				say(err)
			}
		}
		return
	}
	dir := keptCode(t, "pointwise.cu")
	for declared, want := range map[int]string{
		0:       "0\nload\nfunction fill\n47\n48\n48\n50\nshared 51200\n49\n",
		1 << 10: "0\nload\nfunction fill\n47\n48\nshared 49152\n48\n50\nshared 51200\n49\n",
	} {
		got := fakeCalls(t, "TestShared", "FAKE_KERNELS="+dir, fmt.Sprint("FAKE_SHARED=", declared), "CONTRAFLOW_NVRTC=/nowhere/libnvrtc.so.12")
		if got != want {
			t.Errorf("%d bytes declared: calls\n%swant\n%s", declared, got, want)
		}
	}
}
