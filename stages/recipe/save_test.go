package recipe

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/collective"
	"contraflow/gpustage"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/embedder"
	"contraflow/stages/transformer"
	"contraflow/testdata/goldens"
	"contraflow/testdata/harness"
)

// A model that is saved in a smaller type has the numbers of one that is not, rounded, in all of its files, and says so. What is
// trained does not change by it, and it can be trained on.
func TestSavePrecision(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	j := newJob(t, 40)
	pairs := fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, negatives: [q]}]", j.dir+"/data.jsonl")
	tensors := func(path string) (all []safetensors.Tensor) {
		t.Helper()
		f, err := safetensors.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for _, name := range f.Names() {
			x, err := f.Tensor(name) // of a file that will be closed
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, safetensors.Tensor{Name: x.Name, DType: x.DType, Shape: x.Shape, Data: slices.Clone(x.Data)})
		}
		return all
	}
	for kind, sets := range map[string][]string{
		"embedder": {"train.max_steps=3"},
		"best":     append(j.measured(t), "train.seed=49", "train.max_steps=7"),
		"adapter":  {"train.max_steps=3", "model.lora={rank: 2}"},
		"reranker": {"train.max_steps=3", "model.kind=reranker", "model.lora={rank: 2}", pairs},
		"m3":       {"train.max_steps=3", "model.kind=m3"},
	} {
		runs := map[string]outcome{}
		for _, precision := range []string{"f32", "bf16", "f16"} {
			o, err := j.run(t, kind+" "+precision, nil, 0, false, append(sets, "save.precision="+precision)...)
			if err != nil {
				t.Fatalf("%s in %s: %v", kind, precision, err)
			}
			runs[precision] = o
			for step, l := range runs["f32"].losses {
				if o.losses[step] != l {
					t.Errorf("%s in %s: step %d has loss %v, in f32 %v", kind, precision, step, o.losses[step], l)
				}
			}
			dir := filepath.Join(j.dir, kind+" "+precision, "model")
			files, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
			if err != nil || len(files) == 0 {
				t.Fatal(files, err)
			}
			for _, file := range files {
				want := tensors(strings.Replace(file, kind+" "+precision, kind+" f32", 1))
				if err := embedder.Round(want, precision); err != nil {
					t.Fatal(err)
				}
				got := tensors(file)
				if !slices.EqualFunc(got, want, func(a, b safetensors.Tensor) bool {
					return a.String() == b.String() && bytes.Equal(a.Data, b.Data)
				}) {
					t.Errorf("%s in %s: %s has other numbers", kind, precision, filepath.Base(file))
				}
				for _, x := range got {
					if x.DType != embedder.Precisions[precision] {
						t.Errorf("%s in %s: %v", kind, precision, x)
					}
				}
			}
			if kind == "adapter" {
				continue
			}
			config, err := os.ReadFile(filepath.Join(dir, "config.json"))
			if err != nil {
				t.Fatal(err)
			}
			if name := map[string]string{"f32": "float32", "bf16": "bfloat16", "f16": "float16"}[precision]; !strings.Contains(string(config), `type": "`+name+`"`) {
				t.Errorf("%s in %s: config.json says %s", kind, precision, config)
			}
			f, err := hfmodel.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
			if _, err := j.run(t, "more", nil, 0, false, append(sets, "train.max_steps=1", "eval.every=0", "model.path="+dir)...); err != nil {
				t.Errorf("%s in %s, trained on: %v", kind, precision, err)
			}
		}
	}
	if _, err := Parse("job", []byte(j.text), []string{"save.dir=x", "save.precision=fp16"}); err == nil || !strings.Contains(err.Error(), `save.precision: is "fp16", want one of bf16, f16, f32`) {
		t.Error(err)
	}
}

