package imports

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// peer is one of sentence-transformers' losses.
type peer struct {
	name string // ours
	// inputs are the columns that it takes, where they are not texts alone. The last one, whatever it is called, is the column of that key of
	// data.train.
	inputs string
	rows   bool // a row's term is of that row alone

	vectors bool // of a MultiVectorEncoder
	lists   bool // of a CrossEncoder: a row has a list of documents, and one of their labels
}

// losses are those that contraflow has.
var losses = map[string]peer{
	"MultipleNegativesRankingLoss": {name: "mnrl"}, "CachedMultipleNegativesRankingLoss": {name: "mnrl"},
	"MultipleNegativesSymmetricRankingLoss": {name: "mnrl"}, "CachedMultipleNegativesSymmetricRankingLoss": {name: "mnrl"},
	"GISTEmbedLoss": {name: "gist"}, "CachedGISTEmbedLoss": {name: "gist"},
	"CoSENTLoss": {name: "cosent", inputs: "sentence1 sentence2 label"}, "AnglELoss": {name: "angle", inputs: "sentence1 sentence2 label"},
	"CosineSimilarityLoss": {name: "cosine_similarity", inputs: "sentence1 sentence2 label", rows: true},
	"ContrastiveLoss":      {name: "contrastive", inputs: "sentence1 sentence2 label", rows: true}, "OnlineContrastiveLoss": {name: "online_contrastive", inputs: "sentence1 sentence2 label"},
	"TripletLoss":          {name: "triplet", rows: true},
	"BatchHardTripletLoss": {name: "batch_hard_triplet", inputs: "sentence label"}, "BatchHardSoftMarginTripletLoss": {name: "batch_hard_soft_margin_triplet", inputs: "sentence label"},
	"BatchSemiHardTripletLoss": {name: "batch_semi_hard_triplet", inputs: "sentence label"}, "BatchAllTripletLoss": {name: "batch_all_triplet", inputs: "sentence label"},
	"MarginMSELoss": {name: "margin_mse", inputs: "query positive negative label", rows: true}, "DistillKLDivLoss": {name: "distill_kl", inputs: "query positive negative scores", rows: true},
	"MegaBatchMarginLoss": {name: "mega_batch_margin"}, "GlobalOrthogonalRegularizationLoss": {name: "gor"},
	"MultiVectorMultipleNegativesRankingLoss": {name: "mnrl", vectors: true}, "CachedMultiVectorMultipleNegativesRankingLoss": {name: "mnrl", vectors: true},
	"Contrastive": {name: "mnrl", vectors: true}, "CachedContrastive": {name: "mnrl", vectors: true}, // PyLate's
	"MultiVectorMarginMSELoss":    {name: "margin_mse", inputs: "query positive negative label", rows: true, vectors: true},
	"MultiVectorDistillKLDivLoss": {name: "distill_kl", inputs: "query positive negative scores", rows: true, vectors: true},
	"MSELoss":                     {name: "teacher_embedding", inputs: "sentence teacher", rows: true}, "EmbedDistillLoss": {name: "teacher_embedding", inputs: "sentence teacher", rows: true},
}

// ofBoth are losses of CrossEncoders whose names embedders' have as well.
var ofBoth = map[string]bool{"MultipleNegativesRankingLoss": true, "CachedMultipleNegativesRankingLoss": true, "MSELoss": true, "MarginMSELoss": true}

// ofVectors tells whether the arguments are a MultiVectorEncoder's.
func (r *recipe) ofVectors() bool {
	class, _ := r.word("arguments")
	module, _ := r.word("loss")
	return r.from == SentenceTransformers && (strings.HasPrefix(class[strings.LastIndexByte(class, '.')+1:], "MultiVectorEncoder") || r.peer().vectors || strings.Contains(module, "multi_vector_encoder."))
}

// lossName is the name of the loss's class: of the one inside, where it is wrapped.
func (r *recipe) lossName() (name string, given bool) {
	name, given = r.word("loss")
	wrapper := lossClass(name)
	if wrapper != "MatryoshkaLoss" && !ofSplade(wrapper) {
		return strings.TrimPrefix(wrapper, "Sparse"), given
	}
	if inner, ok := r.word("inner_loss"); ok {
		return strings.TrimPrefix(lossClass(inner), "Sparse"), true
	}
	r.assume("%s is one of MultipleNegativesRankingLoss: a setting called inner_loss would name another", wrapper)
	return "MultipleNegativesRankingLoss", true
}

// peer is the loss; the one without name, mnrl, if there is none of the name given.
func (r *recipe) peer() peer {
	assumed := r.result.Assumed
	name, _ := r.lossName()
	r.result.Assumed = assumed
	if r.pairs {
		if name == "" {
			name = r.pairDefault()
		}
		return crossEncoders[name]
	}
	return losses[name]
}

