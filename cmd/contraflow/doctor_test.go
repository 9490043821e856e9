package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
)

// TestDoctor: each problem is followed by the command that mends it.
func TestDoctor(t *testing.T) {
	home := t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, "hub", "models--a--b"), 0o777); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"HF_HUB_CACHE": "", "HF_HOME": home, "HF_HUB_OFFLINE": "1", "CONTRAFLOW_CPU": "portable", "CONTRAFLOW_NCCL": "/nowhere/libnccl.so.2", "PATH": ""} {
		t.Setenv(name, value)
	}
	r := succeed(t, "doctor", "--seconds", "0")
	lines := strings.Split(r.stdout, "\n")
	for problem, mend := range map[string]string{
		"CONTRAFLOW_CPU chooses the portable kernels": "-> unset CONTRAFLOW_CPU",
		"CONTRAFLOW_NCCL: stat /nowhere/libnccl.so.2": "-> export CONTRAFLOW_NCCL=",
		"HF_HUB_OFFLINE is set":                       "-> unset HF_HUB_OFFLINE",
		filepath.Join(home, "hub") + ", 1 model":      "",
		"no mpirun in PATH":                           "",
	} {
		found := false
		for i, l := range lines {
			if strings.Contains(l, problem) {
				found = mend == "" || strings.Contains(lines[i+1], mend)
			}
		}
		if !found {
			t.Errorf("no %q followed by %q in\n%s", problem, mend, r.stdout)
		}
	}
}

// With a driver it lists the GPUs, and what training on them still lacks, each with the command that brings it.
func TestDoctorGPU(t *testing.T) {
	was, devices := nvidia, nvidiaDevices
	t.Cleanup(func() { nvidia, nvidiaDevices = was, devices })
	nvidia, nvidiaDevices = t.TempDir(), nil
	libraries := t.TempDir()
	card := filepath.Join(nvidia, "gpus", "0000:41:00.0")
	if err := os.MkdirAll(card, 0o777); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{
		filepath.Join(nvidia, "version"):           "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.1\nGCC version: 12\n",
		filepath.Join(card, "information"):         "Model: \t\t NVIDIA H200\nIRQ:   \t\t 1\n",
		filepath.Join(libraries, "libcuda.so.1"):   "",
		filepath.Join(libraries, "libnccl.so.2"):   "",
		filepath.Join(libraries, "libnvrtc.so.13"): "",
	} {
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("LD_LIBRARY_PATH", libraries)
	for _, name := range []string{"CONTRAFLOW_NCCL", "CONTRAFLOW_NVRTC"} {
		t.Setenv(name, "")
	}
	t.Setenv("CONTRAFLOW_CUBLASLT", "/nowhere/libcublasLt.so.12")
	var out strings.Builder
	doctor{w: &out}.gpu()
	want := []string{"NVIDIA UNIX x86_64 Kernel Module  580.1", "NVIDIA H200 at 0000:41:00.0", "libcuda.so.1: " + libraries, "libnccl.so.2: " + libraries}
	if slices.Contains(gpustage.Kinds(), "cuda") {
		want = append(want, "libnvrtc.so.13: "+libraries+"/libnvrtc.so.13", "CONTRAFLOW_CUBLASLT: stat /nowhere", "-> export CONTRAFLOW_CUBLASLT=")
	} else {
		want = append(want, "built without CUDA")
	}
	for _, w := range want {
		if !strings.Contains(out.String(), w) {
			t.Errorf("no %q in\n%s", w, out.String())
		}
	}
	// A driver of CUDA 12 can't do with what a library of 13 makes.
	was12 := driverVersion
	t.Cleanup(func() { driverVersion = was12 })
	driverVersion = func() int { return 12090 }
	out.Reset()
	doctor{w: &out}.gpu()
	if old := "libnvrtc.so.12: not found"; slices.Contains(gpustage.Kinds(), "cuda") != strings.Contains(out.String(), old) {
		t.Errorf("%q in\n%s", old, out.String())
	}
	nvidia = "/nowhere"
	out.Reset()
	doctor{w: &out}.gpu()
	if !strings.Contains(out.String(), "no NVIDIA driver is loaded") {
		t.Error(out.String())
	}
}

// A device that is absent or unfit, or that nobody has tried, is none that is broken.
func TestDoctorDevice(t *testing.T) {
	for _, c := range []struct {
		err     error
		problem bool
		want    string
	}{
		{fmt.Errorf("an x: %w", gpustage.ErrAbsent), false, "x          an x: this machine has none\n"},
		{fmt.Errorf("an x: it %w", gpustage.ErrUnfit), false, "x          an x: it can't compute what is asked of it here\n"},
		{errors.New("broken"), true, "x          broken\n"},
		{fmt.Errorf("x %w; TRY=1 opens it", gpustage.ErrUntried), false, "nothing is known of its results; TRY=1 opens it\n           -> "},
	} {
		var out strings.Builder
		if err := (doctor{w: &out}).device("x", nil, c.err); (err != nil) != c.problem || !strings.Contains(out.String(), c.want) {
			t.Errorf("%v: %s, error %v", c.err, out.String(), err)
		}
	}
	var out strings.Builder
	if err := (doctor{w: &out}).device("x", mute{ref.New()}, nil); !errors.Is(err, errMute) || !strings.Contains(out.String(), errMute.Error()) {
		t.Errorf("a device that opens and does not answer: %s, error %v", out.String(), err)
	}
	for _, fails := range []error{nil, errors.New("expected a ;")} {
		out.Reset()
		want := "kernels    compiled\n"
		if fails != nil {
			want = "its kernels do not compile: expected a ;\n"
		}
		if err := (doctor{w: &out}).device("x", compiling{ref.New(), fails}, nil); err != fails || !strings.HasSuffix(out.String(), want) {
			t.Errorf("a device that compiles, error %v: %s, error %v", fails, out.String(), err)
		}
	}
}

// compiling is a device with kernels to compile.
type compiling struct {
	gpustage.Device
	err error
}

func (d compiling) Compile() (string, error) { return "compiled", d.err }

// mute is a device whose driver does not answer.
type mute struct{ gpustage.Device }

var errMute = errors.New("no answer")

func (mute) FreeMemory() (int64, error) { return 0, errMute }

func TestFindLibrary(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "libx.so.1"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LD_LIBRARY_PATH", "/nowhere:"+dir)
	if got := findLibrary("libx.so.1"); got != filepath.Join(dir, "libx.so.1") {
		t.Error(got)
	}
	for _, none := range []string{"libx.so.2", filepath.Join(dir, "libx.so.2")} {
		if got := findLibrary(none); got != "" {
			t.Error(got)
		}
	}
	if file := filepath.Join(dir, "libx.so.1"); findLibrary(file) != file {
		t.Errorf("%s was not found", file)
	}
}
