package embedder

import (
	"strings"
	"testing"

	"contraflow/io/hfmodel"
	"contraflow/stages/transformer"
)

// Queries have the length of a fixed expansion, whatever is asked for, and what is asked for in vain is told; a least length leaves longer ones.
func TestLengthsOf(t *testing.T) {
	f, c := &hfmodel.Folder{MaxSeqLength: 40}, transformer.Config{MaxPositions: 64}
	fixed, least := &hfmodel.Expansion{Strategy: "fixed", Length: 12}, &hfmodel.Expansion{Strategy: "min", Length: 12}
	for _, x := range []struct {
		m                       *hfmodel.MultiVector
		query, document         int
		wantQuery, wantDocument int
		note, err               string
	}{
		{nil, 0, 0, 40, 40, "", ""},
		{&hfmodel.MultiVector{QueryLength: 20, DocumentLength: 30}, 0, 0, 20, 30, "", ""},
		{&hfmodel.MultiVector{QueryLength: 20, DocumentLength: 30}, 9, 10, 9, 10, "", ""},
		{&hfmodel.MultiVector{Expansion: fixed}, 0, 0, 12, 40, "", ""},
		{&hfmodel.MultiVector{Expansion: fixed, QueryLength: 20}, 0, 10, 12, 10, "", ""},
		{&hfmodel.MultiVector{Expansion: fixed}, 12, 10, 12, 10, "", ""},
		{&hfmodel.MultiVector{Expansion: fixed}, 30, 10, 12, 10, "a maximum length of 30 tokens is asked for, but query_expansion, whose length is fixed, makes all of them 12", ""},
		{&hfmodel.MultiVector{Expansion: fixed}, 5, 0, 0, 0, "makes all of them 12", "a maximum length of 5 tokens, and query_expansion fills them up to 12"},
		{&hfmodel.MultiVector{Expansion: least}, 0, 0, 40, 40, "", ""},
		{&hfmodel.MultiVector{Expansion: least}, 30, 0, 30, 40, "", ""},
		{&hfmodel.MultiVector{Expansion: &hfmodel.Expansion{Strategy: "fixed", Length: 65}}, 0, 0, 0, 0, "", "queries: a maximum length of 65 tokens is beyond"},
	} {
		q, d, err := LengthsOf(f, x.m, c, x.query, x.document)
		switch {
		case x.err != "":
			if err == nil || !strings.Contains(err.Error(), x.err) {
				t.Errorf("%+v: %v, want %q", x, err, x.err)
			}
		case err != nil || q != x.wantQuery || d != x.wantDocument:
			t.Errorf("%+v: %d and %d, %v", x, q, d, err)
		}
		if note := ExpansionNote(x.m, x.query); !strings.Contains(note, x.note) || (note == "") != (x.note == "") {
			t.Errorf("%+v: the note is %q", x, note)
		}
	}
}
