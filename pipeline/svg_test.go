package pipeline

import (
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
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

// TestSVGEdges: names fit into their boxes, no edge crosses a box but where it begins and ends, and no type stands on a box or on another.
func TestSVGEdges(t *testing.T) {
	wide := New("wide") // a type that is longer than what is between two columns
	Sink(wide, "read", Source[map[string]struct{ Long, Longer, Longest float64 }](wide, "made by something with a long name", nil), nil)
	graphs := []*Graph{drawnGraph(), wide}
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 0))
		g := newRandomGraph(r).g
		for _, s := range g.stages {
			s.place = []Placement{{Host: true}, {Lane: Compute}, {Lane: Comm}, {Device: 1, Lane: Compute}}[r.IntN(4)]
		}
		graphs = append(graphs, g)
	}
	for _, g := range graphs {
		svg := g.SVG()
		all := func(pattern string) (found [][]float64) {
			for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(svg, -1) {
				var numbers []float64
				for _, word := range m[1:] {
					x, err := strconv.ParseFloat(word, 64)
					if err != nil {
						x = float64(len(word)) // of a type or a name
					}
					numbers = append(numbers, x)
				}
				found = append(found, numbers)
			}
			return found
		}
		boxes := all(`<rect class="box" x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"`)
		for _, name := range all(`<rect class="box" x="\d+" y="\d+" width="(\d+)"[^>]*><text class="name"[^>]*>([^<]*)<`) {
			if name[1]*6.5 > name[0] { // of 13 pixels
				t.Errorf("a name of %v letters in a box of %v pixels", name[1], name[0])
			}
		}
		in := func(x, y float64) bool {
			return slices.ContainsFunc(boxes, func(b []float64) bool { return x > b[0] && x < b[0]+b[2] && y > b[1] && y < b[1]+b[3] })
		}
		curve := func(p []float64) {
			for i := range 101 {
				u := float64(i) / 100
				of := func(a, b, c, d float64) float64 { // Bernstein's polynomials of degree 3
					return a*(1-u)*(1-u)*(1-u) + 3*b*u*(1-u)*(1-u) + 3*c*u*u*(1-u) + d*u*u*u
				}
				if x, y := of(p[0], p[2], p[4], p[6]), of(p[1], p[3], p[5], p[7]); in(x, y) {
					t.Errorf("an edge crosses a box at %.0f %.0f", x, y)
				}
			}
		}
		short := all(`d="M(\d+) (\d+) C(\d+) (\d+) (\d+) (\d+) (\d+) (\d+)" marker`)
		long := all(`d="M(\d+) (\d+) C(\d+) (\d+) (\d+) (\d+) (\d+) (\d+) H(\d+) C(\d+) (\d+) (\d+) (\d+) (\d+) (\d+)" marker`)
		if want := len(g.drawn()); len(short)+len(long) != want || len(long) == 0 && g != wide {
			t.Errorf("%d short edges and %d long ones, want %d", len(short), len(long), want)
		}
		for _, p := range short {
			curve(p)
		}
		for i, p := range long {
			curve(p[:8])
			curve(append([]float64{p[8], p[7]}, p[9:]...))
			for x := min(p[6], p[8]); x <= max(p[6], p[8]); x++ {
				if in(x, p[7]) {
					t.Errorf("a track crosses a box at %.0f %.0f", x, p[7])
				}
			}
			for _, q := range long[:i] {
				if p[7] == q[7] && min(p[6], p[8]) < max(q[6], q[8]) && min(q[6], q[8]) < max(p[6], p[8]) {
					t.Errorf("two edges on a track: %v and %v", p, q)
				}
			}
		}
		types := all(`<text class="type" x="(\d+)" y="(\d+)">([^<]*)<`)
		if len(types) != len(short)+len(long) {
			t.Errorf("%d types of %d edges", len(types), len(short)+len(long))
		}
		for i, a := range types {
			for x := a[0] - a[2]*3; x <= a[0]+a[2]*3; x++ {
				if in(x, a[1]-4) {
					t.Errorf("a type at %v is on a box", a)
					break
				}
			}
			for _, b := range types[:i] {
				if math.Abs(a[1]-b[1]) < 8 && math.Abs(a[0]-b[0]) < (a[2]+b[2])*2.5 {
					t.Errorf("types at %v and %v overlap", a, b)
				}
			}
		}
	}
}
