package recipe

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages/loss"
	"contraflow/testdata/harness"
)

// A row without negatives is one that can't be used for a loss which compares them with the positive: the run ends before its step, and goes on as one that never had the row. Other losses
// take such rows, and batches of nothing else, of which there is nothing to learn. So it is on one rank and on two.
func TestRowsWithoutNegatives(t *testing.T) {
	harness.Thorough(t)
	j := newJob(t, 20)
	write := func(name string, left bool, has func(i int) bool) string {
		t.Helper()
		path := filepath.Join(j.dir, name)
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		enc := json.NewEncoder(f)
		for i := range 16 {
			negatives, scores := []string{}, []float64{1}
			if has(i) {
				negatives, scores = j.words[20+i:22+i], []float64{1, 0, .5}
			} else if left {
				continue
			}
			if err := enc.Encode(map[string]any{"q": j.words[i], "p": j.words[100+i], "n": negatives, "s": scores}); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		return path
	}
	late := func(i int) bool { return i < 8 || i >= 12 } // not of the third batch
	file, rest := write("data.jsonl", false, late), write("rest.jsonl", true, late)
	first := write("first.jsonl", false, func(i int) bool { return i >= 8 })
	run := func(out, kind, named, file string, ranks int, resume bool, more ...string) (outcome, error) {
		t.Helper()
		return j.run(t, out, nil, 0, resume, append([]string{
			fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, negatives: [n], negatives_per_query: all, scores: s}]", file), "model.kind=" + kind, "loss=" + named,
			"batch.global_size=4", "batch.sub_batch.rows=2", "batch.accumulate=1", "batch.no_duplicates=false", "data.shuffle=false", "model.dropout=0", "train.epochs=1", "optimizer.schedule=constant", fmt.Sprint("mesh.replicate=", ranks),
		}, more...)...)
	}
	out := 0
	for _, c := range []struct {
		kind, loss, who string // "": any row will do
		ranks           []int
	}{
		{"embedder", "triplet", "triplet", []int{1}}, {"embedder", "[mnrl, distill_kl]", "distill_kl", []int{2}}, {"reranker", "margin_mse", "margin_mse", []int{2}},
		{"embedder", "angle", "", []int{1, 2}}, {"embedder", "{name: angle, gather_across_devices: false}", "", []int{2}}, {"reranker", "cross_entropy", "", []int{1, 2}},
	} {
		losses := map[int]map[int]float64{}
		for _, ranks := range c.ranks {
			out++
			name := fmt.Sprintf("%s %s on %d", c.kind, c.loss, ranks)
			if c.who == "" {
				o, err := run(fmt.Sprint(out), c.kind, c.loss, first, ranks, false)
				if err != nil || len(o.losses) != 4 || !(o.losses[2] > 0) || o.losses[0] != 0 {
					t.Errorf("%s: %v, losses %v", name, err, o.losses)
				}
				losses[ranks] = o.losses
				continue
			}
			_, err := run(fmt.Sprint(out), c.kind, c.loss, file, ranks, false)
			want := fmt.Sprintf(`data.jsonl:9, column "n": the row has no negatives, which %s compares with the positive; `, c.who)
			if !errors.Is(err, dataset.ErrBadRow) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "checkpoints has step 2, ") {
				t.Errorf("%s: %v, want %s", name, err, want)
			}
			got, err := run(fmt.Sprint(out), c.kind, c.loss, file, ranks, true, "data.on_error=skip")
			if err != nil || got.summary.Skipped != 4 || len(got.losses) != 1 {
				t.Errorf("%s, going on: %v: %+v", name, err, got.summary)
			}
			out++
			if want, err := run(fmt.Sprint(out), c.kind, c.loss, rest, ranks, false); err != nil || len(want.losses) != 3 || got.losses[2] != want.losses[2] {
				t.Errorf("%s: losses %v, of the other rows alone %v, %v", name, got.losses, want.losses, err)
			}
		}
		for step, l := range losses[1] {
			if d := losses[2][step] - l; !(d <= 1e-4*l && -d <= 1e-4*l) {
				t.Errorf("%s: step %d has loss %v on two ranks, %v on one", c.loss, step, losses[2][step], l)
			}
		}
	}
	const needs = "the row has no negatives, which triplet compares with the positive; "
	j.opts = []TrainOption{WithLoss(loss.Triplet{})}
	if _, err := run("own", "embedder", "mnrl", file, 1, false); err == nil || !strings.Contains(err.Error(), "data.jsonl:9: "+needs+"the program's loss has to take the row, or the file to be without it: ") {
		t.Errorf("a loss of one's own: %v", err)
	}
	held := fmt.Sprintf("{path: %q, query: q, positive: p, negatives: [n], negatives_per_query: all, scores: s", file)
	_, err := run("own held out", "embedder", "mnrl", rest, 1, false, "eval.loss="+held+"}")
	if err == nil || !strings.HasPrefix(err.Error(), "eval.loss: "+file+":9: "+needs+"none of the rows that a loss is measured on is left out") {
		t.Errorf("held-out rows that a loss of one's own does not take: %v", err)
	}
	if _, err := run("own held out otherwise", "embedder", "mnrl", rest, 1, false, "eval.loss="+held+", loss: mnrl}"); err != nil {
		t.Errorf("held-out rows with a loss that takes them: %v", err)
	}
	_, err = run("held out", "embedder", "triplet", rest, 1, false, "eval.loss="+held+"}")
	if err == nil || !strings.Contains(err.Error(), `data.jsonl:9, column "n": the row has no negatives`) {
		t.Errorf("held-out rows: %v", err)
	}
}

