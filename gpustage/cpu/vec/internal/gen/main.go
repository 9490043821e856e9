// Command gen writes the assembly of package vec: run `go generate` in the package's folder after a change here.
//
// It is written with avo, which checks every instruction's operands against the instruction tables. Each kernel is written
// once, for both instruction sets: what differs between them (the width, how the last few elements are masked, how 2^n is
// multiplied in) is in machine.go and exp.go. A kernel's body is emitted at most three times, for a few vectors at once
// where that helps, for one vector, and for the last, partial one: there is nothing to gain from more, and code has to be
// fetched too.
package main

import (
	"fmt"
	"os"

	"github.com/mmcloughlin/avo/build"
)

func main() {
	if len(os.Args) < 2 || machines[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: gen avx2|avx512 -out FILE.s -stubs FILE.go -pkg vec")
		os.Exit(2)
	}
	m := machines[os.Args[1]]
	os.Args = append(os.Args[:1], os.Args[2:]...) // avo reads the rest of the flags
	m.elementwise()
	m.reductions()
	m.exponentials()
	m.activations()
	m.norms()
	m.dropout()
	m.updates()
	m.conversions()
	build.Generate()
}
