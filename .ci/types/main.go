// Types finds what does not compile on other platforms, tests included, without compiling it: it type-checks the packages, and what they
// import, from source. A compiler makes machine code of every dependency for every platform, which takes ten times as long and is what
// nobody looks at here.
//
//	go run ./.ci/types GOOS/GOARCH... -- PACKAGE...
//
// What needs more than types stays with go vet and with builds: declarations of assembly, linking.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

func main() {
	at := slices.Index(os.Args, "--")
	if at < 2 || at == len(os.Args)-1 {
		fmt.Fprintln(os.Stderr, "usage: types GOOS/GOARCH... -- PACKAGE...")
		os.Exit(2)
	}
	var all sync.WaitGroup
	failed := make([]error, at)
	for i, platform := range os.Args[1:at] {
		all.Go(func() {
			n, err := check(platform, os.Args[at+1:])
			if failed[i] = err; err == nil {
				fmt.Printf("%s: the types of %d packages are right\n", platform, n)
			}
		})
	}
	all.Wait()
	if err := errors.Join(failed...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// listed is what go list tells of a package. That of a test has its own import path, "p [p.test]", and those files too.
type listed struct {
	ImportPath, Dir, Name, ForTest string
	GoFiles, CgoFiles              []string
	ImportMap                      map[string]string
	Module                         *struct {
		Main      bool
		GoVersion string
	}
}

// check gives the number of this module's packages whose types it has checked for a platform, each test as one of its own.
func check(platform string, patterns []string) (own int, err error) {
	goos, arch, ok := strings.Cut(platform, "/")
	sizes := types.SizesFor("gc", arch)
	if !ok || sizes == nil {
		return 0, fmt.Errorf("%s is no platform; linux/arm64 is one", platform)
	}
	list := exec.Command("go", append([]string{"list", "-deps", "-test", "-json=ImportPath,Dir,Name,ForTest,GoFiles,CgoFiles,ImportMap,Module", "--"}, patterns...)...)
	list.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+arch, "CGO_ENABLED=0")
	var out bytes.Buffer
	list.Stdout, list.Stderr = &out, os.Stderr
	if err := list.Run(); err != nil {
		return 0, fmt.Errorf("%s: go list: %w", platform, err)
	}
	known := map[string]*types.Package{"unsafe": types.Unsafe}
	var wrong []error
	add := func(err error) { // a test has its package's files a second time
		if err = fmt.Errorf("%s: %w", platform, err); !slices.ContainsFunc(wrong, func(e error) bool { return e.Error() == err.Error() }) {
			wrong = append(wrong, err)
		}
	}
	for in := json.NewDecoder(&out); ; { // what a package imports comes before it
		var p listed
		if err := in.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return 0, fmt.Errorf("%s: go list: %w", platform, err)
		}
		if p.ImportPath == "unsafe" || p.Name == "main" && p.ForTest == "" && strings.HasSuffix(p.ImportPath, ".test") { // go test writes the latter's source
			continue
		}
		if len(p.CgoFiles) > 0 {
			return 0, fmt.Errorf("%s: %s has cgo where it is off", platform, p.ImportPath)
		}
		ours := p.Module != nil && p.Module.Main
		fset := token.NewFileSet()
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				add(err)
				continue
			}
			files = append(files, f)
		}
		conf := types.Config{
			Sizes:            sizes,
			IgnoreFuncBodies: !ours,
			Error:            add,
			Importer: importer(func(path string) (*types.Package, error) {
				if to, ok := p.ImportMap[path]; ok {
					path = to
				}
				if q := known[path]; q != nil {
					return q, nil
				}
				return nil, fmt.Errorf("%s is not there", path)
			}),
		}
		if p.Module != nil && p.Module.GoVersion != "" {
			conf.GoVersion = "go" + p.Module.GoVersion
		}
		path, _, _ := strings.Cut(p.ImportPath, " ")
		known[p.ImportPath], _ = conf.Check(path, fset, files, nil) // errors went to conf.Error
		if ours {
			own++
		}
	}
	if own == 0 && wrong == nil {
		return 0, fmt.Errorf("%s: no package of this module is among %s", platform, strings.Join(patterns, " "))
	}
	return own, errors.Join(wrong...)
}

// importer is a types.Importer.
type importer func(path string) (*types.Package, error)

func (f importer) Import(path string) (*types.Package, error) { return f(path) }
