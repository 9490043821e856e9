package recipe

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/testdata/harness"
)

// inBatch are the settings of a reranker with documents of other rows.
func (j *job) inBatch(loss string, sets ...string) []string {
	return append([]string{"model.kind=reranker", "loss=" + loss, "optimizer.lr=3e-3", "train.max_steps=4", "eval.every=0", "batch.accumulate=2", "batch.global_size=9"}, sets...)
}

// Rows get the same documents of other rows whatever goes through the model at once and however many ranks there are: losses are those of one rank in one pass,
// dropout and all. A run that was stopped ends with the bits of one that was not. With hard negatives and without, on pairs, on lists, and with LoRA.
func TestInBatchWays(t *testing.T) {
	j := newJob(t, 40)
	rows, _ := j.heldRows(t, "rows.jsonl", 40)
	ways := [][]string{
		{"mesh.replicate=1", "batch.sub_batch={rows: 100000}", "batch.replay_budget=1GiB"},
		{"mesh.replicate=5", "batch.sub_batch={rows: 3}", "batch.replay_budget=0", "model.activation_checkpointing=true"},
		{"mesh={replicate: 1, shard: 3, parameters: streamed, gradients: early}", "batch.sub_batch={tokens: 60}"},
	}
	for what, sets := range map[string][]string{
		"pairs":          j.inBatch("mnrl"),
		"hard negatives": j.inBatch("{name: mnrl, num_negatives: 3, scale: 2}", fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, negatives: [n], negatives_per_query: all, weight: w}]", rows)),
		"all, with lora": j.inBatch("{name: mnrl, num_negatives: all, activation: identity, scale: 1}", "model.lora={rank: 2, alpha: 4, targets: all-linear}", "batch.accumulate=1"),
	} {
		if testing.Short() && what != "pairs" {
			continue
		}
		var first outcome
		for k, way := range ways {
			o, err := j.run(t, fmt.Sprint("way ", k), nil, 0, false, append(slices.Clone(sets), way...)...)
			if err != nil {
				t.Fatalf("%s, %v: %v", what, way, err)
			}
			if k == 0 {
				first = o
				continue
			}
			if len(o.losses) != 4 || first.losses[0] < 0.1 {
				t.Fatalf("%s: losses are %v", what, o.losses)
			}
			for step, want := range first.losses {
				if got := o.losses[step]; !(math.Abs(got-want) <= 2e-5*want) { // as of random recipes
					t.Errorf("%s, %v: step %d has loss %v, %v on one rank in one pass", what, way, step, got, want)
				}
			}
		}
		for _, resume := range []bool{false, true} {
			stop := 2
			if resume {
				stop = 0
			}
			if _, err := j.run(t, what+", stopped", nil, stop, resume, append(slices.Clone(sets), ways[1]...)...); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		if !bytes.Equal(j.saved(t, what+", stopped", "*.safetensors"), j.saved(t, "way 1", "*.safetensors")) {
			t.Errorf("%s: the weights differ from those of a run that was not stopped", what)
		}
	}
}

