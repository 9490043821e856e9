package collective

import (
	"context"
	"fmt"
)

// Mesh arranges ranks on two axes. Every rank works on its own rows. Ranks along the replicate axis hold the same parameters;
// those along the shard axis hold a part each. Neighbouring ranks, which share a machine's fast links, are along the shard axis.
type Mesh struct {
	Replicate int // W: number of replicas of the parameters
	Shard     int // S: number of parts of each replica
}

// MaxRanks is more than any job has.
const MaxRanks = 1 << 16

// Size is the number of ranks.
func (m Mesh) Size() int { return m.Replicate * m.Shard }

// Rank is replicate*S + shard: unique.
func (m Mesh) Rank(replicate, shard int) int { return replicate*m.Shard + shard }

// Place is a rank's coordinates.
func (m Mesh) Place(rank int) (replicate, shard int) { return rank / m.Shard, rank % m.Shard }

func (m Mesh) String() string {
	return fmt.Sprintf("%d x %d (replicate x shard)", m.Replicate, m.Shard)
}

// Comm is a rank's place in a mesh with its communicators.
type Comm struct {
	Mesh
	World     World // of all ranks
	Replicate Group // ranks with the same shard: they hold the same parameters
	Shard     Group // ranks of the same replica: together they hold all parameters
}

// Connect arranges a world's ranks as a mesh. All ranks call it.
func Connect(ctx context.Context, w World, m Mesh) (*Comm, error) {
	if m.Replicate < 1 || m.Shard < 1 {
		return nil, fmt.Errorf("a mesh of %v: want at least 1 on each axis", m)
	}
	if m.Size() != w.Size() {
		return nil, fmt.Errorf("a mesh of %v needs %d ranks, the job has %d", m, m.Size(), w.Size())
	}
	replicate, shard := m.Place(w.Rank())
	c := &Comm{Mesh: m, World: w}
	var err error
	if c.Replicate, err = w.Split(ctx, shard); err != nil {
		return nil, fmt.Errorf("the replicate axis: %w", err)
	}
	if c.Shard, err = w.Split(ctx, replicate); err != nil {
		return nil, fmt.Errorf("the shard axis: %w", err)
	}
	return c, nil
}
