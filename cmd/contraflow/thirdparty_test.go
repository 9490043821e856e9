package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"contraflow/testdata/goldens"
)

// A module of somebody else's trains with a stage and a loss of its own, and saves the model, in under 60 lines of its own code.
func TestThirdParty(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(filepath.Join(root, "testdata", "thirdparty", "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	code := 0
	for l := range strings.Lines(string(program)) {
		if l = strings.TrimSpace(l); l != "" && !strings.HasPrefix(l, "//") {
			code++
		}
	}
	if code >= 60 {
		t.Errorf("%d lines", code)
	}
	data, dir := workspace(t), t.TempDir()
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(mod), "module contraflow", "module example.com/mine", 1) + "\nrequire contraflow v0.0.0\n"
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"main.go": program, "go.mod": []byte(text), "go.sum": sum} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace := []string{"mod", "edit", "-replace", "contraflow=../contraflow"}
	if command := "go " + strings.Join(replace, " "); !strings.Contains(mustRead(t, filepath.Join(root, "README.md")), "\n"+command+"\n") {
		t.Errorf("README does not say %s", command)
	}
	replace[3] = "contraflow=" + root
	edit := exec.Command("go", replace...)
	edit.Dir = dir
	if out, err := edit.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command("go", "run", "-mod=mod", ".", goldens.Path(t, "bert/minilm-tiny"), filepath.Join(dir, "model"), filepath.Join(data, "train.parquet"))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var first, last float64
	fmt.Sscanf(lines[0], "step 0 loss %g", &first)
	fmt.Sscanf(lines[len(lines)-1], "step 9 loss %g", &last)
	if len(lines) != 10 || !(last < first) {
		t.Errorf("loss %v, then %v:\n%s", first, last, out)
	}
	testREADMEPrograms(t, root, dir, data)
	embed := func(model string) string {
		out := filepath.Join(t.TempDir(), "out.npy")
		succeed(t, "embed", "--model", model, "--input", filepath.Join(data, "train.parquet"), "--column", "query", "--output", out)
		return mustRead(t, out)
	}
	if embed(filepath.Join(dir, "model")) == embed(goldens.Path(t, "bert/minilm-tiny")) {
		t.Error("the saved model is the one that training began with")
	}
}

// testREADMEPrograms compiles the Go that README shows in somebody else's module, and runs its first piece, a whole program, by a recipe; the second is a function's body.
func testREADMEPrograms(t *testing.T, root, dir, data string) {
	t.Helper()
	shown := regexp.MustCompile("(?s)\n```go\n(.*?)```").FindAllStringSubmatch(mustRead(t, filepath.Join(root, "README.md")), -1)
	if len(shown) != 2 {
		t.Fatalf("README shows %d pieces of Go, want a program and a graph", len(shown))
	}
	imports := ""
	for _, p := range []string{"io/dataset", "pipeline", "stages", "stages/embedder", "stages/loss", "stages/optim"} {
		imports += fmt.Sprintf("\t\"contraflow/%s\"\n", p)
	}
	graph := "package main\n\nimport (\n\t\"context\"\n\t\"fmt\"\n\n" + imports + ")\n\nfunc graph(ctx context.Context) error {\n" + shown[1][1] + "return err\n}\n"
	text := fmt.Sprintf("model: {path: %s}\ndata: {train: [{path: %s, query: query, positive: positive}]}\nbatch: {global_size: 32}\nsave: {dir: readme}\n",
		inYAML(goldens.Path(t, "bert/minilm-tiny")), inYAML(filepath.Join(data, "train.parquet")))
	if err := os.Mkdir(filepath.Join(dir, "program"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"program/main.go": shown[0][1], "program/graph.go": graph, "recipe.yaml": text} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "run", "-mod=mod", "./program")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "the model is in "+filepath.Join("readme", "model")) {
		t.Errorf("README's program: %v\n%s", err, out)
	}
}
