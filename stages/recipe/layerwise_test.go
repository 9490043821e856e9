package recipe

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/gpustage/ref"
	"contraflow/io/safetensors"
	"contraflow/stages/embedder"
	"contraflow/stages/recipe/imports"
	"contraflow/stages/reranker"
	"contraflow/stages/transformer"
	"contraflow/testdata/harness"
)

// layerWise makes a layer-wise reranker of 4 layers, of which all but the first have a head, with the job's vocabulary, and says that rows have as
// their negative their own query.
func (j *job) layerWise(t *testing.T) (sets []string) {
	t.Helper()
	dir := filepath.Join(j.dir, "layer-wise")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(j.dir, "model"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling", "2_Normalize", "README.md"} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	config, err := json.Marshal(map[string]any{
		"architectures": []string{"LayerWiseMiniCPMForCausalLM"}, "model_type": "minicpm", "vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
		"num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 32, "scale_emb": 3, "scale_depth": 1.4, "start_layer": 2, "head_multi": true, "head_type": "simple",
		"initializer_range": 0.2, "tie_word_embeddings": false,
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := transformer.ParseConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if c.Scorer, err = c.LayerScorers(config); err != nil {
		t.Fatal(err)
	}
	m, err := transformer.New(ref.New(), c, transformer.Head{}, transformer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Free()
	s, err := m.Device.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Init(s, 7); err != nil {
		t.Fatal(err)
	}
	tensors, err := embedder.Read(m, s, m.Layout.Params)
	if err != nil {
		t.Fatal(err)
	}
	for i := range tensors {
		if !strings.HasPrefix(tensors[i].Name, "lm_head.") {
			tensors[i].Name = "model." + tensors[i].Name
		}
	}
	if err := errors.Join(
		safetensors.Write(filepath.Join(dir, "model.safetensors"), tensors, nil), os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600),
		os.WriteFile(filepath.Join(dir, "reranker.json"), []byte(`{"template":[{"text":"{query} [SEP] "},{"text":"{document}","cut":true}]}`), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	return []string{
		"model.kind=reranker", "model.path=" + dir, "model.max_length=32", "loss={name: cross_entropy, self_distill: true}", "train.max_steps=4",
		fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, negatives: [q]}]", filepath.Join(j.dir, "data.jsonl")),
	}
}

// scoresOf scores some pairs with each layer's head of a saved folder, the last layer's first.
func scoresOf(t *testing.T, dir string, words []string) (all [][]float32) {
	t.Helper()
	for layer := 4; layer >= 2; layer-- {
		r, err := reranker.Load(dir, reranker.OnDevice(ref.New()), reranker.CutoffLayer(layer))
		if err != nil {
			t.Fatal(err)
		}
		s, err := r.Score(t.Context(), words[0], words[1:6])
		if err = errors.Join(err, r.Close()); err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// A layer-wise reranker trains the same whatever is computed again, on one rank and on several, sharded or not, as a whole and with LoRA, and every
// layer learns. Losses are sums of f32 over some thousand terms: 1e-5 of them.
func TestLayerWise(t *testing.T) {
	t.Parallel()
	j := newJob(t, 60)
	base := j.layerWise(t)
	before := scoresOf(t, filepath.Join(j.dir, "layer-wise"), j.words)
	for tuning, sets := range map[string][]string{
		"whole": {"model.dropout=0"},
		"lora":  {"model.dropout=0.1", "model.lora={rank: 2, alpha: 4, dropout: 0.1, targets: all-linear, modules_to_save: [linear_head]}", "optimizer.lr=1e-2"},
		"taught": {
			"model.dropout=0.1", "loss={name: distill}",
			fmt.Sprintf("data.train=[{path: %q, query: q, positive: p, negatives: [q], scores: [s, r]}]", j.scored(t)),
		},
	} {
		if testing.Short() && tuning != "taught" { // one of them has all that ranks do together
			continue
		}
		var first outcome
		var scores [][]float32
		for i, more := range [][]string{
			{"batch.cache=never"}, {"batch.replay_budget=0"}, {"model.activation_checkpointing={every: 3}"}, {"batch.replay_budget=0", "model.activation_checkpointing=true", "mesh.replicate=2"},
			{"mesh.shard=2", "mesh.parameters=streamed", "model.activation_checkpointing={every: 2}"}, {"batch.sub_batch={rows: 2}", "mesh.shard=2", "mesh.parameters=resident", "mesh.gradients=early"},
		} {
			out := fmt.Sprint(tuning, i)
			o, err := j.run(t, out, nil, 0, false, slices.Concat(base, sets, more)...)
			if err != nil {
				t.Fatalf("%s, %s: %v", tuning, more, err)
			}
			got := scoresOf(t, filepath.Join(j.dir, out, "model"), j.words)
			if i == 0 {
				first, scores = o, got
				for layer := range got {
					if slices.Equal(got[layer], before[layer]) {
						t.Errorf("%s: the layer %d below the last has learned nothing", tuning, layer)
					}
				}
				continue
			}
			if len(o.losses) != 4 {
				t.Errorf("%s, %s: %d steps", tuning, more, len(o.losses))
			}
			for step, want := range first.losses {
				if v := o.losses[step]; !(math.Abs(v-want) <= 1e-5*want) {
					t.Errorf("%s, %s: step %d: loss %v, want %v", tuning, more, step, v, want)
				}
			}
			for layer := range got {
				for k, v := range got[layer] {
					if !(math.Abs(float64(v-scores[layer][k])) <= 1e-3*(1+math.Abs(float64(v)))) { // Adam divides by what is nearly nothing
						t.Errorf("%s, %s: layer %d below the last: score %v, want %v", tuning, more, layer, v, scores[layer][k])
					}
				}
			}
		}
	}
	raw, err := os.ReadFile(filepath.Join(j.dir, "taught0", "model", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"LayerWiseMiniCPMForCausalLM", `"start_layer":2`, `"num_hidden_layers":4`} {
		if !strings.Contains(strings.ReplaceAll(string(raw), ": ", ":"), want) {
			t.Errorf("config.json lacks %s: %s", want, raw)
		}
	}
}

// scored are the job's rows with a teacher's scores.
func (j *job) scored(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(j.dir, "data.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for i, line := range bytes.Split(bytes.TrimSpace(raw), []byte("\n")) {
		fmt.Fprintf(&out, "%s, \"s\": %d, \"r\": %d}\n", bytes.TrimSuffix(line, []byte("}")), i%3, i%2)
	}
	path := filepath.Join(j.dir, "scored.jsonl")
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A run that is stopped goes on to the same bits, on two ranks with LoRA too, and evaluation is by the last layer.
func TestLayerWiseResumes(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	j := newJob(t, 60)
	base := j.layerWise(t)
	var queries, docs, qrels strings.Builder
	for i := range 12 {
		fmt.Fprintf(&docs, "{\"id\": \"%d\", \"text\": %q}\n", i, j.words[0]+" "+j.words[i+1])
		if i > 2 {
			continue
		}
		fmt.Fprintf(&queries, "{\"id\": \"%d\", \"text\": %q}\n", i, j.words[0])
		fmt.Fprintf(&qrels, "{\"query_id\": \"%d\", \"doc_id\": \"%d\", \"relevance\": 1}\n", i, i)
	}
	for name, text := range map[string]string{"q.jsonl": queries.String(), "c.jsonl": docs.String(), "r.jsonl": qrels.String()} {
		if err := os.WriteFile(filepath.Join(j.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	task := fmt.Sprintf("{queries: %q, corpus: %q, qrels: %q, top: 8}", filepath.Join(j.dir, "q.jsonl"), filepath.Join(j.dir, "c.jsonl"), filepath.Join(j.dir, "r.jsonl"))
	for name, more := range map[string][]string{
		"all": {"eval={every: 2, rerank: " + task + "}"}, "lora": {"mesh.replicate=2", "model.activation_checkpointing=true", "model.lora={rank: 2, alpha: 4, targets: all-linear}"},
	} {
		sets := slices.Concat(base, more, []string{"train.max_steps=8"})
		if _, err := j.run(t, name+" whole", nil, 0, false, sets...); err != nil {
			t.Fatal(err)
		}
		first, err := j.run(t, name, nil, 3, false, sets...)
		if err != nil || !first.summary.Stopped {
			t.Fatalf("%s: %+v, %v", name, first.summary, err)
		}
		if _, err := j.run(t, name, nil, 0, true, sets...); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(j.model(t, name), j.model(t, name+" whole")) {
			t.Errorf("%s: the weights differ from those of a run that was not stopped", name)
		}
	}
	// As it was saved, it is measured the same again before its first step; the last layer's head with another sign turns the order around, others' don't.
	again := func(out, head string) float64 {
		t.Helper()
		dir := filepath.Join(j.dir, "turned "+out)
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(j.dir, "all", "model"))); err != nil {
			t.Fatal(err)
		}
		changeTensors(t, filepath.Join(dir, "model.safetensors"), func(x safetensors.Tensor) {
			if x.Name == head {
				for i := 3; i < len(x.Data); i += 4 {
					x.Data[i] ^= 0x80
				}
			}
		})
		if _, err := j.run(t, out, nil, 0, false, slices.Concat(base, []string{"model.path=" + dir, "eval={at_start: true, rerank: " + task + "}", "train.max_steps=1"})...); err != nil {
			t.Fatal(err)
		}
		return j.evaluations(t, out)[0].Value
	}
	e := j.evaluations(t, "all")
	last := e[len(e)-1].Value
	if same := again("same", ""); same != last {
		t.Errorf("%v, measured again %v", last, same)
	}
	if lower := again("lower", "lm_head.1.linear_head.weight"); lower != last {
		t.Errorf("%v, and %v with the head of a layer below turned around", last, lower)
	}
	if turned := again("last", "lm_head.2.linear_head.weight"); turned == last {
		t.Errorf("%v, turned around as well", last)
	}
}

// Verified in every way, on meshes with streamed parameters too, and faults are found.
func TestVerifyLayerWise(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	j := newJob(t, 60)
	base := j.layerWise(t)
	for what, more := range map[string][]string{
		"whole": {}, "lora": {"model.lora={rank: 2, alpha: 4, targets: all-linear, modules_to_save: [linear_head]}", "model.activation_checkpointing={every: 3}"},
	} {
		x := j.opened(t, slices.Concat(base, more, []string{"save.dir=" + filepath.Join(j.dir, "verify")}))
		for _, fault := range []Fault{"", FaultFactor, FaultDropout} {
			o := DefaultVerify()
			o.Accumulate, o.SubBatches, o.Rows, o.Plant = []int{2}, []int{5}, 4, fault
			if fault == "" {
				o.Replicas, o.Shards = []int{1, 2}, []int{1, 2}
			}
			rows := ""
			o.Report = func(r VerifyRow) { rows += fmt.Sprintf("%+v\n", r) }
			ok, err := x.Verify(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if ok != (fault == "") || fault == "" && !(strings.Contains(rows, "without loss.self_distill") && strings.Contains(rows, "parameters streamed")) {
				t.Errorf("%s, fault %q: ok is %t\n%s", what, fault, ok, rows)
			}
		}
	}
}

// What can't be is known before the first step, by the key.
func TestLayerWiseErrors(t *testing.T) {
	j := newJob(t, 20)
	base := j.layerWise(t)
	for want, sets := range map[string][]string{
		"model.head: ": slices.Concat(base, []string{"model.head=classifier"}),
		"loss.k is for a reranker with one score":                                                              slices.Concat(base, []string{"loss={name: lambda, k: 2}"}),
		"loss.self_distill is for a layer-wise reranker, whose last layer teaches those below: this model sco": slices.Concat(base, []string{"model.path=" + filepath.Join(j.dir, "model")}),
		"loss[1].self_distill is for a layer-wise reranker":                                                    slices.Concat(base, []string{"model.path=" + filepath.Join(j.dir, "model"), "loss=[cross_entropy, {name: cross_entropy, self_distill: true}]"}),
		"loss.self_distill: is for":                                                                            slices.Concat(base, []string{"loss={name: mse, self_distill: true}"}),
	} {
		r, err := Parse("job", []byte(j.text), append(sets, "save.dir="+filepath.Join(j.dir, "errors")))
		if err == nil {
			var x *Run
			if x, err = Open(t.Context(), r, Observer{}); err == nil {
				x.Close()
			}
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// FlagEmbedding's command for one becomes a recipe that opens and trains.
func TestImportedLayerWise(t *testing.T) {
	j := newJob(t, 20)
	j.layerWise(t)
	config := filepath.Join(j.dir, "layer-wise", "config.json") // the template alone is 118 of this vocabulary's tokens
	raw, err := os.ReadFile(config)
	if err == nil {
		err = os.WriteFile(config, bytes.Replace(raw, []byte(`"max_position_embeddings":32`), []byte(`"max_position_embeddings":256`), 1), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(j.dir, "flag.jsonl")
	var rows strings.Builder
	for i := range 12 {
		fmt.Fprintf(&rows, `{"query": %q, "pos": [%q], "neg": [%q, %q]}`+"\n", j.words[i], j.words[i+1], j.words[i+2], j.words[i+3])
	}
	if err := os.WriteFile(data, []byte(rows.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	s, devices, err := imports.ReadCommand(fmt.Sprintf(`torchrun --nproc_per_node 1 -m FlagEmbedding.finetune.reranker.decoder_only.layerwise --model_name_or_path %s --model_type from_finetuned_model --train_data %s
		--query_max_len 100 --passage_max_len 100 --train_group_size 3 --lora_rank 2 --modules_to_save linear_head --query_instruction_for_rerank 'A: ' --passage_instruction_for_rerank 'B: '
		--per_device_train_batch_size 4 --max_steps 1 --output_dir %s`, filepath.Join(j.dir, "layer-wise"), data, filepath.Join(j.dir, "out")))
	if err != nil {
		t.Fatal(err)
	}
	res, err := imports.Convert(imports.FlagEmbedding, s, devices)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Parse("imported", []byte(res.Recipe), []string{"train.device=cpu"})
	if err != nil {
		t.Fatalf("%v\n%s", err, res.Recipe)
	}
	x, err := Open(t.Context(), r, Observer{})
	if err != nil {
		t.Fatalf("%v\n%s", err, res.Recipe)
	}
	defer x.Close()
	if _, err := x.Train(t.Context()); err != nil {
		t.Error(err)
	}
}
