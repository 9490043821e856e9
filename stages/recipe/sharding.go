package recipe

import (
	"context"
	"fmt"

	"contraflow/stages/transformer"
)

// sharding is what ranks of a shard axis hold of a model's state besides the optimizer's.
type sharding struct{ early, streamed bool }

func (s sharding) String() string {
	parameters, gradients := "resident", "late"
	if s.streamed {
		parameters = "streamed"
	}
	if s.early {
		gradients = "early"
	}
	return fmt.Sprintf("parameters %s, gradients %s", parameters, gradients)
}

// shardings are those that a recipe allows on a mesh, from the one that sends least to the one that holds least. Streamed parameters
// with late gradients hold as much as resident ones with early gradients and send more: only who asks gets them.
func (m Mesh) shardings() (out []sharding) {
	if m.Shard == 1 {
		return []sharding{{}}
	}
	for _, s := range []sharding{{}, {early: true}, {streamed: true}, {true, true}} {
		if m.Parameters != "auto" && s.streamed != (m.Parameters == "streamed") || m.Gradients != "auto" && s.early != (m.Gradients == "early") {
			continue
		}
		if s.streamed && !s.early && m.Parameters == "auto" {
			continue
		}
		out = append(out, s)
	}
	return out
}

// shardings are a mesh's that the model allows: where all word embeddings have a gradient in every sub-batch, their rows do not travel alone, and where
// queries are weights of tokens there are sub-batches that go through no layer.
func (x *Run) shardings(m Mesh) []sharding {
	if x.config.TiedDecoder() || x.config.Queries.There {
		return []sharding{{}}
	}
	return m.shardings()
}

// refuses is an error where the recipe asks for a sharding that a model does not have, for the reason why.
func (m Mesh) refuses(why string) error {
	switch {
	case m.Shard > 1 && m.Parameters == "streamed":
		return fmt.Errorf("mesh.parameters: streamed %s: want resident", why)
	case m.Shard > 1 && m.Gradients == "early":
		return fmt.Errorf("mesh.gradients: early %s: want late", why)
	}
	return nil
}

// chooseSharding takes the first sharding that fits the memory at hand on every rank, or the last one. x.model is a model without
// memory.
func (x *Run) chooseSharding(ctx context.Context) error {
	if x.ranks == nil {
		return nil
	}
	if x.paper {
		x.setSharding(x.fitting())
		return nil
	}
	chosen, err := x.ranks.Most(ctx, x.firstFitting())
	if err != nil {
		return err
	}
	x.setSharding(x.shardings(x.Recipe.Mesh)[chosen])
	return nil
}

// fitting is the choice of one rank, for all where there are no others to ask.
func (x *Run) fitting() sharding { return x.shardings(x.Recipe.Mesh)[x.firstFitting()] }

func (x *Run) firstFitting() (chosen int) {
	all, free := x.shardings(x.Recipe.Mesh), x.freeMemory()
	for chosen < len(all)-1 && free > 0 && x.predict(all[chosen]).minimum() > free {
		chosen++
	}
	return chosen
}

func (x *Run) setSharding(s sharding) {
	x.sharding = s
	if x.ranks != nil {
		x.ranks.Early, x.ranks.Streamed = s.early, s.streamed
	}
}

// mostTraffic is what a rank sends at most, in bytes: in a step where every text is as long as it may be, and no two have a token in common.
func (x *Run) mostTraffic(s sharding) int64 {
	r, l := x.Recipe, x.model.Layout
	wire, trained := float64(x.model.DType.Size()), float64(l.Trained())
	shard := float64(r.Mesh.Shard)
	replicate := float64(x.ranks.Size()) / shard
	per := (shard - 1) / shard * wire
	n := float64(x.predictedSubs()) * float64(r.Batch.Accumulate)
	rows := min(float64(l.Word().Len()), float64(x.subTokens()*x.model.Config.WordDim())*shard)
	trainedRows, table := 0.0, 0.0
	if l.Trains(l.Word()) {
		trainedRows, table = rows, float64(l.Word().Len())
	}
	bytes := float64(x.predict(s).Embeddings)*float64(r.Batch.Accumulate) + 2*(replicate-1)/replicate*trained/shard*wire
	if s.early {
		bytes += n * (trained - table + trainedRows) * per
	} else {
		bytes += (trained + trainedRows) * per
	}
	if s.streamed {
		fetched := 0
		for _, layer := range append(x.model.Visits(true, false), x.model.Visits(true, true)...) {
			if layer != transformer.VisitWords {
				fetched += l.Part(layer).Len
			}
		}
		bytes += (n*(float64(fetched)+2*rows) + float64(l.Part(transformer.Outside).Trained())) * per
	} else {
		bytes += trained * per
	}
	return int64(bytes)
}

// Holding is what each rank of the shard axis holds by a choice, and sends.
type Holding struct {
	Choice string `json:"choice"`
	Chosen bool   `json:"chosen"`
	State  int64  `json:"state_bytes"` // of model and optimizer
	Sent   int64  `json:"sent_bytes"`  // per step
}

// holdings are those of all choices; nil without a shard axis.
func (x *Run) holdings(sent func(sharding) int64) (all []Holding) {
	if x.Recipe.Mesh.Shard == 1 {
		return nil
	}
	for _, s := range x.shardings(x.Recipe.Mesh) {
		m := x.predict(s)
		all = append(all, Holding{Choice: s.String(), Chosen: s == x.sharding, State: m.State(), Sent: sent(s)})
	}
	return all
}

// describeSharding says what ranks hold and send in a step, with a word such as "at most " before what they send: the choice that holds, and the others.
func describeSharding(word string, all []Holding) (text string) {
	for _, h := range all {
		verb := "would be"
		if h.Chosen {
			verb, text = "are", h.Choice+text
		}
		text += fmt.Sprintf("\n        %s: %s %s of model and optimizer on each rank and %s%s sent per step", h.Choice, verb, Size(h.State), word, Size(h.Sent))
	}
	return text
}