// A run that is over, and is to save its model otherwise, does: it has the bits of one that was from the beginning, and recipe.yaml says so.
func TestOverSavedOtherwise(t *testing.T) {
	j := newJob(t, 60)
	otherwise := []string{"save.precision=bf16", "model.similarity=dot"}
	for name, mesh := range map[string]string{"alone": "mesh.shard=1", "streamed": "mesh={shard: 2, parameters: streamed}"} {
		sets := []string{mesh, "train.max_steps=2", "save.every=2"}
		for out, sets := range map[string][]string{"run": sets, "want": append(sets, otherwise...)} {
			if _, err := j.run(t, name+" "+out, nil, 0, false, sets...); err != nil {
				t.Fatal(err)
			}
		}
		o, err := j.run(t, name+" run", nil, 0, true, append(sets, otherwise...)...)
		said(t, o, err, "is saved anew from the checkpoint of step 2: ")
		for _, files := range []string{"*.safetensors", "config*.json"} {
			if !o.summary.Over || !bytes.Equal(j.saved(t, name+" run", files), j.saved(t, name+" want", files)) {
				t.Errorf("%s: %s is not that of a run which had been told before; %+v", name, files, o.summary)
			}
		}
		text, err := os.ReadFile(filepath.Join(j.dir, name+" run", "recipe.yaml"))
		if err != nil || !strings.Contains(string(text), "precision: bf16") {
			t.Errorf("%s, %v", text, err)
		}
		left := filepath.Join(j.dir, name+" run", checkpointsDir, ".step-00000001.removed") // by a kill
		if err := os.Mkdir(left, 0o700); err != nil {
			t.Fatal(err)
		}
		o, err = j.run(t, name+" run", nil, 0, true, append(sets, "eval.every=7", "log.every=3")...)
		if err != nil || strings.Contains(fmt.Sprint(o.notes), "anew") {
			t.Errorf("%v, %v", o.notes, err)
		}
		if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: what is left of a checkpoint stays: %v", name, err)
		}
	}
}

