package mix_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/mix"
)

// bare is a model's folder as the hub has base models': it says what the architecture is, and nothing of embeddings or scores. Its numbers are doubled.
func bare(t *testing.T, from string) string {
	t.Helper()
	dir := variant(t, from, func(_ string, vs []float32) {
		for i := range vs {
			vs[i] *= 2
		}
	})
	for _, name := range []string{"modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "reranker.json", "1_SpladePooling"} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// without drops tensors from a folder's file of weights.
func without(t *testing.T, dir string, names ...string) string {
	t.Helper()
	retyped(t, filepath.Join(dir, "model.safetensors"), func(x safetensors.Tensor) safetensors.Tensor {
		if slices.Contains(names, x.Name) {
			x.Name = ""
		}
		return x
	})
	return dir
}

func two(a, b string) []mix.Model {
	return []mix.Model{{Path: a, Weight: 0.5, Name: "a"}, {Path: b, Weight: 0.5, Name: "b"}}
}

func refuses(t *testing.T, models []mix.Model, want ...string) {
	t.Helper()
	err := mix.Write(context.Background(), filepath.Join(t.TempDir(), "out"), models, mix.Options{})
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("the error lacks %q: %v", w, err)
		}
	}
}

// The base of a yes/no reranker or of a sparse encoder says nothing of scores or pooling: it is read as what the first is, all of its head included.
func TestBaseOfKind(t *testing.T) {
	for _, name := range []string{"rerank/llama-yes-no", "rerank/qwen3-yes-no", "splade/encoder"} {
		t.Run(name, func(t *testing.T) {
			a := variant(t, folderOf(t, name), same)
			if strings.HasPrefix(name, "rerank/") {
				put(t, a, map[string]string{"reranker.json": `{"true_token": "[UNK]", "false_token": "[CLS]"}`})
			}
			b := bare(t, a)
			dir := mixed(t, mix.Options{Precision: "f32", Note: func(m string) {
				if !strings.Contains(m, "different prompts") {
					t.Error(m)
				}
			}}, two(a, b)...)
			was, is := stored(t, a), stored(t, dir)
			for n, x := range was {
				from, to := floats(t, x), floats(t, is[n])
				for i := range from {
					if to[i] != 1.5*from[i] {
						t.Fatalf("%s[%d] is %v, want %v", n, i, to[i], 1.5*from[i])
					}
				}
			}
			if len(was) != len(is) {
				t.Errorf("%d tensors became %d", len(was), len(is))
			}
			loads(t, dir)
			f, err := hfmodel.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if (f.Reranker != nil) != strings.HasPrefix(name, "rerank/") || (f.Splade != nil) != strings.HasPrefix(name, "splade/") {
				t.Errorf("%v is a folder of another kind", dir)
			}
			refuses(t, two(b, a), "the first says nothing of how embeddings are made or pairs scored", "give that one first")
			switch name {
			case "rerank/llama-yes-no":
				refuses(t, two(a, without(t, bare(t, a), "lm_head.weight")), "no such tensor", "lm_head.weight")
			case "splade/encoder":
				refuses(t, two(a, without(t, bare(t, a), "cls.predictions.transform.dense.weight")), "cls.predictions.transform.dense.weight")
			}
		})
	}
	// What scores is not among a base's parameters here: neither order helps.
	cross := folderOf(t, "rerank/cross")
	base := bare(t, cross)
	edit(t, base, "config.json", "BertForSequenceClassification", "BertModel")
	refuses(t, two(cross, base), "the one is a reranker, the other an embedding model")
	refuses(t, two(base, cross), "the one is an embedding model, the other a reranker")
}

