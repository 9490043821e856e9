package recipe

import (
	"fmt"
	"slices"
	"strings"

	"contraflow/stages/loss"
)

// noteNoNegatives tells of columns that may have negatives where no row of the whole run has had any: it may be that another column was meant.
// A short run may have no batch of a dataset at all, of which there is nothing to tell then.
func (x *Run) noteNoNegatives(c Counts) {
	if c.Pairs == 0 || c.Negatives > 0 {
		return
	}
	for i, d := range x.data {
		if x.undrawn(i) || !ragged(d) {
			continue
		}
		s, key, what := x.Recipe.Data.Train[i], "negatives", "a negative"
		if s.Documents != "" {
			key, what = "documents", "a second document"
		}
		var idle []string
		of := x.Recipe.lossOf(i)
		for at, l := range of.each(x.Recipe.lossKey(i)) {
			if x.own.loss == nil && l.idleAlone(s) {
				idle = append(idle, fmt.Sprintf("%s.name: %s", at, l.Name))
			}
		}
		says := ""
		if len(idle) > 0 {
			says = ": " + strings.Join(idle, " and ") + " learned nothing from them"
		}
		x.obs.note("data.train[%d].%s: no row of the run had %s%s", i, key, what, says)
	}
}

// idleAlone tells whether of rows with one document each, of such a source, a loss that is no sum learns nothing.
func (l *Loss) idleAlone(s Source) bool {
	if l.reranker {
		return !slices.Contains([]loss.GroupLoss{loss.GroupBCE, loss.GroupMSE, loss.GroupMNRL}, loss.GroupLoss(l.Name))
	}
	return l.kind().names[0] == "angle" && s.Label == ""
}
