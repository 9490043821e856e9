package spelling

import (
	"strings"
	"testing"
)

func TestNear(t *testing.T) {
	for _, c := range []struct{ word, names, want string }{
		{"querry", "answer query", "query"},
		{"Text", "text", "text"},
		{"trian", "train rain", "train"}, // neighbours that are swapped are one edit
		{"scael", "name scale", "scale"},
		{"lr", "l lrs other", "l lrs"},
		{"q", "p queries Q", "Q"}, // one letter for another is no slip
		{"", "q", ""},
		{"pos", "positive", ""},
		{"encoder.x", "bert.encoder.x encoder.y", "bert.encoder.x encoder.y"},
		{"bert.encoder.layer", "encoder.layer coder.layer", "encoder.layer"},
		{strings.Repeat("x", 1<<20), "x", ""},
	} {
		if got := strings.Join(Near(c.word, strings.Fields(c.names)), " "); got != c.want {
			t.Errorf("near %.20s of %s are %q, want %q", c.word, c.names, got, c.want)
		}
	}
}

func TestEdits(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "ab", 2}, {"kitten", "sitting", 3}, {"ab", "ba", 1}, {"ca", "abc", 3}} {
		if got, back := edits(c.a, c.b), edits(c.b, c.a); got != c.want || back != c.want {
			t.Errorf("%q and %q: %d and %d edits, want %d", c.a, c.b, got, back, c.want)
		}
	}
}
