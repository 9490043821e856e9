package recipe

import (
	"fmt"
	"path/filepath"
	"testing"

	"contraflow/testdata/harness"
)

// A loss of a batch's means beside one of hardest negatives is verified: its gradient against differences of the loss, and that of every way to compute
// it, on a mesh too, against the plain one; and faults are found.
func TestSpreadVerifies(t *testing.T) {
	t.Parallel()
	harness.Thorough(t)
	j := newJob(t, 5)
	x := j.opened(t, []string{
		"model.dropout=0", "save.dir=" + filepath.Join(j.dir, "run"), "loss=[{name: mega_batch_margin, positive_margin: 0.99}, {name: gor, weight: 2, matryoshka: {dims: [24, 7]}}]",
	})
	for _, fault := range []Fault{"", FaultFactor, FaultRemote, FaultMask, FaultGather} {
		o := DefaultVerify()
		o.Rows, o.SubBatches, o.Accumulate, o.Plant = 6, []int{4}, []int{1}, fault
		if fault == "" {
			o.Accumulate = []int{1, 2}
		}
		if fault == "" || fault == FaultGather {
			o.Replicas, o.Shards = []int{2}, []int{1}
		}
		rows := ""
		o.Report = func(row VerifyRow) { rows += fmt.Sprintf("%+v\n", row) }
		if ok, err := x.Verify(t.Context(), o); err != nil || ok != (fault == "") {
			t.Errorf("fault %q: ok is %t, %v\n%s", fault, ok, err, rows)
		}
	}
}
