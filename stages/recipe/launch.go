package recipe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"contraflow/collective"
	"contraflow/collective/local"
	"contraflow/gpustage"
	"contraflow/stages"
	"contraflow/stages/transformer"
)

// Place is a process's place in a job that was launched with several. The zero Place is a process on its own.
type Place struct {
	World collective.World
	Share gpustage.Share // of its machine
}

// OnRanks runs f as every rank of the recipe's mesh that belongs to this process, with what the recipe names opened for each,
// and returns when all have returned. A process on its own makes as many local ranks as the mesh asks for, which for a mesh of
// one is none. The first error ends the job on every rank. It is returned, behind a [collective.RankError] if there are several ranks:
// errors.Is and errors.As find it, unless it comes from another process. A row that all ranks have found when they opened the data is no single rank's error; of
// several processes rank 0's returns it, the others' wrap ErrFirstTells.
func OnRanks(ctx context.Context, r Recipe, p Place, obs Observer, f func(*Run) error) error {
	r, err := r.Resolve()
	if err != nil {
		if p.World != nil {
			abort(ctx, p.World, err)
		}
		return err
	}
	// Devices are closed after the worlds, which have memory on them. Where a job of several processes fails, they end.
	if p.World != nil {
		device, err := asRank(ctx, r, p, obs, new(atomic.Pointer[ending]), nil, f)
		if err != nil {
			abort(ctx, p.World, err)
			return ofProcess(p.World, err)
		}
		return errors.Join(p.World.Close(), device.Close())
	}
	m := r.Mesh.of(0)
	if m.Size() == 1 {
		x, err := Open(ctx, r, obs)
		if err != nil {
			return err
		}
		return errors.Join(f(x), x.Close())
	}
	opts := []local.Option{local.Deadline(time.Duration(r.Mesh.Deadline))}
	if r.Mesh.Link != nil {
		opts = append(opts, local.Pace(*r.Mesh.Link))
	}
	devices, end, passes := make([]gpustage.Device, m.Size()), new(atomic.Pointer[ending]), newFirstPasses(len(r.Data.Train), m.Size())
	err = local.Run(m.Size(), func(w collective.World) (err error) {
		devices[w.Rank()], err = asRank(ctx, r, Place{w, gpustage.Share{Rank: w.Rank(), Ranks: w.Size()}}, obs, end, passes, f)
		return err
	}, opts...)
	for _, d := range devices {
		if d != nil {
			if e := d.Close(); err == nil {
				err = e
			}
		}
	}
	return withoutRank(err)
}

// asRank opens and runs one rank, and leaves its device, if it returns one, to be closed. What a person should see comes from rank 0 alone.
func asRank(ctx context.Context, r Recipe, p Place, obs Observer, end *atomic.Pointer[ending], passes *firstPasses, f func(*Run) error) (gpustage.Device, error) {
	w := p.World
	if w.Rank() > 0 {
		obs = Observer{}
	}
	x := &Run{Recipe: r, obs: obs, share: p.Share, ending: end, passes: passes}
	defer context.AfterFunc(ctx, func() { // wherever this rank and the others are
		awaitNews(ctx, w)
		w.Abort(x.stoppedBy(ctx))
	})()
	opening, opened := context.WithCancelCause(ctx) // what has no other rank to wait for ends with the job, too
	defer opened(nil)
	go func() {
		select {
		case <-w.Done():
			opened(w.Err())
		case <-opening.Done():
		}
	}()
	m := r.Mesh.of(w.Size())
	if m.Size() != w.Size() {
		return nil, fmt.Errorf("mesh: %v is %d ranks, the job has %d", m, m.Size(), w.Size())
	}
	c, err := collective.Connect(opening, w, m)
	if err != nil {
		return nil, err
	}
	ranks, err := stages.Join(opening, c, r.exchanging())
	if err != nil {
		return nil, err
	}
	x.ranks = ranks
	if err := x.open(opening); err != nil {
		return nil, alike(w, err)
	}
	err = x.agree(opening)
	if err == nil {
		err = f(x)
	}
	if err != nil { // before this rank waits for what others are to do
		abort(ctx, w, err)
	}
	return x.device, errors.Join(err, x.giveBack())
}

