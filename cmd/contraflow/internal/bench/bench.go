// Package bench measures what contraflow does on the machine at hand: products of matrices, the other ops, whole training
// steps, embedding, tokenization, reading.
//
// # Against what
//
// A figure alone says little about a processor that changes its speed and shares it with others. So rates of arithmetic
// stand beside those of a probe: multiply-adds between registers, which no program can beat, on as many threads, in the
// same precision, run right before and after what is measured and about as long as it, up to 50 ms. What a step needs is
// counted ([Work]) for real tokens only, so padding, recomputation and replay count against us.
//
// # Which of several
//
// Kernels are short and a neighbour can only slow them down: products report the best of many interleaved runs, of theirs
// and of the probe's. Steps are long and meet everything that a training run meets: they report the median over steps,
// with the extremes beside it, after a warm-up that is not counted.
//
// # Comparing with other programs
//
// On a GPU the probe says nothing: the script then multiplies large matrices with the peer's library (testdata/peers/gpu.py).
//
// [Paced] measures one round for each line that it reads and answers with a line of JSON. A script that holds a Python
// program on the other side alternates the two, so that both see the same machine: testdata/peers/cpu does.
package bench

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"contraflow/gpustage"
	"contraflow/gpustage/cpu/gemm"
	"contraflow/gpustage/cpu/pool"
	"contraflow/io/spelling"
	"contraflow/stages/recipe"
)

// Machine is what figures were measured on.
type Machine struct {
	Processor   string `json:"processor"`
	Cores       int    `json:"cores"`
	MemoryBytes int64  `json:"memory_bytes"`
	Kernels     string `json:"kernels"` // of the CPU device: CONTRAFLOW_CPU, or the fastest
	Platform    string `json:"platform"`
	Go          string `json:"go"`
}

// ThisMachine describes the machine; the error is about CONTRAFLOW_CPU.
func ThisMachine() (Machine, error) {
	k, err := kernels()
	total, _ := gpustage.HostMemorySize()
	return Machine{
		Processor: processor(), Cores: runtime.NumCPU(), MemoryBytes: total, Kernels: string(k),
		Platform: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(),
	}, err
}

func (m Machine) String() string {
	return fmt.Sprintf("%s, %s, %s kernels, %s", m.Processor, spelling.Count(m.Cores, "core", "cores"), m.Kernels, m.Go)
}

// processor is the processor's name, or the architecture's where the system does not say.
func processor() string {
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if key, name, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				return strings.TrimSpace(name)
			}
		}
	}
	if name := os.Getenv("PROCESSOR_IDENTIFIER"); name != "" { // Windows
		return name
	}
	return runtime.GOARCH
}

// kernels is what a CPU device opened now computes with.
func kernels() (gemm.Kernels, error) {
	k, err := gemm.Select(os.Getenv("CONTRAFLOW_CPU"))
	if err != nil {
		return "", fmt.Errorf("CONTRAFLOW_CPU: %w", err)
	}
	return k, nil
}

// affordable is an error if operands take more memory than the machine has available: systems lend what they don't have, and end
// programs that take it.
func affordable(what string, bytes float64) error {
	_, available := gpustage.HostMemorySize()
	if available == 0 { // not known
		available = math.MaxInt64
	}
	if bytes < float64(available) {
		return nil
	}
	return fmt.Errorf("%s: operands of %.3g GiB, and %s of memory are available", what, bytes/(1<<30), recipe.Size(available))
}

// probe measures the peak of some threads.
type probe struct {
	kernels gemm.Kernels
	threads *pool.Pool
}

func newProbe(k gemm.Kernels, threads int) *probe { return &probe{k, pool.New(threads)} }

// gflops is the peak over about d, 2 ms at least and 50 at most: a longer run would have the better chance to be disturbed.
func (p *probe) gflops(bf16 bool, d time.Duration) float64 {
	if p == nil { // on a GPU
		return 0
	}
	return gemm.Peak[float32](p.kernels, bf16, min(max(d, 2*time.Millisecond), 50*time.Millisecond), p.threads) / 1e9
}

func (p *probe) close() { p.threads.Close() }

// openDevice opens what steps are measured on; "" is the processor. A processor has a probe.
func openDevice(kind string) (gpustage.Device, *probe, error) {
	k, err := kernels()
	if err != nil {
		return nil, nil, err
	}
	d, err := gpustage.Open(cmp.Or(kind, "cpu"))
	if err != nil {
		return nil, nil, err
	}
	if n := d.Info().Threads; n > 0 {
		return d, newProbe(k, n), nil
	}
	return d, nil, nil
}

// Spread sums several measurements up.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// SpreadOf is the spread of at least one value.
func SpreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return Spread{Median: (sorted[(n-1)/2] + sorted[n/2]) / 2, Min: sorted[0], Max: sorted[n-1]}
}

// String is "8.12 (7.90 to 8.31)", with three digits that count.
func (s Spread) String() string {
	return fmt.Sprintf("%s (%s to %s)", digits(s.Median), digits(s.Min), digits(s.Max))
}

// digits prints two or three digits, or all before the point.
func digits(v float64) string {
	switch {
	case v < 1:
		return fmt.Sprintf("%.2g", v)
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// repeat does something for about d in all, but so often at least; the context's end is an error.
func repeat(ctx context.Context, d time.Duration, least int, do func() error) error {
	until := time.Now().Add(d)
	for i := 0; ctx.Err() == nil && (i < least || time.Now().Before(until)); i++ {
		if err := do(); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// Paced calls round for each line of in and writes what it returns as a line of JSON to out, until in ends. The first line
// is written before any is read: it tells that everything is loaded.
func Paced(ctx context.Context, in io.Reader, out io.Writer, round func() (any, error)) error {
	enc := json.NewEncoder(out)
	if err := enc.Encode(map[string]bool{"ready": true}); err != nil {
		return err
	}
	// A read can't be cancelled: this goroutine ends with in, or with the program.
	lines, failed, done := make(chan struct{}), make(chan error, 1), make(chan struct{})
	defer close(done)
	go func() {
		defer close(lines)
		for sc := bufio.NewScanner(in); ; {
			if !sc.Scan() {
				failed <- sc.Err()
				return
			}
			select {
			case lines <- struct{}{}:
			case <-done:
				return
			}
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case _, ok := <-lines:
			if !ok {
				return <-failed
			}
		}
		r, err := round()
		if err != nil {
			return err
		}
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
}

func threads(n int) string { return spelling.Count(n, "thread", "threads") }
