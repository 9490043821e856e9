package hfmodel

import (
	"strings"
	"testing"
)

// Who opens a hub id as a folder is told what finds the folder; who opens a path that is not there is told that alone.
func TestOpenHint(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, hint := range map[string]bool{"sentence-transformers/all-MiniLM-L6-v2": true, "bert": true, "./models/mine": false, "models/of/mine": false} {
		if _, err := Open(name); err == nil || strings.Contains(err.Error(), "Resolve finds its folder") != hint {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open(""); err == nil || err.Error() != "open model: no folder is named" {
		t.Error(err)
	}
}
