package recipe

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/io/dataset"
)

// A document of which every token is on the skiplist makes a row that can't be used: of rows that train the run ends before its step and loses nothing, or goes on
// without it; of rows that the loss is measured on it is an error before the first step.
func TestVectorlessRow(t *testing.T) {
	j := newJob(t, 60)
	file := filepath.Join(j.dir, "data.jsonl")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(raw, []byte("\n"))
	lines[45] = []byte(`{"q":"x","p":"a , a"}`)
	if err := os.WriteFile(file, bytes.Join(lines, []byte("\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	sets := []string{"model.kind=multi_vector", "model.vector_dim=8", `model.skiplist=["[CLS]", "[SEP]", "[UNK]", ",", "a"]`, "batch={global_size: 10, no_duplicates: false}", "data.shuffle=false", "train.epochs=1"}
	const why = `data.jsonl:46, column "p": no token of the text has a vector: all of them are in model.skiplist`
	for _, more := range [][]string{nil, {"mesh.replicate=2"}} {
		out := fmt.Sprint("run ", len(more))
		all := append(sets[:len(sets):len(sets)], more...)
		if _, err := j.run(t, out, nil, 0, false, all...); !errors.Is(err, dataset.ErrBadRow) || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "checkpoints has step 4, the last one before it: --resume --set data.on_error=skip goes on") {
			t.Errorf("%v: %v", more, err)
		}
		o, err := j.run(t, out, nil, 0, true, append(all, "data.on_error=skip")...)
		if err != nil || o.summary.from != 4 || o.summary.Skipped != 1 || o.summary.Steps != 5 { // drop_last: 59 rows
			t.Errorf("%v, resumed: %v, %+v", more, err, o.summary)
		}
	}
	_, err = j.run(t, "held out", nil, 0, false, append(sets, "data.on_error=skip", fmt.Sprintf("eval.loss={path: %q, query: q, positive: p}", file))...)
	if err == nil || !strings.HasPrefix(err.Error(), "eval.loss: "+filepath.Dir(file)) || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "takes a file without this one") {
		t.Errorf("held out: %v", err)
	}
}
