package pipeline

import (
	"fmt"
	"strings"
)

// The drawings show stages in boxes by placement, edges with what they carry, and loop-carried edges dashed. They need
// no Build: a graph that does not build can be looked at too.

type drawnEdge struct {
	from, to *Stage
	label    string
	loop     bool
}

func (g *Graph) drawn() []drawnEdge {
	var es []drawnEdge
	for _, s := range g.stages {
		for _, e := range s.in {
			if e.from == nil || e.from.source() == nil {
				continue
			}
			src := e.from.source()
			label := shortType(src.typ.String())
			if e.kind == collect {
				label = "all " + label
			}
			if src.fan || src == src.stage.batches {
				label = "each " + label
			}
			es = append(es, drawnEdge{src.stage, s, label, e.kind == loop})
		}
	}
	return es
}

// shortType drops package paths: "[]*stages.Rows[contraflow/x.Y]" becomes "[]*Rows[Y]".
func shortType(s string) string {
	var b strings.Builder
	word := 0
	for i := 0; i <= len(s); i++ {
		if i < len(s) && (s[i] == '_' || s[i] == '.' || s[i] == '/' || s[i] >= '0' && s[i] <= '9' || s[i] >= 'a' && s[i] <= 'z' || s[i] >= 'A' && s[i] <= 'Z') {
			continue
		}
		w := s[word:i]
		b.WriteString(w[strings.LastIndexAny(w, "./")+1:])
		if i < len(s) {
			b.WriteByte(s[i])
		}
		word = i + 1
	}
	return b.String()
}

// DOT draws the graph for Graphviz.
func (g *Graph) DOT() string {
	var b strings.Builder
	fmt.Fprintf(&b, "digraph %q {\n  rankdir=LR; node [shape=box, style=rounded, fontname=\"sans-serif\"]; edge [fontname=\"sans-serif\", fontsize=10];\n", g.name)
	for i, pl := range g.placements() {
		fmt.Fprintf(&b, "  subgraph cluster_%d { label=%q; color=gray;", i, pl.String())
		for _, s := range g.stages {
			if s.place == pl {
				fmt.Fprintf(&b, " %q;", s.name)
			}
		}
		b.WriteString(" }\n")
	}
	for _, e := range g.drawn() {
		style := ""
		if e.loop {
			style = ", style=dashed, constraint=false"
		}
		fmt.Fprintf(&b, "  %q -> %q [label=%q%s];\n", e.from.name, e.to.name, e.label, style)
	}
	b.WriteString("}\n")
	return b.String()
}

// quoted is a text between quotes as Mermaid has it.
func quoted(s string) string { return `"` + strings.ReplaceAll(s, `"`, "#quot;") + `"` }

// Mermaid draws the graph for Markdown.
func (g *Graph) Mermaid() string {
	var b strings.Builder
	b.WriteString("flowchart LR\n")
	for i, pl := range g.placements() {
		fmt.Fprintf(&b, "  subgraph p%d[%s]\n", i, quoted(pl.String()))
		for _, s := range g.stages {
			if s.place == pl {
				fmt.Fprintf(&b, "    s%d[%s]\n", s.id, quoted(s.name))
			}
		}
		b.WriteString("  end\n")
	}
	for _, e := range g.drawn() {
		arrow := "-->"
		if e.loop {
			arrow = "-.->"
		}
		fmt.Fprintf(&b, "  s%d %s|%s| s%d\n", e.from.id, arrow, quoted(e.label), e.to.id)
	}
	return b.String()
}

// placements lists where the graph's stages run, in order of first use.
func (g *Graph) placements() []Placement {
	var ps []Placement
	seen := map[Placement]bool{}
	for _, s := range g.stages {
		if !seen[s.place] {
			seen[s.place] = true
			ps = append(ps, s.place)
		}
	}
	return ps
}