// margin sets a margin. 0 is the usual one of gist, and of other losses none that they take.
func (r *recipe) margin(setting, loss string, v float64) {
	switch {
	case v != 0:
		r.keys["loss.margin"] = num(v)
	case loss != "gist":
		r.without(setting, "a margin of 0 is not taken, and the recipe has the usual one: a small one, such as 1e-6, comes near it")
	}
}

// distillation makes the contrastive loss of FlagEmbedding's embedders one of two: with kl_div it adds the cross-entropy of the teacher's distribution
// over a row's documents and the student's. That is distill_kl, but for the teacher's entropy, which has no gradient, and for the factor of
// the squared temperature t there. Its processes share embeddings without gradients and average: of n of them the contrastive loss has 1/n of
// its gradient, and the teacher's part, which is of each process's own rows, all of it.
func (r *recipe) distillation(t float64) {
	if !r.teaches() {
		r.without("kd_loss_type", "%s, which for an embedder takes the teacher's scores alone, and each document against the batch in turn; the recipe has the contrastive loss instead. The other kind, kl_div, has a counterpart", r.kind())
		return
	}
	similarity := cmp.Or(r.keys["loss.similarity"], "cosine")
	matryoshka := r.keys["loss.matryoshka"]
	if gathered, _ := r.gathers(); gathered && r.devices > 1 {
		r.keys["loss.weight"] = num(1 / float64(r.devices))
		r.assume("FlagEmbedding's contrastive loss has 1/%d of its gradient, as embeddings come from other devices without theirs, and the teacher's part all of it: loss[0].weight", r.devices)
	}
	contrastive := r.ownLoss()
	for key := range r.keys {
		if strings.HasPrefix(key, "loss.") {
			delete(r.keys, key)
		}
	}
	teacher := fmt.Sprintf("name: distill_kl, weight: %s, similarity: %s, student_temperature: %s", strconv.FormatFloat(1/(t*t), 'g', 12, 64), similarity, num(t))
	if matryoshka != "" {
		teacher += ", matryoshka: " + matryoshka
	}
	r.keys["loss"] = "\n  - " + contrastive + "\n  - {" + teacher + "}"
}

func (r *recipe) flagTemperature() float64 {
	if t, ok := r.number("temperature"); ok {
		return t
	}
	return 0.02
}

// flagOptions are those of the contrastive loss of FlagEmbedding's embedders, whichever documents it compares.
func (r *recipe) flagOptions() map[string]string {
	keys := map[string]string{"loss.temperature": num(r.flagTemperature())}
	if mrl, _ := r.yes("use_mrl"); mrl {
		dims := r.list("mrl_dims")
		if len(dims) == 1 {
			dims = strings.Fields(dims[0])
		}
		weights := make([]string, len(dims)) // the mean there, a sum here
		for i := range weights {
			weights[i] = num(1 / float64(len(dims)))
		}
		keys["loss.matryoshka"] = fmt.Sprintf("{dims: %s, weights: %s}", names(dims), flow(weights))
	}
	if !r.unified() {
		if normalized, said := r.yes("normalize_embeddings"); said && !normalized {
			keys["loss.similarity"] = "dot"
		}
	}
	return keys
}

// spread sets the options of gor and mega_batch_margin. None of a weight is 0 there.
func (r *recipe) spread(name, ours string) {
	for _, option := range []string{"positive_margin", "negative_margin", "mean_weight", "second_moment_weight"} {
		of := "gor"
		if strings.HasSuffix(option, "margin") {
			of = "mega_batch_margin"
		}
		given, said := r.settings[option]
		v, ok := r.number(option)
		switch r.has(option); {
		case said && given == nil && of == "gor" && ours == of:
			r.keys["loss."+option] = "0"
		case ok && ours == of:
			r.keys["loss."+option] = num(v)
		case ok:
			r.without(option, "%s; %s has no such setting", num(v), cmp.Or(name, "the loss"))
		}
	}
	if v, ok := r.word("aggregation"); ok && ours == "gor" {
		r.set("loss.aggregation", plain(v), "mean")
	} else if ok {
		r.without("aggregation", "%s; %s has no such setting", v, cmp.Or(name, "the loss"))
	}
	if ours == "gor" {
		r.assume("%s alone spreads embeddings and teaches nothing else: beside another loss, of the same batches, it is a term of a sum, loss: [{name: mnrl}, {name: gor}]", name)
	}
}