// With SGD a parameter's change is its learning rate times its gradient: with layer_decay, that without it times the decay to the power of the
// layers above, on ranks that hold parts too; a group's parameters have the group's rate.
func TestLayerDecay(t *testing.T) {
	harness.Thorough(t)
	j := newJob(t, 60)
	base := []string{"optimizer={name: sgd, lr: 1, weight_decay: 0, max_grad_norm: 0, schedule: constant, warmup_ratio: 0}", "train.max_steps=1", "model.dropout=0"}
	decay := append(base, "optimizer.layer_decay=0.25", "optimizer.groups=[{params: [position_embeddings], lr: 0.5}]")
	for name, sets := range map[string][]string{"without": base, "with": decay, "shards": append(decay, "mesh.shard=2"), "streamed": append(decay, "mesh.shard=2", "mesh.parameters=streamed")} {
		if _, err := j.run(t, name, nil, 0, false, sets...); err != nil {
			t.Fatal(err)
		}
	}
	weights := func(dir string) map[string][]float32 {
		f, err := safetensors.Open(filepath.Join(dir, "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		all := map[string][]float32{}
		for _, name := range f.Names() {
			x, err := f.Tensor(name)
			if err != nil {
				t.Fatal(err)
			}
			all[name] = make([]float32, x.Len())
			if err := x.Float32s(all[name]); err != nil {
				t.Fatal(err)
			}
		}
		return all
	}
	before, without := weights(filepath.Join(j.dir, "model")), weights(filepath.Join(j.dir, "without/model"))
	for _, name := range []string{"with", "shards", "streamed"} {
		seen := map[float64]int{}
		for tensor, now := range weights(filepath.Join(j.dir, name, "model")) {
			want := 1.0
			switch {
			case strings.Contains(tensor, "position_embeddings"):
				want = 0.5
			case strings.Contains(tensor, "embeddings"):
				want = 0.25 * 0.25
			case strings.Contains(tensor, "layer.0."):
				want = 0.25
			}
			seen[want]++
			for i, v := range now {
				was := float64(before[tensor][i])
				moved, expect := float64(v)-was, want*(float64(without[tensor][i])-was)
				if eps := 1e-6 * (1 + math.Abs(was)); !(math.Abs(moved-expect) <= eps+1e-4*math.Abs(expect)) {
					t.Fatalf("%s: %s[%d] moved by %v, want %v", name, tensor, i, moved, expect)
				}
			}
		}
		if len(seen) != 4 {
			t.Errorf("%s: tensors by their rate: %v", name, seen)
		}
	}
}

// A folder that does not say how embeddings are made is a note, once for all ranks; a recipe that says it has none.
func TestHeadNoted(t *testing.T) {
	j := newJob(t, 13)
	sets := []string{"model.path=" + goldens.Path(t, "bert/gelu-new"), "train.max_steps=1", "mesh.replicate=2"}
	for want, more := range map[int][]string{1: nil, 0: {"model.pooling=cls", "model.normalize=true"}} {
		o, err := j.run(t, fmt.Sprint("noted", want), nil, 0, false, append(more, sets...)...)
		if n := strings.Count(fmt.Sprint(o.notes), "has no modules.json, which would say how embeddings are made: mean pooling, not normalized (model.pooling, model.normalize)"); err != nil || n != want {
			t.Errorf("%v: %d times in %q, %v", more, n, o.notes, err)
		}
	}
}

// A folder's similarity that the run does without is a note.
func TestSimilarityNoted(t *testing.T) {
	j := newJob(t, 13)
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS(goldens.Path(t, "bert/gelu-new"))); err != nil {
		t.Fatal(err)
	}
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("modules.json", `[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]`)
	for i, c := range [][3]string{{"dot", "", "dot; here embeddings are compared by cosine"}, {"dot", "dot", ""}, {"euclidean", "dot", "euclidean; here embeddings are compared by dot"}, {"cosine", "dot", ""}, {"euclidean", "", "euclidean; here embeddings are compared by cosine"}} {
		put("config_sentence_transformers.json", `{"similarity_fn_name": "`+c[0]+`"}`)
		sets := []string{"model.path=" + folder, "train.max_steps=1", "eval.every=0"}
		if c[1] != "" {
			sets = append(sets, "model.similarity="+c[1])
		}
		o, err := j.run(t, fmt.Sprint("noted", i), nil, 0, false, sets...)
		if err != nil {
			t.Fatal(err)
		}
		saved, err := hfmodel.Open(o.summary.Model)
		if err != nil {
			t.Fatal(err)
		}
		if want := cmp.Or(c[1], "cosine"); saved.Similarity != want {
			t.Errorf("%q: saved as %s, want %s", c, saved.Similarity, want)
		}
		if notes := fmt.Sprint(o.notes); !strings.Contains(notes, c[2]) || strings.Contains(notes, "similarity_fn_name") != (c[2] != "") {
			t.Errorf("%q: %s", c, notes)
		}
	}
}

// Of a folder that is none of the recipe's kind yet the head is the kind's usual one, of one that is what it says; a recipe says otherwise of both.
func TestUsualHeads(t *testing.T) {
	no, none, says := false, &hfmodel.Folder{Normalize: true}, &hfmodel.Folder{Normalize: true, Pooling: &hfmodel.Pooling{Mode: hfmodel.Last, IncludePrompt: true}}
	for _, c := range []struct {
		model  Model
		folder *hfmodel.Folder
		want   transformer.Head
	}{
		{Model{Kind: "embedder"}, &hfmodel.Folder{}, transformer.Head{Pooling: gpustage.MeanPooling}},
		{Model{Kind: "embedder"}, says, transformer.Head{Pooling: gpustage.LastPooling, Normalize: true}},
		{Model{Kind: "embedder", Similarity: "dot"}, says, transformer.Head{Pooling: gpustage.LastPooling, Normalize: true, Dot: true}},
		{Model{Kind: "m3"}, &hfmodel.Folder{}, transformer.Head{Pooling: gpustage.CLSPooling, Normalize: true}},
		{Model{Kind: "m3", Pooling: "mean", Normalize: &no}, none, transformer.Head{Pooling: gpustage.MeanPooling}},
		{Model{Kind: "m3"}, says, transformer.Head{Pooling: gpustage.LastPooling, Normalize: true}},
		{Model{Kind: "multi_vector"}, &hfmodel.Folder{}, transformer.Head{Pooling: gpustage.MeanPooling, Normalize: true}},
		{Model{Kind: "multi_vector"}, &hfmodel.Folder{MultiVector: &hfmodel.MultiVector{}}, transformer.Head{Pooling: gpustage.MeanPooling}},
		{Model{Kind: "sparse"}, none, transformer.Head{Pooling: gpustage.MeanPooling}},
		{Model{Kind: "sparse"}, &hfmodel.Folder{Normalize: true, Splade: &hfmodel.Splade{}}, transformer.Head{Pooling: gpustage.MeanPooling, Normalize: true}},
		{Model{Kind: "reranker"}, &hfmodel.Folder{}, transformer.Head{}},
	} {
		x := &Run{Recipe: Recipe{Model: c.model}, folder: c.folder}
		if got, err := x.head(); err != nil || got != c.want {
			t.Errorf("%+v of %+v: %+v, %v, want %+v", c.model, *c.folder, got, err, c.want)
		}
	}
}

// What was best by cosine says nothing of what is by inner products.
func TestBestBySimilarity(t *testing.T) {
	judge := func(similarity string) string {
		x := &Run{Recipe: Recipe{Model: Model{Kind: "embedder", Similarity: similarity}, Save: Save{Best: true}}}
		name, err := x.judge()
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	if judge("dot") == judge("cosine") {
		t.Errorf("both are %s", judge("dot"))
	}
}

// Of a run whose model can't be written what belongs to the model before it stays, though ranks that hold parts of a model are done with theirs sooner
// than the one that writes.
func TestPreviousStays(t *testing.T) {
	j := newJob(t, 40)
	sets := []string{"train.max_steps=2", "mesh={shard: 2, parameters: streamed}"}
	if _, err := j.run(t, "run", nil, 0, false, sets...); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(j.dir, "run", ".model.partial"), nil, 0o600); err != nil { // in the way
		t.Fatal(err)
	}
	if _, err := j.run(t, "run", nil, 0, false, sets...); err == nil || !strings.Contains(err.Error(), "is still that of the run before") {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(j.dir, "run", "recipe.yaml"+previous)); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(j.dir, "run", ".model.partial")); err != nil {
		t.Fatal(err)
	}
	if _, err := j.run(t, "run", nil, 0, false, sets...); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(j.dir, "run", "*"+previous)); err != nil || len(left) > 0 {
		t.Errorf("with a model of its own there still is %v (%v)", left, err)
	}
}

