package stages

import (
	"contraflow/gpustage"
	"contraflow/pipeline"
)

// handover passes buffers between two lanes that work at the same time: one takes a free one, fills it and passes it on; the other
// takes it full, uses it and gives it back. Both go through the same list in the same order, which the plan fixes, so the buffers'
// number bounds how far one is ahead and changes nothing else. Whoever waits ends with the run.
type handover struct{ free, full chan *slot }

// slot is a buffer on its way.
type slot struct {
	what  int             // a layer
	mem   gpustage.Tensor // flat
	rows  gpustage.Tensor // [U, C], of the word embeddings
	index gpustage.Tensor // i32 [T, 1]: a row for each token
	ids   gpustage.Tensor // i32 [n, 1]: the rows that this rank owns
	after gpustage.Event  // what must have happened before it is touched
}

func newHandover(slots ...*slot) *handover {
	h := &handover{make(chan *slot, len(slots)), make(chan *slot, len(slots))}
	for _, x := range slots {
		h.free <- x
	}
	return h
}

// layerSlots are buffers of n elements for layers: two, or one where nothing is to work at the same time.
func (e *Encoder) layerSlots(n int) (*handover, error) {
	count := 2
	if e.ranks.NoOverlap {
		count = 1
	}
	var slots []*slot
	for range count {
		x := &slot{}
		slots, e.buffers = append(slots, x), append(e.buffers, x)
		if err := e.grow(&x.mem, 1, n); err != nil {
			return nil, err
		}
	}
	return newHandover(slots...), nil
}

// take waits for a slot. A task that computes says so, for its waiting is to be seen.
func take(t *pipeline.Task, s gpustage.Stream, from chan *slot, computes bool) (*slot, error) {
	var x *slot
	select {
	case x = <-from:
	default:
		if computes {
			defer t.Waiting()()
		}
		select {
		case x = <-from:
		case <-t.Context().Done():
			return nil, t.Context().Err()
		}
	}
	if x.after != nil {
		s.Wait(x.after)
	}
	return x, nil
}

// pass passes a slot on. There is always room.
func pass(s gpustage.Stream, to chan *slot, x *slot) {
	x.after = s.Record()
	to <- x
}
