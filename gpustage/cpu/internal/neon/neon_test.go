package neon

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"contraflow/testdata/harness"
)

var packages = []string{"gemm", "vec"}

// What is committed is what the generators write.
func TestGenerated(t *testing.T) {
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go command to run the generators with")
	}
	for _, p := range packages {
		dir := t.TempDir()
		cmd := exec.Command(tool, "run", "./internal/genneon", "-out", filepath.Join(dir, "kernels_neon_arm64.s"), "-stubs", filepath.Join(dir, "kernels_neon_arm64.go"))
		cmd.Dir = filepath.Join("..", "..", p)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, name := range []string{"kernels_neon_arm64.s", "kernels_neon_arm64.go"} {
			made, kept := read(t, filepath.Join(dir, name)), read(t, filepath.Join(cmd.Dir, name))
			if !bytes.Equal(made, kept) {
				t.Errorf("%s/%s is not what the generator writes: run go generate", p, name)
			}
		}
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	all, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A word is the instruction that stands beside it.
func TestWords(t *testing.T) {
	tool, err := exec.LookPath("aarch64-linux-gnu-objdump")
	if err != nil {
		harness.Missing(t, "%v: apt-get install binutils-aarch64-linux-gnu", err)
	}
	word := regexp.MustCompile(`WORD \$0x([0-9A-F]{8}) // (.*)`)
	line := regexp.MustCompile(`(?m)^ +[0-9a-f]+:\t[0-9a-f]{8} \t(.*)$`)
	for _, p := range packages {
		words := word.FindAllStringSubmatch(string(read(t, filepath.Join("..", "..", p, "kernels_neon_arm64.s"))), -1)
		var code []byte
		for _, w := range words {
			v, err := strconv.ParseUint(w[1], 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			code = binary.LittleEndian.AppendUint32(code, uint32(v))
		}
		file := filepath.Join(t.TempDir(), "words")
		if err := os.WriteFile(file, code, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(tool, "-D", "-z", "-b", "binary", "-m", "aarch64", file).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		meanings := line.FindAllStringSubmatch(string(out), -1)
		if len(words) < 100 || len(meanings) != len(words) {
			t.Fatalf("%s: %d words, %d of them read", p, len(words), len(meanings))
		}
		for i, w := range words {
			got, _, _ := strings.Cut(strings.ReplaceAll(meanings[i][1], "\t", " "), " //")
			if got != w[2] {
				t.Errorf("%s: 0x%s is %q, not %q", p, w[1], got, w[2])
			}
		}
	}
}
