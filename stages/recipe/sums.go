package recipe

import (
	"fmt"
	"iter"
	"slices"

	"contraflow/stages/loss"
)

// A list of losses is their sum: see loss.Sum. All of its terms are means over rows, so that it splits rows as each of them does.

// decodeTerms reads a list of losses.
func (l *Loss) decodeTerms(d *decoder, path string, n *node) {
	*l = Loss{GatherAcrossDevices: true, Terms: make([]Loss, len(n.list))}
	if len(n.list) == 0 {
		d.fail(n.at, path, "is a list of no losses, want one or several such as [{name: mnrl}, {name: distill_kl, weight: 2}]")
	}
	for i, e := range n.list {
		key, t := fmt.Sprintf("%s[%d]", path, i), &l.Terms[i]
		switch e.kind {
		case null:
			d.fail(e.at, key, "has no value")
		case list:
			d.fail(e.at, key, "is a list in a list: want a loss's name, or a mapping")
		default:
			t.decode(d, key, e)
		}
		if !slices.ContainsFunc(e.keys, func(k entry) bool { return k.key == "weight" }) {
			t.Weight = 1
		}
	}
}

// each gives the losses that the one at a key is a sum of, with their keys: itself, if it is none.
func (l *Loss) each(at string) iter.Seq2[string, *Loss] {
	return func(yield func(string, *Loss) bool) {
		if l.Terms == nil {
			yield(at, l)
			return
		}
		for i := range l.Terms {
			if !yield(fmt.Sprintf("%s[%d]", at, i), &l.Terms[i]) {
				return
			}
		}
	}
}

// stated is a loss that is no sum, of a dataset, and where the recipe says it.
type stated struct {
	Loss
	key    string
	source int
}

// termsOf are the losses of a dataset, those of a sum one by one.
func (r Recipe) termsOf(source int) (all []stated) {
	l := r.lossOf(source)
	for key, t := range l.each(r.lossKey(source)) {
		all = append(all, stated{*t, key, source})
	}
	return all
}

// terms are those of all datasets; without datasets, the recipe's.
func (r Recipe) terms() (all []stated) {
	for i := range r.Data.Train {
		all = append(all, r.termsOf(i)...)
	}
	if len(r.Data.Train) == 0 {
		for key, t := range r.Loss.each("loss") {
			all = append(all, stated{*t, key, 0})
		}
	}
	return all
}

// gist tells whether the loss, or one of its terms, is gist.
func (l *Loss) gist() bool {
	for _, t := range l.each("") {
		if t.kind().names[0] == "gist" {
			return true
		}
	}
	return false
}

// checkTerms checks the loss at a key, which may be a sum. It returns whether there are such losses.
func (c *checker) checkTerms(r *Recipe, l *Loss, at string) bool {
	if l.Terms == nil {
		return c.checkLoss(r, l, at)
	}
	if r.Model.Kind == "m3" {
		c.fail(at, "is a list: model.kind: m3 has one loss, m3, which is no term of a sum")
		return false
	}
	if r.Model.Kind == "multi_vector" {
		c.fail(at, "is a list: losses of vectors of tokens (model.kind: multi_vector) are no terms of a sum; datasets may have one each, data.train[].loss")
		return false
	}
	ok, guide := true, ""
	c.gathers(l, at)
	for key, t := range l.each(at) {
		ok = c.checkLoss(r, t, key) && ok
		if t.Guide != nil && guide != "" {
			c.fail(key+".guide", "is a second guide: a run has one, and that is %s.guide", guide)
		} else if t.Guide != nil {
			guide = key
		}
	}
	return ok && c.sameRows(l, at)
}

// gathers resolves whether the negatives of all devices are a sum's: as one of its terms says, for all of them.
func (c *checker) gathers(l *Loss, at string) {
	by := ""
	for key, t := range l.each(at) {
		switch {
		case c.find(key+".gather_across_devices") == nil:
		case by != "" && t.GatherAcrossDevices != l.GatherAcrossDevices:
			c.fail(key+".gather_across_devices", "is %v, and %s.gather_across_devices is %v: it is the same for all losses of a sum, and one of them says it", t.GatherAcrossDevices, by, l.GatherAcrossDevices)
		default:
			by, l.GatherAcrossDevices = key, t.GatherAcrossDevices
		}
	}
	for _, t := range l.each(at) {
		t.GatherAcrossDevices = l.GatherAcrossDevices
	}
}

// sameRows finds terms for which no rows are right.
func (c *checker) sameRows(l *Loss, at string) bool {
	takes := func(what string, is func(lossKind) bool) (key, text string) {
		for key, t := range l.each(at) {
			if is(t.kind()) {
				return key, fmt.Sprintf("%s.name: %s takes %s", key, t.Name, what)
			}
		}
		return "", ""
	}
	single, one := takes("single texts", func(k lossKind) bool { return k.single })
	_, two := takes("pairs", func(k lossKind) bool { return !k.single && !k.takesSingle })
	if one != "" && two != "" {
		c.fail(single+".name", "a sum's losses have the same rows, and %s, while %s", one, two)
		return false
	}
	pairs, without := takes("no negatives", func(k lossKind) bool { return k.pairs })
	_, with := takes("negatives", func(k lossKind) bool { return k.negatives })
	if without != "" && with != "" {
		c.fail(pairs+".name", "a sum's losses have the same rows, and %s, while %s", without, with)
		return false
	}
	return true
}

// checkGroupTerms is checkTerms for a reranker's losses. One that is no term of a sum is itself where it is all of a list.
func (c *checker) checkGroupTerms(l *Loss, at string) {
	l.GatherAcrossDevices = false
	one := len(l.Terms) == 1
	for key, t := range l.each(at) {
		c.checkGroups(t, key)
		c.require(l.Terms == nil || t.Weight > 0, key+".weight", "is %v, want a positive number", t.Weight)
		c.require(l.Terms == nil || one || t.groups().MeansRows(), key+".name", "%s is a mean over a batch's documents, or pairs of them, and no term of a sum, which is a mean over rows", t.Name)
		c.require(l.Terms == nil || one || t.inBatch() == 0, key+".name", "mnrl is no term of a sum, whose losses have the same documents: those of other rows are its alone")
	}
	if !one {
		return
	}
	if t := l.Terms[0]; !t.groups().MeansRows() || t.inBatch() != 0 {
		c.require(t.Weight == 1, at+"[0].weight", "is %v, and %s is no term of a sum: a list of it alone has weight 1", t.Weight, t.Name)
		t.term, t.Weight = false, 0
		*l = t
	}
}

// sum is the objective of a list of losses.
func (l Loss) sum(o driving) loss.RowSplitter {
	var terms []loss.Term
	for _, t := range l.Terms {
		terms = append(terms, loss.Term{Loss: t.objective(o), Factor: t.Weight})
	}
	out, err := loss.Sum(terms...)
	if err != nil {
		panic("recipe: a sum that was checked: " + err.Error())
	}
	return out.(loss.RowSplitter) // its terms are means over rows
}

// guide is the run's, and where the recipe says it; nil: there is none.
func (r Recipe) guide() (key string, guide *Guide) {
	for key, t := range r.Loss.each("loss") {
		if t.Guide != nil {
			return key + ".guide", t.Guide
		}
	}
	return "", nil
}
