package imports_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"contraflow/io/dataset"
	"contraflow/stages/recipe"
	"contraflow/stages/recipe/imports"
)

func list(words ...any) []any { return words }

// A CrossEncoder's settings become a reranker's recipe, with what TrainingArguments have, its columns and its loss's options; nothing of them is
// unknown. (What each loss computes testdata/peers/reranker_steps.py compares.)
func TestCrossEncoder(t *testing.T) {
	const class = "CrossEncoderTrainingArguments"
	for _, c := range []struct {
		s    imports.Settings
		want recipe.Source
		loss recipe.Loss
		said string // "assumed" and "without counterpart", of which there is nothing else
	}{
		{imports.Settings{"arguments": class, "columns": list("q", "a", "score")}, recipe.Source{Query: "q", Positive: "a", Label: "score"}, recipe.Loss{Name: "bce"}, "the loss is BinaryCrossEntropyLoss, the trainer's"},
		{imports.Settings{"loss": map[string]any{"name": "BinaryCrossEntropyLoss", "pos_weight": 5.0, "activation_fn": "torch.nn.modules.linear.Identity"}}, recipe.Source{Query: "query", Positive: "answer", Label: "label"}, recipe.Loss{Name: "bce", PosWeight: 5}, "the columns are called query, answer, label"},
		{imports.Settings{"loss": "sentence_transformers.cross_encoder.losses.MSELoss()", "columns": list("q", "a", "l"), "activation_fn": "torch.nn.modules.activation.Sigmoid"}, recipe.Source{Query: "q", Positive: "a", Label: "l"}, recipe.Loss{Name: "mse", Activation: "sigmoid"}, ""},
		{imports.Settings{"loss": "LambdaLoss", "columns": list("q", "docs", "labels"), "activation_fn": "torch.nn.modules.activation.LogSigmoid"}, recipe.Source{Query: "q", Documents: "docs", Scores: []string{"labels"}}, recipe.Loss{Name: "lambda"}, "activation_fn: torch.nn.modules.activation.LogSigmoid; there are identity and sigmoid, and the recipe has the first"},
		{imports.Settings{"loss": "MarginMSELoss", "num_labels": 1.0, "columns": list("q", "p", "n1", "n2", "s")}, recipe.Source{Query: "q", Positive: "p", Negatives: []string{"n1", "n2"}, Scores: []string{"s"}}, recipe.Loss{Name: "margin_mse"}, ""},
		{imports.Settings{"loss": map[string]any{"name": "cross_encoder.losses.LambdaLoss", "weighting_scheme": "sentence_transformers.cross_encoder.losses.LambdaLoss.LambdaRankScheme", "k": 10.0, "sigma": 2.0}, "columns": list("q", "docs", "labels")}, recipe.Source{Query: "q", Documents: "docs", Scores: []string{"labels"}}, recipe.Loss{Name: "lambda", Weighting: "lambda_rank", K: 10, Sigma: 2}, ""},
		{imports.Settings{"loss": map[string]any{"name": "ADRMSELoss", "alpha": 2.0}, "columns": list("q", "docs", "labels")}, recipe.Source{Query: "q", Documents: "docs", Scores: []string{"labels"}}, recipe.Loss{Name: "adr_mse", Alpha: 2}, ""},
		{imports.Settings{"loss": "ADRMSELoss", "alpha": 0.0, "columns": list("q", "docs", "labels")}, recipe.Source{Query: "q", Documents: "docs", Scores: []string{"labels"}}, recipe.Loss{Name: "adr_mse"}, "alpha: 0; it is a number above 0"},
		{imports.Settings{"loss": "LambdaLoss", "weighting_scheme": nil, "columns": list("q", "docs", "labels"), "reduction_log": "natural", "eps": 1e-10}, recipe.Source{Query: "q", Documents: "docs", Scores: []string{"labels"}}, recipe.Loss{Name: "rank_net"}, "reduction_log: natural; logarithms are of base 2"},
		{imports.Settings{"loss": "PListMLELoss", "lambda_weight": "PListMLELambdaWeight", "respect_input_order": true, "columns": list("q", "docs", "labels")}, recipe.Source{Query: "q", Documents: "docs", Scores: []string{"labels"}}, recipe.Loss{Name: "p_list_mle"}, ""},
		{imports.Settings{"arguments": class, "loss": "ListMLELoss", "respect_input_order": false, "columns": list("q", "docs", "labels"), "prompts": "query: "}, recipe.Source{Query: "q", Documents: "docs", Scores: []string{"labels"}, Prompts: &recipe.Prompts{Query: "query: "}}, recipe.Loss{Name: "list_mle", ByLabel: true}, ""},
		{imports.Settings{"arguments": class, "loss": map[string]any{"name": "CachedMultipleNegativesRankingLoss", "num_negatives": nil, "scale": 5.0, "activation_fn": "torch.nn.modules.linear.Identity"}, "mini_batch_size": 16.0, "columns": list("q", "p", "n1", "n2")}, recipe.Source{Query: "q", Positive: "p", Negatives: []string{"n1", "n2"}}, recipe.Loss{Name: "mnrl", NumNegatives: dataset.AllNegatives, Scale: 5, Activation: "identity"}, "documents of other rows are no negatives where"},
		{imports.Settings{"num_labels": 1.0, "loss": "MultipleNegativesRankingLoss", "num_negatives": 4.0, "scale": 10.0, "activation_fn": "torch.nn.modules.activation.Sigmoid", "columns": list("q", "p")}, recipe.Source{Query: "q", Positive: "p"}, recipe.Loss{Name: "mnrl", NumNegatives: 4, Scale: 10, Activation: "sigmoid"}, "documents of other rows are no negatives where"},
		{imports.Settings{"num_labels": 3.0, "loss": "BinaryCrossEntropyLoss", "columns": list("q", "a", "l")}, recipe.Source{Query: "q", Positive: "a", Label: "l"}, recipe.Loss{Name: "bce"}, "num_labels: 3: a reranker gives one score"},
	} {
		maps.Copy(c.s, imports.Settings{"model": "m", "train_dataset": "d.parquet", "learning_rate": 3e-5, "per_device_train_batch_size": 16.0, "lr_scheduler_type": "cosine", "warmup_ratio": 0.1, "max_steps": 50.0, "save_steps": 20.0, "max_length": 256.0, "bf16": true})
		r, res := convert(t, imports.SentenceTransformers, c.s, 1)
		if r.Model.Kind != "reranker" || r.Model.MaxLength.Document != 256 || r.Model.Truncation != "" || r.Optimizer.LR != 3e-5 || r.Optimizer.Schedule.Name != "cosine" || r.Batch.GlobalSize != 16 || r.Batch.DropLast || r.Train.MaxSteps != 50 || r.Save.Every.Steps != 20 || r.Train.Precision != "bf16" {
			t.Errorf("%v:\n%s", c.s, res.Recipe)
		}
		d, l := r.Data.Train[0], r.Loss
		if c.want.Prompts == nil {
			c.want.Prompts = &recipe.Prompts{}
		}
		if d.Query != c.want.Query || d.Positive != c.want.Positive || d.Label != c.want.Label || d.Documents != c.want.Documents || !slices.Equal(d.Negatives, c.want.Negatives) || !slices.Equal(d.Scores, c.want.Scores) || *d.Prompts != *c.want.Prompts {
			t.Errorf("%v: data is %+v in\n%s", c.s, d, res.Recipe)
		}
		if l.Name != c.loss.Name || l.PosWeight != c.loss.PosWeight || l.Weighting != c.loss.Weighting || l.K != c.loss.K || l.Sigma != c.loss.Sigma || l.ByLabel != c.loss.ByLabel || l.NumNegatives != c.loss.NumNegatives || l.Scale != c.loss.Scale || l.Activation != c.loss.Activation {
			t.Errorf("%v: the loss is %+v in\n%s", c.s, l, res.Recipe)
		}
		said := slices.Concat(res.Assumed, res.Without, res.Unknown)
		if len(said) > 1 || (len(said) == 0) != (c.said == "") || !strings.Contains(strings.Join(said, "\n"), c.said) {
			t.Errorf("%v: %q", c.s, said)
		}
	}
}

