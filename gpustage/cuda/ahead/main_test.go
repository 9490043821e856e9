//go:build cuda

package main

import (
	"strings"
	"testing"
)

// What names no architecture of the device's GPUs is refused in a line, before NVRTC is looked for; what does gets as far as that.
func TestArguments(t *testing.T) {
	t.Setenv("CONTRAFLOW_NVRTC", "/nowhere/libnvrtc.so.13")
	t.Setenv("CONTRAFLOW_KERNELS", t.TempDir())
	const form = "want one in the form of sm_90, from sm_80 on\n"
	for _, x := range []struct {
		args      string // with a comma between two
		code      int
		out, errs string // something of what is printed; "" for nothing
	}{
		{"-h", 0, usage, ""},
		{"--help", 0, usage, ""},
		{"sm_90,sm_100", 2, "", usage},
		{"", 1, "", form},
		{"90", 1, "", form},
		{"sm_90a", 1, "", form},
		{"sm_9", 1, "", form},
		{"sm_75", 1, "", form},
		{"sm_9999", 1, "", form},
		{" sm_90", 1, "", form},
		{"--arch", 1, "", form},
		{"sm_80", 1, "", "/nowhere/"},
		{"sm_90", 1, "", "/nowhere/"},
		{"sm_120", 1, "", "/nowhere/"},
	} {
		var out, errs strings.Builder
		code := run(strings.Split(x.args, ","), &out, &errs)
		has := func(got, want string) bool {
			return want == "" && got == "" || want != "" && strings.Contains(got, want)
		}
		if code != x.code || !has(out.String(), x.out) || !has(errs.String(), x.errs) || x.errs == form && strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("%q: exit code %d, printed %q and %q; want %d, %q and %q", x.args, code, &out, &errs, x.code, x.out, x.errs)
		}
	}
}
