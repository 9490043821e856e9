package stages

import (
	"errors"
	"fmt"
	"strings"
)

// wired tells which stages that several ranks need a graph has.
type wired struct{ gather, scatter, sync bool }

// checkWired tells whether a graph has all stages that its ranks need: without them each would train something else, or nothing.
func (e *Encoder) checkWired() error {
	var missing []string
	for _, x := range []struct {
		stage string
		there bool
	}{{"Gather (of Embed's port)", e.wired.gather}, {"Scatter (of Loss's)", e.wired.scatter}, {"Sync (of Backward's)", e.wired.sync}} {
		if e.ranks != nil && !x.there {
			missing = append(missing, "stages."+x.stage)
		}
	}
	if missing != nil {
		return fmt.Errorf("the encoder is one of several ranks, and the graph has no %s: stages.Train adds them all", strings.Join(missing, ", no "))
	}
	return nil
}

// checkAlone tells whether a batch is one of several ranks' if and only if the encoder is one of them. Without a header what shows it is the
// plan.
func (e *Encoder) checkAlone(b *Batch) error {
	switch {
	case e.ranks != nil && b.Global == nil:
		return errors.New("the encoder is one of several ranks, and its batches do not know of the others': stages.Header belongs between Assemble and Split")
	case e.ranks == nil && b.Global != nil:
		return fmt.Errorf("the batch has rows of %d ranks, and the encoder is alone, so that each rank would train a model of its own: NewEncoder wants stages.With(ranks)", len(b.Global.Peers))
	case e.ranks == nil && b.plan != nil && b.plan.ranks > 1:
		return fmt.Errorf("Plan.Ranks is %d, and the encoder is alone, so that it would never see the other ranks' rows: NewEncoder wants stages.With(ranks), or Plan.Ranks is to be 0", b.plan.ranks)
	}
	return nil
}
