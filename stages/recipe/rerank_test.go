package recipe

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/stages/newmodel"
	"contraflow/testdata/harness"
)

// family makes a new model of another family than BERT's.
func (j *job) family(t *testing.T, name string, edit map[string]any) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("../../testdata/golden/families", name, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(raw, &config); err != nil {
		t.Fatal(err)
	}
	maps.Copy(config, edit)
	if raw, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(j.dir, fmt.Sprint(config["model_type"]))
	if err := newmodel.Create(t.Context(), dir, newmodel.Spec{Config: raw, MaxLength: 32, Vocab: 300, Lowercase: true}, newmodel.Texts(j.words)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A new model of any family that rerankers are made of trains as one, is saved, and is read again.
func TestRerankerFamilies(t *testing.T) {
	t.Parallel()
	j := newJob(t, 30)
	train := func(model string, sets ...string) error {
		_, err := j.run(t, "run "+filepath.Base(model), nil, 0, false, append([]string{
			"model.kind=reranker", "model.path=" + model, "train.max_steps=2", fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, negatives: [q]}]", filepath.Join(j.dir, "data.jsonl")),
		}, sets...)...)
		return err
	}
	families := []string{"ministral", "electra", "ernie", "gemma", "jina", "jina-v2", "roberta", "deberta-v2", "distilbert", "gemma2", "gemma3", "gte", "llama", "mistral", "modernbert", "mpnet", "qwen2", "qwen3"}
	if testing.Short() {
		families = families[:2]
	}
	for _, name := range families {
		model := j.family(t, name, nil)
		if err := train(model); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := train(filepath.Join(j.dir, "run "+filepath.Base(model), "model"), "mesh.replicate=2"); err != nil {
			t.Errorf("%s, trained on: %v", name, err)
		}
	}

	// What can't be is known before the first step.
	for name, want := range map[string]string{"eurobert": "reranker of", "nomic-bert": "reranker of", "t5": "reranker of"} {
		if err := train(j.family(t, name, nil)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "stage") {
			t.Errorf("%s: %v", name, err)
		}
	}
	typed := j.family(t, "roberta", map[string]any{"model_type": "xlm-roberta"})
	file := filepath.Join(typed, "tokenizer_config.json")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(raw), "model_input_names", "other_names", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := train(typed); err == nil || !strings.Contains(err.Error(), "its tokenizer gives a document's tokens type 1, and the model has 1") {
		t.Errorf("a tokenizer with types, and a model without: %v", err)
	}
}

// A row whose score as a label a loss can't take is named where it stands, in whichever dataset.
func TestLabelLocated(t *testing.T) {
	j := newJob(t, 20)
	other := filepath.Join(j.dir, "other.jsonl")
	if err := os.WriteFile(other, []byte(strings.Repeat(`{"q": "one", "p": "two", "l": 1}`+"\n", 6)+`{"q": "three", "p": "four", "l": 2}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sets := []string{"model.kind=reranker", "loss.name=bce", "batch.global_size=3", "batch.drop_last=true", "data.mixing=round_robin",
		fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, negatives: [q]}, {path: %q, query: q, positive: p, scores: [l]}]", filepath.Join(j.dir, "data.jsonl"), other)}
	if o, err := j.run(t, "skips", nil, 0, false, append(slices.Clip(sets), "data.on_error=skip")...); err != nil || o.summary.Skipped != 1 {
		t.Errorf("skipped: %v, %+v", err, o.summary)
	}
	for _, replicate := range []int{1, 2} {
		_, err := j.run(t, "run", nil, 0, false, append(slices.Clip(sets), "batch.global_size=7", fmt.Sprint("mesh.replicate=", replicate))...)
		if err == nil || !strings.Contains(err.Error(), `other.jsonl:7, column "l": the score is 2: bce takes labels from 0 to 1; `) {
			t.Errorf("%d ranks: %v", replicate, err)
		}
	}
}

// A pair whose query leaves nothing of the document is named where it stands, with the ways out; a run that it has ended goes on by one of them.
func TestPairTooLong(t *testing.T) {
	harness.Thorough(t)
	j := newJob(t, 20)
	path := filepath.Join(j.dir, "pairs.jsonl")
	row := `{"q": "` + j.words[0] + `", "p": "` + j.words[1] + `", "n": "` + j.words[2] + `"}` + "\n"
	long := `{"q": "` + strings.Repeat(j.words[0]+" ", 40) + `", "p": "` + j.words[1] + `", "n": "` + j.words[2] + `"}` + "\n"
	if err := os.WriteFile(path, []byte(strings.Repeat(row, 40)+long), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, replicate := range []int{1, 2} {
		out := fmt.Sprint("run ", replicate)
		run := func(resume bool, sets ...string) (outcome, error) {
			return j.run(t, out, nil, 0, resume, append([]string{
				"model.kind=reranker", "model.truncation=only_second", "data.shuffle=false", "batch.global_size=4", "batch.accumulate=1", "train.epochs=1",
				fmt.Sprint("mesh.replicate=", replicate), fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, negatives: [n]}]", path),
			}, sets...)...)
		}
		out += ", skips"
		if o, err := run(false, "data.on_error=skip"); err != nil || o.summary.Skipped != 1 || o.summary.Steps != 10 {
			t.Errorf("%d ranks, without the row: %+v, %v", replicate, o.summary, err)
		}
		if list, err := os.ReadFile(filepath.Join(j.dir, out, skippedFile)); err != nil || !strings.HasSuffix(string(list), `truncation longest_first cuts either"}`+"\n") {
			t.Errorf("%d ranks: %v: %s", replicate, err, list)
		}
		out = fmt.Sprint("run ", replicate)
		_, err := run(false)
		for _, want := range []string{`pairs.jsonl:41, column "q": `, "; truncation longest_first cuts either; in the recipe that is model.truncation, which --resume may change; or else a larger model.max_length in another save.dir takes it; ", "checkpoints has step 10, the last one before it: --resume --set data.on_error=skip goes on from there"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%d ranks: %v, want %q", replicate, err, want)
			}
		}
		if o, err := run(true, "model.truncation=longest_first"); err != nil || o.summary.from != 10 || o.summary.Steps != 11 {
			t.Errorf("%d ranks, resumed: %+v, %v", replicate, o.summary, err)
		}
	}
}

// That pairs are not put into a chat template is said before training too.
func TestNoteTemplate(t *testing.T) {
	j := newJob(t, 10)
	chatty := j.family(t, "qwen3", nil)
	if err := errors.Join(os.Remove(filepath.Join(chatty, "modules.json")), os.WriteFile(filepath.Join(chatty, "chat_template.jinja"), []byte("{{ x }}"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[string]int{"reranker": 1, "embedder": 0} {
		o, err := j.run(t, kind, nil, 0, false, "model.path="+chatty, "model.kind="+kind, "train.max_steps=1", "batch.global_size=4", "batch.accumulate=1",
			fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, negatives: [q]}]", filepath.Join(j.dir, "data.jsonl")))
		if err != nil {
			t.Fatal(err)
		}
		said := slices.DeleteFunc(o.notes, func(n string) bool { return !strings.HasPrefix(n, "model.template: ") })
		if len(said) != want || want > 0 && !strings.Contains(said[0], "not in the tokenizer's chat template") {
			t.Errorf("%s: %q", kind, said)
		}
	}
}
