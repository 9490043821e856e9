package kernels

import (
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"contraflow/testdata/harness"
)

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

// The processor emulates wgmma, not its assembly: that has accumulators, operands and flags in the order of the PTX manual, for each size of product.
func TestWarpgroupAssembly(t *testing.T) {
	cpp := exec.Command("g++", "-x", "c++", "-E", "-P", "hopper.cu")
	text, err := cpp.Output()
	if cpp.Err != nil {
		harness.Missing(t, "no g++: %v", cpp.Err)
	}
	if err != nil {
		t.Fatal(err)
	}
	squeeze := strings.NewReplacer(" ", "", "\n", "").Replace
	sum := regexp.MustCompile(`(\d+)\+(\d+)`)
	got := sum.ReplaceAllStringFunc(strings.ReplaceAll(squeeze(string(text)), `""`, ""), func(s string) string { // c[4 + 1] is c[5]
		a, b, _ := strings.Cut(s, "+")
		x, _ := strconv.Atoi(a)
		y, _ := strconv.Atoi(b)
		return strconv.Itoa(x + y)
	})
	list := func(from, n int, item func(i int) string) string {
		var items []string
		for i := range n {
			items = append(items, item(from+i))
		}
		return strings.Join(items, ",")
	}
	place := func(i int) string { return fmt.Sprint("%", i) }
	for _, c := range []struct {
		tiles int
		add   bool
		when  string
	}{
		{4, true, "ifconstexpr(N==4&&ADD)"}, {4, false, "elseifconstexpr(N==4)"}, {8, true, "elseifconstexpr(N==8&&ADD)"}, {8, false, "elseifconstexpr(N==8)"},
		{16, true, `static_assert(N==16&&ADD,"noproductofsomanycolumns");`},
	} {
		n, add, kind := 4*c.tiles, "0", "=f"
		if c.add {
			add, kind = "1", "+f"
		}
		want := fmt.Sprintf(`%sasmvolatile("wgmma.mma_async.sync.aligned.m64n%dk16.f32.bf16.bf16{%s},{%s},%%%d,%s,1,1,%%%d;":%s:%s,"l"(b),"n"((int)TURNED));`,
			c.when, 8*c.tiles, list(0, n, place), list(n, 4, place), n+4, add, n+5,
			list(0, n, func(i int) string { return fmt.Sprintf(`"%s"(c[%d][%d])`, kind, i/4, i%4) }), list(0, 4, func(i int) string { return fmt.Sprintf(`"r"(a[%d])`, i) }))
		if !strings.Contains(got, want) {
			t.Errorf("hopper.cu has no %s", want)
		}
	}
}