// A setting that the loss does not have is said, and makes no recipe that is refused.
func TestCrossEncoderOptions(t *testing.T) {
	given := map[string]any{"pos_weight": 5.0, "k": 3.0, "sigma": 2.0, "alpha": 3.0, "mu": 5.0, "respect_input_order": false}
	for name, has := range map[string]string{"BinaryCrossEntropyLoss": "pos_weight", "ADRMSELoss": "alpha", "LambdaLoss": "k mu sigma", "RankNetLoss": "k sigma", "ListNetLoss": "", "ListMLELoss": "respect_input_order", "PListMLELoss": "respect_input_order", "MSELoss": "", "MarginMSELoss": ""} {
		for option, v := range given {
			r, res := convert(t, imports.SentenceTransformers, imports.Settings{"arguments": "CrossEncoderTrainingArguments", "loss": map[string]any{"name": name, option: v}}, 1) // which reads the recipe
			l, ours := r.Loss, slices.Contains(strings.Fields(has), option)
			set := map[string]bool{"pos_weight": l.PosWeight == 5, "k": l.K == 3, "sigma": l.Sigma == 2, "alpha": l.Alpha == 3, "mu": l.Mu == 5, "respect_input_order": l.ByLabel}[option]
			said := strings.Join(res.Without, "\n")
			if set != ours || strings.Contains(said, option+": ") == ours || !ours && !strings.Contains(said, name+" has no such setting") {
				t.Errorf("%s of %s: %+v, said %q", option, name, l, said)
			}
		}
	}
	r, res := convert(t, imports.SentenceTransformers, imports.Settings{"loss": "LambdaLoss", "weighting_scheme": "NDCGLoss1Scheme", "mu": 5.0}, 1)
	if r.Loss.Mu != 0 || !slices.Contains(res.Without, "mu: 5; it is NDCGLoss2PPScheme's") {
		t.Errorf("mu of another scheme: %+v, %q", r.Loss, res.Without)
	}
}