// What was set aside is known by its recipe: once that is gone, the rest, which a kill may leave, belongs to nobody.
func TestForget(t *testing.T) {
	dir := t.TempDir()
	for _, name := range runFiles {
		if err := os.MkdirAll(filepath.Join(dir, name+previous), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	inTheWay := filepath.Join(dir, recordFile+previous, "x")
	if err := os.Mkdir(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := forget(dir); err == nil {
		t.Error("a folder with something in it is gone")
	}
	if err := leftBehind(dir); err != nil {
		t.Error(err)
	}
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	if err := forget(dir); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v is left (%v)", left, err)
	}
}

// A saved folder reads as long as the longer of both texts, has the prompts that its model had beside those that trained, and compares as the loss did.
func TestSavedFolderSays(t *testing.T) {
	j := newJob(t, 60)
	path := filepath.Join(j.dir, "model", "config_sentence_transformers.json")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(raw, &config); err != nil {
		t.Fatal(err)
	}
	config["prompts"] = map[string]string{"query": "old: ", "other": "say: "}
	if raw, err = json.Marshal(config); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	for similarity, lengths := range map[string]string{"cosine": "{query: 20, document: 12}", "dot": "{query: 12, document: 20}"} {
		if _, err := j.run(t, similarity, nil, 0, false, "train.max_steps=1", "model.max_length="+lengths, "data.train.0.prompts={query: 'q: ', document: 'd: '}", "loss.similarity="+similarity); err != nil {
			t.Fatal(err)
		}
		f, err := hfmodel.Open(filepath.Join(j.dir, similarity, "model"))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if want := map[string]string{"query": "q: ", "document": "d: ", "other": "say: "}; f.MaxSeqLength != 20 || f.Similarity != similarity || !maps.Equal(f.Prompts, want) {
			t.Errorf("%s: %d tokens, compared by %s, prompts %q", similarity, f.MaxSeqLength, f.Similarity, f.Prompts)
		}
	}
}

// Steps of part of an epoch, a reranker's dropout, the mesh of a job, and what its ranks may hold, are as the recipe says.
func TestOpenedAsSaid(t *testing.T) {
	j := newJob(t, 60)
	steps := func(sets ...string) int {
		t.Helper()
		return j.opened(t, append(sets, "save.dir="+filepath.Join(j.dir, "run"))).Steps
	}
	one, two := steps("train.epochs=1"), steps("train.epochs=2")
	if half := steps("train.epochs=1.5"); half != one+(two-one+1)/2 || two-one < 3 {
		t.Errorf("%d steps of an epoch and a half, of %d and %d", half, one, two)
	}
	if few := steps("train.epochs=1.5", "train.max_steps=2"); few != 2 {
		t.Errorf("%d steps of at most two", few)
	}
	x := j.opened(t, []string{"save.dir=" + filepath.Join(j.dir, "run"), "model.kind=reranker", "model.dropout=0.25", "data.train.0.negatives=[p]"})
	if c := x.model.Config; c.Scorer.DropoutOut != 0.25 || c.HiddenDropout != 0.25 || c.AttentionDropout != 0.25 {
		t.Errorf("dropout %v before the score, %v and %v within", c.Scorer.DropoutOut, c.HiddenDropout, c.AttentionDropout)
	}
	for _, c := range []struct {
		m     Mesh
		ranks int
		want  collective.Mesh
	}{
		{Mesh{Shard: 2}, 8, collective.Mesh{Replicate: 4, Shard: 2}}, {Mesh{Shard: 2}, 0, collective.Mesh{Replicate: 1, Shard: 2}},
		{Mesh{Replicate: 3, Shard: 2}, 8, collective.Mesh{Replicate: 3, Shard: 2}}, // which is an error later on
	} {
		if got := c.m.of(c.ranks); got != c.want {
			t.Errorf("%+v of %d ranks: %+v, want %+v", c.m, c.ranks, got, c.want)
		}
	}
	early, streamed, both := sharding{early: true}, sharding{streamed: true}, sharding{true, true}
	for parameters, of := range map[string]map[string][]sharding{
		"auto":     {"auto": {{}, early, both}, "late": {{}}, "early": {early, both}}, // streamed with late is for who asks
		"resident": {"auto": {{}, early}}, "streamed": {"auto": {streamed, both}, "late": {streamed}},
	} {
		for gradients, want := range of {
			if got := (Mesh{Shard: 2, Parameters: parameters, Gradients: gradients}).shardings(); !slices.Equal(got, want) {
				t.Errorf("parameters %s, gradients %s: %v, want %v", parameters, gradients, got, want)
			}
		}
	}
}

// A run's record counts the rows that were left out because they can't be used.
func TestRecordSkips(t *testing.T) {
	j := newJob(t, 60)
	path := filepath.Join(j.dir, "data.jsonl")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(raw, []byte(`{"q": null, "p": "a"}`+"\n"+`{"q": "a", "p": " "}`+"\n")...), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := j.run(t, "run", nil, 0, false, "train.max_steps=1", "data.on_error=skip")
	if err != nil {
		t.Fatal(err)
	}
	r, err := ReadRecord(filepath.Join(j.dir, "run"))
	if err != nil || r.Skipped != 2 || o.summary.Skipped != 2 || r.Rows != 62 {
		t.Errorf("%d of %d rows skipped, %d in the summary: %v", r.Skipped, r.Rows, o.summary.Skipped, err)
	}
}
