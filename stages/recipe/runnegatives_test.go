package recipe

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/testdata/harness"
)

// A run none of whose rows had a negative, though a column may have some, says so, and which loss learned nothing; on several ranks as on one. A single negative is enough for it to say nothing.
func TestRunWithoutNegatives(t *testing.T) {
	harness.Thorough(t)
	j := newJob(t, 20)
	write := func(name string, has int) string {
		t.Helper()
		path := filepath.Join(j.dir, name)
		var text []byte
		for i := range 8 {
			row := map[string]any{"q": j.words[i], "p": j.words[100+i], "n": []string{}, "d": j.words[100+i : 101+i], "l": i % 2}
			if i == has {
				row["n"], row["d"] = j.words[20:21], j.words[100+i:102+i]
			}
			line, err := json.Marshal(row)
			if err != nil {
				t.Fatal(err)
			}
			text = append(append(text, line...), '\n')
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	none, one := write("none.jsonl", -1), write("one.jsonl", 7)
	for steps, want := range map[int]bool{1: false, 2: true} { // of a dataset whose first batch the run has not come to there is nothing to say
		o, err := j.run(t, fmt.Sprint("short", steps), nil, 0, false, fmt.Sprintf("data.train=[{path: %q, query: q, positive: p}, {path: %q, query: q, positive: p, negatives: [n], negatives_per_query: all}]", none, none),
			"data.mixing=round_robin", "batch.global_size=4", "batch.accumulate=1", "batch.no_duplicates=false", fmt.Sprint("train.max_steps=", steps))
		if err != nil {
			t.Fatal(err)
		}
		if said := strings.Join(o.notes, "\n"); strings.Contains(said, "data.train[1].negatives: no row of the run") != want {
			t.Errorf("%d steps: said %q", steps, said)
		}
	}
	const lists, documents = "positive: p, negatives: [n], negatives_per_query: all", "documents: d"
	for i, c := range []struct {
		kind, loss, columns, want string
		ranks                     int
	}{
		{"embedder", "angle", lists, "negatives: no row of the run had a negative: loss.name: angle learned nothing from them", 1},
		{"embedder", "angle", lists, "negatives: no row of the run had a negative: loss.name: angle learned nothing from them", 2},
		{"embedder", "angle", lists + ", label: l", "negatives: no row of the run had a negative", 1},
		{"embedder", "[mnrl, angle]", lists, "negatives: no row of the run had a negative: loss[1].name: angle learned nothing from them", 1},
		{"embedder", "mnrl", lists, "negatives: no row of the run had a negative", 1},
		{"embedder", "mnrl", "positive: p", "", 1},
		{"reranker", "cross_entropy", documents, "documents: no row of the run had a second document: loss.name: cross_entropy learned nothing from them", 2},
	} {
		for _, path := range []string{none, one} {
			o, err := j.run(t, fmt.Sprint(i, filepath.Base(path)), nil, 0, false, fmt.Sprintf("data.train=[{path: %q, query: q, %s}]", path, c.columns), "model.kind="+c.kind, "loss="+c.loss,
				"batch.global_size=4", "batch.sub_batch.rows=2", "batch.accumulate=1", "batch.no_duplicates=false", "train.epochs=1", fmt.Sprint("mesh.replicate=", c.ranks))
			if err != nil {
				t.Fatalf("%s with %s: %v", c.kind, c.loss, err)
			}
			want := ""
			if path == none && c.want != "" {
				want = "data.train[0]." + c.want
			}
			said := ""
			for _, n := range o.notes {
				if strings.Contains(n, "no row of the run") {
					said += n
				}
			}
			n := 0
			if path == one && c.columns != "positive: p" {
				n = 1
			}
			if said != want || o.summary.Negatives != n {
				t.Errorf("%s with %s of %s, %d ranks: said %q, want %q; %d negatives", c.kind, c.loss, filepath.Base(path), c.ranks, said, want, o.summary.Negatives)
			}
		}
	}
}
