package main

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/testdata/goldens"
)

// A Python script is answered with what to put into it, whatever options of its own it names; so is a question for help.
func TestImportPython(t *testing.T) {
	script := filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(script, []byte("import argparse\np.add_argument('--model_name_or_path')\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const dump = `json.dump(args.to_dict() | {"arguments": type(args).__name__}, open("args.json", "w"))`
	if r := contraflow(t, "", "import", script); r.code != 1 || !strings.Contains(r.stderr, dump) || strings.Contains(r.stderr, "argparse") {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
	if r := succeed(t, "import", "--help"); !strings.Contains(r.stdout+r.stderr, dump) {
		t.Errorf("%s", r.stdout)
	}
	if r := succeed(t, "import", "--python"); !strings.Contains(r.stdout, "def write(trainer, folder):") {
		t.Errorf("%s", r.stdout)
	}
	if r := contraflow(t, "", "import", "--python", script); r.code != 2 || !strings.Contains(r.stderr, "reads and writes no file") {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
}

// --devices says how many processes there were where the command line doesn't.
func TestImportDevices(t *testing.T) {
	command := []string{"--", "torchrun", "--nproc_per_node", "gpu", "-m", "FlagEmbedding.x", "--model_name_or_path", "m"}
	if r := contraflow(t, "", append([]string{"import"}, command...)...); r.code != 1 || !strings.Contains(r.stderr, "--nproc_per_node gpu: want the number of processes; --devices N says it here") {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
	if r := contraflow(t, "", append([]string{"import", "--devices", "-4"}, command...)...); r.code != 2 || !strings.Contains(r.stderr, "--devices is -4, want at least 1") {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
	if r := succeed(t, append([]string{"import", "--devices", "4"}, command...)...); !strings.Contains(r.stdout, "global_size: 32") {
		t.Errorf("%s", r.stdout)
	}
}

// Where devices kept their negatives apart, the recipe does so as it stands: with a scale of nearly 0 the loss is the log of how many documents
// a query meets.
func TestImportNegativesApart(t *testing.T) {
	dir := workspace(t)
	recipe := filepath.Join(dir, "imported.yaml")
	settings := `{"model": "` + goldens.Path(t, "bert/minilm-tiny") + `", "train_dataset": "` + filepath.Join(dir, "train.parquet") + `", "columns": ["query", "positive"], "per_device_train_batch_size": 4,
		"loss": {"name": "MultipleNegativesRankingLoss", "scale": 0.001}, "batch_sampler": "no_duplicates", "output_dir": "` + filepath.Join(dir, "imported") + `"}`
	for _, c := range []struct {
		settings string
		want     float64
	}{{settings, 4}, {strings.Replace(settings, `0.001`, `0.001, "gather_across_devices": true`, 1), 16}} {
		r := contraflow(t, c.settings, "import", "--devices", "4", "-")
		if r.code != 0 {
			t.Fatal(r.stderr)
		}
		if err := os.WriteFile(recipe, []byte(r.stdout), 0o600); err != nil {
			t.Fatal(err)
		}
		succeed(t, "train", "-c", recipe, "--set", "train.max_steps=1", "--set", "train.epochs=1", "--set", "train.device=cpu", "--set", "log.every=1")
		text, err := os.ReadFile(filepath.Join(dir, "imported", "metrics.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		var step struct{ Loss float64 }
		if err := json.NewDecoder(bytes.NewReader(text)).Decode(&step); err != nil || !(math.Abs(step.Loss-math.Log(c.want)) <= 0.01) {
			t.Errorf("loss %v (%v), want log(%v) = %v of\n%s", step.Loss, err, c.want, math.Log(c.want), r.stdout)
		}
	}
}

// What comes next names what is to be mended first, and is training alone where nothing is.
func TestImportNext(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "it's mine"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ settings, next string }{
		"it's mine/r": {`{"model": "m", "train_dataset": "d.parquet", "columns": ["a", "b"], "loss": "TripletLoss"}`, "mend data.train[0].negatives; then contraflow train -c OUT"},
		"right":       {`{"model": "m", "train_dataset": "d.parquet", "columns": ["a", "b"]}`, "contraflow train -c OUT"},
		"open":        {`{"columns": ["a", "b"]}`, "put data in place of DATA, a model in place of MODEL; then contraflow train -c OUT"},
		"choose":      {`{"model": "m", "train_dataset": "d.parquet", "columns": ["premise", "hypothesis"], "loss": "SoftmaxLoss"}`, "put a loss in place of LOSS; then contraflow train -c OUT"},
		"wrong":       {`{"model": "m", "train_dataset": "d.parquet", "columns": ["a", "b"], "loss": "TripletLoss", "load_best_model_at_end": true}`, "mend data.train[0].negatives, save.best; then contraflow train -c OUT"},
		"both":        {`{"train_dataset": {"a": "a.parquet", "b": "b.parquet"}, "columns": ["a", "b"], "loss": {"a": "SoftmaxLoss", "b": "CoSENTLoss"}, "load_best_model_at_end": true}`, "put a model in place of MODEL, a loss in place of LOSS; mend data.train[1].positive, save.best; then contraflow train -c OUT"},
	} {
		out := filepath.Join(dir, name+".yaml")
		word := out
		if strings.Contains(name, " ") { // as a shell reads it
			word = "'" + strings.ReplaceAll(out, "'", `'\''`) + "'"
		}
		r := contraflow(t, c.settings, "import", "-", "--out", out)
		if want := out + "; next: " + strings.ReplaceAll(c.next, "OUT", word) + "\n"; r.code != 0 || r.stdout != want {
			t.Errorf("%s: exit code %d, %q, want %q\n%s", name, r.code, r.stdout, want, r.stderr)
		}
		if _, err := os.Stat(out); err != nil {
			t.Error(err)
		}
	}
}
