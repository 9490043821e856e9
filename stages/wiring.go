package stages

import (
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
		return fmt.Errorf("the encoder is one of several ranks, and the graph has no %s: see Example_ranks", strings.Join(missing, ", no "))
	}
	return nil
}
