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
	t.Parallel()
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
	t.Parallel()
	harness.Thorough(t)
	j := newJob(t, 60)
	x := j.opened(t, j.inBatch("{name: mnrl, num_negatives: 2}", "save.dir="+filepath.Join(j.dir, "verify")))
	o := DefaultVerify()
	o.Plant = FaultRemote
	if _, err := x.Verify(t.Context(), o); err == nil || !strings.Contains(err.Error(), "nothing comes back from other ranks") {
		t.Error(err)
	}
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
	row, list := filepath.Join(j.dir, "row.jsonl"), filepath.Join(j.dir, "list.jsonl")
	for path, text := range map[string]string{row: `{"q": "a", "p": "b"}`, list: `{"q": "a", "ds": ["b"]}`} {
		if path == list {
			text = strings.Repeat(text+"\n", 10)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lists := fmt.Sprintf("{path: %q, query: q, documents: ds}", list)
	hard := fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, negatives: [q], loss: {name: mnrl, num_negatives: 17}}]", data)
	for want, sets := range map[string][]string{
		"data.train[0]: there is one row, and loss.name: mnrl tells a row's document from those of others":                                                           j.inBatch("mnrl", fmt.Sprintf("data.train.0.path=%q", row)),
		"eval.loss: there is one row, and loss.name: mnrl compares a row with others":                                                                                j.inBatch("mnrl", fmt.Sprintf("eval.loss={path: %q, query: q, positive: p}", row)),
		"loss[0].weight: is 2, and mnrl is no term of a sum":                                                                                                         j.inBatch("[{name: mnrl, weight: 2}]"),
		"batch.global_size: is 1, and loss.name: mnrl takes documents of other rows of a batch":                                                                      j.inBatch("mnrl", "batch.global_size=1"),
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
		{"mnrl", "28 rows, a query and 1 document each and 4 of other rows", "data.train[0]: the last of 28 rows is alone in its batch (batch.global_size is 9), without documents of others, and teaches nothing; batch.drop_last: true leaves it out", nil},
		{"[mnrl]", "28 rows, a query and 1 document each and 4 of other rows", "the last of 28 rows is alone", nil}, // a list of one
		{"{name: mnrl, num_negatives: 9}", "28 rows, a query and 1 document each and 8 of other rows", "loss.num_negatives: is 9, and the other rows of a batch of data.train[0] have 8 documents (batch.global_size is 9): a row gets all of them", nil},
		{"mnrl", "28 rows, a query and 1 document each and 3 of other rows", "loss.num_negatives: is 4, and the other rows of a batch of data.train[0] have 3 documents (batch.global_size is 4)", []string{"batch.global_size=4"}},
		{"bce", "28 rows, a query and 2 documents each and 16 of other rows", "data.train[0].loss.num_negatives: is 17, and the other rows of a batch of data.train[0] have 16 documents", []string{hard}},
		{"mnrl", "10 rows, a query and 1 document each and 4 of other rows", "data.train[0]: the last of 10 rows is alone", []string{"data.train=[" + lists + "]"}},
		{"mnrl", "28 rows, a query and 1 document each and 4 of other rows", "eval.loss: the last of 10 rows is alone", []string{"eval.loss=" + lists}},
		{"{name: mnrl, num_negatives: 9}", "10 rows, a query and 1 document each and 8 of other rows", "", []string{"batch.drop_last=true", "data.train=[" + lists + "]"}}, // what lists have is not known
		{"{name: mnrl, num_negatives: all}", "28 rows, a query and 1 document each and 8 of other rows", "", []string{"batch.drop_last=true"}},
		{"{name: mnrl, num_negatives: 16}", "28 rows, a query and 2 documents each and 16 of other rows", "", []string{"data.train.0.negatives=[q]"}},
		{"{name: mnrl}", "28 rows, a query and 1 document each and 4 of other rows", "eval.loss: the last of 28 rows is alone in its batch", []string{fmt.Sprintf("eval.loss={path: %q, query: q, positive: p}", data)}},
	} {
		got, err := open(j.inBatch(c.loss, c.more...)...)
		if err != nil || !strings.Contains(got, c.described) || !strings.Contains(notes, c.note) || c.note == "" && (strings.Contains(notes, "alone") || strings.Contains(notes, "gets all")) {
			t.Errorf("%s: %v\n%s\n%s", c.loss, err, got, notes)
		}
	}
	// A row that can't be used is none of those that are counted.
	skipped := filepath.Join(j.dir, "skipped.jsonl")
	raw, err := os.ReadFile(data)
	if err == nil {
		err = os.WriteFile(skipped, append([]byte(`{"q": "a", "p": ""}`+"\n"), raw...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(j.inBatch("mnrl", fmt.Sprintf("data.train.0.path=%q", skipped), "data.on_error=skip")...); err != nil || !strings.Contains(notes, "data.train[0]: the last of 28 rows is alone") {
		t.Errorf("%v\n%s", err, notes)
	}
	o, err := j.run(t, "few", nil, 0, false, j.inBatch("mnrl", "batch.accumulate=1", "train.max_steps=0", "train.epochs=1")...)
	if err != nil || o.losses[3] != 0 || !(o.losses[0] > 0.1) { // the row that is alone
		t.Errorf("%v, %v", o.losses, err)
	}
}

// Memory is predicted for a row's own texts and those that it gets, of which there are no more than its batch has: it is that of rows with as many negatives of
// their own.
func TestInBatchMemory(t *testing.T) {
	j := newJob(t, 28)
	rows, _ := j.heldRows(t, "rows.jsonl", 28)
	predict := func(loss string, more ...string) (int, int64) {
		t.Helper()
		x := j.opened(t, j.inBatch(loss, append(more, "save.dir="+filepath.Join(j.dir, "memory"))...))
		return x.columns(), x.Memory.Total()
	}
	columns, own := predict("cross_entropy", fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, negatives: [n], negatives_per_query: 3}]", rows))
	pairs := fmt.Sprintf("data.train=[{path: %q, query: q, positive: p}]", rows)
	if n, drawn := predict("{name: mnrl, num_negatives: 3}", pairs); n != columns || drawn != own {
		t.Errorf("%d texts a row and %d bytes for documents of others, %d and %d for a row's own", n, drawn, columns, own)
	}
	all, most := predict("{name: mnrl, num_negatives: all}", pairs)
	if n, bytes := predict("{name: mnrl, num_negatives: 5000}", pairs); all != 10 || n != all || bytes != most || most <= own {
		t.Errorf("5000 of others take %d texts a row and %d bytes, all %d and %d", n, bytes, all, most)
	}
}

// Rows that find too few documents in their batch are counted, on all ranks, and told of in the end; so are those that learn nothing, where the loss is 0.
func TestInBatchCounted(t *testing.T) {
	j := newJob(t, 20)
	path := filepath.Join(j.dir, "same.jsonl")
	if err := os.WriteFile(path, []byte(strings.Repeat(`{"q": "a", "p": "b"}`+"\n", 20)), 0o600); err != nil {
		t.Fatal(err)
	}
	sets := []string{"batch.accumulate=1", "train.max_steps=0", "train.epochs=1", "batch.drop_last=true"}
	for _, c := range []struct {
		more        []string
		fewer, bare int
		text        string
	}{
		{[]string{fmt.Sprintf("data.train.0.path=%q", path)}, 18, 18, "18 of 18 rows found fewer documents of others in their batch than num_negatives asks for, texts that are the same being one\n18 of 18 rows had no document but their own, and taught nothing\n"},
		{[]string{fmt.Sprintf("data.train.0.path=%q", path), "mesh.replicate=2"}, 18, 18, "18 of 18 rows had no document but their own"},
		{[]string{"loss.num_negatives=9", "mesh.replicate=2"}, 18, 0, "18 of 18 rows found fewer"},
		{nil, 0, 0, ""},
	} {
		o, err := j.run(t, "counted", nil, 0, false, j.inBatch("{name: mnrl}", append(slices.Clone(sets), c.more...)...)...)
		if err != nil {
			t.Fatal(err)
		}
		text := o.summary.String()
		if s := o.summary; s.Fewer != c.fewer || s.Bare != c.bare || !strings.Contains(text, c.text) || c.text == "" && strings.Contains(text, "num_negatives") || c.bare > 0 && (o.losses[0] != 0 || o.losses[1] != 0) {
			t.Errorf("%v: %d and %d rows, losses %v\n%s", c.more, s.Fewer, s.Bare, o.losses, text)
		}
	}
}
