package recipe

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A run in which every step is not finite goes back ten times and no more, and says after which step it has given up.
func TestRollbacksEnd(t *testing.T) {
	j := newJob(t, 60)
	path := filepath.Join(j.dir, "data.jsonl")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	for i := range lines {
		weight := "1"
		if i >= 8 {
			weight = "3e38"
		}
		lines[i] = fmt.Sprintf("%s,\"w\":%s}", strings.TrimSuffix(lines[i], "}"), weight)
	}
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := j.run(t, "run", nil, 0, false, "data.train.0.weight=w", "data.shuffle=false", "batch.no_duplicates=false", "batch.global_size=4", "batch.accumulate=1", "train.epochs=1",
		"save.every=1", "loss.scale=100", "train.on_nan=rollback")
	if err == nil || !strings.Contains(err.Error(), "step 13 is not finite, after 10 rollbacks") {
		t.Errorf("%v", err)
	}
	if n := strings.Count(strings.Join(o.notes, "\n"), "going on with the state of step 2 and the data after step"); n != 10 {
		t.Errorf("it has gone back %d times: %q", n, o.notes)
	}
}