func (r *recipe) loss() {
	if r.apart {
		return
	}
	if r.pairs {
		r.pairLoss()
		return
	}
	if r.reranks() {
		r.keys["loss.name"] = "cross_entropy"
		if r.distills() {
			r.keys["loss.name"] = "distill"
		} else if r.layerWise() {
			r.keys["loss.self_distill"] = "true"
		}
		for _, name := range []string{"temperature", "negatives_cross_device"} { // which its trainer doesn't have either
			delete(r.used, name)
		}
		return
	}
	if r.from == FlagEmbedding {
		maps.Copy(r.keys, r.flagOptions())
		r.keys["loss.mask_duplicates"] = "false"
		if r.unified() {
			r.m3()
			return
		}
		if r.keys["loss.similarity"] == "dot" && r.keys["loss.matryoshka"] != "" {
			r.assume("the shorter embeddings of loss.matryoshka are of length 1; with normalize_embeddings: false FlagEmbedding's are not")
		}
		if r.distills() {
			r.distillation(r.flagTemperature())
		}
		return
	}
	module, _ := r.word("loss")
	sparse := r.sparse()
	if sparse {
		if r.splade(); len(r.errs) > 0 {
			return
		}
	}
	name, ok := r.lossName()
	ours, vectors := losses[name].name, r.ofVectors()
	if vectors && ok && !losses[name].vectors {
		ours = ""
	}
	switch {
	case vectors && !ok:
		r.assume("the loss is MultiVectorMultipleNegativesRankingLoss: no setting called loss names another")
	case vectors && ours == "":
		r.choose(name, "it is not one of a MultiVectorEncoder", "multi_vector")
	case !ok && sparse:
	case !ok:
		r.assume("the loss is MultipleNegativesRankingLoss: no setting called loss names another")
	case ofCrossEncoders(name) || strings.Contains(module, "cross_encoder."):
		r.choose(name, "it is a CrossEncoder's, and the arguments are not", "embedder")
	case ours == "":
		r.choose(name, "", "embedder")
	default:
		if ofBoth[name] && !r.surely {
			r.assume("%s is an embedder's (a SentenceTransformer's), and not a CrossEncoder's, which is called so too: arguments: CrossEncoderTrainingArguments would say that it is", name)
		}
		r.set("loss.name", ours, "mnrl")
	}
	if strings.Contains(name, "Symmetric") && ours != "" {
		r.keys["loss.directions"] = "[query_to_doc, doc_to_query]"
		r.keys["loss.partition_mode"] = "per_direction"
	}
	if ours == "mnrl" || ours == "gist" || ours == "mega_batch_margin" || !ok {
		r.keys["loss.mask_duplicates"] = "false"
		r.assume("a text that occurs twice in a batch is a negative of itself, as it is there; loss.mask_duplicates: true is mostly better")
	}
	if v, ok := r.number("hardness_strength"); ok && v == 0 { // which mode it is changes nothing then
		delete(r.settings, "hardness_strength")
		delete(r.settings, "hardness_mode")
	}
	for _, option := range []string{"scale", "temperature", "student_temperature", "teacher_temperature", "hardness_strength", "margin"} {
		if v, ok := r.number(option); ok && option == "margin" {
			r.margin(option, ours, v)
		} else if ok {
			r.keys["loss."+option] = num(v)
		}
	}
	r.spread(name, ours)
	if v, ok := r.number("triplet_margin"); ok {
		r.margin("triplet_margin", ours, v)
	}
	if sparse {
		r.sparseUsual(cmp.Or(ours, "mnrl"))
	} else if usual := map[bool]string{false: "20", true: "1"}[vectors]; r.keys["loss.scale"] == usual {
		delete(r.keys, "loss.scale")
	}
	if vectors { // whatever the model's folder says of it
		r.keys["loss.similarity"] = "maxsim"
	}
	if v, ok := r.word("similarity_fct"); ok {
		switch {
		case vectors && strings.Contains(strings.ToLower(v), "xtr"):
			r.without("similarity_fct", "%s; there are maxsim and mean_maxsim, and the recipe has the first", v)
		case vectors:
			if strings.HasPrefix(v[strings.LastIndexByte(v, '.')+1:], "mean") {
				r.keys["loss.similarity"] = "mean_maxsim"
			}
		case ours == "mega_batch_margin":
			if !strings.Contains(v, "cos") {
				r.without("similarity_fct", "%s; %s has cosine there and here", v, name)
			}
		case strings.Contains(v, "dot"):
			r.keys["loss.similarity"] = "dot"
		case !strings.Contains(v, "cos"):
			if ours != "angle" { // whose own it is
				r.without("similarity_fct", "%s; there are cosine and dot, and the loss has its usual one", v)
			}
		case ours == "margin_mse" || ours == "distill_kl": // theirs is dot
			r.keys["loss.similarity"] = "cosine"
		}
	}
	if v, ok := r.word("distance_metric"); ok { // TripletDistanceMetric.EUCLIDEAN, cosine, l2, ...
		v = strings.TrimSuffix(strings.ToLower(v[strings.LastIndexByte(v, '.')+1:]), "_distance")
		if v == "l2" || v == "eucledian" { // BatchHardTripletLossDistanceFunction's spelling
			v = "euclidean"
		}
		r.keys["loss.distance"] = plain(v)
	} else if name == "EmbedDistillLoss" {
		r.keys["loss.distance"] = "cosine"
	}
	if d := r.list("directions"); d != nil {
		r.set("loss.directions", names(d), "[query_to_doc]")
	}
	if v, ok := r.word("partition_mode"); ok {
		r.set("loss.partition_mode", plain(v), "joint")
	}
	for _, option := range []string{"hardness_mode", "margin_strategy"} {
		if v, ok := r.word(option); ok {
			r.keys["loss."+option] = plain(v)
		}
	}
	for _, option := range []string{"contrast_anchors", "contrast_positives"} {
		if v, ok := r.yes(option); ok {
			r.set("loss."+option, fmt.Sprint(v), "true")
		}
	}
	for option, usual := range map[string]string{"loss_fct": "mseloss", "cos_score_transformation": "identity"} {
		if v, ok := r.word(option); ok && strings.ToLower(lossClass(v)) != usual {
			r.without(option, "%s; %s has the square of the difference of cosine and label", v, cmp.Or(name, "the loss"))
		}
	}
	if v, ok := r.yes("size_average"); ok && !v {
		r.without("size_average", "false; the loss is a mean over rows")
	}
	if v, ok := r.number("projection_dim"); ok {
		r.without("projection_dim", "%s; embeddings are compared as they are: a teacher's of another size takes a model with a layer that gives it (Dense)", num(v))
	}
	if ours == "gist" {
		r.guide()
	}
	if dims := r.list("matryoshka_dims"); dims != nil {
		parts := []string{"dims: " + names(dims)}
		if weights := r.list("matryoshka_weights"); weights != nil {
			parts = append(parts, "weights: "+names(weights))
		}
		r.keys["loss.matryoshka"] = "{" + strings.Join(parts, ", ") + "}"
		if n, ok := r.whole("n_dims_per_step"); ok && n > 0 {
			r.keys["loss.matryoshka"] = "{" + strings.Join(append(parts, fmt.Sprintf("dims_per_step: %d", n)), ", ") + "}"
		}
	}
}

