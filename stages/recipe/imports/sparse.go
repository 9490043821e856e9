package imports

import (
	"strings"
)

// lossClass is the class that a setting names, without its package.
func lossClass(s string) string { return strings.TrimSuffix(s[strings.LastIndexByte(s, '.')+1:], "()") }

// ofSplade tells a loss that wraps another and adds regularizers of sparse embeddings to it.
func ofSplade(class string) bool { return class == "SpladeLoss" || class == "CachedSpladeLoss" }

// sparse tells whether the settings are a SparseEncoder's: their class says so, or the loss's.
func (r *recipe) sparse() bool {
	if r.from != SentenceTransformers {
		return false
	}
	class, _ := r.word("arguments")
	loss, _ := r.word("loss")
	inner, _ := r.word("inner_loss")
	return strings.HasPrefix(lossClass(class), "SparseEncoder") || ofSplade(lossClass(loss)) || strings.HasPrefix(lossClass(loss), "Sparse") || strings.HasPrefix(lossClass(inner), "Sparse")
}

// splade sets what a SparseEncoder's settings say beside the loss that is wrapped.
func (r *recipe) splade() {
	r.keys["model.kind"] = "sparse"
	loss, given := r.word("loss")
	switch class := lossClass(loss); {
	case class == "CSRLoss" || class == "CSRReconstructionLoss":
		r.fail("loss: %s is of sparse auto-encoders (SparseAutoEncoder), which are not trained here: model.kind: sparse has SPLADE's embeddings", class)
		return
	case class == "FlopsLoss":
		r.fail("loss: FlopsLoss is a part of SpladeLoss, which adds it to another loss")
		return
	case given && !ofSplade(class):
		return // nothing is added
	}
	_, query := r.has("query_regularizer_weight")
	_, document := r.has("document_regularizer_weight")
	weightless := !query && !document
	var parts []string
	for _, x := range [][3]string{
		{"query_regularizer_weight", "query", "5e-5"}, {"document_regularizer_weight", "document", "3e-5"},
		{"query_regularizer_threshold", "query_threshold"}, {"document_regularizer_threshold", "document_threshold"},
	} {
		v, ok := r.number(x[0])
		switch {
		case ok:
			parts = append(parts, x[1]+": "+num(v))
		case weightless && x[2] != "": // the trainer's
			parts = append(parts, x[1]+": "+x[2])
		}
	}
	if only, _ := r.yes("use_document_regularizer_only"); only {
		for i, p := range parts {
			if strings.HasPrefix(p, "query: ") { // which is not used there
				parts[i] = "query: 0"
			}
		}
		parts = append(parts, "document_only: true")
	}
	for _, name := range []string{"query_regularizer", "document_regularizer"} {
		if v, ok := r.word(name); ok && lossClass(v) != "FlopsLoss" {
			r.without(name, "%s; there is FLOPS alone", v)
		}
	}
	if v, ok := r.word("scheduler_type"); ok {
		parts = append(parts, "schedule: "+plain(strings.ToLower(v[strings.LastIndexByte(v, '.')+1:])))
	}
	r.keys["loss.flops"] = "{" + strings.Join(parts, ", ") + "}"
	r.assume("the regularizer's weights grow in the first third of the run, as SpladeRegularizerWeightSchedulerCallback has it by default (loss.flops.warmup_ratio); its means are over the batches of all devices, where theirs are of one device's rows")
	if !given {
		r.assume("the loss is SpladeLoss of SparseMultipleNegativesRankingLoss, with the trainer's weights: no setting called loss names another")
	} else if weightless {
		r.assume("the regularizer's weights are 5e-5 for queries and 3e-5 for documents, the trainer's without any loss: no settings called query_regularizer_weight and document_regularizer_weight say others")
	}
}

// sparseUsual leaves out what is a loss's default for sparse embeddings, and says what is not.
func (r *recipe) sparseUsual(ours string) {
	if ours == "mnrl" {
		if r.keys["loss.scale"] == "1" {
			delete(r.keys, "loss.scale")
		}
		if v, ok := r.word("similarity_fct"); ok && strings.Contains(v, "cos") {
			r.keys["loss.similarity"] = "cosine"
		}
	} else if r.keys["loss.scale"] == "20" {
		delete(r.keys, "loss.scale")
	}
	if ours == "distill_kl" && r.keys["loss.temperature"] == "2" {
		delete(r.keys, "loss.temperature")
	}
}
