package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A Python script is answered with what to put into it, whatever options of its own it names; so is a question for help.
func TestImportPython(t *testing.T) {
	script := filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(script, []byte("import argparse\np.add_argument('--model_name_or_path')\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const dump = `json.dump(args.to_dict(), open("args.json", "w"))`
	if r := contraflow(t, "", "import", script); r.code != 1 || !strings.Contains(r.stderr, dump) || strings.Contains(r.stderr, "argparse") {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
	if r := succeed(t, "import", "--help"); !strings.Contains(r.stdout+r.stderr, dump) {
		t.Errorf("%s", r.stdout)
	}
}