// guidePrompts has the guide read texts with the prompts that train, or with none: there it is given the texts that the model is given, whatever prompts
// its own folder has.
func (r *recipe) guidePrompts() {
	guide, ok := r.keys["loss.guide"]
	if !ok {
		return
	}
	var first *part
	for i := range r.parts {
		switch p := &r.parts[i]; {
		case p.loss != nil && !p.whole:
		case first == nil:
			first = p
		case p.put != first.put:
			r.without("prompts", "%shas %s; the guide reads all texts with those of %s%s", p.of(), p.put, first.of(), first.put)
		}
	}
	if first != nil {
		r.keys["loss.guide"] = strings.TrimSuffix(guide, "}") + ", prompts: " + first.put + "}"
	}
}

// guide is a model's folder or hub id, or a mapping of that and of how long its texts are, which scripts make it of.
func (r *recipe) guide() {
	v, ok := r.has("guide")
	of, mapped := v.(map[string]any)
	switch {
	case mapped:
		r.guideOf(of)
		return
	case !ok:
		r.open("a guide", "GUIDE")
		r.assume("no guide is named: put a model's folder or hub id in place of GUIDE")
		r.keys["loss.guide"] = "{path: " + quote("GUIDE") + "}"
		return
	}
	if path, ok := r.word("guide"); ok {
		r.keys["loss.guide"] = "{path: " + quote(path) + "}"
	}
}

func (r *recipe) guideOf(of map[string]any) {
	path, length := "", 0.0
	for _, k := range slices.Sorted(maps.Keys(of)) {
		ok := false
		switch {
		case (k == "path" || k == "name") && path == "":
			path, ok = of[k].(string)
		case (k == "max_seq_length" || k == "max_length") && length == 0:
			length, ok = asNumber(of[k])
			ok = ok && length >= 1 && length == math.Trunc(length)
		}
		if !ok {
			r.fail("guide.%s: is %s; what is read of a guide is its path, and max_seq_length, a whole number", k, show(of[k]))
			return
		}
	}
	switch {
	case path == "":
		r.fail("guide: %s has no path, which names the model", show(of))
	case length == 0:
		r.keys["loss.guide"] = "{path: " + quote(path) + "}"
	default:
		r.keys["loss.guide"] = fmt.Sprintf("{path: %s, max_length: %.0f}", quote(path), length)
	}
}
