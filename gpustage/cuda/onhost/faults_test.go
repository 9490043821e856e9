//go:build linux && amd64

package onhost

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"contraflow/gpustage"
	"contraflow/testdata/harness"
)

// What a kernel must not do is found, and said.
func TestFaults(t *testing.T) {
	const file = "testdata/faults.cu"
	want := map[string]string{
		"block_turns": "", "warp_turns": "", "blocks_apart": "", "read_barrier_written": "", "halves_apart": "", "vectors_apart": "", "copies": "",

		"no_barrier":               "thread 0: reads what nobody wrote: static shared memory",
		"no_barrier_for_the_first": "reads without a barrier what has been written by thread 0 of its block: static shared memory",
		"only_warps_barrier":       "reads without a barrier what has been written by thread 0 of",
		"only_a_shuffle":           "reads without a barrier what has been written by thread",
		"blocks_write_alike":       "writes what another block writes",
		"blocks_read_each_other":   "reads what another block writes|writes what another block reads",
		"read_then_written":        "reads without a barrier what has been written by thread 0 .*: byte 0 of an allocation of 256",
		"halves_meet":              "thread 1: reads without a barrier what has been written by thread 0 of its block: byte 2 of",
		"vectors_meet":             "thread 1: reads without a barrier what has been written by thread 0 of its block: byte 4 of",
		"vector_then_number":       "thread 63: writes without a barrier what has been read by thread .* of its block: byte 12 of",
		"reads_behind":             "reads what is not allocated: byte 256 of an allocation of 256",
		"reads_a_vector_behind":    "reads what is not allocated",
		"writes_before":            "thread 0: writes what is not allocated",
		"writes_behind_shared":     "thread 63: writes what is not allocated",
		"reads_unwritten":          "thread 58: reads what nobody wrote: byte 20 of dynamic shared memory",
		"group":                    "", "group_turned": "",
		"group_without_proxy_fence":       "wgmma without fence.proxy.async",
		"group_fences_after_barrier":      "wgmma without fence.proxy.async",
		"group_without_fence":             "wgmma without wgmma.fence",
		"group_without_commit":            "ended and not waited for its products",
		"group_without_wait":              "ended and not waited for its products",
		"group_written_before_wait":       "without a barrier what has been read by thread",
		"group_of_three":                  "the warps of a group have multiplied different things",
		"group_of_two_matrices":           "the lanes of a warp have different matrix descriptors",
		"group_between_atoms":             "whose atoms do not begin at a multiple of 1,024",
		"group_unaligned":                 "whose atoms do not begin at a multiple of 1,024",
		"group_of_no_swizzle":             "not one of 128-byte swizzle",
		"group_reads_early":               "accumulators are wrong",
		"group_without_hold":              "accumulators are wrong",
		"group_written_early":             "accumulators have been written while products were under way",
		"group_read_without_its_hold":     "accumulators are wrong",
		"group_left_over":                 "accumulators are wrong",
		"group_after_group":               "",
		"group_after_group_without_fence": "wgmma without wgmma.fence",
		"group_taken_for_the_first":       "accumulators are wrong",
		"group_read_with_the_first":       "accumulators are wrong",

		"copies_without_barrier": "without a barrier what has been written by thread .* dynamic shared memory",
		"waits_too_late":         "reads what has not come yet",

		"matrices": "", "matrices_without_barrier": "reads without a barrier what has been written by thread|reads what nobody wrote",
		"rows_of_a_warp": "", "rows_without_barrier": "reads without a barrier what has been written by thread",
		"launched_without_blocks": "no GPU launches nothing", "launched_without_threads": "no GPU launches nothing", "launched_in_z": "no GPU launches so much",
		"launched_with_shared": "no GPU launches so much",

		"matrices_unaligned": "ldmatrix from an address that is no multiple of 16", "matrices_behind": "reads what is not allocated",
	}
	if object := os.Getenv("CONTRAFLOW_FAULTS"); object != "" { // the process that may end
		l, err := load(object)
		if err != nil {
			t.Fatal(err)
		}
		x, err := gpustage.AllocHost(64 * 4)
		if err != nil {
			t.Fatal(err)
		}
		l.mayTouch(x.Data())
		values := gpustage.Slice[float32](gpustage.Tensor{Mem: x, Rows: 1, Cols: 64, Stride: 64, DType: gpustage.F32})
		for i := range values {
			values[i] = float32(i + 1)
		}
		s := Stream{device: &Device{library: l}}
		kernel := os.Getenv("CONTRAFLOW_FAULT")
		blocks, threads, shared, z := 1, 64, 64*4, 1
		if strings.HasPrefix(kernel, "group") {
			threads, shared = 128, 2048
		}
		if strings.HasPrefix(kernel, "rows_") {
			shared = 64 * 16
		}
		if strings.HasPrefix(kernel, "blocks_") {
			blocks = 2
		}
		switch kernel {
		case "launched_without_blocks":
			blocks = 0
		case "launched_without_threads":
			threads = 0
		case "launched_in_z":
			z = 1 << 16
		case "launched_with_shared":
			shared = 99<<10 + 1
		}
		words := []uint64{uint64(s.Address(x))}
		if err := l.start(kernel, [3]int{blocks, 1, z}, [3]int{threads, 1, 1}, shared, words, []int32{0}); err != nil {
			t.Fatal(err)
		}
		return
	}

	var names []string
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^(?:TURN|COPIES|GROUP|TWO|MATRICES|OWN_ROWS|KERNEL )\(?(\w+)`).FindAllStringSubmatch(string(text), -1) {
		names = append(names, m[1])
	}
	if len(names) != len(want) {
		t.Errorf("%d kernels, %d expectations", len(names), len(want))
	}
	path, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	object := filepath.Join(t.TempDir(), "faults.so")
	err = build(object, []module{{path, names}}, checked...)
	if errors.Is(err, exec.ErrNotFound) {
		harness.Missing(t, "no g++ or clang++: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, kernel := range names {
		t.Run(kernel, func(t *testing.T) {
			c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFaults$", "-test.timeout=60s")
			c.WaitDelay = time.Minute
			c.Env = append(os.Environ(), "CONTRAFLOW_FAULTS="+object, "CONTRAFLOW_FAULT="+kernel)
			out, err := c.CombinedOutput()
			if want[kernel] == "" {
				if err != nil {
					t.Errorf("%v\n%s", err, out)
				}
				return
			}
			line, _, _ := strings.Cut(string(out), "\n")
			if err == nil || !regexp.MustCompile("^kernel "+kernel+", block .*("+want[kernel]+")").MatchString(line) {
				t.Errorf("%v: %s", err, line)
			}
		})
	}
}
