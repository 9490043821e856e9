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

var strips = sync.OnceValue(loadStrips)

// stripType is the type of the strip that the kernel being written is called with.
var stripType = "strip32"

// loadStrips type-checks stripFile and returns the offset of each field of strip32 and strip64.
func loadStrips() map[string]map[string]int {
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
	all := map[string]map[string]int{}
	for _, name := range []string{"strip32", "strip64"} {
		s := pkg.Scope().Lookup(name).Type().Underlying().(*types.Struct)
		var fields []*types.Var
		for i := range s.NumFields() {
			fields = append(fields, s.Field(i))
		}
		all[name] = map[string]int{}
		for i, off := range config.Sizes.Offsetsof(fields) {
			all[name][fields[i].Name()] = int(off)
		}
	}
	return all
}

// field is a field of the strip that register args points at.
func field(name string) Mem {
	off, ok := strips()[stripType][name]
	if !ok {
		log.Fatalf("%s: %s has no field %s", stripFile, stripType, name)
	}
	return Mem{Base: args, Disp: off}
}
