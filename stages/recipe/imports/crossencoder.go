package imports

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// crossEncoders are the losses of sentence-transformers' CrossEncoders that a reranker here has too, with the same meaning (package loss, Groups).
// Some names are those of losses for embedders as well.
var crossEncoders = map[string]peer{
	"BinaryCrossEntropyLoss": {name: "bce", inputs: "query answer label"},
	"MSELoss":                {name: "mse", inputs: "query answer label"},
	"MarginMSELoss":          {name: "margin_mse", inputs: "query positive negative scores"},
	"ADRMSELoss":             {name: "adr_mse", inputs: "query docs scores", lists: true},
	"LambdaLoss":             {name: "lambda", inputs: "query docs scores", lists: true},
	"RankNetLoss":            {name: "rank_net", inputs: "query docs scores", lists: true},
	"ListNetLoss":            {name: "list_net", inputs: "query docs scores", lists: true},
	"ListMLELoss":            {name: "list_mle", inputs: "query docs scores", lists: true},
	"PListMLELoss":           {name: "p_list_mle", inputs: "query docs scores", lists: true},

	"MultipleNegativesRankingLoss": {name: "mnrl"}, "CachedMultipleNegativesRankingLoss": {name: "mnrl"},
}

// ofCrossEncoders tells a loss that CrossEncoders alone have.
func ofCrossEncoders(name string) bool {
	_, ours := crossEncoders[name]
	_, embeds := losses[name]
	return ours && !embeds || name == "CrossEntropyLoss"
}

// embeds finds out whether the arguments are a CrossEncoder's, or an embedder's: their class says so, or else what only one of them has.
func (r *recipe) embeds() {
	if r.from != SentenceTransformers {
		return
	}
	class, _ := r.word("arguments") // FromPython's
	class = class[strings.LastIndexByte(class, '.')+1:]
	r.surely = strings.HasPrefix(class, "SentenceTransformer") || r.sparse()
	labels, some := r.whole("num_labels")
	for _, of := range append([]*recipe{r}, r.ownRecipes()...) {
		module, _ := of.word("loss")
		name := lossClass(module)
		r.pairs = r.pairs || strings.Contains(module, "cross_encoder.") || ofCrossEncoders(name)
		some = some && name != "SoftmaxLoss" // which has them as well
	}
	r.pairs = (r.pairs || some) && !r.surely && !r.ofVectors() || strings.HasPrefix(class, "CrossEncoder")
	for _, own := range r.ownRecipes() {
		own.pairs, own.surely = r.pairs, r.surely
	}
	if r.pairs && some && labels != 1 {
		r.without("num_labels", "%d: a reranker gives one score, and no classes", labels)
	}
}

// ownRecipes are those of datasets' own losses.
func (r *recipe) ownRecipes() (all []*recipe) {
	for _, p := range r.parts {
		if p.loss != nil {
			all = append(all, p.loss)
		}
	}
	return all
}

// pairDefault is the loss of a CrossEncoder's trainer where nothing says one (get_default_loss): by the number of labels.
func (r *recipe) pairDefault() string {
	if labels, some := r.whole("num_labels"); some && labels != 1 {
		return "CrossEntropyLoss"
	}
	return "BinaryCrossEntropyLoss"
}

