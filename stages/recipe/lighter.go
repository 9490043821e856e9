package recipe

import (
	"fmt"
	"strings"

	"contraflow/stages/transformer"
)

// What does not fit may fit otherwise. Variants of a recipe are tried from those that cost little to those that change what is trained: activations that are
// computed again instead of kept, smaller sub-batches, activation checkpointing, a shard axis over ranks that are there, parameters that are streamed,
// and at last a smaller batch. What each takes is predicted as everything is.

// variant is a recipe's sharding and what is to be written for it.
type variant struct {
	mesh     Mesh
	sharding sharding
	keys     []string
}

// lighter is the first variant that fits so many bytes, as keys of the recipe; "" if there is none.
func (x *Run) lighter(free int64) string {
	y, given := *x, x.Recipe.Batch
	b, there := &y.Recipe.Batch, x.there(x.Memory)
	if x.Memory.Activations > 0 {
		b.Cache, b.ReplayBudget = "always", nil
	}
	subs := []SubBatch{given.SubBatch}
	longest := max(x.expected(&x.text))
	for n := x.subTokens(); n > longest; {
		n = max(n/2, longest)
		subs = append(subs, SubBatch{Tokens: n})
	}
	models := x.onPaper()
	if models == nil {
		return ""
	}
	variants := x.variants()
	fits := func(v variant, m *transformer.Model, sub SubBatch) bool {
		y.Recipe.Mesh, y.model, b.SubBatch = v.mesh, m, sub
		return y.predict(v.sharding).check(free, there) == nil
	}
	for ; b.GlobalSize >= 2; b.GlobalSize /= 2 {
		some := false // of those one of which takes least
		for _, v := range []variant{variants[0], variants[len(variants)-1]} {
			some = some || fits(v, models[0], subs[len(subs)-1]) || fits(v, models[len(models)-1], subs[len(subs)-1])
		}
		if !some {
			continue
		}
		for _, v := range variants {
			for k, m := range models {
				for i, sub := range subs {
					if !fits(v, m, sub) {
						continue
					}
					var with []string
					if x.Memory.Activations > 0 {
						with = append(with, "batch.cache: always")
					}
					if i > 0 {
						with = append(with, fmt.Sprintf("batch.sub_batch: {tokens: %d}", sub.Tokens))
					}
					if k > 0 {
						with = append(with, "model.activation_checkpointing: true")
					}
					with = append(with, v.keys...)
					if b.GlobalSize != given.GlobalSize {
						with = append(with, fmt.Sprint("batch.global_size: ", b.GlobalSize))
					}
					return strings.Join(with, " and ")
				}
			}
		}
	}
	return ""
}

// onPaper are the whole model on paper and, unless it has or can't have that, the same with activation checkpointing.
func (x *Run) onPaper() (models []*transformer.Model) {
	o := x.Recipe.modelOptions()
	for _, o.CheckpointEvery = range []int{o.CheckpointEvery, transformer.AutoCheckpoint} {
		m, err := x.paperModel(o)
		if err != nil || x.folder.Static() && len(models) > 0 {
			break
		}
		if models = append(models, m); m.Options.CheckpointEvery != 0 {
			break
		}
	}
	return models
}

// variants are the sharding at hand, and others that hold less: first of the mesh as it is, then of the same ranks with larger shard axes.
func (x *Run) variants() []variant {
	mesh, ranks := x.Recipe.Mesh, x.ranks.Size()
	all := []variant{{mesh: mesh, sharding: x.sharding}}
	for shard := mesh.Shard; shard <= ranks; shard++ {
		if ranks%shard != 0 || shard == 1 {
			continue
		}
		m := mesh
		m.Shard, m.Parameters, m.Gradients = shard, "auto", "auto"
		for _, s := range x.shardings(m) {
			if s.streamed && x.Recipe.Save.Best || shard == mesh.Shard && !s.less(x.sharding) {
				continue
			}
			var keys []string
			if mesh.Replicate != 0 && shard != mesh.Shard {
				keys = append(keys, fmt.Sprint("mesh.replicate: ", ranks/shard))
			}
			if shard != mesh.Shard {
				keys = append(keys, fmt.Sprint("mesh.shard: ", shard))
			}
			if s.streamed {
				keys = append(keys, "mesh.parameters: streamed")
			}
			if s.early {
				keys = append(keys, "mesh.gradients: early")
			}
			all = append(all, variant{m, s, keys})
		}
	}
	return all
}

// less tells whether s holds less than o.
func (s sharding) less(o sharding) bool {
	return s != o && (s.early || !o.early) && (s.streamed || !o.streamed)
}
