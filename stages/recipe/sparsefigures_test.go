package recipe

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"contraflow/gpustage/ref"
	"contraflow/io/checkpoint"
	"contraflow/io/tensorboard"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/loss"
	"contraflow/stages/transformer"
	"contraflow/testdata/goldens"
)

// A step's figures of sparse embeddings are written under their own names, 0 too, to metrics.jsonl and for TensorBoard; those that no batch has are not. That
// all embeddings are 0 is said once.
func TestSparseFigures(t *testing.T) {
	all := loss.Sparsity{QueryFlops: 1, DocumentFlops: 2, QueryActive: 3, DocumentActive: 4, Added: 5}
	all.Batches.QueryFlops, all.Batches.DocumentFlops, all.Batches.QueryActive, all.Batches.DocumentActive = 1, 1, 1, 1
	zero, queries, half, single := loss.Sparsity{Batches: all.Batches}, loss.Sparsity{Added: 5, DocumentFlops: 2, QueryActive: 3}, all, loss.Sparsity{}
	queries.Batches.DocumentFlops, queries.Batches.QueryActive = 1, 1
	half.QueryActive = 0
	single.Batches = queries.Batches
	for name, c := range map[string]struct {
		sparsity *loss.Sparsity
		want     map[string]float64
		zero     bool
	}{
		"dense":              {nil, nil, false},
		"all":                {&all, map[string]float64{"query_active": 3, "document_active": 4, "query_flops": 1, "document_flops": 2, "regularizer": 5}, false},
		"zero":               {&zero, map[string]float64{"query_active": 0, "document_active": 0, "query_flops": 0, "document_flops": 0, "regularizer": 0}, true},
		"queries of 0":       {&half, map[string]float64{"query_active": 0, "document_active": 4, "query_flops": 1, "document_flops": 2, "regularizer": 5}, false},
		"single texts":       {&queries, map[string]float64{"query_active": 3, "document_flops": 2, "regularizer": 5}, false},
		"single texts, zero": {&single, map[string]float64{"query_active": 0, "document_flops": 0, "regularizer": 0}, true},
	} {
		dir := t.TempDir()
		events, err := tensorboard.Create(dir)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		var notes []string
		j := &journal{enc: json.NewEncoder(&out), obs: Observer{Note: func(n string) { notes = append(notes, n) }}, last: time.Now(), totals: new(pipeline.Totals), events: events}
		for step := range 2 {
			r := stages.StepResult{Sparsity: c.sparsity, Loss: 9}
			r.Step = step
			if err := j.step(r, nil, &stages.Encoder{Model: &transformer.Model{Device: ref.New()}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := events.Close(); err != nil {
			t.Fatal(err)
		}
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		raw, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		line, _, _ := strings.Cut(out.String(), "\n")
		got := map[string]any{}
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatal(err)
		}
		for key := range map[string]bool{"query_active": true, "document_active": true, "query_flops": true, "document_flops": true, "regularizer": true} {
			want, ok := c.want[key]
			v, written := got[key]
			if written != ok || ok && v != want {
				t.Errorf("%s: %s is %v, want %v (%t) in %s", name, key, v, want, ok, line)
			}
			if bytes.Contains(raw, []byte("sparse/"+key)) != ok {
				t.Errorf("%s: TensorBoard has sparse/%s: %t, want %t", name, key, !ok, ok)
			}
		}
		if said := strings.Join(notes, "\n"); c.zero != (len(notes) == 1) || c.zero && !(strings.Contains(said, "all embeddings are 0: no text of step 1 ") && strings.Contains(said, "loss.flops or a smaller optimizer.lr")) {
			t.Errorf("%s: notes %q", name, notes)
		}
	}
}

// Of each dataset's loss that has nothing to keep embeddings sparse it is said, with what is missing where.
func TestSparseNotes(t *testing.T) {
	const two = `{model: {path: m, kind: sparse}, data: {train: [{path: d, query: q, positive: p%s}, {path: e, query: q, positive: p%s}]}, loss: %s, save: {dir: r}}`
	const usual = ".flops: {query: 5e-5, document: 3e-5} does"
	for _, c := range []struct {
		first, second, loss string
		want                []string
	}{
		{"", "", "mnrl", []string{"nothing keeps embeddings sparse: loss" + usual}},
		{"", "", "{name: mnrl, flops: {}}", []string{"nothing keeps embeddings sparse, as the weights of loss.flops are 0: loss" + usual}},
		{"", "", "{name: mnrl, flops: {query: 0, document: 0}}", []string{"nothing keeps embeddings sparse, as the weights of loss.flops are 0: loss" + usual}},
		{"", "", "{name: mnrl, flops: {query_threshold: 3}}", []string{"nothing keeps embeddings sparse, as the weights of loss.flops are 0: loss" + usual}},
		{"", "", "{name: mnrl, flops: {schedule: linear}}", []string{"nothing keeps embeddings sparse, as the weights of loss.flops are 0: loss" + usual}},
		{"", "", "{name: mnrl, flops: {document_only: true}}", []string{"nothing keeps embeddings sparse, as the weights of loss.flops are 0: loss.flops: {document: 3e-5, document_only: true} does"}},
		{"", "", "{name: mnrl, flops: {document: 1}}", nil},
		{"", "", "{name: mnrl, flops: {query: 1}}", nil},
		{"", "", "[{name: mnrl}, {name: triplet, flops: {document: 1}}]", nil},
		{"", "", "[{name: mnrl}, {name: triplet, flops: {}}]", []string{"nothing keeps embeddings sparse, as the weights of loss[1].flops are 0: loss[1]" + usual}},
		{"", "", "[{name: mnrl}, {name: triplet}]", []string{"nothing keeps embeddings sparse: loss[0]" + usual}},
		{"", ", loss: mnrl", "{name: mnrl, flops: {document: 1}}", []string{"nothing keeps embeddings of data.train[1] sparse: data.train[1].loss" + usual}},
		{", loss: {name: mnrl, flops: {document: 1}}", "", "mnrl", []string{"nothing keeps embeddings of data.train[1] sparse: loss" + usual}},
		{", loss: triplet", ", loss: {name: mnrl, flops: {}}", "mnrl", []string{
			"nothing keeps embeddings of data.train[0] sparse: data.train[0].loss" + usual,
			"nothing keeps embeddings of data.train[1] sparse, as the weights of data.train[1].loss.flops are 0: data.train[1].loss" + usual}},
	} {
		text := strings.Replace(strings.Replace(strings.Replace(two, "%s", c.first, 1), "%s", c.second, 1), "%s", c.loss, 1)
		if strings.Contains(text, "triplet") {
			text = strings.ReplaceAll(text, "positive: p", "positive: p, negatives: [n]")
		}
		r, err := Parse("r.yaml", []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		var notes []string
		x := &Run{Recipe: r, obs: Observer{Note: func(n string) { notes = append(notes, n) }}}
		x.noteSparse()
		if strings.Join(notes, "\n") != strings.Join(c.want, "\n") {
			t.Errorf("%s: notes %q, want %q", text, notes, c.want)
		}
	}
	for flops, want := range map[string]string{
		"": "nothing keeps embeddings sparse: loss.flops: {document: 3e-5} does", ", flops: {document: 0.01}": "",
		", flops: {query: 0.01}": "nothing keeps embeddings sparse, as loss.flops.document is 0: loss.flops: {document: 3e-5} does",
	} {
		r, err := Parse("r.yaml", []byte(`{model: {path: m, kind: sparse, queries: ones}, data: {train: [{path: d, query: q, positive: p}]}, loss: {name: mnrl`+flops+`}, save: {dir: r}}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		var notes []string
		x := &Run{Recipe: r, obs: Observer{Note: func(n string) { notes = append(notes, n) }}}
		x.config.Queries.There = true
		if x.noteSparse(); strings.Join(notes, "") != want {
			t.Errorf("of queries that are weights%s: %q, want %q", flops, notes, want)
		}
	}
	r, err := Parse("r.yaml", []byte(`{model: {path: m, kind: sparse}, data: {train: [{path: d, query: q, label: l}]}, loss: {name: batch_hard_triplet}, save: {dir: r}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	var note string
	x := &Run{Recipe: r, obs: Observer{Note: func(n string) { note = n }}}
	if x.noteSparse(); note != "nothing keeps embeddings sparse: loss.flops: {document: 3e-5, document_only: true} does" {
		t.Errorf("of single texts: %q", note)
	}
}

// A model for masked language modelling trains with the activation that the recipe names, what is saved says so, and goes on with it without being told
// again. It is compared by inner products, as sparse embeddings are, also where its loss compares by cosine.
func TestSparseFolders(t *testing.T) {
	j := sparseJob(t, 30)
	masked := filepath.Join(j.dir, "masked")
	if err := os.CopyFS(masked, os.DirFS(goldens.Path(t, "splade/encoder"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"modules.json", "1_SpladePooling", "sentence_bert_config.json", "config_sentence_transformers.json"} {
		if err := os.RemoveAll(filepath.Join(masked, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range [][]string{
		{"first", "model.path=" + masked, "model.activation_function=log1p_relu", "loss.similarity=cosine"},
		{"second", "model.path=" + filepath.Join(j.dir, "first", "model")},
		{"third", "model.path=" + filepath.Join(j.dir, "second", "model"), "model.activation_function=log1p_relu"},
	} {
		if _, err := j.run(t, c[0], checkpoint.Disk{}, 0, false, append([]string{"model.kind=sparse", "train.max_steps=1"}, c[1:]...)...); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"1_SpladePooling/config.json": `"activation_function": "log1p_relu"`, "config_sentence_transformers.json": `"similarity_fn_name": "dot"`} {
			if data, err := os.ReadFile(filepath.Join(j.dir, c[0], "model", name)); err != nil || !bytes.Contains(data, []byte(want)) {
				t.Errorf("%s: %s: %v, want %s in\n%s", c[0], name, err, want, data)
			}
		}
	}
}