// pairLoss makes a reranker's loss of a CrossEncoder's.
func (r *recipe) pairLoss() {
	name, ok := r.lossName()
	if !ok {
		name = r.pairDefault()
		r.assume("the loss is %s, the trainer's: no setting called loss names another", name)
	}
	ours := crossEncoders[name].name
	if ours == "" {
		r.choose(name, cmp.Or(noCounterpart[name], "it is not one of a CrossEncoder"), "reranker")
		for _, option := range []string{"num_negatives", "scale", "activation_fn", "alpha", "mini_batch_size"} {
			r.has(option)
		}
		return
	}
	if scheme, given := r.settings["weighting_scheme"]; given && name == "LambdaLoss" {
		ours = r.weighting(scheme)
	}
	if w, given := r.settings["lambda_weight"]; given && name == "PListMLELoss" {
		if r.used["lambda_weight"] = true; w == nil {
			ours = "list_mle"
		} else if lossClass(fmt.Sprint(w)) != "PListMLELambdaWeight" {
			r.without("lambda_weight", "%s; ranks have PListMLELambdaWeight's weights", show(w))
		}
	}
	r.keys["loss.name"] = ours
	if ours == "mnrl" {
		r.pairsInBatch()
		return
	}
	has := map[string]bool{} // which of its class's settings the loss has
	for option, names := range map[string]string{"pos_weight": "bce", "k": "lambda rank_net", "sigma": "lambda rank_net", "alpha": "adr_mse", "mu": "lambda", "respect_input_order": "list_mle p_list_mle"} {
		has[option] = slices.Contains(strings.Fields(names), ours)
		if v, ok := r.has(option); ok && !has[option] {
			r.without(option, "%s; %s has no such setting", show(v), name)
		}
	}
	for _, option := range []string{"pos_weight", "k", "sigma"} {
		if v, ok := r.number(option); ok && has[option] {
			r.keys["loss."+option] = num(v)
		}
	}
	if v, ok := r.number("alpha"); ok && v > 0 && has["alpha"] {
		r.set("loss.alpha", num(v), "1")
	} else if ok && has["alpha"] {
		r.without("alpha", "%s; it is a number above 0, and the recipe has 1", num(v))
	}
	if v, ok := r.number("mu"); ok && has["mu"] && (r.keys["loss.weighting"] == "" || r.keys["loss.weighting"] == "ndcg_loss2pp") {
		r.set("loss.mu", num(v), "10")
	} else if ok && has["mu"] {
		r.without("mu", "%s; it is NDCGLoss2PPScheme's", num(v))
	}
	if r.keys["loss.sigma"] == "1" {
		delete(r.keys, "loss.sigma")
	}
	if v, ok := r.yes("respect_input_order"); ok && !v && has["respect_input_order"] {
		r.keys["loss.by_label"] = "true"
	}
	if v, ok := r.word("reduction_log"); ok && v != "binary" {
		r.without("reduction_log", "%s; logarithms are of base 2, with which the loss is 1/ln 2 times as large", v)
	}
	if v, ok := r.number("eps"); ok && v != 1e-10 {
		r.without("eps", "%s; it is 1e-10", num(v))
	}
	switch v, ok := r.word("activation_fn"); {
	case !ok || activation(v) == "identity":
	case activation(v) == "sigmoid":
		r.keys["loss.activation"] = "sigmoid"
	default:
		r.without("activation_fn", "%s; there are identity and sigmoid, and the recipe has the first", v)
	}
}

// activation is what torch calls Sigmoid, sigmoid or Identity, with its module or without; others have none.
func activation(v string) string {
	switch name := strings.ToLower(lossClass(v)); name {
	case "sigmoid", "identity":
		return name
	}
	return ""
}

// pairsInBatch sets a reranker's mnrl. Defaults are those of both losses there.
func (r *recipe) pairsInBatch() {
	given := func(option string) (v any, ok bool) { // None says something, too
		v, ok = r.settings[option]
		r.has(option)
		return v, ok
	}
	if v, ok := given("num_negatives"); ok && v == nil {
		r.keys["loss.num_negatives"] = "all"
	} else if n, ok := r.whole("num_negatives"); ok && n < 1 {
		r.fail("num_negatives: want a number of 1 or more, or None for all, got %d", n)
	} else if ok {
		r.set("loss.num_negatives", fmt.Sprint(n), "4")
	}
	if v, ok := given("scale"); ok && v == nil {
		r.keys["loss.scale"] = "1"
	} else if f, ok := r.number("scale"); ok && f == 0 { // which scales by nothing there
		r.keys["loss.scale"] = "1"
	} else if ok {
		r.set("loss.scale", num(f), "10")
	}
	if v, ok := given("activation_fn"); ok {
		switch name, _ := r.word("activation_fn"); {
		case v == nil || activation(name) == "identity":
			r.keys["loss.activation"] = "identity"
		case activation(name) != "sigmoid":
			r.without("activation_fn", "%s; there are sigmoid and identity, and the recipe has the first", name)
		}
	}
	r.assume("documents of other rows are no negatives where their text is a row's own, its query or the positive of a row with the same query, and one that several rows have is one, which it is not there")
}

