package kernels

import "testing"

// Every kernel is known with its module, and looking for it reads no source: a step's first pass asks for each.
func TestModuleOf(t *testing.T) {
	for _, m := range Modules() {
		for _, n := range Names(m) {
			if got := ModuleOf(n); got != m {
				t.Errorf("%s is said to be in %q, and is in %s", n, got, m)
			}
		}
	}
	if got := ModuleOf("no kernel"); got != "" {
		t.Errorf("a kernel that there is not is in %q", got)
	}
	if n := testing.AllocsPerRun(10, func() { ModuleOf("flash_64") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
