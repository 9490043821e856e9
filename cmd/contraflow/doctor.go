package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/cpu"

	"contraflow/cmd/contraflow/internal/bench"
	"contraflow/collective/mpi"
	"contraflow/gpustage"
	"contraflow/gpustage/cpu/gemm"
	"contraflow/gpustage/cuda/nvrtc"
	"contraflow/io/hfmodel"
	"contraflow/io/spelling"
	"contraflow/stages/recipe"
)

func newDoctor() *cobra.Command {
	seconds := 10.0
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look at this machine: processor, memory, GPU, MPI, hub cache, disk, and a self-test",
		Long: `doctor says what contraflow finds on this machine, and after each problem the command that mends it. Its self-test multiplies matrices: are the
results right, and how near is their speed to what the processor can do? Wrong results are a failure (exit code 1), and so is a device that is there and does
not open. On a GPU it compiles the kernels, unless they have been: 10 to 20 seconds that the first training need not wait.`,
		Example: "  contraflow doctor",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !(seconds >= 0 && seconds <= 3600) {
				return usageError{fmt.Errorf("--seconds is %v, want 0 to 3600", seconds)}
			}
			d := doctor{w: cmd.OutOrStdout()}
			d.say("version", "%s", version())
			d.processor()
			d.memory()
			problems := d.devices()
			d.gpu()
			d.mpi(cmd.Context())
			d.cache()
			err := d.multiplies()
			if err == nil {
				err = d.speed(cmd.Context(), time.Duration(seconds*1e9))
			}
			return errors.Join(problems, err)
		},
	}
	cmd.Flags().Float64Var(&seconds, "seconds", seconds, "how long the self-test measures")
	return cmd
}

// doctor prints what it finds, a line each, and below it what helps.
type doctor struct{ w io.Writer }

func (d doctor) say(name, format string, args ...any) {
	fmt.Fprintf(d.w, "%-10s %s\n", name, fmt.Sprintf(format, args...))
}

func (d doctor) help(format string, args ...any) {
	fmt.Fprintf(d.w, "%10s -> %s\n", "", fmt.Sprintf(format, args...))
}

func (d doctor) processor() {
	m, err := bench.ThisMachine()
	amx := slices.Contains(gemm.Available(), gemm.AMX)
	var has []string
	for _, f := range []struct {
		name string
		has  bool
	}{{"AVX2", cpu.X86.HasAVX2}, {"FMA", cpu.X86.HasFMA}, {"AVX-512", cpu.X86.HasAVX512F}, {"AVX512-BF16", cpu.X86.HasAVX512BF16}, {"AMX-BF16", amx}, {"NEON", runtime.GOARCH == "arm64"}} {
		if f.has {
			has = append(has, f.name)
		}
	}
	if len(has) == 0 {
		has = []string{"no vector extensions that it uses"}
	}
	d.say("processor", "%s, %s: %s", m.Processor, spelling.Count(m.Cores, "core", "cores"), strings.Join(has, ", "))
	if cpu.X86.HasAMXBF16 && !amx {
		d.say("", "AMX-BF16 is there, but the system does not let this program use it")
		d.help("on Linux 5.16 or later, outside of sandboxes that forbid it, products in bf16 are several times as fast")
	}
	if forced := os.Getenv("CONTRAFLOW_CPU"); forced != "" && err == nil {
		d.say("", "CONTRAFLOW_CPU chooses the %s kernels", forced)
		d.help("unset CONTRAFLOW_CPU: the fastest ones are chosen then")
	}
	if n := runtime.GOMAXPROCS(0); n < runtime.NumCPU() {
		d.say("", "GOMAXPROCS allows %d of the cores", n)
	}
}

// tight is how much memory a small model's training takes with its default batch.
const tight = 2 << 30

func (d doctor) memory() {
	total, free := gpustage.HostMemorySize()
	d.say("memory", "%s, %s available", recipe.Size(total), recipe.Size(free))
	if free > 0 && free < tight {
		d.help("end other programs, or train in smaller parts: --set batch.sub_batch.tokens=1024 --set batch.replay_budget=0")
	}
}

// devices lists what can compute.
func (d doctor) devices() (problems error) {
	for _, kind := range gpustage.Kinds() {
		dev, err := gpustage.Open(kind)
		problems = errors.Join(problems, d.device(kind, dev, err))
	}
	return problems
}