// What a CrossEncoder has and rerankers have not is to be chosen, or an error; and embedders' settings stay embedders'.
func TestCrossEncoderWithout(t *testing.T) {
	const class = "CrossEncoderTrainingArguments"
	for _, c := range []struct {
		s    imports.Settings
		said string
	}{
		{imports.Settings{"loss": "CrossEntropyLoss", "num_labels": 3.0}, "it trains a classifier of pairs; a reranker gives one score"},
		{imports.Settings{"num_labels": 3.0}, "CrossEntropyLoss is not converted: it trains a classifier of pairs"}, // get_default_loss
		{imports.Settings{"arguments": class, "num_labels": "2", "columns": list("q", "a", "label")}, "CrossEntropyLoss is not converted: it trains a classifier of pairs"},
		{imports.Settings{"arguments": class, "loss": "CoSENTLoss"}, "it is not one of a CrossEncoder"},
		{imports.Settings{"arguments": class, "loss": "LamdaLoss"}, "did you mean LambdaLoss?"},
	} {
		res, err := imports.Convert(imports.SentenceTransformers, c.s, 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := recipe.Parse("imported", []byte(res.Recipe), nil); err == nil || !strings.Contains(err.Error(), `loss.name: is "LOSS"`) || !strings.Contains(strings.Join(res.Without, "\n"), c.said) || len(res.Unknown) > 0 {
			t.Errorf("%v: %v, without %q, unknown %q", c.s, err, res.Without, res.Unknown)
		}
		if !strings.Contains(res.Recipe, "kind: reranker") {
			t.Errorf("%v:\n%s", c.s, res.Recipe)
		}
	}
	for want, s := range map[string]imports.Settings{
		"prompts: are one text of all datasets": {"arguments": class, "prompts": map[string]any{"query": "q: "}},
		"columns: [q, a] are 2: bce takes 3":    {"arguments": class, "columns": []any{"q", "a"}},
		"columns: [q, a, b, c] are 4: lambda":   {"loss": "LambdaLoss", "columns": []any{"q", "a", "b", "c"}},
	} {
		if _, err := imports.Convert(imports.SentenceTransformers, s, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for loss, both := range map[string]bool{"MSELoss": true, "CachedMultipleNegativesRankingLoss": true, "MarginMSELoss": true, "CoSENTLoss": false, "losses.TripletLoss": false} {
		for _, class := range []any{nil, "SentenceTransformerTrainingArguments"} {
			s := imports.Settings{"loss": loss, "arguments": class}
			if strings.HasSuffix(loss, "TripletLoss") {
				s["columns"] = list("a", "p", "n")
			}
			r, res := convert(t, imports.SentenceTransformers, s, 1)
			if strings.Contains(res.Recipe, "arguments: CrossEncoderTrainingArguments") != (both && class == nil) || len(res.Unknown)+len(res.Without) > 0 || r.Model.Kind != "embedder" {
				t.Errorf("%s of %v:\n%s", loss, class, res.Recipe)
			}
		}
	}
	r, res := convert(t, imports.SentenceTransformers, imports.Settings{"arguments": class, "train_dataset": map[string]any{"a": "a.parquet", "b": "b.parquet"}, "loss": map[string]any{"a": "BinaryCrossEntropyLoss", "b": "LambdaLoss"}, "prompts": map[string]any{"a": "x: "}}, 1)
	a, b := r.Data.Train[0], r.Data.Train[1]
	if a.Loss.Name != "bce" || a.Label != "label" || a.Prompts.Query != "x: " || a.Prompts.Document != "" || b.Loss.Name != "lambda" || b.Documents != "docs" || b.Prompts.Query != "" {
		t.Errorf("%s", res.Recipe)
	}
}

// Of mnrl what is not the same there is said: another activation, and where documents of other rows come from on several devices, each dataset's own loss
// among them.
func TestCrossEncoderInBatch(t *testing.T) {
	const class = "CrossEncoderTrainingArguments"
	mnrl := func(options ...any) imports.Settings {
		s := imports.Settings{"arguments": class, "loss": "MultipleNegativesRankingLoss"}
		for i := 0; i < len(options); i += 2 {
			s[options[i].(string)] = options[i+1]
		}
		return s
	}
	for _, other := range []string{"Tanh", "LogSigmoid", "Hardsigmoid", "Hardsigmoid()"} {
		_, res := convert(t, imports.SentenceTransformers, mnrl("activation_fn", "torch.nn.modules.activation."+other), 1)
		if len(res.Without) != 1 || !strings.Contains(res.Without[0], other+"; there are sigmoid and identity") {
			t.Errorf("%s: %q", other, res.Without)
		}
	}
	for _, name := range []string{"torch.sigmoid", "torch.nn.functional.sigmoid", "Sigmoid()", "torch.nn.modules.activation.Sigmoid"} {
		if r, res := convert(t, imports.SentenceTransformers, mnrl("activation_fn", name), 1); r.Loss.Activation != "sigmoid" || len(res.Without) > 0 {
			t.Errorf("%s: %q, %q", name, r.Loss.Activation, res.Without)
		}
	}
	r, _ := convert(t, imports.SentenceTransformers, mnrl("activation_fn", nil, "scale", nil, "batch_sampler", "BatchSamplers.NO_DUPLICATES"), 1)
	if r.Loss.Activation != "identity" || r.Loss.Scale != 1 || !r.Batch.NoDuplicates {
		t.Errorf("%+v, %+v", r.Loss, r.Batch)
	}
	if r, _ := convert(t, imports.SentenceTransformers, mnrl(), 1); r.Batch.NoDuplicates || r.Loss.NumNegatives != 4 {
		t.Errorf("%+v, %+v", r.Loss, r.Batch)
	}
	if _, err := imports.Convert(imports.SentenceTransformers, mnrl("num_negatives", 0.0), 1); err == nil || !strings.Contains(err.Error(), "num_negatives: want a number of 1 or more, or None for all, got 0") {
		t.Error(err)
	}
	for _, s := range []imports.Settings{mnrl(), {"arguments": class, "train_dataset": map[string]any{"a": "a.parquet", "b": "b.parquet"}, "loss": map[string]any{"a": "BinaryCrossEntropyLoss", "b": "CachedMultipleNegativesRankingLoss"}}} {
		r, res := convert(t, imports.SentenceTransformers, s, 2)
		if !strings.Contains(strings.Join(res.Assumed, "\n"), "a row gets documents of rows on all of them, and there of those on its own") || r.Batch.GlobalSize != 16 || r.Mesh.Replicate != 0 {
			t.Errorf("%q\n%s", res.Assumed, res.Recipe)
		}
	}
}

// Of pairs of documents a step has one mean here, and there one for each micro-batch and device: that is said where there are several.
func TestPairMeans(t *testing.T) {
	for _, c := range []struct {
		loss       string
		accumulate float64
		devices    int
		said       bool
	}{{"LambdaLoss", 1, 1, false}, {"LambdaLoss", 2, 1, true}, {"RankNetLoss", 1, 4, true}, {"ADRMSELoss", 2, 1, true}, {"ADRMSELoss", 1, 1, false}, {"ListNetLoss", 2, 4, false}} {
		_, res := convert(t, imports.SentenceTransformers, imports.Settings{"loss": c.loss, "gradient_accumulation_steps": c.accumulate}, c.devices)
		if strings.Contains(strings.Join(res.Assumed, "\n"), "documents of the whole step") != c.said {
			t.Errorf("%v: %q", c, res.Assumed)
		}
	}
	_, res := convert(t, imports.SentenceTransformers, imports.Settings{"train_dataset": map[string]any{"a": "a.parquet", "b": "b.parquet"}, "loss": map[string]any{"a": "BinaryCrossEntropyLoss", "b": "LambdaLoss"}}, 2)
	if !strings.Contains(res.Recipe, "lambda is a mean over the pairs") {
		t.Errorf("a dataset's own:\n%s", res.Recipe)
	}
}

// LambdaLoss's scheme has its option as Python writes it, or what of it is not read is said.
func TestWeightingScheme(t *testing.T) {
	for scheme, mu := range map[string]float64{"NDCGLoss2PPScheme(mu=5)": 5, "losses.NDCGLoss2PPScheme( 2.5 )": 2.5, "NDCGLoss2PPScheme()": 10, "NDCGLoss2PPScheme(mu=MU)": 10} {
		r, res := convert(t, imports.SentenceTransformers, imports.Settings{"loss": "LambdaLoss", "weighting_scheme": scheme}, 1)
		if r.Loss.Name != "lambda" || r.Loss.Mu != mu && (r.Loss.Mu != 0 || mu != 10) || (len(res.Without) == 1) != strings.Contains(scheme, "MU") {
			t.Errorf("%s: mu is %v, without %q", scheme, r.Loss.Mu, res.Without)
		}
	}
	if _, err := imports.Convert(imports.SentenceTransformers, imports.Settings{"loss": "LambdaLoss", "mu": 4.0, "weighting_scheme": "NDCGLoss2PPScheme(mu=5)"}, 1); err == nil || !strings.Contains(err.Error(), "mu is 4, and in weighting_scheme") {
		t.Error(err)
	}
}

// A column called label, labels, score or scores is the label wherever it stands, the first of these names if there are several, as the data collator
// has it (base/data_collator.py); of other names it is the last.
func TestLabelByName(t *testing.T) {
	for _, c := range []struct {
		loss    string
		columns []any
		want    recipe.Source
	}{
		{"CoSENTLoss", list("score", "a", "b"), recipe.Source{Query: "a", Positive: "b", Label: "score"}},
		{"CoSENTLoss", list("a", "similarity", "b"), recipe.Source{Query: "a", Positive: "similarity", Label: "b"}},
		{"BinaryCrossEntropyLoss", list("score", "label", "b"), recipe.Source{Query: "score", Positive: "b", Label: "label"}},
		{"ListNetLoss", list("labels", "q", "docs"), recipe.Source{Query: "q", Documents: "docs", Scores: []string{"labels"}}},
		{"DistillKLDivLoss", list("q", "scores", "p", "n"), recipe.Source{Query: "q", Positive: "p", Negatives: []string{"n"}, Scores: []string{"scores"}}},
		{"MultipleNegativesRankingLoss", list("q", "label", "p", "n"), recipe.Source{Query: "q", Positive: "p", Negatives: []string{"n"}}},
	} {
		r, res := convert(t, imports.SentenceTransformers, imports.Settings{"loss": c.loss, "columns": c.columns}, 1)
		d := r.Data.Train[0]
		if d.Query != c.want.Query || d.Positive != c.want.Positive || d.Label != c.want.Label || d.Documents != c.want.Documents || !slices.Equal(d.Negatives, c.want.Negatives) || !slices.Equal(d.Scores, c.want.Scores) {
			t.Errorf("%s of %v:\n%s", c.loss, c.columns, res.Recipe)
		}
	}
}
