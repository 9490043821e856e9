package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"contraflow/gpustage"
	"contraflow/stages/recipe"
)

func newDoctor() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Look at this machine: processor, memory, cache, and a self-test",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w := cmd.OutOrStdout()
			fmt.Fprintln(w, version())
			total, free := gpustage.HostMemorySize()
			fmt.Fprintf(w, "memory    %s, %s available\n", recipe.Size(total), recipe.Size(free))
			fmt.Fprintf(w, "cores     %d\n", runtime.NumCPU())
			var problems error
			for _, kind := range gpustage.Kinds() {
				d, err := gpustage.Open(kind)
				if err != nil {
					fmt.Fprintf(w, "%-9s %v\n", kind, err)
					if !errors.Is(err, gpustage.ErrAbsent) {
						problems = errors.Join(problems, err)
					}
					continue
				}
				fmt.Fprintf(w, "%-9s %s\n", kind, d.Info().Description)
				d.Close()
			}
			fmt.Fprintf(w, "hub cache %s\n", hubCache())
			if problems != nil {
				return problems
			}
			return selfTest(cmd)
		},
	}
}

func hubCache() string {
	for _, e := range []struct{ name, sub string }{{"HF_HUB_CACHE", ""}, {"HF_HOME", "hub"}} {
		if v := os.Getenv(e.name); v != "" {
			return filepath.Join(v, e.sub)
		}
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "none: no home folder; set HF_HOME"
	}
	return filepath.Join(home, ".cache", "huggingface", "hub")
}

// selfTest multiplies matrices on the best device for a moment.
func selfTest(cmd *cobra.Command) error {
	d, err := gpustage.Open("auto")
	if err != nil {
		return err
	}
	defer d.Close()
	s, err := d.OpenStream()
	if err != nil {
		return err
	}
	const m, n, k = 2048, 1536, 384
	var t [3]gpustage.Tensor
	for i, shape := range [][2]int{{m, n}, {m, k}, {n, k}} {
		if t[i], err = gpustage.NewTensor(d, gpustage.F32, shape[0], shape[1]); err != nil {
			return err
		}
		s.Fill(t[i], 0.5)
	}
	best := time.Hour
	for began := time.Now(); time.Since(began) < time.Second; {
		start := time.Now()
		s.MatMul(t[0], t[1], t[2], gpustage.MatMul{TransB: true})
		if err := s.Sync(); err != nil {
			return err
		}
		best = min(best, time.Since(start))
	}
	var got [1]float32
	s.CopyOut(gpustage.Bytes(got[:]), t[0].Span(0, 1).Columns(0, 1))
	if err := s.Sync(); err != nil {
		return err
	}
	if want := float32(k) / 4; got[0] != want {
		return fmt.Errorf("self-test: %s multiplies wrongly: %v, want %v; CONTRAFLOW_CPU=portable avoids its kernels", d.Info().Kind, got[0], want)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "self-test %s multiplies matrices at %.0f GFLOP/s in f32\n", d.Info().Kind, 2*m*n*k/best.Seconds()/1e9)
	return nil
}