// Of models that say nothing but that they are language models the head is one's own or the word embeddings, and is not lost.
func TestHeadStays(t *testing.T) {
	for name, head := range map[string][]string{
		"rerank/llama-yes-no": {"lm_head.weight"}, "splade/bert-untied": {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"},
	} {
		t.Run(name, func(t *testing.T) {
			a := variant(t, folderOf(t, name), same)
			tied := without(t, bare(t, a), head...)
			edit(t, tied, "config.json", `"tie_word_embeddings": false`, `"tie_word_embeddings": true`)
			refuses(t, two(a, tied), "the head for language modelling", "is "+head[0]+" and the word embeddings (tie_word_embeddings)")
			refuses(t, two(tied, a), "is the word embeddings and "+head[0])
			// Beside a model that has none the head is lost, and the first's files say that it is there.
			none := without(t, bare(t, a), head...)
			edit(t, none, "config.json", map[bool]string{true: "LlamaForCausalLM", false: "BertForMaskedLM"}[name[0] == 'r'], map[bool]string{true: "LlamaModel", false: "BertModel"}[name[0] == 'r'])
			refuses(t, two(a, none), " is not in b, and config.json of a says that it is a ", "give b first")
			if is := stored(t, mixed(t, mix.Options{}, two(none, a)...)); len(is) == 0 || is[head[0]].Shape != nil {
				t.Errorf("%v", is)
			}
			if is := stored(t, mixed(t, mix.Options{}, two(a, bare(t, a))...)); is[head[0]].Shape == nil {
				t.Errorf("%v", is)
			}
		})
	}
}

// A pooler of another shape, or another task's head, is left out as one that is missing is.
func TestOtherShape(t *testing.T) {
	a := variant(t, folderOf(t, "bert/minilm-tiny"), same)
	b := variantOf(t, a, func(dir string) {
		retyped(t, filepath.Join(dir, "model.safetensors"), func(x safetensors.Tensor) safetensors.Tensor {
			if x.Name == "pooler.dense.bias" {
				x.Shape, x.Data = []int{4}, x.Data[:16]
			}
			return x
		})
	})
	var notes []string
	is := stored(t, mixed(t, mix.Options{Note: func(m string) { notes = append(notes, m) }}, two(a, b)...))
	if len(notes) != 1 || notes[0] != "pooler.dense.bias has shape [32] in a and [4] in b: it is left out, as nothing here depends on it" || len(is) != len(stored(t, a))-1 {
		t.Errorf("%q, %d tensors", notes, len(is))
	}
}

// The model card says how parameters became one, and how the weights were found.
func TestCard(t *testing.T) {
	a := folderOf(t, "bert/minilm-tiny")
	for want, o := range map[string]mix.Options{
		"are the weighted mean of those of these models:\n":                                    {},
		"are interpolated spherically (SLERP, tensor by tensor) between those of these two:\n": {Method: mix.SLERP},
		"are the weighted mean of those of these models. They were guessed.\n":                 {Weighed: "They were guessed."},
	} {
		card, err := os.ReadFile(filepath.Join(mixed(t, o, two(a, a)...), "README.md"))
		if err != nil || !strings.Contains(string(card), want) {
			t.Errorf("%v, want %q\n%s", err, want, card)
		}
	}
}

// Of what only the second has, one tensor is named and the others are counted.
func TestRest(t *testing.T) {
	a := folderOf(t, "bert/minilm-tiny")
	first := without(t, variant(t, a, same), "pooler.dense.bias", "pooler.dense.weight")
	var notes []string
	mixed(t, mix.Options{Note: func(m string) { notes = append(notes, m) }}, two(first, a)...)
	if want := "pooler.dense.bias of b is not in a, nor is 1 other of its tensors: left out, as nothing here depends on that"; len(notes) != 1 || notes[0] != want {
		t.Errorf("%q, want %q", notes, want)
	}
}

// What would fail is found before losses are measured, and the folder's own troubles are told as what they are.
func TestCompare(t *testing.T) {
	a := folderOf(t, "bert/minilm-tiny")
	dir := t.TempDir()
	put(t, dir, map[string]string{"file": "", "full/mine.txt": ""})
	double := variantOf(t, a, func(dir string) {
		retyped(t, filepath.Join(dir, "model.safetensors"), func(x safetensors.Tensor) safetensors.Tensor {
			if x.Name == "pooler.dense.bias" {
				x.DType, x.Data = safetensors.F64, make([]byte, 8*x.Len())
			}
			return x
		})
	})
	integers := variantOf(t, a, func(dir string) {
		retyped(t, filepath.Join(dir, "model.safetensors"), func(x safetensors.Tensor) safetensors.Tensor {
			if x.Name == "pooler.dense.bias" {
				x.DType = safetensors.I32
			}
			return x
		})
	})
	if err := mix.Compare(filepath.Join(dir, "x"), two(a, integers), mix.Options{}); err == nil || !strings.HasPrefix(err.Error(), "b: ") || !strings.Contains(err.Error(), "pooler.dense.bias") || !strings.Contains(err.Error(), "I32") {
		t.Error(err)
	}
	for _, c := range []struct{ first, out, want string }{
		{a, filepath.Join(dir, "full"), "is not empty and holds no model"},
		{a, filepath.Join(a, "x"), "would replace " + a},
		{double, filepath.Join(dir, "x"), "give a precision"},
		{a, filepath.Join(dir, "file", "x"), "not a directory"},
	} {
		err := mix.Compare(c.out, two(c.first, a), mix.Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(c.want, "directory") && strings.Contains(err.Error(), "would replace") {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
	if err := mix.Compare(filepath.Join(dir, "x"), two(a, a), mix.Options{Method: "cubic"}); err == nil || !strings.Contains(err.Error(), `method "cubic" is not linear or slerp`) {
		t.Error(err)
	}
	if err := mix.Check([]mix.Model{{Path: a, Weight: -1}, {Path: a, Weight: -1}}, mix.Options{}); err == nil || err.Error() != "the weights sum to -2, want 1" {
		t.Error(err)
	}
	if err := mix.Compare(filepath.Join(dir, "x"), two(a, a), mix.Options{}); err != nil {
		t.Error(err)
	}
}

// What is beside the numbers may differ: of dropout, which is of training, nothing is said, and of what the first decides a note is. Dense modules are the same by their
// place, however their folders are called.
func TestNoted(t *testing.T) {
	dense, cross := folderOf(t, "dense"), folderOf(t, "rerank/cross")
	for name, c := range map[string]struct {
		from   string
		change func(dir string)
		want   []string
	}{
		"dropout": {dense, func(dir string) {
			edit(t, dir, "config.json", `"hidden_dropout_prob": `, `"hidden_dropout_prob": 0.25, "was": `)
			edit(t, dir, "config.json", `"attention_probs_dropout_prob": `, `"attention_probs_dropout_prob": 0.25, "before": `)
		}, nil},
		"dense": {dense, func(dir string) {
			edit(t, dir, "modules.json", "2_Dense", "5_Dense")
			if err := os.Rename(filepath.Join(dir, "2_Dense"), filepath.Join(dir, "5_Dense")); err != nil {
				t.Fatal(err)
			}
		}, nil},
		"settings": {dense, func(dir string) {
			put(t, dir, map[string]string{"config_sentence_transformers.json": `{"prompts": {"q": "ask: "}, "default_prompt_name": "q", "similarity_fn_name": "dot"}`, "sentence_bert_config.json": `{"max_seq_length": 7}`})
		}, []string{"have different prompts", `have different default prompts ("" and "q")`, "have different maximum lengths of a text (", " and 7 tokens)", "have different similarities (cosine and dot)"}},
		"templates": {cross, func(dir string) { put(t, dir, map[string]string{"reranker.json": `{"query_prompt": "ask: "}`}) }, []string{"put different templates, instructions or prompts around pairs"}},
	} {
		t.Run(name, func(t *testing.T) {
			var notes []string
			a, b := variant(t, c.from, same), variantOf(t, c.from, c.change)
			is := stored(t, mixed(t, mix.Options{Note: func(m string) { notes = append(notes, m) }}, two(a, b)...))
			all := strings.Join(notes, "\n")
			for _, w := range c.want {
				if !strings.Contains(all, w) {
					t.Errorf("no note says %q:\n%s", w, all)
				}
			}
			if len(c.want) == 0 && all != "" {
				t.Errorf("notes:\n%s", all)
			}
			for n, x := range stored(t, a) {
				if string(is[n].Data) != string(x.Data) {
					t.Errorf("%v became %v", x, is[n])
				}
			}
		})
	}
}

// Whole numbers are the first's: that the second has none of that name, or others of its own, is no loss.
func TestWholeNumbers(t *testing.T) {
	a := folderOf(t, "bert/minilm-tiny")
	with := func(name string) string {
		return variantOf(t, a, func(dir string) {
			file := filepath.Join(dir, "model.safetensors")
			retyped(t, file, func(x safetensors.Tensor) safetensors.Tensor {
				if x.Name == "pooler.dense.bias" {
					x.Name, x.DType, x.Shape, x.Data = name, safetensors.I64, []int{2}, []byte("0123456789abcdef")
				}
				return x
			})
		})
	}
	b := without(t, variant(t, a, same), "pooler.dense.bias")
	for _, order := range [][2]string{{with("embeddings.position_ids"), b}, {b, with("embeddings.position_ids")}} {
		var done, total, elements int64
		is, was := stored(t, mixed(t, mix.Options{Note: func(m string) { t.Error(m) }, Progress: func(d, of int64) { done, total = d, of }}, two(order[0], order[1])...)), stored(t, order[0])
		for _, x := range is {
			elements += int64(x.Len())
		}
		if len(is) != len(was) || done != elements || total != elements {
			t.Errorf("%d tensors of %d, %d elements, of which %d of %d are told", len(is), len(was), elements, done, total)
		}
		if got := string(is["embeddings.position_ids"].Data); got != map[bool]string{true: "0123456789abcdef"}[order[1] == b] {
			t.Errorf("%q", got)
		}
	}
}

// config.json names one type, though norms may be in another than what is large: transformers loads a model in it.
func TestTwoTypes(t *testing.T) {
	a := variantOf(t, folderOf(t, "bert/minilm-tiny"), func(dir string) {
		edit(t, dir, "config.json", `"dtype": "float32"`, `"dtype": "bfloat16"`)
		retyped(t, filepath.Join(dir, "model.safetensors"), func(x safetensors.Tensor) safetensors.Tensor {
			if strings.Contains(x.Name, "LayerNorm") { // the first by name among them
				return x
			}
			x, err := x.As(safetensors.BF16)
			if err != nil {
				t.Fatal(err)
			}
			return x
		})
	})
	sameFiles(t, a, mixed(t, mix.Options{}, two(a, a)...))
}
