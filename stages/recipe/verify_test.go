package recipe_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/collective"
	"contraflow/collective/sim"
	"contraflow/io/hfmodel"
	"contraflow/stages/newmodel"
	"contraflow/stages/recipe"
	"contraflow/testdata/harness"
)

// freshRecipe is a recipe for a new model of the given seed and some rows.
func freshRecipe(t *testing.T, seed uint64, sets ...string) recipe.Recipe {
	t.Helper()
	dir := t.TempDir()
	words := strings.Fields("red green blue fish bird tree river stone cloud night day song mountain road house garden winter summer")
	rng := rand.New(rand.NewPCG(3, 3))
	text := func(n int) string {
		var out []string
		for range 1 + rng.IntN(n) {
			out = append(out, words[rng.IntN(len(words))])
		}
		return strings.Join(out, " ")
	}
	f, err := os.Create(filepath.Join(dir, "rows.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	enc := json.NewEncoder(f)
	var texts []string
	for i := range 60 {
		q, p := fmt.Sprint(text(9), " q", i), fmt.Sprint(text(40), " p", i)
		enc.Encode(map[string]any{"q": q, "p": p, "n": fmt.Sprint(text(40), " n", i), "t": []float64{1, 0.5, float64(i)}})
		texts = append(texts, q, p)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	model := filepath.Join(dir, "model")
	err = newmodel.Create(t.Context(), model, newmodel.Spec{Hidden: 64, Layers: 3, MaxLength: 32, Vocab: 300, Dropout: 0.1, Lowercase: true, Seed: seed}, newmodel.Texts(texts))
	if err != nil {
		t.Fatal(err)
	}
	yaml := fmt.Sprintf(`
model: {path: %q, max_length: {query: 16, document: 32}}
data: {train: [{path: %q, query: q, positive: p, negatives: [n]}]}
batch: {global_size: 16}
train: {seed: %d, device: cpu}
save: {dir: %q}
`, model, f.Name(), seed, filepath.Join(dir, "run"))
	r, err := recipe.Parse("fresh.yaml", []byte(yaml), sets)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// planted is no fault and then those given. With -short it is none alone: a fault changes numbers, not which goroutines meet.
func planted(faults []recipe.Fault) []recipe.Fault {
	if testing.Short() {
		faults = nil
	}
	return append([]recipe.Fault{""}, faults...)
}

// The embeddings of a fresh model's first tokens are nearly the same where nothing is dropped, so that rounding shows: gradients differ from the
// truth by far more than 1e-5, with every set of kernels, and are right. Faults are found all the same.
func TestVerifyFresh(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	x, err := recipe.Open(t.Context(), freshRecipe(t, 5, "model.pooling=cls", "model.dropout=0"), recipe.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for _, fault := range planted(recipe.Faults) {
		o := recipe.DefaultVerify()
		o.Accumulate, o.SubBatches, o.Plant = []int{1}, []int{5}, fault
		if fault != "" {
			o.Rows = 4
		}
		rows, noise := "", false
		o.Report = func(r recipe.VerifyRow) {
			rows += fmt.Sprintf("%+v\n", r)
			noise = noise || r.Noise && strings.HasSuffix(r.Config, "on ref") && r.Error > 5e-5 && r.OK
		}
		ok, err := x.Verify(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if ok != (fault == "") || fault == "" && !noise {
			t.Errorf("fault %q: ok is %t, held against noise %t\n%s", fault, ok, noise, rows)
		}
	}
}

// A fault that changes nothing is refused, with what keeps it from that: one that was planted and not found would say that verifying finds nothing.
func TestPlantsNothing(t *testing.T) {
	harness.Thorough(t)
	triplet := []string{"loss.name=triplet"}
	other := freshRecipe(t, 3)
	for _, c := range []struct {
		sets  []string
		fault recipe.Fault
		want  string
	}{
		{triplet, recipe.FaultMask, "loss.name: triplet masks no duplicates"},
		{triplet, recipe.FaultRemote, "loss.name: triplet takes of a row its own texts alone, and nothing of other rows"},
		{triplet, recipe.FaultGather, "loss.name: triplet takes of a row its own texts alone"},
		{triplet, recipe.FaultScatter, "loss.name: triplet takes of a row its own texts alone"},
		{[]string{"loss.name=gor"}, recipe.FaultRemote, "loss.name: gor has each rank compute the gradient of its own rows"},
		{[]string{"loss.name=gor"}, recipe.FaultScatter, "loss.name: gor has each rank compute the gradient of its own rows"},
		{
			[]string{"loss.name=gist", fmt.Sprintf("loss.guide={path: %q}", other.Model.Path), "loss.margin=0.05", "loss.margin_strategy=relative"},
			recipe.FaultMask, "the gradient of these rows is the same with the fault",
		},
	} {
		x, err := recipe.Open(t.Context(), freshRecipe(t, 2, c.sets...), recipe.Observer{})
		if err != nil {
			t.Fatal(err)
		}
		o := recipe.DefaultVerify()
		o.Accumulate, o.SubBatches, o.Replicas, o.Rows, o.Plant = []int{1}, []int{5}, []int{2}, 4, c.fault
		if ok, err := x.Verify(t.Context(), o); ok || err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "can't be planted") {
			t.Errorf("%s, fault %q: ok is %t, %v; want %q", c.sets, c.fault, ok, err, c.want)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A reranker's gradients are those of an embedder's graph: verified on a mesh too, and the faults that it can have are found.
func TestVerifyReranker(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	x, err := recipe.Open(t.Context(), freshRecipe(t, 2, "model.kind=reranker", "model.max_length=32"), recipe.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for _, fault := range planted(recipe.Faults) {
		o := recipe.DefaultVerify()
		o.Accumulate, o.SubBatches, o.Rows, o.Plant = []int{2}, []int{5}, 4, fault
		if fault == "" {
			o.Replicas, o.Shards = []int{1, 2}, []int{1, 2}
		}
		rows, meshes := "", 0
		o.Report = func(r recipe.VerifyRow) {
			rows += fmt.Sprintf("%+v\n", r)
			if strings.Contains(r.Config, "mesh ") {
				meshes++
			}
		}
		ok, err := x.Verify(t.Context(), o)
		if fault == recipe.FaultMask || fault == recipe.FaultRemote {
			if err == nil || !strings.Contains(err.Error(), "can't be planted") {
				t.Errorf("fault %q: %v", fault, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if ok != (fault == "") || fault == "" && meshes != 9 {
			t.Errorf("fault %q: ok is %t, %d ways on meshes\n%s", fault, ok, meshes, rows)
		}
	}
}

// On a mesh ranks exchange as the recipe says, and exchanging wrongly is found, by the ways on meshes alone.
func TestVerifyMesh(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sets           []string
		fault          recipe.Fault
		shards, meshes int
		want           string
	}{
		{sets: []string{"mesh.wire=bf16", "train.sync=every"}, shards: 1, meshes: 4, want: "(0."},
		{sets: []string{"loss.gather_across_devices=false", "mesh.overlap=false"}, shards: 2, meshes: 3, want: "parameters streamed"},
		{fault: recipe.FaultGather, shards: 1, meshes: 3}, {fault: recipe.FaultScatter, shards: 1, meshes: 3},
		{fault: recipe.FaultSync, shards: 1, meshes: 3}, {fault: recipe.FaultSync, shards: 2, meshes: 3}, {fault: recipe.FaultShard, shards: 2, meshes: 3},
	} {
		if !slices.Contains(planted(recipe.MeshFaults), c.fault) {
			continue
		}
		x, err := recipe.Open(t.Context(), freshRecipe(t, 1, c.sets...), recipe.Observer{})
		if err != nil {
			t.Fatal(err)
		}
		o := recipe.DefaultVerify()
		o.Accumulate, o.SubBatches, o.Rows, o.Replicas, o.Shards, o.Plant = []int{1}, []int{4}, 6, []int{2}, []int{c.shards}, c.fault
		seen, meshes, wrong, elsewhere := "", 0, 0, 0
		o.Report = func(r recipe.VerifyRow) {
			seen += fmt.Sprintf("%+v\n", r)
			switch mesh := strings.Contains(r.Config, "mesh 2 x"); {
			case mesh && !r.OK:
				wrong++
				fallthrough
			case mesh:
				meshes++
			case !r.OK:
				elsewhere++
			}
		}
		ok, err := x.Verify(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if ok != (c.fault == "") || elsewhere > 0 || meshes != c.meshes || c.fault != "" && wrong != meshes || !strings.Contains(seen, c.want) {
			t.Errorf("%v, fault %q: ok is %t, %d of %d ways on meshes are wrong, %d others\n%s", c.sets, c.fault, ok, wrong, meshes, elsewhere, seen)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
	local, err := recipe.Open(t.Context(), freshRecipe(t, 1, "loss.gather_across_devices=false"), recipe.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	for want, o := range map[string]recipe.VerifyOptions{"needs a mesh": {Plant: recipe.FaultSync, Rows: 4}, "no other ranks' rows": {Plant: recipe.FaultGather, Rows: 4, Replicas: []int{2}, Shards: []int{1}}} {
		if _, err := local.Verify(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// The recipe's own activation checkpointing is among what is verified, alone and on a mesh.
func TestVerifySegments(t *testing.T) {
	harness.Thorough(t)
	x, err := recipe.Open(t.Context(), freshRecipe(t, 1, "model.activation_checkpointing=true", "model.dropout=0"), recipe.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	o := recipe.DefaultVerify()
	o.Accumulate, o.SubBatches, o.Replicas, o.Shards, o.Rows = []int{1}, []int{3}, []int{1, 2}, []int{1}, 4
	seen := ""
	o.Report = func(r recipe.VerifyRow) { seen += r.Config + "\n" }
	if ok, err := x.Verify(t.Context(), o); err != nil || !ok {
		t.Errorf("%t, %v", ok, err)
	}
	for _, want := range []string{" 1: sub-batches of 3, all replayed, activation checkpointing every 1", " 1: sub-batches of 3, all replayed, activation checkpointing every 2",
		"mesh 2 x 1, sub-batches of 3, all replayed, activation checkpointing every 2"} {
		if !strings.Contains(seen, want) {
			t.Errorf("no %q in\n%s", want, seen)
		}
	}
}

// With a guide of another vocabulary, on a device of its own, all ways agree, and the run trains.
func TestVerifyGuide(t *testing.T) {
	harness.Thorough(t)
	other := freshRecipe(t, 3)
	r := freshRecipe(t, 1, "loss.name=gist", "loss.margin=0.001", "loss.margin_strategy=relative", "loss.scale=20", "train.max_steps=2",
		fmt.Sprintf("loss.guide={path: %q, max_length: 24, device: cpu, prompts: {query: \"q: \"}}", other.Model.Path))
	notes := ""
	x, err := recipe.Open(t.Context(), r, recipe.Observer{Note: func(n string) { notes += n }})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if want := "the guide reads at most 24 tokens of a query and 24 of a document, the model 16 and 32"; !strings.Contains(notes, want) {
		t.Errorf("no note that %q in %q", want, notes)
	}
	if d := x.Describe(); !strings.Contains(d, "guide   "+other.Model.Path+": bert, 3 layers of 64") || x.Memory.Guide == 0 {
		t.Errorf("%+v\n%s", x.Memory, d)
	}
	f, err := x.Forecast(t.Context(), collective.Mesh{Replicate: 2, Shard: 1}, sim.Link{Bandwidth: 1e9}, recipe.Rates{Forward: 1e-6, Backward: 2e-6, Score: 1e-9, Update: 1e-9})
	if err != nil || !strings.Contains(f.String(), "gather guide             3 collectives") {
		t.Errorf("%v, %v", f, err)
	}
	o := recipe.DefaultVerify()
	o.Accumulate, o.SubBatches, o.Replicas, o.Rows = []int{2}, []int{5}, []int{3}, 5
	o.Report = func(r recipe.VerifyRow) {
		if !r.OK {
			t.Errorf("%+v", r)
		}
	}
	if _, err := x.Verify(t.Context(), o); err != nil {
		t.Error(err)
	}
	if s, err := x.Train(t.Context()); err != nil || s.Steps != 2 {
		t.Errorf("%+v, %v", s, err)
	}
	r.Loss.Guide.Path = filepath.Join(t.TempDir(), "nothing")
	if _, err := recipe.Open(t.Context(), r, recipe.Observer{}); err == nil || !strings.HasPrefix(err.Error(), "loss.guide: ") {
		t.Error(err)
	}
}

// Losses that take something of the embeddings for a number without a gradient are verified, where a finite difference of the whole would say
// that they are wrong, and so are recipes that skip rows, and ranks that keep their negatives to themselves and draw the same at random.
func TestVerifyStopped(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	for _, c := range []struct {
		sets    []string
		without string
	}{
		{[]string{"loss.hardness_mode=in_batch_negatives", "loss.hardness_strength=5"}, ", without loss.hardness_mode"},
		{[]string{"model.kind=m3", "loss.name=m3", "loss.self_distill=true", "loss.self_distill_from=3", "loss.scale=10"}, ", without loss.self_distill"},
		{[]string{"loss=[{name: mnrl, hardness_mode: in_batch_negatives, hardness_strength: 5}, {name: mnrl, scale: 5, hardness_mode: in_batch_negatives, hardness_strength: 2}]"}, ", without loss[0].hardness_mode and loss[1].hardness_mode"},
		{[]string{"data.on_error=skip"}, ""},
		{[]string{"loss.gather_across_devices=false", "loss.matryoshka={dims: [64, 16, 5], dims_per_step: 1}"}, ""},
	} {
		r := freshRecipe(t, 1, c.sets...)
		path := r.Data.Train[0].Path[0]
		rows, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if r.Data.OnError == "skip" {
			if err := os.WriteFile(path, append([]byte(`{"q": "one", "p": null, "n": "two", "t": [1, 2, 3]}`+"\n"), rows...), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		x, err := recipe.Open(t.Context(), r, recipe.Observer{})
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		o := recipe.DefaultVerify()
		o.Accumulate, o.SubBatches, o.Rows = []int{2}, []int{3}, 3
		if !r.Loss.GatherAcrossDevices {
			o.Replicas, o.Rows = []int{2}, 5
		}
		seen := ""
		o.Report = func(r recipe.VerifyRow) { seen += fmt.Sprintf("%+v\n", r) }
		if ok, err := x.Verify(t.Context(), o); err != nil || !ok || !strings.Contains(seen, "plain, f64"+c.without+", dropout") {
			t.Errorf("%v: ok is %t, %v\n%s", c.sets, ok, err, seen)
		}
	}
}

// Sizes that don't go with the model's are found before anything is computed.
func TestSizes(t *testing.T) {
	for set, want := range map[string]string{
		"loss={name: mnrl, matryoshka: {dims: [16, 65]}}": "loss.matryoshka.dims: are [16 65], and the model's embeddings have 64 dimensions",
		"loss={name: mse}": "data.train[0]: teacher: its embeddings have 3 dimensions, and the loss compares them with 64",
		"loss={name: mse, distance: cosine, matryoshka: {dims: [3, 2]}}": "data.train[0]: teacher: its embeddings have 3 dimensions, and the loss compares them with 2",
		"loss={name: mse, matryoshka: {dims: [3]}}":                      "",
		"loss=[mnrl, {name: mnrl, matryoshka: {dims: [16, 65]}}]":        "loss[1].matryoshka.dims: are [16 65], and the model's embeddings have 64 dimensions",
		"loss=[mnrl, mse]":  "data.train[0]: teacher: its embeddings have 3 dimensions, and the loss compares them with 64; loss[1].matryoshka: {dims: [3]} takes",
		"loss={name: mnrl}": "", // looks at no teacher
	} {
		x, err := recipe.Open(t.Context(), freshRecipe(t, 1, set, "data.train[0].teacher=t"), recipe.Observer{})
		if err == nil {
			x.Close()
		}
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", set, err, want)
		}
	}
}

// The folder that a run leaves says what the recipe said, and settings that are hardly meant are noted.
func TestSavedFolder(t *testing.T) {
	r := freshRecipe(t, 1, "train.max_steps=2", "loss.similarity=dot", "batch.accumulate=99", "data.train[0].prompts={query: \"q: \", document: \"d: \"}", "model.pooling=cls", "model.normalize=false",
		"loss.hardness_mode=hard_negatives", "loss.hardness_strength=2", "data.train[0].negatives=[]")
	var notes []string
	x, err := recipe.Open(t.Context(), r, recipe.Observer{Note: func(n string) { notes = append(notes, n) }})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	all := strings.Join(notes, "\n")
	for _, want := range []string{"train.max_steps is 2, and the run has 1 step: with train.epochs: 1 its", "all of the run, 1 step, is warm-up (1 step): the learning rate comes to 0, not to optimizer.lr: 2e-05", "batch.accumulate is 99, but an epoch has 3 batches", "loss.hardness_mode: hard_negatives is of rows' own negatives, and there are none"} {
		if !strings.Contains(all, want) {
			t.Errorf("no note that %q in\n%s", want, all)
		}
	}
	s, err := x.Train(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f, err := hfmodel.Open(s.Model)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.MaxSeqLength != 32 || f.Normalize || f.Pooling.Mode != hfmodel.CLS || f.Prompts["query"] != "q: " || f.Prompts["document"] != "d: " {
		t.Errorf("%+v", f)
	}
	text, err := os.ReadFile(filepath.Join(s.Model, "config_sentence_transformers.json"))
	if err != nil || !strings.Contains(string(text), `"similarity_fn_name": "dot"`) {
		t.Errorf("%s %v", text, err)
	}

	// Prompts that are given and empty are none, whatever the model has.
	r.Model.Path, r.Save.Dir = s.Model, t.TempDir()
	for want, p := range map[string]*recipe.Prompts{"q: ": nil, "": {}} {
		r.Data.Train[0].Prompts = p
		x, err := recipe.Open(t.Context(), r, recipe.Observer{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := x.Train(t.Context())
		x.Close()
		if err != nil {
			t.Fatal(err)
		}
		if f, err := hfmodel.Open(s.Model); err != nil || f.Prompts["query"] != want {
			t.Errorf("prompts %v: the model that is saved has the prompt %q, want %q; %v", p, f.Prompts["query"], want, err)
		} else {
			f.Close()
		}
	}
}

// Where rounding shows although gradients are right, they are said to be right: of a loss of distances, which all embeddings may move together, so
// that the last norm's bias has no gradient, and where next to no loss is left. Faults are found all the same.
func TestVerifyNoise(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	for _, c := range []struct {
		name string
		make func() recipe.Recipe
	}{
		{"distances", func() recipe.Recipe { return freshRecipe(t, 2, "model.normalize=false", "loss.name=triplet") }},
		{"small loss", func() recipe.Recipe {
			r := staticRecipe(t, 64, nil)
			r.Data.Train[0].Positive, r.Loss.Scale, r.Loss.MaskDuplicates = "q", 25, false
			return r
		}},
	} {
		for _, fault := range planted([]recipe.Fault{recipe.FaultFactor}) {
			rows, ok, err := verified(t, c.make(), func(o *recipe.VerifyOptions) { o.Plant = fault })
			if err != nil || ok != (fault == "") {
				t.Errorf("%s, fault %q: ok is %t, %v: %+v", c.name, fault, ok, err, rows)
			}
		}
	}
}
