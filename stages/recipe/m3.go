package recipe

import (
	"fmt"
	"slices"
	"strings"

	"contraflow/stages/embedder"
	"contraflow/stages/loss"
	"contraflow/stages/transformer"
)

// A model of kind m3 gives three parts of a text: see transformer.TokenHeads for what they are and loss.M3 for what they learn from.

// defaultM3 are the defaults that are otherwise for m3: FlagEmbedding's.
func (c *checker) defaultM3(r *Recipe) {
	if c.find("loss.name") == nil {
		r.Loss.Name = "m3"
	}
	if c.find("loss.scale") == nil {
		r.Loss.Scale = 50
	}
}

func (c *checker) checkM3(r *Recipe) {
	l := &r.Loss
	c.words("loss.distillation", string(loss.TeacherKL), string(loss.TeacherM3))
	c.require(l.SelfDistillFrom >= 0, "loss.self_distill_from", "is negative; steps count from 1")
	c.require(l.SelfDistillFrom == 0 || l.SelfDistill, "loss.self_distill_from", "needs loss.self_distill")
	c.require(l.Parts == nil || len(l.Parts) > 0, "loss.parts", "are none: of %v", loss.M3Parts)
	if err := (loss.M3{Parts: l.Parts, SelfDistill: l.SelfDistill}).Check(); err != nil {
		c.fail("loss.parts", "%v", err)
	}
	for i, s := range r.Data.Train {
		c.checkDistilled(s, *l, fmt.Sprintf("data.train[%d].", i))
	}
}

// checkDistilled finds what a dataset lacks for m3's teacher.
func (c *checker) checkDistilled(s Source, l Loss, key string) {
	c.require(l.Distillation == "" || len(s.Scores) > 0, key+"scores", "is missing: loss.distillation: %s needs columns with a teacher's scores", l.Distillation)
	c.require(l.Distillation == "" || len(s.Negatives) > 0, key+"negatives", "are missing: loss.distillation: %s compares them with the positive", l.Distillation)
}

// fused is a part's name in eval.part for all of them.
const fused = "fused"

func (c *checker) checkFusion(r *Recipe) {
	e := r.Eval
	c.words("eval.part", append(slices.Clone(loss.M3Parts), fused)...)
	if e.Weights != nil {
		_, err := embedder.Weights(e.Weights)
		c.require(err == nil, "eval.weights", "%v", err)
		c.require(e.Part == "" || e.Part == fused, "eval.weights", "is for eval.part: fused")
	}
}

// fusion is what each part counts in evaluation; nil where there is only one.
func (r Recipe) fusion() map[string]float64 {
	e := r.Eval
	switch {
	case r.Model.Kind != "m3":
		return nil
	case e.Part != "" && e.Part != fused:
		return map[string]float64{e.Part: 1}
	case e.Weights != nil:
		w, _ := embedder.Weights(e.Weights) // the recipe was checked
		return w
	}
	learned := r.learned()
	if e.Part == fused || len(learned) == len(loss.M3Parts) {
		return loss.Fusion
	}
	if len(learned) == 1 {
		return map[string]float64{learned[0]: 1}
	}
	weights := map[string]float64{}
	for _, part := range learned {
		weights[part] = loss.Fusion[part]
	}
	return weights
}

// learned are an m3's parts that its loss trains, in their order.
func (r Recipe) learned() []string {
	of := r.Loss.Parts
	return slices.DeleteFunc(slices.Clone(loss.M3Parts), func(part string) bool { return of != nil && !slices.Contains(of, part) })
}

// noteLearned tells that evaluation leaves out parts that the run does not train.
func (x *Run) noteLearned() {
	r := x.Recipe
	learned := r.learned()
	if r.Model.Kind != "m3" || r.Eval.Part != "" || r.Eval.Weights != nil || len(x.tasks) == 0 || len(learned) == len(loss.M3Parts) {
		return
	}
	again := "--part " + learned[0]
	if len(learned) > 1 {
		var weights []string
		for _, part := range loss.M3Parts {
			weights = append(weights, fmt.Sprint(r.fusion()[part]))
		}
		again = "--weights " + strings.Join(weights, ",")
	}
	x.obs.note("evaluation compares texts by %s, which loss.parts trains, as contraflow eval %s does; eval.part: fused is by all parts", strings.Join(learned, " and "), again)
}

// openM3 finds the heads of tokens.
func (x *Run) openM3() (heads transformer.TokenHeads, err error) {
	dim := x.Recipe.Model.VectorDim
	if f := x.folder.M3; f != nil {
		if dim != 0 && dim != f.Dim {
			return heads, fmt.Errorf("model.vector_dim: is %d, and the heads that the model has give %d", dim, f.Dim)
		}
		dim = f.Dim
	}
	heads = x.config.M3Heads(dim, x.folder.M3 == nil, x.Recipe.Train.Seed)
	if heads.Special, err = embedder.SpecialIDs(x.folder, x.tok); err != nil {
		return heads, fmt.Errorf("model.path: %w", err)
	}
	return heads, nil
}

// hasMaxSim tells whether the loss compares texts token by token.
func (x *Run) hasMaxSim() bool {
	h, parts := x.model.Config.Tokens, x.Recipe.Loss.Parts
	return !h.None() && (h.Alone || parts == nil || slices.Contains(parts, loss.VectorsPart))
}

// maxSim is what the products of all pairs' tokens take in a batch, over all ranks, and the vectors with their gradient on each: 0 without.
func (x *Run) maxSim() (flops float64, bytes int64) {
	h := x.model.Config.Tokens
	if !x.hasMaxSim() || h.Alone && x.Recipe.Loss.kind().rowwise() {
		return 0, 0
	}
	rows := float64(x.batchRows())
	queries, documents := rows*float64(h.Most(x.text.QueryLength)), rows*float64(x.columns()-1)*float64(h.Most(x.text.DocumentLength))
	return 2 * queries * documents * float64(h.Dim), x.Memory.Tokens
}