// drawsInBatch tells whether rerankers' rows get documents of other rows, by the recipe's loss or a dataset's own.
func (r *recipe) drawsInBatch() bool {
	return r.pairs && slices.ContainsFunc(append([]*recipe{r}, r.ownRecipes()...), func(of *recipe) bool { return of.peer().name == "mnrl" })
}

// called is a scheme with its one option, as Python has it.
var called = regexp.MustCompile(`^[^(]*\(\s*(?:mu\s*=\s*)?([-+.\deE]+)\s*\)$`)

// weighting sets how LambdaLoss weights pairs. Without weights it is RankNet's.
func (r *recipe) weighting(scheme any) (loss string) {
	r.used["weighting_scheme"] = true
	if scheme == nil {
		return "rank_net"
	}
	s := show(scheme)
	var mu any
	switch scheme := scheme.(type) {
	case map[string]any: // {name: NDCGLoss2PPScheme, mu: 5}
		mu = scheme["mu"]
	case string: // NDCGLoss2PPScheme(mu=5)
		if m := called.FindStringSubmatch(scheme); m != nil {
			mu = m[1]
		} else if _, options, _ := strings.Cut(scheme, "("); strings.Trim(options, " )") != "" {
			r.without("weighting_scheme", "%s: of what is in its parentheses a number is read, mu, and no more", s)
		}
	}
	if mu != nil {
		if was, beside := r.settings["mu"]; beside && show(was) != show(mu) {
			r.fail("mu is %s, and in weighting_scheme %s: leave one of them", show(was), show(mu))
		}
		r.settings["mu"] = mu
	}
	for class, ours := range map[string]string{"NDCGLoss2PPScheme": "ndcg_loss2pp", "NDCGLoss2Scheme": "ndcg_loss2", "NDCGLoss1Scheme": "ndcg_loss1", "LambdaRankScheme": "lambda_rank", "NoWeightingScheme": "rank_net"} {
		switch {
		case !strings.Contains(s, class):
		case ours == "rank_net":
			return ours
		default:
			r.set("loss.weighting", ours, "ndcg_loss2pp")
			return "lambda"
		}
	}
	r.without("weighting_scheme", "%s; NDCGLoss2PPScheme is taken", s)
	return "lambda"
}

// pairMeans says of which pairs losses of pairs of documents are a mean, or of which documents one of these, where a step there has several of them.
func (r *recipe) pairMeans() {
	if n, _ := r.whole("gradient_accumulation_steps"); !r.pairs || n < 2 && r.devices < 2 {
		return
	}
	for _, of := range append([]*recipe{r}, r.ownRecipes()...) {
		what := map[string]string{"lambda": "pairs of documents", "rank_net": "pairs of documents", "adr_mse": "documents"}[of.keys["loss.name"]]
		if what != "" {
			r.assume("%s is a mean over the %s of the whole step; there it is one over those of each device's each micro-batch, and the step takes the mean of them: where they have different numbers, these weigh otherwise", of.keys["loss.name"], what)
		}
	}
}

// pairColumns finds columns that are not those of a CrossEncoder's loss.
func (r *recipe) pairColumns(p *part, of peer) {
	want := len(strings.Fields(of.inputs))
	if n := len(p.texts); want > 0 && (n < want || n > want && of.name != "margin_mse") {
		r.fail("columns: %s%v are %d: %s takes %d, such as %s", p.of(), names(p.texts), n, of.name, want, names(strings.Fields(of.inputs)))
	}
}
