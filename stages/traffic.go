package stages

import (
	"contraflow/collective"
	"contraflow/gpustage"
	"contraflow/pipeline"
	"contraflow/stages/transformer"
)

// Calls lists the data collectives of one optimizer step with the group that each is issued in, by stage: what the plan has every rank
// issue for batches of these sizes. A planner adds their times up, tests compare them with what was counted.
func (e *Encoder) Calls(batches []*Global) []Call {
	if e.ranks == nil {
		return nil
	}
	c := e.ranks.Comm
	var out []Call
	add := func(stage string, g collective.Group, call collective.Call) { out = append(out, Call{stage, g, call}) }
	dtype, wire := e.Model.DType, e.wire()
	if e.gathers() {
		for _, b := range batches {
			for u := range b.Subs() {
				for _, p := range e.parts {
					add("gather", c.World, collective.GatherCall(b.subRows(u, p.Tokens), p.Size, dtype, wire))
				}
			}
			_, splits := e.splits()
			for col := range b.columns() {
				if b.Starts[col] == b.Starts[col+1] {
					continue
				}
				if e.guided.size > 0 {
					add("gather guide", c.World, collective.GatherCall(b.columnRows(col, false), e.guided.size, dtype, dtype))
				}
				if !splits {
					continue
				}
				for _, p := range e.parts {
					add("scatter", c.World, collective.ReduceScatterCall(b.columnRows(col, p.Tokens), p.Size, dtype, wire))
				}
			}
		}
	}
	if e.ranks.EverySubBatch {
		for _, b := range batches {
			for range b.Subs() {
				add("backward", c.World, collective.AllReduceCall(e.grads.Cols, c.World.Size(), dtype, wire))
			}
		}
		return out
	}
	if e.ranks.streams() {
		e.callsOfFetch(batches, add)
	}
	if e.ranks.early() {
		e.callsOfEarly(batches, add)
	} else {
		e.callsOfSync(batches, add)
	}
	if e.ranks.sharded() {
		add("norm", c.Shard, collective.AllReduceCall(1, c.Mesh.Shard, gpustage.F64, gpustage.F64))
		for _, x := range e.spreads() {
			add("spread", c.Shard, collective.GatherCall(x.parts, 1, dtype, dtype))
		}
	}
	return out
}

type addCall func(stage string, g collective.Group, call collective.Call)

// callsOfSync is the reductions of gradients once a step.
func (e *Encoder) callsOfSync(batches []*Global, add addCall) {
	c, dtype, wire := e.ranks.Comm, e.Model.DType, e.wire()
	reduce := func(stage string, from, to int) {
		if !e.ranks.sharded() {
			add(stage, c.World, collective.AllReduceCall(to-from, c.World.Size(), dtype, wire))
			return
		}
		x := e.shareAt(from)
		add(stage, c.Shard, collective.ReduceScatterCall(x.parts, 1, dtype, wire))
		if c.Mesh.Replicate > 1 {
			add(stage, c.Replicate, collective.AllReduceCall(x.len(), c.Mesh.Replicate, dtype, wire))
		}
	}
	last := batches[len(batches)-1]
	from, to := e.table()
	whole := e.wholeTable(last)
	if from < to && !whole && (len(batches) > 1 || last.Subs() > 1) {
		reduce("reduce table", from, to)
	}
	for _, b := range e.ranks.cut(e.Model.Layout, dtype) {
		reduce("reduce "+b.name, b.from, b.to)
	}
	if rows, _ := last.lastRows(); from < to && whole {
		reduce("reduce last rows", from, to)
	} else if from < to {
		add("reduce last rows", c.World, collective.GatherCall(rows, e.Model.Config.WordDim(), dtype, wire))
	}
}

// callsOfEarly is the reductions of gradients with every sub-batch.
func (e *Encoder) callsOfEarly(batches []*Global, add addCall) {
	const stage = ReduceEarly
	c, dtype, wire := e.ranks.Comm, e.Model.DType, e.wire()
	sum := func(n int) { add(stage, c.Replicate, collective.AllReduceCall(n, c.Mesh.Replicate, dtype, wire)) }
	for i, b := range batches {
		for u := b.Subs() - 1; u >= 0; u-- {
			beyond := e.beyond(u == 0 && i == len(batches)-1)
			if beyond && (i > 0 || b.Subs() > 1) && e.tableTrains() {
				sum(e.shares[0].len())
			}
			for _, x := range e.shares[1:] {
				if x.empty() {
					continue
				}
				add(stage, c.Shard, collective.ReduceScatterCall(x.parts, 1, dtype, wire))
				if beyond {
					sum(x.len())
				}
			}
			if !e.tableTrains() {
				continue
			}
			if w := e.wordRows(b, u, beyond); len(w.ids) > 0 {
				add(stage, c.Shard, collective.ReduceScatterCall(w.parts, e.Model.Config.WordDim(), dtype, wire))
				if beyond {
					sum(w.own(c.Shard.Rank()) * e.Model.Config.WordDim())
				}
			}
		}
	}
}

// callsOfFetch is the gathering of parameters.
func (e *Encoder) callsOfFetch(batches []*Global, add addCall) {
	dtype := e.Model.DType
	for _, b := range batches {
		for u := range b.Subs() {
			for backward, stage := range []string{FetchForEmbed, FetchForBackward} {
				for _, l := range e.visits(b, u, backward == 1) {
					if l != transformer.VisitWords {
						for _, x := range e.pieces(e.layerPlace(l)) {
							add(stage, e.ranks.Params, collective.GatherCall(x.parts, 1, dtype, dtype))
						}
					} else if w := e.wordRows(b, u, false); len(w.ids) > 0 {
						add(stage, e.ranks.Params, collective.GatherCall(w.parts, e.Model.Config.WordDim(), dtype, dtype))
					}
				}
			}
		}
	}
}

// Stages that communicate while another one computes, task beside task.
const (
	ReduceEarly      = "reduce early"
	FetchForEmbed    = "fetch for embed"
	FetchForBackward = "fetch for backward"
)

// StepStages are the stages by which a step of a training graph is measured.
var StepStages = pipeline.StepStages{Last: "backward", End: "update"}

// Call is a data collective that a stage issues.
type Call struct {
	Stage string
	Group collective.Group
	collective.Call
}

// Sent is what it sends from this rank, in bytes.
func (c Call) Sent() int64 { return c.Call.Sent(c.Group.Rank()) }

// Subs is how many sub-batches every rank runs.
func (g *Global) Subs() int {
	n := 0
	for _, p := range g.Peers {
		n = max(n, len(p.Cuts)-1)
	}
	return n
}
