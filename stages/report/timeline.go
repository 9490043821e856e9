package report

import (
	"fmt"
	"html"
	"sort"
	"strings"
	"time"

	"contraflow/pipeline"
)

const (
	laneH, laneGap         = 22, 8
	timelineW, timelineTop = 860, 6
	timelineLeft           = 92
	maxTasks               = 1500
)

// timeline draws one step: a row for each lane, the host's tasks in as many rows as ran at once. Where nothing was computed beside
// communication, its task has a mark at the foot. Of a step with a great many tasks the first are there, and the others omitted.
func timeline(b *strings.Builder, spans []pipeline.Span, omitted int) {
	spans = append([]pipeline.Span(nil), spans...)
	sort.SliceStable(spans, func(i, j int) bool { return spans[i].Start < spans[j].Start })
	from, to := window(spans)
	if len(spans) == 0 || to <= from {
		b.WriteString(`<p class="none">Nothing yet: a run writes this every ten seconds, and at its end.</p>` + "\n")
		return
	}
	left, all := 0, spans
	if len(spans) > maxTasks { // the longest ones
		order := append([]pipeline.Span(nil), spans...)
		sort.SliceStable(order, func(i, j int) bool { return order[i].End-order[i].Start > order[j].End-order[j].Start })
		shortest := order[maxTasks-1].End - order[maxTasks-1].Start
		var kept []pipeline.Span
		for _, s := range spans {
			if s.End-s.Start >= shortest && len(kept) < maxTasks {
				kept = append(kept, s)
			} else {
				left++
			}
		}
		spans = kept
	}

	type row struct {
		name  string
		free  time.Duration
		tasks []pipeline.Span
	}
	var rows []*row
	color, stages := paint(spans)
	for _, s := range spans {
		if s.End < from || s.Start > to {
			continue
		}
		name := s.Device + " " + s.Lane
		if s.Lane == "host" {
			name = "host"
		}
		var r *row
		for _, have := range rows {
			if have.name == name && (name != "host" || have.free <= s.Start) {
				r = have
				break
			}
		}
		if r == nil {
			r = &row{name: name}
			rows = append(rows, r)
		}
		r.free = s.End
		r.tasks = append(r.tasks, s)
	}
	sort.SliceStable(rows, func(i, j int) bool { return laneOrder(rows[i].name) < laneOrder(rows[j].name) })

	height := timelineTop + len(rows)*(laneH+laneGap) + 22
	px := func(t time.Duration) float64 {
		return timelineLeft + (timelineW-timelineLeft-8)*float64(t-from)/float64(to-from)
	}
	c := pipeline.Communicated(all)
	label := fmt.Sprintf("One step of %v on %d lanes", rounded(to-from), len(rows))
	if omitted > 0 {
		label = fmt.Sprintf("The first %v of one step on %d lanes, with %s of its %s tasks", rounded(to-from), len(rows), grouped(int64(len(all))), grouped(int64(len(all)+omitted)))
	}
	if c.Total > 0 {
		label += fmt.Sprintf("; communication takes %v of it, of which %.0f %% are hidden behind computation", rounded(c.Total), 100*c.HiddenShare())
	}
	fmt.Fprintf(b, `<div class="wide"><svg class="timeline" viewBox="0 0 %d %d" role="img" aria-label="%s">`, timelineW, height, html.EscapeString(label))
	y, last := timelineTop, ""
	for _, r := range rows {
		if r.name != last {
			fmt.Fprintf(b, `<text class="lane" x="4" y="%d">%s</text>`, y+laneH/2+4, html.EscapeString(r.name))
		}
		last = r.name
		fmt.Fprintf(b, `<rect class="track" x="%d" y="%d" width="%d" height="%d"/>`, timelineLeft, y, timelineW-timelineLeft-8, laneH)
		for _, s := range r.tasks {
			class := fmt.Sprintf("task t%d", color(s.Stage))
			if s.Part == "waiting" {
				class = "idle"
			}
			x0, x1 := px(max(from, s.Start)), px(min(to, s.End))
			fmt.Fprintf(b, `<rect class="%s" x="%s" y="%d" width="%s" height="%d"><title>%s %s: %v</title></rect>`,
				class, num(x0), y, num(max(0.4, x1-x0)), laneH, html.EscapeString(strings.TrimSpace(s.Stage+" "+s.Part)), html.EscapeString(s.Item), rounded(s.End-s.Start))
		}
		if strings.HasSuffix(r.name, pipeline.Comm.String()) || strings.HasSuffix(r.name, pipeline.Fetch.String()) {
			for _, g := range pipeline.Exposed(all, r.tasks) {
				fmt.Fprintf(b, `<rect class="exposed" x="%s" y="%d" width="%s" height="4"><title>exposed: %v</title></rect>`, num(px(max(from, g[0]))), y+laneH-4, num(max(0.4, px(min(to, g[1]))-px(max(from, g[0])))), rounded(g[1]-g[0]))
			}
		}
		y += laneH + laneGap
	}
	for _, t := range niceTicks(0, (to-from).Seconds()*1e3, 6) {
		at := from + time.Duration(t*1e6)
		if at <= to {
			fmt.Fprintf(b, `<text class="x" x="%s" y="%d">%s ms</text>`, num(px(at)), height-6, short(t))
		}
	}
	b.WriteString("</svg></div>\n<p class=\"legend\">")
	for i, s := range stages {
		fmt.Fprintf(b, `<span class="key t%d"></span>%s `, i, html.EscapeString(s))
	}
	if c.Total > 0 {
		b.WriteString(`<span class="key exposed"></span>exposed communication `)
	}
	b.WriteString("</p>\n")
	fmt.Fprintf(b, "<p>%s.", html.EscapeString(label))
	if left > 0 {
		fmt.Fprintf(b, " %s short tasks are not drawn.", grouped(int64(left)))
	}
	b.WriteString("</p>\n")
}

// paint gives the stages that took the longest a color each, and all others the last one. The legend has names by color.
func paint(spans []pipeline.Span) (color func(stage string) int, legend []string) {
	busy := map[string]time.Duration{}
	for _, s := range spans {
		if _, ok := busy[s.Stage]; !ok {
			legend = append(legend, s.Stage)
		}
		busy[s.Stage] += s.End - s.Start
	}
	sort.SliceStable(legend, func(i, j int) bool { return busy[legend[i]] > busy[legend[j]] })
	if len(legend) > colors {
		legend = append(legend[:colors-1:colors-1], "others")
	}
	return func(stage string) int {
		for i, s := range legend {
			if s == stage {
				return i
			}
		}
		return colors - 1
	}, legend
}

// window is the time in which a step's lanes were busy: host tasks that read ahead lie in it or around it.
func window(spans []pipeline.Span) (from, to time.Duration) {
	first := true
	for _, s := range spans {
		if s.Lane == "host" {
			continue
		}
		if first {
			from, first = s.Start, false
		}
		from, to = min(from, s.Start), max(to, s.End)
	}
	return from, to
}

func laneOrder(name string) int {
	for i, suffix := range []string{"host", pipeline.Copy.String(), pipeline.Compute.String(), pipeline.Comm.String(), pipeline.Fetch.String()} {
		if strings.HasSuffix(name, suffix) {
			return i
		}
	}
	return 9
}

func rounded(d time.Duration) time.Duration {
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 100)
		}
	}
	return d
}