// abort ends the job.
func abort(ctx context.Context, w collective.World, reason error) {
	awaitNews(ctx, w)
	w.Abort(reason)
}

// awaitNews has a rank that is stopped wait a moment before it ends the job: a launcher stops all ranks when one has died, and then that one is the
// reason.
func awaitNews(ctx context.Context, w collective.World) {
	if ctx.Err() != nil {
		select {
		case <-w.Done():
		case <-time.After(newsTake):
		}
	}
}

// newsTake is how long it may take a rank to learn that another one has died: a connection's end, twice over a network.
const newsTake = 300 * time.Millisecond

// of is the mesh for a job of so many ranks; 0 where nothing was launched.
func (m Mesh) of(ranks int) collective.Mesh {
	out := collective.Mesh{Replicate: int(m.Replicate), Shard: m.Shard}
	if out.Replicate == 0 {
		out.Replicate = max(1, ranks/m.Shard)
	}
	return out
}

func (r Recipe) exchanging() stages.Exchanging {
	x := stages.Exchanging{
		LocalNegatives: !r.Loss.GatherAcrossDevices, EverySubBatch: r.Train.Sync == "every", NoOverlap: !r.Mesh.Overlap,
		BucketBytes: int(r.Mesh.Bucket),
	}
	if r.Mesh.Wire == "bf16" {
		x.Wire = gpustage.BF16
	}
	return x
}

// agree makes sure that all ranks train the same.
func (x *Run) agree(ctx context.Context) error {
	r := x.Recipe
	r.Save.Dir, r.Log = "", Log{} // which may differ from machine to machine, and rank 0's counts
	r.Model.Path = ""             // the same model may lie elsewhere
	guide := "none"
	if x.guide != nil {
		guide = x.guide.hash
	}
	r = r.withLosses(func(l *Loss, _ bool) {
		for _, t := range l.each("") {
			if g := t.Guide; g != nil {
				t.Guide = &Guide{MaxLength: g.MaxLength, Prompts: g.Prompts}
			}
		}
	})
	for i := range r.Data.Train {
		r.Data.Train[i].Path = nil
	}
	facts, err := r.values()
	if err != nil {
		return err
	}
	params := x.loaded
	if params == "" {
		if params, err = x.hashParams(func(transformer.Param) bool { return true }); err != nil {
			return err
		}
	}
	var columns, data []string
	for _, d := range x.data {
		for _, c := range d.Columns() {
			columns = append(columns, c.Source)
		}
		data = append(data, fmt.Sprintf("%v (%d rows)", d.Fingerprint(), d.Rows()))
	}
	maps.Copy(facts, map[string]string{
		"the dataset": strings.Join(data, ", "),
		"its columns": strings.Join(columns, ", "),
		"the model":   fmt.Sprintf("%s (%d parameters)", params, x.model.Layout.Len),
		theGuide:      guide,
		"its type":    x.model.DType.String(),
		"the device":  x.device.Info().Kind, // "auto" may be another one on another machine
	})
	if err := x.ranks.Agree(ctx, facts); err != nil {
		return err
	}
	x.ranks.ComparedWeights()
	return nil
}

// values is what the recipe says, as resolved, by full keys.
func (r Recipe) values() (map[string]string, error) {
	text, err := r.YAML()
	if err != nil {
		return nil, err
	}
	return Flatten("the recipe", text)
}

// hashParams is the hash of the parameters that ranks hold together.
func (x *Run) hashParams(which func(transformer.Param) bool) (string, error) {
	return hashParams(x.ranks, x.stream, x.model, which)
}

func hashParams(ranks *stages.Replicas, s gpustage.Stream, m *transformer.Model, which func(transformer.Param) bool) (string, error) {
	h := xxh3.New()
	if err := ranks.Parameters(s, m, which, func(p transformer.Param, vs []float32) error {
		_, err := h.Write(gpustage.Bytes(vs))
		return err
	}); err != nil {
		return "", err
	}
	return stages.Digest(h), nil
}

// Main tells whether this rank is the one that evaluates, saves and reports.
func (x *Run) Main() bool { return x.ranks.Rank() == 0 }
