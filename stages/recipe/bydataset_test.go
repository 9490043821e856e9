package recipe

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"contraflow/stages/loss"
	"contraflow/testdata/harness"
)

// ownLosses is a recipe of two datasets, the second with a loss of its own.
func ownLosses(base, columns, own string) string {
	return strings.Replace(minimal, "positive: p", "positive: p}\n    - {path: b.parquet, query: q, positive: p"+columns+", loss: "+own, 1) + base
}

func TestDatasetLosses(t *testing.T) {
	mnrl := loss.InfoNCE{Scale: 20, Directions: []loss.Direction{loss.QueryToDoc}, MaskDuplicates: true}
	for _, c := range []struct {
		base, columns, own string
		want               loss.RowSplitter
	}{
		{"", ", label: l", "cosent", loss.ByDataset{mnrl, loss.CoSENT{Scale: 20, Metric: loss.Cosine}}},
		{"loss: {scale: 30}", ", label: l", "{name: cosent, temperature: 0.1}", loss.ByDataset{
			loss.InfoNCE{Scale: 30, Directions: mnrl.Directions, MaskDuplicates: true}, loss.CoSENT{Scale: 10, Metric: loss.Cosine},
		}},
		{"loss: infonce", "", "{scale: 50, mask_duplicates: false}", loss.ByDataset{mnrl, loss.InfoNCE{Scale: 50, Directions: mnrl.Directions}}},
	} {
		r, err := Parse("r.yaml", []byte(ownLosses(c.base, c.columns, c.own)), nil)
		if err != nil {
			t.Errorf("%s: %v", c.own, err)
			continue
		}
		if got := r.objective(driving{}); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.own, got, c.want)
		}
		again, err := r.YAML()
		if err != nil {
			t.Fatal(err)
		}
		if s, err := Parse("again.yaml", again, nil); err != nil || !reflect.DeepEqual(s.objective(driving{}), c.want) {
			t.Errorf("%s, written and read again: %v\n%s", c.own, err, again)
		}
	}
	for _, c := range []struct{ base, columns, own, want string }{
		{"", "", "cosnet", "data.train[1].loss.name: is \"cosnet\", want one of"},
		{"", "", "cosent", "data.train[1].label: is missing: data.train[1].loss.name: cosent needs"},
		{"", ", label: l", "{name: cosent, margin: 1}", "data.train[1].loss.margin: is for"},
		{"", "", "{scale: -1}", "data.train[1].loss.scale: is -1"},
		{"", "", "{scale: 20, temperature: 0.05}", "data.train[1].loss.temperature: and data.train[1].loss.scale are one thing"},
		{"", "", "{gather_across_devices: false}", "data.train[1].loss.gather_across_devices: is the same for all datasets"},
		{"", "", "{name: gist, guide: g}", "data.train[1].loss: gist's guide reads all datasets"},
		{"", "", "{matryoshka: {dims: [0]}}", "data.train[1].loss.matryoshka: 0 dimensions"},
		{"loss: {name: cosent}", "", "mnrl", "data.train[0].label: is missing: loss.name: cosent needs"},
	} {
		_, err := Parse("r.yaml", []byte(ownLosses(c.base, c.columns, c.own)), nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v\nwant %s alone", c.own, err, c.want)
		}
	}
	for _, c := range []struct{ sets, want string }{
		{"model.kind=m3", "data.train[1].loss: is not for model.kind: m3"},
		{"model.kind=reranker", "data.train[0].negatives: are missing: loss.name: cross_entropy"},
	} {
		if _, err := Parse("r.yaml", []byte(ownLosses("", "", "mnrl")), []string{c.sets}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.sets, err, c.want)
		}
	}
}

