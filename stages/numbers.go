package stages

import (
	"fmt"

	"contraflow/io/dataset"
)

// checkNumbers finds a row's weight, label, scores or teacher's embedding that no loss takes. Those of a dataset's rows are known to be right when they are
// read; sources and stages of one's own may give others. width is how many numbers the embeddings of other rows have.
func checkNumbers(e *dataset.Example, data Rows, width int) error {
	if w := float64(e.Weight); !(w >= 0 && finite(w)) {
		return fmt.Errorf("the weight is %v: it must be a number >= 0", w)
	}
	if data.HasLabels() && !finite(float64(e.Label)) {
		return fmt.Errorf("the label is %v: it must be a number", e.Label)
	}
	if data.HasScores() {
		if documents := len(e.Hashes) - 1; len(e.Scores) != documents {
			return fmt.Errorf("the row has %d scores for its %d documents", len(e.Scores), documents)
		}
		for i, s := range e.Scores {
			if !finite(float64(s)) {
				return fmt.Errorf("score %d is %v: it must be a number", i, s)
			}
		}
	}
	if d, ok := data.(interface{ TeacherSize() int }); ok {
		width = d.TeacherSize()
	}
	if n := len(e.Teacher); n != width && width > 0 {
		return fmt.Errorf("the teacher's embedding has %d numbers, those of other rows have %d", n, width)
	}
	for i, v := range e.Teacher {
		if !finite(float64(v)) {
			return fmt.Errorf("number %d of the teacher's embedding is %v", i, v)
		}
	}
	return nil
}
