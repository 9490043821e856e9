package hfmodel

import (
	"os"
	"path/filepath"
	"testing"
)

// A folder holds a model by any of three files: a model's, sentence-transformers' or an adapter's.
func TestModelFile(t *testing.T) {
	for _, name := range []string{"config.json", "modules.json", "adapter_config.json", "metrics.jsonl"} {
		dir, want := t.TempDir(), name
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if name == "metrics.jsonl" { // a run's
			want = ""
		}
		if got := ModelFile(dir); got != want || IsModel(dir) != (want != "") {
			t.Errorf("%s: %q", name, got)
		}
	}
}
