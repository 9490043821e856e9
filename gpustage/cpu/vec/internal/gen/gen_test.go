package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// What is committed is what the generator writes.
func TestGenerated(t *testing.T) {
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command to run the generator with")
	}
	dir := t.TempDir()
	gen := filepath.Join(dir, "gen.exe")
	if out, err := exec.Command(tool, "build", "-o", gen, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for set := range machines {
		code, stubs := filepath.Join(dir, set+".s"), filepath.Join(dir, set+".go")
		if out, err := exec.Command(gen, set, "-out", code, "-stubs", stubs, "-pkg", "vec").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for made, kept := range map[string]string{code: "kernels_" + set + "_amd64.s", stubs: "kernels_" + set + "_amd64.go"} {
			if !bytes.Equal(body(t, made), body(t, filepath.Join("..", "..", kept))) {
				t.Errorf("%s is not what the generator writes: run go generate", kept)
			}
		}
	}
}

// body is a file without its first line, which says how it was made.
func body(t *testing.T, file string) []byte {
	all, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(all, []byte("\n"))
	return rest
}
