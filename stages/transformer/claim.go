package transformer

import (
	"context"
	"fmt"
)

// claim is who trains a model. It ends with the run's context, so that nobody has to give the model back, whatever ends the run.
type claim struct {
	run context.Context
	by  string
}

// Claim takes the model for the training of a run until its context is done. Another run that has taken it is an error that names it: the two would
// compute gradients of parameters that the other changes under them. The same run may claim it again.
func (m *Model) Claim(run context.Context, by string) error {
	for {
		c := m.claim.Load()
		if c != nil && c.run == run {
			return nil
		}
		if err := c.busy(); err != nil {
			return err
		}
		if m.claim.CompareAndSwap(c, &claim{run, by}) {
			return nil
		}
	}
}

// Busy tells, as an error, who trains the model now; nil: nobody does.
func (m *Model) Busy() error { return m.claim.Load().busy() }

func (c *claim) busy() error {
	if c == nil || c.run.Err() != nil {
		return nil
	}
	return fmt.Errorf("the model is in training by %s", c.by)
}
