package pipeline

import (
	"fmt"
	"strconv"
)

// Level is the granularity at which a stage works and a port carries values.
type Level int8

const (
	unset  Level = iota - 1
	Stream       // items before they are batches
	Step         // optimizer steps
	Batch        // contrastive batches of a step
	Sub          // sub-batches of a batch
)

func (l Level) String() string {
	switch l {
	case Stream:
		return "stream"
	case Step:
		return "step"
	case Batch:
		return "batch"
	case Sub:
		return "sub"
	}
	return fmt.Sprintf("level %d", int(l))
}

// Index names a value or a task: a stream item has N; a step, batch or sub-batch has its place on each level down to its
// own. Other fields are 0 and say nothing: which step a stream item will be of nobody knows yet. A stage that asks for it stands
// behind the one that makes batches.
type Index struct {
	Level Level
	N     int // of a stream item, from 0
	Step  int // of all levels but Stream
	Batch int // within the step; of Batch and Sub
	Sub   int // within the batch; of Sub
}

func streamIndex(n int) Index   { return Index{Level: Stream, N: n} }
func stepIndex(s int) Index     { return Index{Level: Step, Step: s} }
func batchIndex(s, b int) Index { return Index{Level: Batch, Step: s, Batch: b} }

func (i Index) sub(u int) Index {
	return Index{Level: Sub, Step: i.Step, Batch: i.Batch, Sub: u}
}

// at is the index's ancestor on a coarser level, or itself.
func (i Index) at(l Level) Index {
	switch {
	case i.Level == Stream || l >= i.Level:
		return i
	case l == Step:
		return stepIndex(i.Step)
	default:
		return batchIndex(i.Step, i.Batch)
	}
}

// String prints #12 for a stream item, 7 for a step, 7.0 for a batch, 7.0.2 for a sub-batch.
func (i Index) String() string {
	switch i.Level {
	case Stream:
		return "#" + strconv.Itoa(i.N)
	case Step:
		return strconv.Itoa(i.Step)
	case Batch:
		return fmt.Sprintf("%d.%d", i.Step, i.Batch)
	}
	return fmt.Sprintf("%d.%d.%d", i.Step, i.Batch, i.Sub)
}
