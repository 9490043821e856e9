package main

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"log"
	"sync"

	. "github.com/mmcloughlin/avo/operand"
)

// stripFile declares what strip kernels are called with: `go generate` runs where it is.
const stripFile = "strip.go"

var stripOffsets = sync.OnceValue(loadStrip)

// loadStrip type-checks stripFile and returns the offset of each field of strip32.
func loadStrip() map[string]int {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, stripFile, nil, 0)
	if err != nil {
		log.Fatalf("run this by `go generate` in package gemm's folder: %v", err)
	}
	config := types.Config{Importer: importer.Default(), Sizes: types.SizesFor("gc", "amd64")}
	pkg, err := config.Check("gemm", fset, []*ast.File{file}, nil)
	if err != nil {
		log.Fatal(err)
	}
	s := pkg.Scope().Lookup("strip32").Type().Underlying().(*types.Struct)
	var fields []*types.Var
	for i := range s.NumFields() {
		fields = append(fields, s.Field(i))
	}
	offsets := map[string]int{}
	for i, off := range config.Sizes.Offsetsof(fields) {
		offsets[fields[i].Name()] = int(off)
	}
	return offsets
}

// field is a field of the strip that register args points at.
func field(name string) Mem {
	off, ok := stripOffsets()[name]
	if !ok {
		log.Fatalf("%s: strip32 has no field %s", stripFile, name)
	}
	return Mem{Base: args, Disp: off}
}
