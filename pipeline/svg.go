package pipeline

import (
	"fmt"
	"html"
	"image"
	"slices"
	"strings"
	"unicode/utf8"
)

// SVG draws the graph: a band for each placement, stages from left to right in the order data reaches them. It follows
// the viewer's colour scheme and needs no fonts or scripts.
func (g *Graph) SVG() string { return g.AnnotatedSVG(nil) }

// Annotation is what a drawing says of a stage.
type Annotation struct {
	Text  string  // under its name
	Share float64 // 0 to 1: the length of a bar at the box's foot
}

// Sizes of a drawing, in pixels.
const (
	boxW, boxH  = 118, 38 // of a stage, wider where its name is
	rowH        = 62      // of stages above each other
	trackH      = 16      // of edges above each other
	margin, gap = 120, 58 // before the first column, and between two, wider where an edge's type is
	turn        = 36      // of a gap, in which an edge leaves a box for its track or comes from there
)

// textWidth is about how wide a line is, of letters of so many pixels.
func textWidth(s string, size int) int { return utf8.RuneCountInString(s) * size * 3 / 5 }

// AnnotatedSVG is SVG with a note for each stage that has one, by name.
func (g *Graph) AnnotatedSVG(notes map[string]Annotation) string {
	col, edges, places := g.columns(), g.drawn(), g.placements()

	// Columns, as wide as the longest name and the types between them.
	boxW, columns := boxW, 1
	for _, s := range g.stages {
		boxW, columns = max(boxW, textWidth(s.name, 13)+16), max(columns, col[s]+1)
	}
	gaps := slices.Repeat([]int{gap}, columns)
	for _, e := range edges {
		if !e.long(col) {
			gaps[col[e.from]] = max(gaps[col[e.from]], textWidth(e.label, 10)+24)
		}
	}
	x := make([]int, columns)
	for c := range x {
		if x[c] = margin; c > 0 {
			x[c] = x[c-1] + boxW + gaps[c-1]
		}
	}
	width := x[columns-1] + boxW + gap

	// Bands below each other, and in front of each, as after the last, a channel with tracks for the edges that pass columns by.
	tracks := tracksOf(edges, col, places)
	channels := make([]int, len(places)+1) // each one's tracks
	for _, t := range tracks {
		channels[t.channel] = max(channels[t.channel], t.track+1)
	}
	at, top := map[*Stage]image.Point{}, make([]int, len(channels)) // of a box, of a channel
	var bands strings.Builder
	y := 4
	for i, pl := range places {
		top[i] = y
		y += channels[i]*trackH + 8
		stages := make([]int, columns) // of this band, in each column
		for _, s := range g.stages {
			if s.place == pl {
				at[s] = image.Pt(x[col[s]], y+16+stages[col[s]]*rowH)
				stages[col[s]]++
			}
		}
		h := 32 + (slices.Max(stages)-1)*rowH + boxH
		fmt.Fprintf(&bands, `<rect class="band%d" x="4" y="%d" width="%d" height="%d" rx="6"/><text class="lane" x="14" y="%d">%s</text>`+"\n",
			i%2, y, width-8, h, y+h/2+4, html.EscapeString(pl.String()))
		y += h
	}
	top[len(places)] = y
	height := y + channels[len(places)]*trackH + 12

	var lines, boxes, types strings.Builder
	var taken []image.Rectangle // by boxes and types
	for _, s := range g.stages {
		taken = append(taken, image.Rect(at[s].X, at[s].Y, at[s].X+boxW, at[s].Y+boxH))
	}
	// say writes an edge's type at the first of some spots that is free, or else above the first.
	say := func(text string, spots ...image.Point) {
		w := textWidth(text, 10)
		area := func(p image.Point) image.Rectangle { return image.Rect(p.X-w/2, p.Y-9, p.X+w/2, p.Y+2) }
		at := spots[0]
		for i := 1; slices.ContainsFunc(taken, area(at).Overlaps); i++ {
			if at = spots[0].Sub(image.Pt(0, 12*(i-len(spots)+1))); i < len(spots) {
				at = spots[i]
			}
		}
		taken = append(taken, area(at))
		fmt.Fprintf(&types, `<text class="type" x="%d" y="%d">%s</text>`+"\n", at.X, at.Y, html.EscapeString(text))
	}
	ends := func(e drawnEdge) (x1, y1, x2, y2 int) {
		a, b := at[e.from], at[e.to]
		return a.X + boxW, a.Y + boxH/2, b.X - 4, b.Y + boxH/2
	}
	for i, e := range edges {
		t, ok := tracks[i]
		if !ok {
			continue
		}
		x1, y1, x2, y2 := ends(e)
		on := top[t.channel] + (t.track+1)*trackH
		class, out, in := "edge", x1+turn, x2-turn // where its track begins and ends
		if e.loop {
			class, out, in = "edge loop", x1, x2
		}
		fmt.Fprintf(&lines, `<path class="%s" d="M%d %d C%d %d %d %d %d %d H%d C%d %d %d %d %d %d" marker-end="url(#tip)"/>`+"\n",
			class, x1, y1, x1+turn*2/3, y1, x1+turn*2/3, on, out, on, in, x2-turn*2/3, on, x2-turn*2/3, y2, x2, y2)
		say(e.label, image.Pt((out+in)/2, on-3), image.Pt((out+2*in)/3, on-3), image.Pt((2*out+in)/3, on-3))
	}
	for _, e := range edges {
		if e.long(col) {
			continue
		}
		x1, y1, x2, y2 := ends(e)
		fmt.Fprintf(&lines, `<path class="edge" d="M%d %d C%d %d %d %d %d %d" marker-end="url(#tip)"/>`+"\n", x1, y1, x1+28, y1, x2-24, y2, x2, y2)
		var spots []image.Point
		for _, part := range []float64{0.5, 0.4, 0.6, 0.3, 0.7} { // of the way
			y := y1 + int(float64(y2-y1)*part*part*(3-2*part)) // on the curve, whose ends are level
			spots = append(spots, image.Pt(x1+int(float64(x2-x1)*part), y-5))
		}
		say(e.label, spots...)
	}
	for _, s := range g.stages {
		c := at[s]
		note, noted := notes[s.name]
		name := c.Y + boxH/2 + 4
		if noted {
			name -= 6
		}
		fmt.Fprintf(&boxes, `<rect class="box" x="%d" y="%d" width="%d" height="%d" rx="7"/><text class="name" x="%d" y="%d">%s</text>`,
			c.X, c.Y, boxW, boxH, c.X+boxW/2, name, html.EscapeString(s.name))
		if noted {
			fmt.Fprintf(&boxes, `<text class="label" x="%d" y="%d">%s</text><rect class="share" x="%d" y="%d" width="%.1f" height="3"/>`,
				c.X+boxW/2, name+13, html.EscapeString(note.Text), c.X+6, c.Y+boxH-5, min(1, max(0, note.Share))*float64(boxW-12))
		}
		boxes.WriteByte('\n')
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" class="stagegraph" viewBox="0 0 %d %d" role="img" aria-label="stage graph %s">`+"\n", width, height, html.EscapeString(g.name))
	b.WriteString(`<style>
.stagegraph text{font:13px sans-serif;fill:#222}.stagegraph .lane{font-size:11px;fill:#666}.stagegraph .label,.stagegraph .type{font-size:10px;fill:#666;text-anchor:middle}.stagegraph .name{text-anchor:middle}
.stagegraph .type{paint-order:stroke;stroke:#f1f4f9;stroke-width:3px}
.stagegraph .box{fill:#fff;stroke:#446;stroke-width:1.4}.stagegraph .share{fill:#3b6fd4}.stagegraph .edge{fill:none;stroke:#557;stroke-width:1.3}.stagegraph .loop{stroke-dasharray:5 4}.stagegraph .band0{fill:#f1f4f9}.stagegraph .band1{fill:#e9eef6}
@media (prefers-color-scheme:dark){.stagegraph text{fill:#ddd}.stagegraph .lane,.stagegraph .label,.stagegraph .type{fill:#9aa}.stagegraph .type{stroke:#141a24}.stagegraph .box{fill:#1d2330;stroke:#89b}.stagegraph .share{fill:#7aa2f0}.stagegraph .edge{stroke:#9ab}.stagegraph .band0{fill:#141a24}.stagegraph .band1{fill:#182030}}
</style><defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#679"/></marker></defs>
`)
	for _, part := range []*strings.Builder{&bands, &lines, &boxes, &types} {
		b.WriteString(part.String())
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// long says whether an edge passes columns by, or goes back.
func (e drawnEdge) long(col map[*Stage]int) bool { return e.loop || col[e.to]-col[e.from] != 1 }

// track is where a long edge runs: in a channel, which is in front of the placement of that index.
type track struct{ channel, track int }

// tracksOf gives each long edge, by index, a track that it shares with none whose columns are among its own; short ones come first.
func tracksOf(edges []drawnEdge, col map[*Stage]int, places []Placement) map[int]track {
	type interval struct{ edge, channel, from, to int }
	var all []interval
	for i, e := range edges {
		if !e.long(col) {
			continue
		}
		a, b := slices.Index(places, e.from.place), slices.Index(places, e.to.place)
		v := interval{i, max(a, b), col[e.from], col[e.to]}
		if a == b || e.loop {
			v.channel++
		}
		if v.to <= v.from { // back to the gap in front of a column, from that after another
			v.from, v.to = v.to-1, v.from+1
		}
		all = append(all, v)
	}
	slices.SortStableFunc(all, func(a, b interval) int { return (a.to - a.from) - (b.to - b.from) })
	of, taken := map[int]track{}, map[track][]interval{}
	for _, v := range all {
		at := track{v.channel, 0}
		for slices.ContainsFunc(taken[at], func(w interval) bool { return v.from < w.to && w.from < v.to }) {
			at.track++
		}
		of[v.edge], taken[at] = at, append(taken[at], v)
	}
	return of
}

// columns gives each stage the length of the longest path to it; a cycle, which Build refuses, does not hang it.
func (g *Graph) columns() map[*Stage]int {
	col := map[*Stage]int{}
	for range g.stages {
		changed := false
		for _, e := range g.drawn() {
			if want := col[e.from] + 1; !e.loop && col[e.to] < want {
				col[e.to] = want
				changed = true
			}
		}
		if !changed {
			break
		}
	}
	return col
}
