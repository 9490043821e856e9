package stages

import (
	"context"
	"fmt"

	"contraflow/pipeline"
	"contraflow/stages/embedder"
	"contraflow/stages/evaluate"
	"contraflow/stages/reranker"
	"contraflow/tokenize"
)

// TextOf says that texts become tokens as a model's folder says, by its prompts and its length; no more than the model has positions.
func TextOf(m *embedder.Trainable) Text {
	x := Text{Tokenizer: m.Tokenizer, QueryLength: m.QueryLength(), DocumentLength: m.MaxLength(), Positions: m.Model.Config.MaxPositions, Vocab: m.Model.Config.Vocab, Heads: m.Model.Config.Tokens, Weighed: m.Model.Config.Queries.There}
	x.QueryPrompt, x.DocumentPrompt = m.RolePrompts()
	return x
}

// TextOfPairs says that each document becomes tokens with its query in front, as a reranker's folder says.
func TextOfPairs(m *reranker.Trainable) Text {
	return Text{Pairs: []*tokenize.Pairs{m.Pairs}, Head: m.Head()}
}

// Engine embeds with the encoder's model between two steps, together with other ranks if there are any. Its stream is the caller's, its memory
// is given back by the encoder's Close.
func (e *Encoder) Engine() *embedder.Engine {
	e.engines++
	engine := &embedder.Engine{Model: e.Model}
	e.closers = append(e.closers, engine.Close)
	if x := e.newTogether(); x != nil {
		engine.Model, engine.Ranks = x.Model(), x
		e.closers = append(e.closers, x.Close)
	}
	return engine
}

// Evaluate adds the stage that measures an encoder's model on a retrieval task after each step that due says, counted from 0, before the next
// one changes it: with [Plan.EpochEnds], after an epoch's last step. A nil due is every step. Its results are nil after other steps. Several ranks, which all add
// it, embed together, and rank 0 has the results. The encoder's Close gives back what it takes. There may be several such stages, for several tasks.
func Evaluate(g *pipeline.Graph, steps pipeline.Port[StepResult], e *Encoder, task *embedder.Task, due func(step int) bool, measures ...evaluate.Measure) pipeline.Port[*evaluate.Result] {
	return evaluateStage(g, steps, e, due, func(ctx context.Context, engine *embedder.Engine) (*evaluate.Result, error) {
		return task.Evaluate(ctx, engine, measures...)
	})
}

// EvaluateReranker is [Evaluate] of a reranker, which scores what something else has found for each of the task's queries: first, of
// [embedder.Task.RankBM25] or an embedder's [embedder.Task.Rank]. A relevant document that is not in it counts as not found. The task needs no
// tokenizer.
func EvaluateReranker(g *pipeline.Graph, steps pipeline.Port[StepResult], e *Encoder, m *reranker.Trainable, task *embedder.Task, first evaluate.Run, due func(step int) bool, measures ...evaluate.Measure) pipeline.Port[*evaluate.Result] {
	return evaluateStage(g, steps, e, due, func(ctx context.Context, engine *embedder.Engine) (*evaluate.Result, error) {
		return reranker.Evaluate(ctx, engine, m.Pairs, task, first, measures...)
	})
}

// evaluateStage adds a stage that measures between two steps.
func evaluateStage[T any](g *pipeline.Graph, steps pipeline.Port[StepResult], e *Encoder, due func(step int) bool, measure func(context.Context, *embedder.Engine) (T, error)) pipeline.Port[T] {
	engine, stage := e.Engine(), "evaluate"
	if e.engines > 1 {
		stage = fmt.Sprint("evaluate ", e.engines)
	}
	return pipeline.Map(g, stage, steps, func(t *pipeline.Task, s StepResult) (T, error) {
		defer e.For(t)()
		engine.Stream, engine.Told = Stream(t), func(int, int) { t.Alive() }
		return measure(t.Context(), engine)
	}, e.on(), pipeline.When(due))
}
