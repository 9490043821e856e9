package recipe

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Rows with margins in the place of scores train as those with the scores 0 and less by the margins do. A loss that reads scores otherwise refuses them, in a sum too.
func TestMargins(t *testing.T) {
	j := newJob(t, 10)
	var as [2]bytes.Buffer
	for i := range 10 {
		row := map[string]any{"q": j.words[i], "p": j.words[2*i], "ns": j.words[i+1 : i+2+i%3]}
		margins, scores := []float64{}, []float64{0}
		for k := range 1 + i%3 {
			margins, scores = append(margins, float64(i-k)/2), append(scores, float64(k-i)/2)
		}
		for k, s := range [][]float64{margins, scores} {
			row["s"] = s
			if err := json.NewEncoder(&as[k]).Encode(row); err != nil {
				t.Fatal(err)
			}
		}
	}
	var data [2]string
	for k := range as {
		path := filepath.Join(j.dir, fmt.Sprintf("rows-%d.jsonl", k))
		if err := os.WriteFile(path, as[k].Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		data[k] = fmt.Sprintf("{path: %q, query: q, positive: p, negatives: [ns], negatives_per_query: all, scores: s}", path)
	}
	train := func(out, data, kind, loss string) (outcome, error) {
		return j.run(t, out, nil, 0, false, "model.kind="+kind, "loss="+loss, "data.train=["+data+"]", "eval.loss="+data, "train.max_steps=3", "batch.global_size=4", "mesh.replicate=2")
	}
	for kind, loss := range map[string]string{"embedder": "[margin_mse, mnrl]", "reranker": "margin_mse", "multi_vector": "margin_mse"} {
		var o [2]outcome
		for k := range o {
			var err error
			if o[k], err = train(fmt.Sprint(kind, k), data[k], kind, loss); err != nil {
				t.Fatal(err)
			}
		}
		held := [2]map[int]float64{j.heldOutLosses(t, kind+"0"), j.heldOutLosses(t, kind+"1")}
		if len(o[0].losses) != 3 || !maps.Equal(o[0].losses, o[1].losses) || len(held[0]) == 0 || !maps.Equal(held[0], held[1]) {
			t.Errorf("%s: losses by margins are %v, %v, by scores %v, %v", kind, o[0].losses, held[0], o[1].losses, held[1])
		}
	}
	for loss, kind := range map[string]string{"distill_kl": "embedder", "[margin_mse, distill_kl]": "embedder", "mnrl": "embedder", "distill": "reranker"} {
		if _, err := train("refused", data[0], kind, loss); err == nil || !strings.Contains(err.Error(), "the row has 1 scores for its 2 documents") {
			t.Errorf("%s: %v", loss, err)
		}
	}
}
