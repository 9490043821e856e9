package pipeline

import (
	"fmt"
	"html"
	"strings"
)

// SVG draws the graph: a band for each placement, stages from left to right in the order data reaches them. It follows
// the viewer's colour scheme and needs no fonts or scripts.
func (g *Graph) SVG() string { return g.AnnotatedSVG(nil) }

// Annotation is what a drawing says of a stage.
type Annotation struct {
	Text  string  // under its name
	Share float64 // 0 to 1: the length of a bar at the box's foot
}

// AnnotatedSVG is SVG with a note for each stage that has one, by name.
func (g *Graph) AnnotatedSVG(notes map[string]Annotation) string {
	const (
		boxW, boxH     = 118, 38
		stepX, stepY   = 176, 62
		left, bandPadY = 120, 16
	)
	col := g.columns()
	type cell struct{ x, y int }
	at := map[*Stage]cell{}
	var bands strings.Builder
	y, width := 10, 0
	for i, pl := range g.placements() {
		taken := map[int]int{} // stages per column of this band
		rows := 1
		for _, s := range g.stages {
			if s.place != pl {
				continue
			}
			row := taken[col[s]]
			taken[col[s]]++
			rows = max(rows, row+1)
			at[s] = cell{left + col[s]*stepX, y + bandPadY + row*stepY}
			width = max(width, at[s].x+boxW+30)
		}
		h := 2*bandPadY + (rows-1)*stepY + boxH
		fmt.Fprintf(&bands, `<rect class="band%d" x="4" y="%d" width="WIDTH" height="%d" rx="6"/><text class="lane" x="14" y="%d">%s</text>`+"\n",
			i%2, y, h, y+h/2+4, html.EscapeString(pl.String()))
		y += h + 8
	}
	height := y + 34 // room for loop-carried edges below

	var edges, boxes strings.Builder
	for _, e := range g.drawn() {
		a, b := at[e.from], at[e.to]
		x1, y1, x2, y2 := a.x+boxW, a.y+boxH/2, b.x, b.y+boxH/2
		class, path := "edge", fmt.Sprintf("M%d %d C%d %d %d %d %d %d", x1, y1, x1+28, y1, x2-28, y2, x2-4, y2)
		lx, ly := (x1+x2)/2, (y1+y2)/2-5
		if e.loop {
			class = "edge loop"
			x1, y1, x2, y2 = a.x+boxW/2, a.y+boxH, b.x+boxW/2, b.y+boxH
			path = fmt.Sprintf("M%d %d C%d %d %d %d %d %d", x1, y1, x1, height-6, x2, height-6, x2, y2+4)
			lx, ly = (x1+x2)/2, height-12
		}
		fmt.Fprintf(&edges, `<path class="%s" d="%s" marker-end="url(#tip)"/><text class="label" x="%d" y="%d">%s</text>`+"\n",
			class, path, lx, ly, html.EscapeString(e.label))
	}
	for _, s := range g.stages {
		c := at[s]
		note, noted := notes[s.name]
		name := c.y + boxH/2 + 4
		if noted {
			name -= 6
		}
		fmt.Fprintf(&boxes, `<rect class="box" x="%d" y="%d" width="%d" height="%d" rx="7"/><text class="name" x="%d" y="%d">%s</text>`,
			c.x, c.y, boxW, boxH, c.x+boxW/2, name, html.EscapeString(s.name))
		if noted {
			fmt.Fprintf(&boxes, `<text class="label" x="%d" y="%d">%s</text><rect class="share" x="%d" y="%d" width="%.1f" height="3"/>`,
				c.x+boxW/2, name+13, html.EscapeString(note.Text), c.x+6, c.y+boxH-5, min(1, max(0, note.Share))*(boxW-12))
		}
		boxes.WriteByte('\n')
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" class="stagegraph" viewBox="0 0 %d %d" role="img" aria-label="stage graph %s">`+"\n", width, height, html.EscapeString(g.name))
	b.WriteString(`<style>
.stagegraph text{font:13px sans-serif;fill:#222}.stagegraph .lane{font-size:11px;fill:#666}.stagegraph .label{font-size:10px;fill:#666;text-anchor:middle}.stagegraph .name{text-anchor:middle}
.stagegraph .box{fill:#fff;stroke:#446;stroke-width:1.4}.stagegraph .share{fill:#3b6fd4}.stagegraph .edge{fill:none;stroke:#557;stroke-width:1.3}.stagegraph .loop{stroke-dasharray:5 4}.stagegraph .band0{fill:#f1f4f9}.stagegraph .band1{fill:#e9eef6}
@media (prefers-color-scheme:dark){.stagegraph text{fill:#ddd}.stagegraph .lane,.stagegraph .label{fill:#9aa}.stagegraph .box{fill:#1d2330;stroke:#89b}.stagegraph .share{fill:#7aa2f0}.stagegraph .edge{stroke:#9ab}.stagegraph .band0{fill:#141a24}.stagegraph .band1{fill:#182030}}
</style><defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#679"/></marker></defs>
`)
	b.WriteString(strings.ReplaceAll(bands.String(), "WIDTH", fmt.Sprint(width-8)))
	b.WriteString(edges.String())
	b.WriteString(boxes.String())
	b.WriteString("</svg>\n")
	return b.String()
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
