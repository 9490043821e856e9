package recipe

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/io/checkpoint"
	"contraflow/stages/loss"
)

// A run that does not fit is refused, with settings with which it does: without kept activations, in smaller sub-batches, or with a
// smaller batch.
func TestFits(t *testing.T) {
	j := newJob(t, 64)
	open := func(sets ...string) *Run {
		t.Helper()
		return j.opened(t, append([]string{"model.kind=m3", "model.vector_dim=64", "batch.global_size=32", "save.dir=" + filepath.Join(j.dir, "run")}, sets...))
	}
	x := open()
	full := x.Memory.Total() - x.Memory.Parameters
	if err := x.fits(full); err != nil {
		t.Error(err)
	}
	seen := map[string]bool{}
	for percent := int64(99); percent > 4; percent -= 5 {
		free := full * percent / 100
		err := x.fits(free)
		if err == nil || !strings.Contains(err.Error(), "of the embeddings are tokens'") {
			t.Fatalf("%d of %d bytes: %v", free, full, err)
		}
		_, advice, ok := strings.Cut(err.Error(), "; it fits with ")
		if !ok {
			continue
		}
		var sets []string
		for _, s := range strings.Split(advice, " and ") {
			key, value, _ := strings.Cut(s, ": ")
			sets, seen[key] = append(sets, key+"="+value), true
		}
		if m := open(sets...).Memory; m.check(free, m.Parameters) != nil {
			t.Errorf("%d of %d bytes, with %q: it takes %v", free, full, sets, m)
		}
	}
	if !seen["batch.cache"] || !seen["batch.global_size"] {
		t.Errorf("of all settings %v were advised", seen)
	}
	if err := x.fits(1 << 10); err == nil || !strings.HasSuffix(err.Error(), "it would not fit with the smallest batch either") {
		t.Error(err)
	}
}

// Who trains only the embedding of a model with three parts is told that the other two are lost.
func TestPartsLost(t *testing.T) {
	j := newJob(t, 40)
	if _, err := j.run(t, "m3", checkpoint.Disk{}, 0, false, "model.kind=m3", "train.max_steps=1"); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"embedder", "m3"} {
		o, err := j.run(t, kind+" of m3", checkpoint.Disk{}, 0, false, "model.kind="+kind, "model.path="+filepath.Join(j.dir, "m3", "model"), "train.max_steps=1")
		if err != nil {
			t.Fatal(err)
		}
		if said := strings.Contains(strings.Join(o.notes, "\n"), "gives lexical weights and tokens' vectors besides"); said != (kind == "embedder") {
			t.Errorf("%s: notes %q", kind, o.notes)
		}
	}
}

// An m3 is measured by the parts that its loss trains, which is said, unless the recipe names others.
func TestPartsLearned(t *testing.T) {
	j := newJob(t, 40)
	task := fmt.Sprintf("eval.triplets={path: %q, query: q, positive: p, negative: q}", filepath.Join(j.dir, "data.jsonl"))
	for _, c := range []struct {
		sets []string
		want map[string]float64
		note string
	}{
		{nil, loss.Fusion, ""},
		{[]string{"loss.parts=[multi_vector, sparse, dense]"}, loss.Fusion, ""},
		{[]string{"loss.parts=[sparse]"}, map[string]float64{loss.SparsePart: 1}, "by sparse, which loss.parts trains, as contraflow eval --part sparse does"},
		{[]string{"loss.parts=[multi_vector, sparse]"}, map[string]float64{loss.SparsePart: 0.3, loss.VectorsPart: 1}, "by sparse and multi_vector, which loss.parts trains, as contraflow eval --weights 0,0.3,1 does"},
		{[]string{"loss.parts=[dense]", "eval.part=fused"}, loss.Fusion, ""},
		{[]string{"loss.parts=[dense]", "eval.part=multi_vector"}, map[string]float64{loss.VectorsPart: 1}, ""},
		{[]string{"loss.parts=[dense]", "eval.weights=[0, 2, 1]"}, map[string]float64{loss.DensePart: 0, loss.SparsePart: 2, loss.VectorsPart: 1}, ""},
	} {
		var notes []string
		r, err := Parse("job", []byte(j.text), append([]string{"model.kind=m3", "model.vector_dim=8", "save.dir=" + filepath.Join(j.dir, "run"), task}, c.sets...))
		if err != nil {
			t.Fatal(err)
		}
		x, err := Open(t.Context(), r, Observer{Note: func(m string) { notes = append(notes, m) }})
		if err != nil {
			t.Fatal(err)
		}
		said := strings.Join(notes, "\n")
		if got := x.evalText(&x.tasks[0]).Fusion; !maps.Equal(got, c.want) || strings.Contains(said, "evaluation compares texts") != (c.note != "") || !strings.Contains(said, c.note) {
			t.Errorf("%q: %v and %q, want %v and %q", c.sets, got, said, c.want, c.note)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}
