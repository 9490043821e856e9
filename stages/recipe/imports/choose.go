package imports

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"contraflow/io/spelling"
)

// lossToChoose stands where a recipe's loss does, of a loss that has no counterpart: no loss is called so, and a recipe with it is not trained.
const lossToChoose = "LOSS"

// noCounterpart are losses that sentence-transformers has and contraflow has not, each with what there is for such data.
var noCounterpart = map[string]string{
	"SoftmaxLoss":                            "it trains a classifier of pairs, which there is none of here. Of pairs that entail each other mnrl learns, with contradictions as negatives ({query: premise, positive: entailment, negatives: [contradiction]}); of scored pairs cosent",
	"ContrastiveTensionLoss":                 "it trains two encoders that begin as the same. Of texts alone mnrl learns with one column as query and as positive (SimCSE: {query: text, positive: text})",
	"ContrastiveTensionLossInBatchNegatives": "it trains two encoders that begin as the same. Of texts alone mnrl learns with one column as query and as positive (SimCSE: {query: text, positive: text})",
	"DenoisingAutoEncoderLoss":               "it trains a decoder besides, which there is none of here. Of texts alone mnrl learns with one column as query and as positive (SimCSE: {query: text, positive: text})",
	"AdaptiveLayerLoss":                      "lower layers have no loss of their own here. The loss in it may be taken alone",
	"Matryoshka2dLoss":                       "lower layers have no loss of their own here. The loss in it may be taken alone, with matryoshka for the shorter embeddings",
	"Distillation":                           "PyLate's scales a query's scores to 0 to 1 before it compares them with the teacher's, which distill_kl doesn't: it takes teacher's scores of each document as they are, query, positive and negatives with scores",
	"CrossEntropyLoss":                       "it trains a classifier of pairs; a reranker gives one score here. Of labels from 0 to 1 bce learns, of one relevant document among others cross_entropy",
}

// choose leaves the loss to be chosen, and says why and what there is.
func (r *recipe) choose(name, why, list string) {
	r.keys["loss.name"] = lossToChoose
	r.open("a loss", lossToChoose)
	known := slices.Concat(slices.Sorted(maps.Keys(losses)), slices.Sorted(maps.Keys(crossEncoders)), slices.Sorted(maps.Keys(noCounterpart)), wrappers)
	if why = cmp.Or(why, noCounterpart[name]); !slices.Contains(known, name) {
		why = "no such loss is known"
		if near := spelling.Nearest(name, known); near != "" {
			why += "; did you mean " + near + "?"
		}
	}
	if why = cmp.Or(why, "it is of another kind of model"); !strings.HasSuffix(why, "?") {
		why += "."
	}
	r.without("loss", "%s is not converted: %s The recipe has %s in its place, which is no loss: choose one (contraflow recipe %s lists them), and say in data.train what its columns are: all stand as texts there", name, why, lossToChoose, list)
}

// wrappers are losses around another.
var wrappers = []string{"MatryoshkaLoss", "SpladeLoss", "CachedSpladeLoss"}
