package recipe

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A row whose label a loss can't take is named where it stands, in whichever dataset.
func TestLabelLocated(t *testing.T) {
	j := newJob(t, 20)
	other := filepath.Join(j.dir, "other.jsonl")
	if err := os.WriteFile(other, []byte(strings.Repeat(`{"q": "one", "p": "two", "l": 1}`+"\n", 6)+`{"q": "three", "p": "four", "l": 2}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, replicate := range []int{1, 2} {
		_, err := j.run(t, "run", nil, 0, false, "model.kind=reranker", "loss.name=bce", "batch.global_size=7", "data.mixing=round_robin", fmt.Sprint("mesh.replicate=", replicate),
			fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, negatives: [q]}, {path: %q, query: q, positive: p, label: l}]", filepath.Join(j.dir, "data.jsonl"), other))
		if err == nil || !strings.Contains(err.Error(), "other.jsonl:7: bce has labels from 0 to 1") {
			t.Errorf("%d ranks: %v", replicate, err)
		}
	}
}