// What a program's WithRow makes of a row's documents is what other rows get of them: losses are those of data that was so from the beginning, on any number of
// ranks.
func TestInBatchOwnRows(t *testing.T) {
	j := newJob(t, 30)
	raw, err := os.ReadFile(filepath.Join(j.dir, "data.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	marked := filepath.Join(j.dir, "marked.jsonl")
	if err := os.WriteFile(marked, bytes.ReplaceAll(raw, []byte(`"p":"`), []byte(`"p":"`+j.words[7]+" ")), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(sets ...string) map[int]float64 {
		t.Helper()
		return must(j.run(t, "run", nil, 0, false, j.inBatch("mnrl", append(sets, "batch.accumulate=1")...)...))(t).losses
	}
	plain, want := run(), run(fmt.Sprintf("data.train.0.path=%q", marked))
	j.opts = []TrainOption{WithRow(func(e *dataset.Example) error { e.Texts[1] = j.words[7] + " " + e.Texts[1]; return nil })}
	one, two := run(), run("mesh.replicate=2")
	for step, loss := range want {
		if one[step] != loss || !(math.Abs(two[step]-loss) <= 2e-5*loss) || plain[step] == loss || len(want) != 4 {
			t.Errorf("step %d: %v, on two ranks %v, want %v; of rows as they are %v", step, one[step], two[step], loss, plain[step])
		}
	}
}

// Gradients are verified in every way, and faults are found. What is drawn stays what it is: a fault in which documents a row gets is none of gradients.
func TestInBatchVerified(t *testing.T) {
	harness.Thorough(t)
	j := newJob(t, 60)
	r, err := Parse("job", []byte(j.text), j.inBatch("{name: mnrl, num_negatives: 2}", "save.dir="+filepath.Join(j.dir, "verify")))
	if err != nil {
		t.Fatal(err)
	}
	x, err := Open(t.Context(), r, Observer{})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for _, fault := range []Fault{"", FaultFactor, FaultDropout, FaultSync} {
		o := DefaultVerify()
		o.Accumulate, o.SubBatches, o.Rows, o.Plant, o.Replicas = []int{2}, []int{5}, 4, fault, []int{1, 2}
		rows := ""
		o.Report = func(r VerifyRow) { rows += fmt.Sprintf("%+v\n", r) }
		if ok, err := x.Verify(t.Context(), o); err != nil || ok != (fault == "") || fault == "" && !strings.Contains(rows, "finite difference") {
			t.Errorf("fault %q: ok is %t, %v\n%s", fault, ok, err, rows)
		}
	}
}

// What can't be is known before the first step, by the key, and what is odd is told.
func TestInBatchErrors(t *testing.T) {
	j := newJob(t, 28)
	data := filepath.Join(j.dir, "data.jsonl")
	notes := ""
	open := func(sets ...string) (described string, err error) {
		t.Helper()
		r, err := Parse("job", []byte(j.text), append(sets, "save.dir="+filepath.Join(j.dir, "errors")))
		if err != nil {
			return "", err
		}
		if again, err := r.Resolve(); err != nil || fmt.Sprintf("%+v", again.Loss) != fmt.Sprintf("%+v", r.Loss) {
			t.Errorf("%+v becomes %+v: %v", r.Loss, again.Loss, err)
		}
		text, err := r.YAML()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Parse("again", text, nil); err != nil || fmt.Sprintf("%+v", again.Loss) != fmt.Sprintf("%+v", r.Loss) {
			t.Errorf("%+v is written as %+v: %v", r.Loss, again.Loss, err)
		}
		notes = ""
		x, err := Open(t.Context(), r, Observer{Note: func(n string) { notes += n + "\n" }})
		if err != nil {
			return "", err
		}
		defer x.Close()
		return x.Describe(), nil
	}
	for want, sets := range map[string][]string{
		"batch.global_size: is 1, and loss.name: mnrl takes documents of other rows of a batch":                                                                      j.inBatch("mnrl", "batch.global_size=1"),
		"loss.num_negatives: is 9, and in a batch of 9 rows (batch.global_size) of data.train[0] the others have 8 documents: want at most that many, or all":        j.inBatch("{name: mnrl, num_negatives: 9}"),
		"data.train[0].loss.num_negatives: is 17, and in a batch of 9 rows (batch.global_size) of data.train[0] the others have 16 documents":                        j.inBatch("bce", fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, negatives: [q], loss: {name: mnrl, num_negatives: 17}}]", data)),
		"loss.num_negatives: is 0, want a number of negatives, or all":                                                                                               j.inBatch("{name: mnrl, num_negatives: 0}"),
		"loss.scale: is 0, want a positive number":                                                                                                                   j.inBatch("{name: mnrl, scale: 0}"),
		`loss.activation: is "tanh", want one of identity, sigmoid`:                                                                                                  j.inBatch("{name: mnrl, activation: tanh}"),
		"loss.num_negatives: is for mnrl; the options of cross_entropy are name, self_distill":                                                                       j.inBatch("{name: cross_entropy, num_negatives: 3}", "data.train.0.negatives=[q]"),
		"loss.directions: is for embedders' mnrl; the options of mnrl are name, num_negatives, scale, activation":                                                    j.inBatch("{name: mnrl, directions: [query_to_doc]}"),
		"loss.num_negatives: is for rerankers' mnrl":                                                                                                                 {"loss={name: mnrl, num_negatives: 3}"},
		"loss[0].name: mnrl is no term of a sum, whose losses have the same documents":                                                                               j.inBatch("[mnrl, cross_entropy]", "data.train.0.negatives=[q]"),
		"data.train[0].label: is not for loss.name: mnrl, to which a row's documents are right and other rows' are not: for pairs with labels there are bce and mse": j.inBatch("mnrl", "data.train.0.label=l"),
		"eval.loss.label: is not for loss.name: mnrl":                                                                                                                j.inBatch("mnrl", fmt.Sprintf("eval.loss={path: %q, query: q, positive: p, label: l}", data)),
	} {
		if _, err := open(sets...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for _, c := range []struct {
		loss, described, note string
		more                  []string
	}{
		{"mnrl", "28 rows, 2 texts each and 4 of other rows", "data.train[0]: the last of 28 rows is alone in its batch (batch.global_size is 9), without documents of others, and teaches nothing; batch.drop_last: true leaves it out", nil},
		{"{name: mnrl, num_negatives: all}", "28 rows, 2 texts each and 8 of other rows", "", []string{"batch.drop_last=true"}},
		{"{name: mnrl, num_negatives: 16}", "28 rows, 3 texts each and 16 of other rows", "", []string{"data.train.0.negatives=[q]"}},
		{"{name: mnrl}", "28 rows, 2 texts each and 4 of other rows", "eval.loss: the last of 28 rows is alone in its batch", []string{fmt.Sprintf("eval.loss={path: %q, query: q, positive: p}", data)}},
	} {
		got, err := open(j.inBatch(c.loss, c.more...)...)
		if err != nil || !strings.Contains(got, c.described) || !strings.Contains(notes, c.note) || c.note == "" && strings.Contains(notes, "alone") {
			t.Errorf("%s: %v\n%s\n%s", c.loss, err, got, notes)
		}
	}
	o, err := j.run(t, "few", nil, 0, false, j.inBatch("mnrl", "batch.accumulate=1", "train.max_steps=0", "train.epochs=1")...)
	if err != nil || o.losses[3] != 0 || !(o.losses[0] > 0.1) { // the row that is alone
		t.Errorf("%v, %v", o.losses, err)
	}
}