// A batch has the loss of its dataset: with a model that stays as it is, what a run of that dataset alone has. And the gradients of both are
// those of their losses.
func TestDatasetLossesTrain(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	j := newJob(t, 40)
	dataset := func(own string) string {
		return fmt.Sprintf("{path: %q, query: q, positive: '{q} {p}', negatives: [p]%s}", j.dir+"/data.jsonl", own)
	}
	first, second := dataset(", loss: {scale: 7}"), dataset(", loss: {name: triplet, margin: 3}")
	still := []string{"optimizer.lr=1e-30", "data.shuffle=false", "model.dropout=0", "batch.no_duplicates=false", "data.mixing=round_robin", "train.epochs=1", "batch.accumulate=1"}
	losses := func(out string, datasets ...string) map[int]float64 {
		t.Helper()
		o, err := j.run(t, out, nil, 0, false, append([]string{"data.train=[" + strings.Join(datasets, ", ") + "]"}, still...)...)
		if err != nil {
			t.Fatal(err)
		}
		return o.losses
	}
	alone := []map[int]float64{losses("first", first), losses("second", second)}
	both := losses("both", first, second)
	if len(alone[0]) < 3 || len(both) != 2*len(alone[0]) {
		t.Fatalf("%d steps alone, %d together", len(alone[0]), len(both))
	}
	for step, got := range both {
		if want := alone[step%2][step/2]; !(math.Abs(got-want) <= 1e-6*want) {
			t.Errorf("step %d has loss %v, alone %v", step, got, want)
		}
	}
	// A step of several batches says the loss of each dataset, on several ranks too.
	alike := still[: len(still)-1 : len(still)-1]
	for out, mesh := range map[string]string{"accumulated": "mesh.replicate=1", "replicas": "mesh.replicate=3"} {
		still = append(alike, mesh, "batch.accumulate=2")
		losses(out, first, second)
		for step, line := range j.lines(t, out) {
			got, _ := line["losses"].(map[string]any)
			for k := range alone {
				if v, _ := got[fmt.Sprint(k)].(float64); !(math.Abs(v-alone[k][step]) <= 1e-6*alone[k][step]) {
					t.Errorf("%s, step %d: losses %v, alone %v and %v", mesh, step, got, alone[0][step], alone[1][step])
				}
			}
		}
	}

	// Several batches of one dataset, the last of which is small, count by their rows, as they do where the dataset is alone.
	still = append(alike, "data.mixing=proportional", "batch.global_size=12", "batch.drop_last=false", "batch.accumulate=4")
	alone = []map[int]float64{losses("one step of the first", first), losses("one step of the second", second)}
	still = append(still, "batch.accumulate=8")
	losses("one step", first, second)
	lines := j.lines(t, "one step")
	if len(lines) != 1 || len(alone[0]) != 1 {
		t.Fatalf("%d steps alone, %d together", len(alone[0]), len(lines))
	}
	got, _ := lines[0]["losses"].(map[string]any)
	for k := range alone {
		if v, _ := got[fmt.Sprint(k)].(float64); !(math.Abs(v-alone[k][0]) <= 1e-6*alone[k][0]) {
			t.Errorf("losses %v, alone %v and %v", got, alone[0][0], alone[1][0])
		}
	}

	x := j.opened(t, append(alike, "data.train=["+first+", "+second+"]", "save.dir="+j.dir+"/verified"))
	o := DefaultVerify()
	o.Rows, o.SubBatches, o.Accumulate = 6, []int{5}, []int{1, 2}
	of := map[string]bool{}
	o.Report = func(row VerifyRow) {
		of[row.Config[:strings.Index(row.Config, "accumulate")]] = true
		if !row.OK {
			t.Errorf("%+v", row)
		}
	}
	if ok, err := x.Verify(t.Context(), o); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if want := map[string]bool{"data.train[0], ": true, "data.train[1], ": true, "data.train[0], data.train[1], ": true}; !reflect.DeepEqual(of, want) {
		t.Errorf("verified %v", of)
	}
}

// A program gives a dataset a loss with all options, of which the recipe's loss says one for all: that it agrees is no mistake.
func TestOwnLossOfAProgram(t *testing.T) {
	r, err := Parse("r.yaml", []byte("model: {path: m}\ndata: {train: [{path: x.jsonl, query: q, positive: p}]}\nsave: {dir: out}\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, gather := range []bool{true, false} {
		own := defaultLoss()
		own.GatherAcrossDevices = gather
		r.Data.Train[0].Loss = &own
		r.Eval.Loss = []HeldOut{{Path: []string{"dev.jsonl"}, Query: "q", Positive: "p", Loss: &own}}
		if _, err := r.Resolve(); (err == nil) != gather || err != nil && !strings.Contains(err.Error(), "gather_across_devices") {
			t.Errorf("gather_across_devices %t: %v", gather, err)
		}
	}
}
