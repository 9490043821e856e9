package dataset

import (
	"fmt"
	"slices"
)

// MinedKey is what a parquet file's footer says: the name of a column of scores that contraflow mine has written of the model that it searched with. They
// are no teacher's, and a [Dataset] that takes them for one's has a note. Each [TableWriter] passes it on with the column, and not where the table has it no more.
const MinedKey = "contraflow.mined_scores"

// noteMined adds a note where scores are the miner's own.
func (d *Dataset) noteMined() {
	for i := range d.files {
		if f := &d.files[i]; f.mined != "" && slices.Contains(d.src.Scores, f.mined) {
			d.notes = append(d.notes, fmt.Sprintf("%s: the scores in column %q are those of the model by which contraflow mine has found the negatives: as a teacher's they teach what that model knows; contraflow distill writes those of a teacher, into a column of another name", f.path(), f.mined))
			return // of one file of many
		}
	}
}
