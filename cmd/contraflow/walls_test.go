package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// walls is who may import whom: a package may import the packages listed for the longest matching prefix of its path.
// A name with a slash at its end stands for the whole folder. Tests may also import testdata and devices.
var walls = map[string][]string{
	"pipeline":             {},
	"tokenize":             {},
	"gpustage":             {},
	"gpustage/ref":         {"gpustage"},
	"gpustage/devicetest":  {"gpustage", "gpustage/ref"},
	"gpustage/cpu":         {"gpustage", "gpustage/ref", "gpustage/cpu/"},
	"gpustage/cuda":        {"gpustage", "gpustage/cuda/"},
	"gpustage/cuda/ahead":  {"gpustage/cuda"},
	"gpustage/cuda/onhost": {"gpustage", "gpustage/ref", "gpustage/cuda/", "testdata/harness"},
	"collective":           {"gpustage", "collective", "collective/"},
	"io/internal":          {},
	"io/atomicfile":        {"io/internal/"},
	"io/spelling":          {},
	"io/safetensors":       {"io/atomicfile", "io/spelling", "io/internal/"},
	"io/checkpoint":        {"io/safetensors", "io/atomicfile", "io/internal/"},
	"io/dataset":           {"tokenize", "io/atomicfile", "io/spelling", "io/internal/"},
	"io/tensorboard":       {},
	"io/objects":           {"io/dataset", "io/atomicfile"},
	"io/prep":              {"tokenize", "io/dataset", "io/atomicfile", "io/spelling", "io/internal/"},
	"io/prep/onbeam":       {"io/prep", "io/dataset"},
	"io/prep/template":     {},
	"io/torchfile":         {"io/safetensors", "io/internal/"},
	"io/hfmodel":           {"tokenize", "io/dataset", "io/safetensors", "io/torchfile", "io/atomicfile", "io/internal/"},
	"stages/transformer":   {"gpustage"},
	"stages/loss":          {"gpustage", "collective"},
	"stages/optim":         {"gpustage"},
	"stages/evaluate":      {"gpustage", "io/spelling"},
	"stages/gopairs":       {},
	"stages/mine":          {"gpustage", "io/dataset", "stages/evaluate"},
	"stages/embedder":      {"gpustage", "tokenize", "io/", "stages/transformer", "stages/evaluate", "stages/loss", "stages/mine"},
	"stages/reranker":      {"gpustage", "tokenize", "io/", "stages/transformer", "stages/evaluate", "stages/embedder"},
	"stages/scoring":       {"io/dataset", "io/spelling", "stages/evaluate"},
	"stages/mix":           {"gpustage", "tokenize", "io/", "stages", "stages/embedder", "stages/loss", "stages/reranker", "stages/transformer"},
	"stages":               {"pipeline", "gpustage", "gpustage/ref", "collective", "collective/local", "collective/sim", "tokenize", "io/", "stages", "stages/"},
	"cmd":                  {"pipeline", "cmd/contraflow/internal/", "cmd/internal/", "gpustage", "gpustage/", "collective", "collective/", "tokenize", "io/", "stages", "stages/"},
	"testdata/goldens":     {},
	"testdata/harness":     {},
	"testdata/thirdparty":  {"pipeline", "gpustage/", "io/", "stages", "stages/"},
}

// forTests are what any test may import besides.
var forTests = []string{"testdata/", "gpustage", "gpustage/ref", "gpustage/cpu", "gpustage/cpu/", "gpustage/cuda", "gpustage/cuda/onhost", "gpustage/devicetest", "collective/collectivetest"}

// onlyIn are modules of others that belong to one place, or a few.
var onlyIn = map[string][]string{
	"github.com/parquet-go/parquet-go": {"io/dataset"},
	"github.com/apache/beam":           {"io/prep/onbeam"},
	"github.com/minio/minio-go":        {"io/objects"},
	"github.com/goccy/go-yaml":         {"stages/recipe", "io/hfmodel"},
	"github.com/spf13/cobra":           {"cmd/contraflow", "cmd/internal"},
	"github.com/vbauerster/mpb":        {"cmd/contraflow"},
	"go.uber.org/zap":                  {"cmd/contraflow"},
	"github.com/prometheus":            {"cmd/contraflow"},
	"google.golang.org/protobuf":       {"io/tensorboard"},
	"gorgonia.org/cu":                  {"gpustage/cuda"},
}

func TestWalls(t *testing.T) {
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(file, ".go") {
			return nil
		}
		rel, _ := filepath.Rel(root, file)
		pkg := path.Dir(filepath.ToSlash(rel))
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, imp := range f.Imports {
			name, _ := strconv.Unquote(imp.Path.Value)
			for module, homes := range onlyIn {
				if strings.HasSuffix(file, "_test.go") {
					continue
				}
				if (name == module || strings.HasPrefix(name, module+"/")) && !slices.ContainsFunc(homes, func(home string) bool { return strings.HasPrefix(pkg, home) }) {
					t.Errorf("%s imports %s, which belongs in %s", rel, name, strings.Join(homes, ", "))
				}
			}
			ours, ok := strings.CutPrefix(name, "contraflow/")
			if !ok {
				continue
			}
			allowed := rule(pkg)
			if strings.HasSuffix(file, "_test.go") {
				allowed = append(append([]string{pkg}, allowed...), forTests...)
			}
			if !permits(allowed, ours) {
				t.Errorf("%s imports %s; %s may import %s", rel, ours, pkg, strings.Join(rule(pkg), ", "))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func rule(pkg string) []string {
	for p := pkg; p != "."; p = path.Dir(p) {
		if r, ok := walls[p]; ok {
			return r
		}
	}
	return nil
}

func permits(allowed []string, pkg string) bool {
	for _, a := range allowed {
		if pkg == a || strings.HasSuffix(a, "/") && strings.HasPrefix(pkg, a) {
			return true
		}
	}
	return false
}

// TestNoBeam: Apache Beam is in the program that prepares data alone, whatever the build tags.
func TestNoBeam(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-tags", "beam", ".").CombinedOutput()
	if err != nil {
		t.Skipf("go list: %v", err)
	}
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		if strings.HasPrefix(name, "github.com/apache/beam") || strings.HasPrefix(name, "contraflow/io/prep") && name != "contraflow/io/prep/template" {
			t.Errorf("this program imports %s", name)
		}
	}
}
