package loss

import "contraflow/gpustage"

// strips lays out the directions with what each excludes.
//
// Masks are equalities of small numbers: texts get numbers in the order of their first appearance. For row i with query text
// q and positive text p, MaskDuplicates excludes
//
//   - candidates whose text is q or p,
//   - documents that are the positive of a row whose query is q, and queries whose row's positive is p,
//
// which never costs a row its own positive pair: Compute adds that by itself, and tiles leave it out by its place, as they
// do where a query meets itself or a positive the documents of its own row.
func (l InfoNCE) strips(s gpustage.Stream, a *gpustage.Arena, b *Batch, x, dx gpustage.Tensor) []strip {
	rows, docs := b.Rows, b.N()-b.Rows
	ids := number(b.Texts)
	ints := func(vs []int32) gpustage.Tensor {
		t := a.Scratch(s, gpustage.I32, 1, len(vs))
		s.CopyIn(t, gpustage.Bytes(vs))
		return t
	}
	counting := make([]int32, b.N())
	for i := range counting {
		counting[i] = int32(i)
	}
	owners := append(append([]int32(nil), counting[:rows]...), b.Owner...)
	partners := append([]int32(nil), ids[:rows]...) // of documents: the query that a positive answers; negatives have none
	for range b.Owner {
		partners = append(partners, -1)
	}
	row := ints(counting[:rows])
	place := ints(counting[:docs])
	owner := ints(owners)
	query, positive := ints(ids[:rows]), ints(ids[rows:2*rows])
	text, partner := ints(ids[rows:]), ints(partners)

	var out []strip
	for g, d := range l.directions() {
		if !l.PerDirection {
			g = 0
		}
		st := strip{group: g, alpha: l.scale()}
		if d == QueryToDoc && l.HardnessStrength > 0 && (l.Hardness == InBatchNegatives || l.Hardness == AllNegatives) {
			st.alpha += l.HardnessStrength
		}
		anchors, first, last := 0, 0, rows // sequences that anchors begin at, and candidates begin and end at
		if d != QueryToDoc && d != QueryToQuery {
			anchors = rows
		}
		switch d {
		case QueryToDoc, DocToDoc:
			first, last = rows, b.N()
		case PositiveToPositive:
			first, last = rows, 2*rows
		}
		at := func(t gpustage.Tensor, lo, hi int) gpustage.Tensor {
			if t.IsZero() {
				return t
			}
			return t.Span(lo, hi)
		}
		st.anchors, st.dAnchors, st.guideAnchors = at(x, anchors, anchors+rows), at(dx, anchors, anchors+rows), at(b.Guide, anchors, anchors+rows)
		st.candidates, st.dCandidates, st.guideCandidates = at(x, first, last), at(dx, first, last), at(b.Guide, first, last)
		switch n := last - first; {
		case !l.MaskDuplicates:
		case first > 0: // documents
			text, partner := text.Columns(0, n), partner.Columns(0, n)
			st.mask = gpustage.Mask{{Row: query, Col: text}, {Row: positive, Col: text}, {Row: query, Col: partner}}
		default:
			st.mask = gpustage.Mask{{Row: query, Col: query}, {Row: positive, Col: query}, {Row: positive, Col: positive}}
		}
		own := row // each anchor's own place among the candidates, which the tiles leave out: the positive pair, or itself
		switch d {
		case QueryToDoc:
			if own, st.positive = place, true; l.separates() {
				own = owner
			}
		case DocToQuery:
			st.positive = true
		case DocToDoc:
			own = owner
		}
		st.mask = append(st.mask, gpustage.Match{Row: row, Col: own})
		out = append(out, st)
	}
	return out
}

// number gives equal texts equal numbers.
func number(texts []TextID) []int32 {
	seen := make(map[TextID]int32, len(texts))
	ids := make([]int32, len(texts))
	for i, t := range texts {
		id, ok := seen[t]
		if !ok {
			id = int32(len(seen))
			seen[t] = id
		}
		ids[i] = id
	}
	return ids
}
