package recipe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"contraflow/io/dataset"
	"contraflow/io/spelling"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
)

// noteOddities tells of settings that do what they say, but hardly what was meant.
func (x *Run) noteOddities() {
	x.noteIdle(x.ranks.Size())
	x.noteModel()
	x.noteSparse()
	x.noteRates()
	x.notePhases()
	x.noteBatches()
	x.notePrompts()
	x.noteInBatch()
	x.noteLearned()
	if e := x.Recipe.Eval; e.byLoss() && e.Metric != lossMetric && e.Metric != Default().Eval.Metric {
		x.obs.note("eval.metric: %s is of ranking documents, and nothing has them ranked: the loss on held-out rows decides", e.Metric)
	}
	for _, l := range x.Recipe.terms() {
		if l.HardnessMode == loss.HardNegatives && len(x.Recipe.Data.Train[l.source].Negatives) == 0 {
			x.obs.note("%s.hardness_mode: %s is of rows' own negatives, and there are none: data.train[%d].negatives names no column", l.key, l.HardnessMode, l.source)
		}
	}
}

// noteIdle says how many of so many ranks no batch has a row for.
func (x *Run) noteIdle(ranks int) {
	if rows := x.Recipe.Batch.GlobalSize; ranks > rows {
		x.obs.note("batch.global_size is %d, over all ranks, and there are %d: %d of them have no row in any batch, and compute nothing; a larger batch.global_size or fewer ranks helps", rows, ranks, ranks-rows)
	}
}

// noteModel tells of what the folder has and the recipe leaves out, and of what it lacks.
func (x *Run) noteModel() {
	m, folder := x.Recipe.Model, x.folder
	x.obs.tell("model.skiplist: ", embedder.SkipNote(x.vectors, x.tok))
	x.obs.tell("model.max_length: ", embedder.ExpansionNote(x.vectors, m.MaxLength.Query))
	x.obs.tell("", embedder.LengthNote(folder, x.model.Config, min(m.MaxLength.Query, m.MaxLength.Document)))
	x.noteEnd()
	x.notePadding()
	if x.reranker != nil {
		note, _ := x.reranker.TemplateNote(folder) // a broken file is the tokenizer's error
		x.obs.tell("model.template: ", note)
	}
	if x.reranker != nil && x.reranker.Scorer.New {
		x.obs.note("%s has no head that scores: a new one, on %s pooling, begins at random", folder.Dir, embedder.PoolingModes[x.reranker.Scorer.Pooling])
	}
	if m.Kind == "embedder" {
		if note := embedder.HeadNote(folder, m.Pooling, m.Normalize); note != "" {
			x.obs.note("%s (model.pooling, model.normalize)", note)
		}
		if says, has := folder.Similarity, x.Recipe.similarity(); says != "" && says != "cosine" && says != has { // cosine stands in a folder that nobody has chosen it for
			x.obs.note("%s: similarity_fn_name is %s; here embeddings are compared by %s, as the saved model will say (model.similarity)", folder.Dir, says, has)
		}
		if folder.M3 != nil {
			x.obs.note("%s gives lexical weights and tokens' vectors besides: only the embedding trains, and the saved model has nothing else; model.kind: m3 trains and keeps all three", folder.TransformerDir)
		}
	}
	if heads := x.config.Tokens; heads.New && x.vectors != nil {
		x.obs.note("%s has no projection of tokens' hidden states: a new one, to %d features, begins at random", folder.Dir, heads.Dim)
	} else if heads.New {
		x.obs.note("%s has no colbert_linear.pt and sparse_linear.pt: both heads of tokens are new, and begin at random", folder.TransformerDir)
	}
}

// notePadding tells of a tokenizer without the token that fills texts up, which is not needed here. Llama's and Mistral's are so as published.
func (x *Run) notePadding() {
	if _, ok := x.tok.PadID(); ok || x.folder.Static() {
		return
	}
	such := ""
	if eos := x.tok.EOS(); eos != "" {
		such = fmt.Sprintf(", such as %q,", eos)
	}
	x.obs.note("%s: its tokenizer has no padding token, and so sentence-transformers will take no texts of what is saved: before training write one of its tokens%s as pad_token into tokenizer_config.json", x.folder.TokenizerDir, such)
}

// leastStaticRate is below what moves static embeddings: an update of AdamW moves a number by the learning rate at most, theirs are about 1, and most
// tokens are in few batches.
const leastStaticRate = 1e-3