// device tells what opening one has given.
func (d doctor) device(kind string, dev gpustage.Device, err error) (problem error) {
	switch {
	case errors.Is(err, gpustage.ErrUntried):
		d.say(kind, "%v", err)
		d.help("on this machine, before anything is trained: testdata/peers/gpu.sh runs its tests")
		return nil
	case errors.Is(err, gpustage.ErrAbsent), errors.Is(err, gpustage.ErrUnfit):
		d.say(kind, "%v", err)
		return nil
	case err != nil:
		d.say(kind, "%v", err)
		return err
	}
	defer dev.Close()
	info := dev.Info()
	d.say(kind, "%s", info.Description)
	if _, err := dev.FreeMemory(); err != nil {
		d.say("", "%v", err)
		return err
	}
	if c, ok := dev.(compiles); ok {
		said, err := c.Compile()
		if err != nil {
			d.say("", "its kernels do not compile: %v", err)
			return err
		}
		d.say("kernels", "%s", said)
	}
	return nil
}

// compiles is a device whose kernels are compiled where it is, which the first program waits for.
type compiles interface {
	Compile() (said string, err error)
}

// nvidia is where NVIDIA's driver describes itself and its GPUs, nvidiaDevices what shows that there is one where it does not.
var (
	nvidia        = "/proc/driver/nvidia"
	nvidiaDevices = []string{"/dev/nvidiactl", "/dev/dxg"}
)

// driverVersion is the version of CUDA that NVIDIA's driver has, as package nvrtc counts, in a program that has asked it.
var driverVersion = func() int { return 0 }

// gpu looks for NVIDIA's driver, its GPUs, and the libraries that training on them needs. It loads none of them.
func (d doctor) gpu() {
	text, err := os.ReadFile(filepath.Join(nvidia, "version"))
	driver := err == nil || slices.ContainsFunc(nvidiaDevices, exists)
	line, _, _ := strings.Cut(string(text), "\n")
	switch {
	case err == nil:
		d.say("gpu", "%s", strings.TrimSpace(strings.TrimPrefix(line, "NVRM version:")))
	case driver:
		d.say("gpu", "an NVIDIA driver that does not say its version")
	default:
		d.say("gpu", "no NVIDIA driver is loaded")
	}
	about, _ := filepath.Glob(filepath.Join(nvidia, "gpus", "*", "information"))
	for _, file := range about {
		text, _ := os.ReadFile(file)
		model, _, _ := strings.Cut(string(text), "\n")
		d.say("", "%s at %s", strings.TrimSpace(strings.TrimPrefix(model, "Model:")), filepath.Base(filepath.Dir(file)))
	}
	withCUDA := slices.Contains(gpustage.Kinds(), "cuda")
	const driverMend = "install the driver's user libraries; in a container: docker run --gpus all, with nvidia-container-toolkit on the host"
	type library struct {
		names          []string // the best first
		env, use, mend string
	}
	libraries := []library{{[]string{"libnccl.so.2"}, "CONTRAFLOW_NCCL", "several GPUs talk through it", "apt-get install libnccl2, or " + nvrtc.FromPyPI("nvidia-nccl-cu12", "nvidia/nccl/lib/libnccl.so.2", "CONTRAFLOW_NCCL")}}
	if driver {
		libraries = append([]library{{[]string{"libcuda.so.1"}, "", "the driver is there without it", driverMend}}, libraries...)
	}
	switch {
	case withCUDA:
		if !driver {
			d.help("install NVIDIA's driver (Debian: apt-get install nvidia-driver); in a container: docker run --gpus all, with nvidia-container-toolkit on the host")
		}
		libraries = append(libraries,
			library{nvrtc.Versions(driverVersion(), "libnvrtc"), "CONTRAFLOW_NVRTC", "it compiles the kernels", nvrtc.Mend},
			library{nvrtc.Versions(driverVersion(), "libcublasLt"), "CONTRAFLOW_CUBLASLT", "it multiplies matrices", nvrtc.FromPyPI("nvidia-cublas-cu12", "nvidia/cublas/lib/libcublasLt.so.12", "CONTRAFLOW_CUBLASLT")})
	case driver:
		d.help("this program was built without CUDA and computes on the processor; gpustage/cuda/README.md has the build")
	}
	for _, lib := range libraries {
		if named := os.Getenv(lib.env); lib.env != "" && named != "" {
			if _, err := os.Stat(named); err != nil && filepath.IsAbs(named) {
				d.say("", "%s: %v", lib.env, err)
				d.help("export %s=the file of %s", lib.env, lib.names[0])
			} else {
				d.say("", "%s: %s, by %s", filepath.Base(named), named, lib.env)
			}
			continue
		}
		at := ""
		for _, name := range lib.names {
			if at = findLibrary(name); at != "" {
				break
			}
		}
		switch {
		case at != "":
			d.say("", "%s: %s", filepath.Base(at), at)
		case driver || withCUDA:
			d.say("", "%s: not found; %s", strings.Join(slices.DeleteFunc(lib.names, filepath.IsAbs), " or "), lib.use)
			d.help("%s", lib.mend)
		}
	}
}

// findLibrary looks where the system's loader would.
func findLibrary(name string) string {
	if filepath.IsAbs(name) {
		if exists(name) {
			return name
		}
		return ""
	}
	dirs := filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))
	dirs = append(dirs, "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib", "/usr/local/cuda/lib64", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib")
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		if file := filepath.Join(dir, name); exists(file) {
			return file
		}
	}
	return ""
}

