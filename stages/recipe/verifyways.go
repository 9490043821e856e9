package recipe

import (
	"slices"

	"contraflow/collective"
	"contraflow/gpustage"
	"contraflow/stages"
	"contraflow/stages/transformer"
)

// comparisons is how many there are to make: of each batch or batches, the ways, and the truth's with a finite difference.
func (x *Run) comparisons(o VerifyOptions, meshes []collective.Mesh) (n int) {
	v := verifier{x: x, o: o, meshes: meshes}
	for _, p := range x.dropouts() {
		if n += len(v.ways(p)); !v.meshOnly() {
			n++
		}
	}
	times := 0
	for _, accumulate := range o.Accumulate {
		times += (len(x.data) + accumulate - 1) / accumulate
	}
	return n * times
}

// dropouts are the rates at which ways are compared: the model's, and where that is none another besides.
func (x *Run) dropouts() []float64 {
	rates := []float64{x.dropoutRate()}
	if rates[0] == 0 && !x.folder.Static() {
		rates = append(rates, verifyDropout)
	}
	return rates
}

// dropoutRate is the model's.
func (x *Run) dropoutRate() float64 {
	return max(x.model.Config.HiddenDropout, x.model.Config.AttentionDropout)
}

// meshOnly tells whether a fault is planted that one rank alone can't have.
func (v *verifier) meshOnly() bool { return slices.Contains(MeshFaults, v.o.Plant) }

// ways varies everything that must not matter, after the plain way.
func (v *verifier) ways(dropout float64) []way {
	var out []way
	if !v.meshOnly() {
		out = append(out, way{dtype: gpustage.F32, budget: -1, tile: oneTile, dropout: dropout, plant: v.o.Plant})
	}
	for _, rows := range v.o.SubBatches {
		base := way{dtype: gpustage.F32, size: stages.Size{Rows: rows}, dropout: dropout, plant: v.o.Plant}
		kept, replayed, some, lean, checkpointed := base, base, base, base, base
		kept.budget = -1
		some.keep, some.tile = replaysHalf, [2]int{3, 5}
		lean.keep = leansHalf
		checkpointed.every = min(1, v.x.model.Config.Layers)
		if !v.meshOnly() {
			if out = append(out, kept, replayed, some); v.x.model.Config.Layers > 0 {
				out = append(out, lean, checkpointed)
			}
		}
		if own := v.x.model.Options.CheckpointEvery; own > 1 { // segments of several layers, as the recipe has them
			checkpointed.every = own
			if !v.meshOnly() {
				out = append(out, checkpointed)
			}
		}
		for _, mesh := range v.meshes {
			m := v.x.Recipe.Mesh
			m.Shard, m.Parameters, m.Gradients = mesh.Shard, "auto", "auto"
			all := v.x.shardings(m)
			for i, w := range []way{lean, some, checkpointed} {
				w.mesh, w.sharding = mesh, all[i%len(all)]
				out = append(out, w)
			}
			if v.x.exchanging().Wire == gpustage.BF16 {
				w := some
				w.mesh, w.sharding, w.wire = mesh, all[0], gpustage.BF16
				out = append(out, w)
			}
		}
	}
	return out
}

// replaysHalf is a budget in which the last half of a batch's sub-batches fits if their passes are lean.
func replaysHalf(subs []transformer.Memory) (budget int64) {
	for _, m := range subs[(len(subs)+1)/2:] {
		budget += int64(m.Lean)
	}
	return budget
}

// leansHalf is one in which all of them do, and the first half besides if they are not.
func leansHalf(subs []transformer.Memory) (budget int64) {
	for i, m := range subs {
		if budget += int64(m.Lean); i < len(subs)/2 {
			budget += int64(m.Kept - m.Lean)
		}
	}
	return budget
}
