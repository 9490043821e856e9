package recipe

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"contraflow/collective"
	"contraflow/collective/local"
	"contraflow/gpustage"
	"contraflow/stages"
)

// A mesh is verified with local ranks, or, where a launcher has started several processes, as the job that these are: each verifies what
// one rank computes alone by itself, with its own processor, and then all of them compute together. They exchange as the recipe says, but
// buckets are small, so that there are several, and the wire is the model's type, which hides no mistake in rounding.
//
// How far a bf16 wire takes gradients from the truth depends on the model: where embeddings are nearly the same, as a fresh model's are, what the
// rounding of them leaves of their differences is little, and 0.2 is no mistake. So a recipe's bf16 wire is held against what it stands for, at the limit
// of all other ways: the same ranks over a wire of f32, on which each contribution, and each sum that is sent on, has been rounded before. What it
// differs from the truth is printed beside that.

// Faults of ranks that exchange wrongly.
const (
	FaultGather  Fault = "gather"  // another rank's embeddings arrive as zeros
	FaultScatter Fault = "scatter" // gradients of embeddings that other ranks have computed are left out
	FaultSync    Fault = "sync"    // gradients of parameters are not summed over ranks, or along the replicate axis
	FaultShard   Fault = "shard"   // nor along the shard axis
)

// MeshFaults lists them: they need a mesh to be planted on.
var MeshFaults = []Fault{FaultGather, FaultScatter, FaultSync, FaultShard}

// actsOn tells whether a fault changes what ranks of a mesh compute.
func (f Fault) actsOn(m collective.Mesh) bool {
	switch f {
	case FaultGather, FaultScatter:
		return m.Size() > 1
	case FaultSync:
		return m.Replicate > 1
	case FaultShard:
		return m.Shard > 1
	}
	return true
}

// checkMeshes finds the meshes to verify, and what can't be.
func (x *Run) checkMeshes(o VerifyOptions) ([]collective.Mesh, error) {
	var all []collective.Mesh
	for _, replicas := range o.Replicas {
		for _, shards := range o.Shards {
			if m := (collective.Mesh{Replicate: replicas, Shard: shards}); m.Size() > 1 {
				all = append(all, m)
			}
		}
	}
	if x.ranks != nil {
		job := x.ranks.Comm.Mesh
		if len(all) == 0 {
			all = append(all, job)
		}
		fit := slices.DeleteFunc(slices.Clone(all), func(m collective.Mesh) bool { return m.Size() != job.Size() })
		if job.Size() > 1 && len(fit) == 0 {
			return nil, fmt.Errorf("the job has %d ranks, and none of the meshes of %v replicas x %v shards does", job.Size(), o.Replicas, o.Shards)
		}
		all = fit
	}
	if !slices.Contains(MeshFaults, o.Plant) {
		return all, nil
	}
	if (o.Plant == FaultGather || o.Plant == FaultScatter) && x.exchanging().LocalNegatives {
		return nil, fmt.Errorf("ranks see no other ranks' rows: the fault %q can't be planted", o.Plant)
	}
	if !slices.ContainsFunc(all, o.Plant.actsOn) {
		return nil, fmt.Errorf("the fault %q needs a mesh: of at least 2 replicas, for shard 2 shards", o.Plant)
	}
	return all, nil
}

// exchanging is how ranks exchange what is verified.
func (x *Run) exchanging() stages.Exchanging {
	e := x.Recipe.exchanging()
	e.LocalNegatives = e.LocalNegatives || x.reranker != nil
	if e.BucketBytes == 0 {
		e.BucketBytes = 1 << 12
	}
	return e
}

// onMesh runs one step as local ranks, or as the rank that this process is, and captures the gradient.
func (v *verifier) onMesh(ctx context.Context, w way) (out stages.Captured, err error) {
	var mu sync.Mutex
	var passes stages.Passes // of all ranks in this process
	rank := func(world collective.World) error {
		c, err := collective.Connect(ctx, world, w.mesh)
		if err != nil {
			return err
		}
		w.plant.spoil(c)
		if w.rounded {
			defer roundBefore(c)()
		}
		e := v.x.exchanging()
		e.Wire, e.Early, e.Streamed = w.wire, w.early, w.streamed
		e.EverySubBatch = e.EverySubBatch && w.mesh.Shard == 1
		ranks, err := stages.Join(ctx, c, e)
		if err != nil {
			return err
		}
		m, err := v.model(w, ranks)
		if err != nil {
			return err
		}
		defer m.Free()
		got, err := v.step(ctx, w, m, ranks, false)
		mu.Lock()
		defer mu.Unlock()
		passes.Replayed, passes.Lean, passes.Whole = passes.Replayed+got.Passes.Replayed, passes.Lean+got.Passes.Lean, passes.Whole+got.Passes.Whole
		if err == nil && (world.Rank() == 0 || v.x.ranks != nil) {
			out = got
		}
		return err
	}
	if v.x.ranks != nil {
		err = rank(v.x.ranks.Comm.World)
	} else {
		err = local.Run(w.mesh.Size(), rank, local.Deadline(time.Duration(v.x.Recipe.Mesh.Deadline)))
	}
	out.Passes = passes
	return out, err
}