// Every loss that needs negatives says so of a row.
func TestWhichLossesNeedNegatives(t *testing.T) {
	for _, kinds := range [][]lossKind{lossKinds, vectorKinds} {
		for _, k := range kinds {
			l := Loss{Name: k.names[0], vectors: k.vectors, PositiveMargin: new(float64), NegativeMargin: new(float64), MeanWeight: new(float64), SecondMomentWeight: new(float64)}
			check := asking(l, loss.CheckNegatives)
			if (check(0) != nil) != k.negatives || check(1) != nil {
				t.Errorf("%s needs negatives: %t", k.names[0], k.negatives)
			}
		}
	}
	for _, name := range loss.GroupLosses {
		l := Loss{Name: string(name), reranker: true}
		if err := asking(l, loss.CheckNegatives)(0); (err != nil) != (name == loss.GroupMarginMSE) {
			t.Errorf("a reranker's %s needs negatives: %v", name, err)
		}
	}
}

// A reranker's margin_mse trains on labels that are differences of scores as on the scores.
func TestMarginsAsLabels(t *testing.T) {
	j := newJob(t, 20)
	f, err := os.Create(filepath.Join(j.dir, "data.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	enc := json.NewEncoder(f)
	for i := range 16 {
		margin := float64(i%5) / 4 // in float32, too
		if err := enc.Encode(map[string]any{"q": j.words[i], "p": j.words[100+i], "n": j.words[50+i], "s": []float64{1 + margin, 1}, "m": margin}); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var losses []map[int]float64
	for i, c := range []struct {
		named string
		ranks int
	}{{"scores: s", 1}, {"label: m", 1}, {"label: m", 2}} {
		o, err := j.run(t, fmt.Sprint(i), nil, 0, false, fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, negatives: [n], %s}]", f.Name(), c.named), "model.kind=reranker", "loss=margin_mse",
			"batch.accumulate=1", "model.dropout=0", "train.epochs=1", fmt.Sprint("mesh.replicate=", c.ranks))
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, o.losses)
	}
	for step, want := range losses[0] {
		one, two := losses[1][step], losses[2][step]
		if one != want || !(math.Abs(two-want) <= 1e-4*want) || want == 0 {
			t.Errorf("step %d: %v of scores, %v of their differences, %v on two ranks", step, want, one, two)
		}
	}
}
