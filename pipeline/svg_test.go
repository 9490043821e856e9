package pipeline

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestAnnotatedSVG: a stage's bar is as long as its share of the box, and stands in its own stage's box.
func TestAnnotatedSVG(t *testing.T) {
	g := New("shares")
	Sink(g, "look", Source[int](g, "count", nil), func(*Task, int) error { return nil })
	svg := g.AnnotatedSVG(map[string]Annotation{"count": {Text: "25 %", Share: 0.25}, "look": {Text: "200 <%>", Share: 2}})
	var bars []string
	for _, box := range regexp.MustCompile(`>(\w+)</text><text class="label"[^>]*>([^<]*)</text><rect class="share"[^>]* width="([\d.]+)" height="3"/>`).FindAllStringSubmatch(svg, -1) {
		bars = append(bars, strings.Join(box[1:], "|"))
	}
	if want := []string{"count|25 %|26.5", "look|200 &lt;%&gt;|106.0"}; !slices.Equal(bars, want) { // of 118 - 2*6
		t.Errorf("%q, want %q", bars, want)
	}
	if strings.Contains(g.SVG(), `class="share" x`) {
		t.Error("a drawing without notes has bars")
	}
}