// tellWrong tells rank 0 what other processes have found wrong, and all of them whether anything is.
func (x *Run) tellWrong(ctx context.Context, wrong []VerifyRow, report func(VerifyRow)) (ok bool, err error) {
	all, err := stages.Consult(collective.For(ctx, "comparing gradients"), x.ranks, wrong)
	if err != nil {
		return false, err
	}
	ok = true
	for rank, rows := range all {
		ok = ok && len(rows) == 0
		for _, r := range rows {
			if rank != x.ranks.Rank() {
				r.Config = fmt.Sprintf("on rank %d: %s", rank, r.Config)
				report(r)
			}
		}
	}
	return ok, nil
}

// spoil plants a fault in how a rank communicates.
func (f Fault) spoil(c *collective.Comm) {
	switch f {
	case FaultGather, FaultScatter:
		c.World = worldOf{c.World, spoiled{c.World, f}}
	case FaultSync:
		c.World, c.Replicate = worldOf{c.World, spoiled{c.World, f}}, spoiled{c.Replicate, f}
	case FaultShard:
		c.Shard = spoiled{c.Shard, f}
	}
}

// worldOf is a job's world that communicates as a group does which wraps it.
type worldOf struct {
	collective.World
	as collective.Group
}

func (w worldOf) AllGather(s gpustage.Stream, dst, src gpustage.Tensor, rows []int, wire gpustage.DType) {
	w.as.AllGather(s, dst, src, rows, wire)
}

func (w worldOf) ReduceScatter(s gpustage.Stream, dst, src gpustage.Tensor, rows []int, wire gpustage.DType) {
	w.as.ReduceScatter(s, dst, src, rows, wire)
}

func (w worldOf) AllReduce(s gpustage.Stream, x gpustage.Tensor, wire gpustage.DType) {
	w.as.AllReduce(s, x, wire)
}

type spoiled struct {
	collective.Group
	fault Fault
}

func (g spoiled) AllGather(s gpustage.Stream, dst, src gpustage.Tensor, rows []int, wire gpustage.DType) {
	g.Group.AllGather(s, dst, src, rows, wire)
	at := 0
	for rank, n := range rows {
		if g.fault == FaultGather && rank != g.Rank() && n > 0 {
			s.Fill(dst.Span(at, at+n), 0)
		}
		at += n
	}
}

func (g spoiled) ReduceScatter(s gpustage.Stream, dst, src gpustage.Tensor, rows []int, wire gpustage.DType) {
	if g.fault == FaultScatter || g.fault == FaultShard {
		keepOwn(s, dst, src, rows, g.Rank())
		return
	}
	g.Group.ReduceScatter(s, dst, src, rows, wire)
}

func (g spoiled) AllReduce(s gpustage.Stream, x gpustage.Tensor, wire gpustage.DType) {
	if g.fault != FaultSync {
		g.Group.AllReduce(s, x, wire)
	}
}

// keepOwn is a reduce-scatter that forgets the others.
func keepOwn(s gpustage.Stream, dst, src gpustage.Tensor, rows []int, rank int) {
	at := 0
	for _, n := range rows[:rank] {
		at += n
	}
	if rows[rank] == 0 {
		return
	}
	if own := src.Span(at, at+rows[rank]); own.Mem != dst.Mem || own.Off != dst.Off {
		s.Copy(dst, own)
	}
}

// roundBefore makes a rank's groups round what travels over a bf16 wire by themselves, and send it as it is then. The function that it returns frees
// the memory which that takes.
func roundBefore(c *collective.Comm) (free func()) {
	room := &halves{}
	c.World, c.Replicate, c.Shard = worldOf{c.World, rounded{c.World, room}}, rounded{c.Replicate, room}, rounded{c.Shard, room}
	return room.free
}

// halves is memory for bf16, in which f32 are rounded.
type halves struct {
	room []gpustage.Tensor // the last is the largest
}

func (h *halves) round(s gpustage.Stream, x gpustage.Tensor) {
	if x.IsZero() || x.Len() == 0 {
		return
	}
	if n := len(h.room); n == 0 || h.room[n-1].Len() < x.Len() {
		y, err := gpustage.NewTensor(s.Device(), gpustage.BF16, 1, x.Len())
		if err != nil {
			s.Fail(err)
			return
		}
		h.room = append(h.room, y)
	}
	y := h.room[len(h.room)-1].Columns(0, x.Len())
	s.Copy(y, x.Vector())
	s.Copy(x.Vector(), y)
}

func (h *halves) free() {
	for _, x := range h.room {
		x.Mem.Free()
	}
}

type rounded struct {
	collective.Group
	room *halves
}

func (g rounded) AllGather(s gpustage.Stream, dst, src gpustage.Tensor, rows []int, wire gpustage.DType) {
	g.Group.AllGather(s, dst, src, rows, dst.DType)
	if wire != dst.DType {
		g.room.round(s, dst)
	}
}

func (g rounded) ReduceScatter(s gpustage.Stream, dst, src gpustage.Tensor, rows []int, wire gpustage.DType) {
	if wire != src.DType {
		g.room.round(s, src)
	}
	g.Group.ReduceScatter(s, dst, src, rows, src.DType)
}

func (g rounded) AllReduce(s gpustage.Stream, x gpustage.Tensor, wire gpustage.DType) {
	if wire != x.DType {
		g.room.round(s, x)
		defer g.room.round(s, x)
	}
	g.Group.AllReduce(s, x, x.DType)
}
