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

// --devices says how many processes there were where the command line doesn't.
func TestImportDevices(t *testing.T) {
	command := []string{"--", "torchrun", "--nproc_per_node", "gpu", "-m", "FlagEmbedding.x", "--model_name_or_path", "m"}
	if r := contraflow(t, "", append([]string{"import"}, command...)...); r.code != 1 || !strings.Contains(r.stderr, "--nproc_per_node gpu: want the number of processes; --devices N says it here") {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
	if r := succeed(t, append([]string{"import", "--devices", "4"}, command...)...); !strings.Contains(r.stdout, "global_size: 32") {
		t.Errorf("%s", r.stdout)
	}
}