func exists(file string) bool { _, err := os.Stat(file); return err == nil }

// mpi asks mpirun who it is.
func (d doctor) mpi(ctx context.Context) {
	built := "this program was built with it"
	if !mpi.Available {
		built = "this program was built without it"
	}
	path, err := exec.LookPath("mpirun")
	if err != nil {
		d.say("mpi", "no mpirun in PATH; %s", built)
		if mpi.Available {
			d.help("apt-get install openmpi-bin libopenmpi-dev")
		}
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, _ := exec.CommandContext(ctx, path, "--version").Output()
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if line == "" {
		line = "says no version"
	}
	d.say("mpi", "%s: %s; %s", path, line, built)
	if !mpi.Available {
		d.help("go build -tags mpi ./cmd/contraflow (needs a C compiler and libopenmpi-dev) trains under mpirun")
	}
}

// roomy is what a large model with its optimizer's state takes on disk.
const roomy = 5 << 30

func (d doctor) cache() {
	dir, free, known, err := hfmodel.Cache()
	if err != nil {
		d.say("hub cache", "%v", err)
		d.help("export HF_HOME=a folder for downloaded models")
		return
	}
	models, _ := filepath.Glob(filepath.Join(dir, "models--*"))
	d.say("hub cache", "%s, %s", dir, spelling.Count(len(models), "model", "models"))
	if os.Getenv("HF_HUB_OFFLINE") != "" {
		d.say("", "HF_HUB_OFFLINE is set: nothing is downloaded")
		d.help("unset HF_HUB_OFFLINE")
	}
	if known {
		d.say("disk", "%s free for the hub cache", recipe.Size(free))
		if free < roomy {
			d.help("export HF_HUB_CACHE=a folder on a larger disk, or remove models from %s", dir)
		}
	}
}

// multiplies checks a product on the best device.
func (d doctor) multiplies() error {
	dev, err := gpustage.Open("auto")
	if err != nil {
		return err
	}
	defer dev.Close()
	s, err := dev.OpenStream()
	if err != nil {
		return err
	}
	defer s.Close()
	const m, n, k = 203, 151, 384 // odd, so that the kernels' edges are used
	var t [3]gpustage.Tensor
	for i, shape := range [][2]int{{m, n}, {m, k}, {n, k}} {
		if t[i], err = gpustage.NewTensor(dev, gpustage.F32, shape[0], shape[1]); err != nil {
			return err
		}
		defer t[i].Mem.Free()
		s.Fill(t[i], 0.5)
	}
	s.MatMul(t[0], t[1], t[2], gpustage.MatMul{TransB: true})
	got := make([]float32, m*n)
	s.CopyOut(gpustage.Bytes(got), t[0])
	if err := s.Sync(); err != nil {
		return err
	}
	for i, v := range got {
		if want := float32(k) / 4; v != want {
			return fmt.Errorf("self-test: %s multiplies wrongly: element %d of a product is %v, want %v; CONTRAFLOW_CPU=portable avoids its kernels, and we would like to know of it", dev.Info().Kind, i, v, want)
		}
	}
	return nil
}

// slow is the share of the multiply-add probe below which something is wrong with the machine or with us.
const slow = 50

// speed measures products beside the probe.
func (d doctor) speed(ctx context.Context, limit time.Duration) error {
	shape := bench.Shape{M: 2048, N: 1536, K: 384}
	if m, err := bench.ThisMachine(); err == nil && m.Kernels == string(gemm.Portable) { // a hundred times slower
		shape.M = 128
	}
	g, err := bench.NewGEMM(bench.GEMMOptions{Shapes: []bench.Shape{shape}, Threads: runtime.GOMAXPROCS(0)})
	if err != nil {
		return err
	}
	defer g.Close()
	var rep *bench.GEMMReport
	for began := time.Now(); rep == nil || time.Since(began) < limit; {
		if rep, err = g.Round(ctx); err != nil {
			return err
		}
	}
	for _, c := range rep.Cases {
		if c.Form != "NT" {
			continue
		}
		at := c.At[len(c.At)-1]
		d.say("self-test", "multiplies matrices in %s at %.0f GFLOP/s on %s, %.0f %% of what the processor can do", c.Precision, at.GFLOPS, spelling.Count(at.Threads, "thread", "threads"), at.PercentOfPeak)
		if at.PercentOfPeak > 110 { // the probe, which runs before and after, had less of the machine
			d.help("others use this machine: contraflow doctor, when they don't")
		} else if at.PercentOfPeak < slow && c.Precision == "f32" {
			d.help("others use this machine, or its memory is slow: contraflow bench gemm says more")
		}
	}
	return nil
}
