package pipeline

import (
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// drawnGraph has five stages in three places: one with two readers beside each other, and a value that goes from step to step.
func drawnGraph() *Graph {
	g := New("drawn")
	rows := Source[int](g, "rows", nil)
	Sink(g, "print", rows, func(*Task, int) error { return nil }) // beside the next
	b := g.Stage("batch")
	In(b, "rows", rows)
	batches := Batches[int](b, "batches").Port
	e := g.Stage("embed", On(0, Compute))
	In(e, "batch", batches)
	later := Later[int](g, "weights", "call Bind")
	Loop(e, "weights", later, 0)
	u := g.Stage("update", At(Step), On(0, Comm))
	Collect(u, "gradients", Out[int](e, "gradients").Port)
	Collect(u, "batches", batches)
	Bind(later, Out[int](u, "weights"))
	return g
}

// Mermaid: every stage stands in its place's subgraph, and every edge once, the one from step to step dashed.
func TestMermaid(t *testing.T) {
	in, arrows := map[string]string{}, map[string]int{}
	place := ""
	names := map[string]string{}
	for line := range strings.Lines(drawnGraph().Mermaid()) {
		if m := regexp.MustCompile(`^  subgraph p\d+\["(.*)"\]\n`).FindStringSubmatch(line); m != nil {
			place = m[1]
		} else if m := regexp.MustCompile(`^    (s\d+)\["(\w+)"\]\n`).FindStringSubmatch(line); m != nil {
			names[m[1]], in[m[2]] = m[2], place
		} else if m := regexp.MustCompile(`^  (s\d+) (-->|-\.->)\|".*"\| (s\d+)\n`).FindStringSubmatch(line); m != nil {
			arrows[names[m[1]]+m[2]+names[m[3]]]++
		}
	}
	if want := map[string]string{"rows": "host", "batch": "host", "print": "host", "embed": "device 0 compute", "update": "device 0 comm"}; !maps.Equal(in, want) {
		t.Errorf("stages by place: %v, want %v", in, want)
	}
	if want := map[string]int{"rows-->batch": 1, "rows-->print": 1, "batch-->embed": 1, "embed-->update": 1, "batch-->update": 1, "update-.->embed": 1}; !maps.Equal(arrows, want) {
		t.Errorf("edges %v, want %v", arrows, want)
	}
}

// A name and a type with quotes end no text early, and what comes one by one says so.
func TestMermaidQuotes(t *testing.T) {
	g := New("quoted")
	s := g.Stage(`read "a"`)
	rows := Batches[struct {
		A int `json:"a"`
	}](s, "rows")
	Sink(g, "print", rows.Port, nil)
	text := g.Mermaid()
	for _, want := range []string{`s0["read #quot;a#quot;"]`, `s0 -->|"each struct { A int #quot;json:\#quot;a\#quot;#quot; }"| s1`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
}

// SVG: every box lies in the band of its place, right of the boxes that it reads from, and no two touch.
func TestSVG(t *testing.T) {
	svg := drawnGraph().SVG()
	type rect struct{ x, y, w, h int }
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	rects := func(after, name string) map[string]rect {
		all := map[string]rect{}
		for _, m := range regexp.MustCompile(`<rect class="`+after+`" x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)" rx="\d"/><text class="`+name+`"[^>]*>([^<]*)<`).FindAllStringSubmatch(svg, -1) {
			all[m[5]] = rect{number(m[1]), number(m[2]), number(m[3]), number(m[4])}
		}
		return all
	}
	inside := func(a, b rect) bool {
		return a.x >= b.x && a.y >= b.y && a.x+a.w <= b.x+b.w && a.y+a.h <= b.y+b.h
	}
	apart := func(a, b rect) bool {
		return a.x+a.w < b.x || b.x+b.w < a.x || a.y+a.h < b.y || b.y+b.h < a.y
	}
	boxes, bands := rects("box", "name"), rects(`band\d`, "lane")
	places := map[string]string{"rows": "host", "batch": "host", "print": "host", "embed": "device 0 compute", "update": "device 0 comm"}
	if len(boxes) != len(places) || len(bands) != 3 {
		t.Fatalf("%d boxes in %d bands:\n%s", len(boxes), len(bands), svg)
	}
	for name, place := range places {
		if !inside(boxes[name], bands[place]) {
			t.Errorf("%s at %v is not in %s at %v", name, boxes[name], place, bands[place])
		}
	}
	var page rect
	if _, err := fmt.Sscanf(svg[strings.Index(svg, `viewBox="`):], `viewBox="%d %d %d %d"`, &page.x, &page.y, &page.w, &page.h); err != nil {
		t.Fatal(err)
	}
	for _, all := range []map[string]rect{boxes, bands} {
		for a, x := range all {
			if !inside(x, page) {
				t.Errorf("%s at %v is beyond the page %v", a, x, page)
			}
			for b, y := range all {
				if a != b && !apart(x, y) {
					t.Errorf("%s at %v and %s at %v touch", a, x, b, y)
				}
			}
		}
	}
	for _, e := range [][2]string{{"rows", "batch"}, {"batch", "embed"}, {"embed", "update"}} {
		if a, b := boxes[e[0]], boxes[e[1]]; a.x+a.w >= b.x {
			t.Errorf("%s, which %s reads, ends at %d and the other begins at %d", e[0], e[1], a.x+a.w, b.x)
		}
	}
}