// noteRates tells of learning rates by which little or nothing trains, and of steps that the epochs have no rows for.
func (x *Run) noteRates() {
	o := x.Recipe.Optimizer
	if word := x.model.Layout.Word(); x.folder.Static() && x.model.Layout.Trains(word) && o.Name == "adamw" {
		key, lr := "optimizer.lr", o.LR
		if i := slices.IndexFunc(o.Groups, func(g Group) bool {
			return slices.ContainsFunc(g.Params, func(part string) bool { return strings.Contains(word.Name, part) })
		}); i >= 0 {
			key, lr = fmt.Sprintf("optimizer.groups[%d].lr", i), o.Groups[i].LR
		}
		if lr < leastStaticRate {
			x.obs.note("with %s: %.3g static embeddings end about where they begin: they want a large one, such as 0.2 with batches of 512 rows", key, lr)
		}
	}
	if d := o.LayerDecay; x.folder.Static() && d > 0 && d < 1 {
		x.obs.note("optimizer.layer_decay: %v changes nothing: static embeddings have no layers", d)
	}
	if t := x.Recipe.Train; t.MaxSteps > x.Steps {
		x.obs.note("train.max_steps is %d, and the run has %s: with train.epochs: %v its rows end before; larger train.epochs let it go on", t.MaxSteps, spelling.Count(x.Steps, "step", "steps"), t.Epochs)
	}
	if u := x.Recipe.update(x.Steps); u.WarmupSteps >= x.Steps {
		highest := u.LR * u.Factor(x.Steps-1)
		x.obs.note("all of the run, %s, is warm-up (%s): the learning rate comes to %.3g, not to optimizer.lr: %.3g; lower optimizer.warmup_ratio or optimizer.warmup_steps", spelling.Count(x.Steps, "step", "steps"), spelling.Count(u.WarmupSteps, "step", "steps"), highest, o.LR)
	} else if x.Steps == 1 && u.Factor(0) == 0 {
		x.obs.note("the one step has a learning rate of 0, to which optimizer.schedule falls: nothing trains")
	}
}

// noteBatches tells of rows and datasets that batches leave out, and of steps of fewer batches.
func (x *Run) noteBatches() {
	b, n, rows := x.Recipe.Batch, x.sampler.Len(0), x.rows()-int64(len(x.skipped))
	if b.NoDuplicates && x.Recipe.mixing().Kind == dataset.Proportional {
		if full := n * int64(b.GlobalSize); !b.DropLast && full > 2*rows+int64(b.GlobalSize*len(x.data)) {
			x.obs.note("so many rows share a text that the %d batches of an epoch have %.1f rows on average, not %d (batch.no_duplicates): few negatives, and a batch of one row has none; batch.drop_last: true leaves out what does not fill a batch", n, float64(rows)/float64(n), b.GlobalSize)
		} else if b.DropLast && 2*full < rows-int64(b.GlobalSize*len(x.data)) {
			x.obs.note("so many rows share a text that %d of %d can't come into full batches, and are left out (batch.no_duplicates, batch.drop_last)", rows-full, rows)
		}
	}
	for i, k := range x.sampler.Shares(0) {
		if k == 0 {
			x.obs.note("data.train[%d] is never seen: its share of the %d batches of an epoch is less than half of one (data.mixing: %v)", i, n, x.Recipe.mixing().Kind)
		}
	}
	if int64(b.Accumulate) > n {
		x.obs.note("batch.accumulate is %d, but an epoch has %s, and no step crosses its end: a step has %d", b.Accumulate, spelling.Count(n, "batch", "batches"), n)
	}
}

// notePrompts tells of prompts that evaluation and the saved model don't have.
func (x *Run) notePrompts() {
	for i, p := range x.text.Prompts {
		query, document := evaluationPrompts(p)
		if query != x.text.QueryPrompt || document != x.text.DocumentPrompt {
			x.obs.note("data.train[%d] has other prompts than data.train[0]: evaluation and the saved model have those of data.train[0] (query %q, document %q)", i, x.text.QueryPrompt, x.text.DocumentPrompt)
			return
		}
		if negative := cmp.Or(p.Negative, p.Document); negative != document && len(x.Recipe.Data.Train[i].Negatives) > 0 {
			x.obs.note("data.train[%d] has other prompts for negatives (%q) than for positives: evaluation and the saved model put the positives' before documents (%q)", i, negative, document)
			return
		}
	}
}
