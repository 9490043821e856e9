package report

import (
	_ "embed"
	"encoding/base64"
	"fmt"
	"html"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"contraflow/io/atomicfile"
	"contraflow/pipeline"
	"contraflow/stages/recipe"
)

//go:embed report.css
var css string

//go:embed report.js
var script string

// colors of the palette in report.css.
const colors = 8

// Write draws runs over each other, the first one in detail.
func Write(w io.Writer, runs ...*Run) error {
	var b strings.Builder
	title := runs[0].Name
	if len(runs) > 1 {
		var names []string
		for _, r := range runs {
			names = append(names, r.Name)
		}
		title = strings.Join(names, ", ")
	}
	fmt.Fprintf(&b, `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>%s: contraflow</title><link rel="icon" href="data:,"><style>
%s</style></head><body>
<header><h1>%s</h1>
`, html.EscapeString(title), css, html.EscapeString(title))
	if len(runs) == 1 {
		facts(&b, runs[0])
	} else {
		comparison(&b, runs)
	}
	b.WriteString("</header>\n<main>\n<section><h2>Training</h2><div class=\"charts\">\n")
	for _, c := range charts(runs) {
		c.write(&b)
	}
	b.WriteString("</div></section>\n")
	for i, r := range runs {
		in := ""
		if len(runs) > 1 {
			in = ": " + r.Name
		}
		if r.Record != nil && (i == 0 || len(runs) <= 4) {
			where(&b, r, in)
			data(&b, r, in)
		}
	}
	if err := recipes(&b, runs); err != nil {
		return err
	}
	fmt.Fprintf(&b, "</main>\n<script>\n%s</script>\n</body></html>\n", script)
	_, err := io.WriteString(w, b.String())
	return err
}

// File is what a run's report is called in its folder.
const File = "report.html"

// WriteFile writes the report of the run in a folder into it, and returns the file's path.
func WriteFile(dir string) (string, error) {
	r, err := Load(dir)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, File)
	return path, Save(path, r)
}

// Save writes what Write writes into a file, in the place of what is there.
func Save(path string, runs ...*Run) error {
	return atomicfile.Rewrite(path, func(w io.Writer) error { return Write(w, runs...) })
}

// last is the last value that is finite, NaN if there is none.
func (r *Run) last(f func(Step) *float64) float64 {
	for _, s := range slices.Backward(r.Steps) {
		if v := f(s); v != nil {
			return *v
		}
	}
	return math.NaN()
}

// rate is pairs per second over all steps but the first, which warms up.
func (r *Run) rate() float64 {
	pairs, seconds := 0.0, 0.0
	for i, s := range r.Steps {
		if s.Rate > 0 && (i > 0 || len(r.Steps) == 1) {
			pairs, seconds = pairs+float64(s.Pairs), seconds+float64(s.Pairs)/s.Rate
		}
	}
	if seconds == 0 {
		return math.NaN()
	}
	return pairs / seconds
}

// onGPU tells that the run's memory is that of a GPU.
func (r *Run) onGPU() bool { return r.Record != nil && strings.HasPrefix(r.Record.Device, "cuda") }

func (r *Run) peak() (peak int64) {
	for _, s := range r.Steps {
		peak = max(peak, s.Peak)
	}
	return peak
}

// measure is what a run has come to by the metric of its last evaluation.
type measure struct {
	metric      string
	name        string  // what it is called beside a run's other figures
	value       float64 // the model's: with save.best that of the best evaluation, and otherwise the last one's
	at          int     // the step that it is of, where it is the best; 0: it is the last
	first, last float64
	n           int // evaluations
}

// heldOut is what the loss on held-out rows is called: training's is a loss too.
const heldOut = "held-out loss"

// byLoss tells that the value is that loss.
func (e Eval) byLoss() bool { return e.Loss != nil && e.Metric == "loss" }

func (r *Run) metric() (m measure) {
	for _, e := range slices.Backward(r.Evals) {
		if m.name == "" {
			m.metric, m.name, m.value, m.last = e.Metric, e.Metric, e.Value, e.Value
			if e.byLoss() {
				m.name = heldOut
			}
		}
		if e.Metric == m.metric {
			m.first = e.Value
			m.n++
		}
	}
	if c := r.Record; m.n > 0 && c != nil && c.Best != nil {
		m.value, m.at = *c.Best, c.BestStep
	}
	return m
}

// besides is the evaluation whose figures are those of the model: the best one, where that is kept, and otherwise the last.
func (r *Run) besides() (e Eval, note string) {
	if len(r.Evals) == 0 {
		return e, ""
	}
	e = r.Evals[len(r.Evals)-1]
	best := r.metric().at
	i := slices.IndexFunc(r.Evals, func(e Eval) bool { return e.Step == best && e.Loss != nil })
	if best == 0 || best == e.Step || i < 0 {
		return e, ""
	}
	note = fmt.Sprintf("of the saved model, step %s", grouped(int64(best)))
	if e.Loss != nil {
		note += "; last " + short(*e.Loss)
	}
	return r.Evals[i], note
}

// note says what else there is to know of a measure.
func (m measure) note(r *Run) string {
	var parts []string
	if m.at > 0 {
		kept := "kept in best/"
		if r.Record.Done {
			kept = "saved"
		}
		parts = append(parts, fmt.Sprintf("at step %s (%s)", grouped(int64(m.at)), kept))
		if m.at != r.Evals[len(r.Evals)-1].Step {
			parts = append(parts, "last "+short(m.last))
		}
	}
	if m.n > 1 {
		parts = append(parts, "first "+short(m.first))
	}
	return strings.Join(parts, "; ")
}

// state says whether a run has ended, and how.
func (r *Run) state() (text string, bad bool) {
	made, of := 0, ""
	if n := len(r.Steps); n > 0 {
		made = r.Steps[n-1].Step
	}
	if r.Record != nil {
		of = fmt.Sprintf(" of %s", grouped(int64(r.Record.Steps)))
	}
	steps := grouped(int64(made)) + of + " steps"
	switch {
	case r.Record == nil:
		return steps, false
	case r.Record.Error != "":
		return "ended after " + steps + " with an error: " + r.Record.Error, true
	case r.Record.Done && r.Record.Early:
		return "done: " + steps + "; evaluations got no better, which ended it (eval.early_stopping)", false
	case r.Record.Done:
		return "done: " + steps, false
	case r.Record.Stopped:
		return "stopped after " + steps + "; contraflow train --resume goes on from there", false
	}
	return steps + " so far: it still runs, or was killed", false
}

func fact(b *strings.Builder, name, value, note string) {
	if note != "" {
		note = " <small>" + html.EscapeString(note) + "</small>"
	}
	fmt.Fprintf(b, "<div><dt>%s</dt><dd>%s%s</dd></div>\n", html.EscapeString(name), html.EscapeString(value), note)
}

// facts are one run's figures.
func facts(b *strings.Builder, r *Run) {
	state, bad := r.state()
	class := "soft"
	if bad {
		class = "bad"
	}
	fmt.Fprintf(b, "<p class=\"%s\">%s</p>\n", class, html.EscapeString(state))
	if c := r.Record; c != nil {
		trains := ""
		if c.Trained < c.Parameters {
			trains = fmt.Sprintf(", of which %s train", short(float64(c.Trained)))
		}
		fmt.Fprintf(b, "<p class=\"soft\">%s: %s, %d layers of %d, %s parameters%s; %s rows; %s, %s%s; begun %s</p>\n",
			html.EscapeString(c.Model), html.EscapeString(c.Family), c.Layers, c.Hidden, short(float64(c.Parameters)), trains, grouped(c.Rows),
			html.EscapeString(c.Description), html.EscapeString(c.System), html.EscapeString(prefixed("; ", c.Mesh)), c.Began.UTC().Format("2006-01-02 15:04 MST"))
	}
	b.WriteString("<dl class=\"facts\">\n")
	if v := r.last(func(s Step) *float64 { return s.Loss }); finite(v) {
		note := ""
		if r.Steps[len(r.Steps)-1].Loss == nil {
			note = "of the last step that was finite"
		}
		fact(b, "loss", short(v), note)
	}
	if m := r.metric(); m.n > 0 {
		fact(b, m.name, short(m.value), m.note(r))
	}
	if e, note := r.besides(); e.Loss != nil && !e.byLoss() {
		fact(b, heldOut, short(*e.Loss), note)
	}
	if v := r.rate(); finite(v) {
		fact(b, "pairs per second", short(v), "")
	}
	if c := r.Record; c != nil && c.Seconds > 0 && c.Made > 0 {
		note := ""
		if c.From > 0 {
			note = fmt.Sprintf("since it was resumed after step %d", c.From)
		}
		fact(b, "time", duration(c.Seconds), note)
	}
	if p := r.peak(); p > 0 {
		note := ""
		if r.Record != nil && r.Record.Predicted > 0 {
			note = "of the process; planned on the device: " + recipe.Size(r.Record.Predicted)
			if r.onGPU() {
				note = "allocated on the GPU; planned: " + recipe.Size(r.Record.Predicted)
			}
		}
		fact(b, "peak memory", recipe.Size(p), note)
	}
	if c := r.Record; c != nil && c.Tokens > 0 {
		fact(b, "padding not computed", fmt.Sprintf("%.0f %%", 100*float64(c.Padding)/float64(c.Padding+c.Tokens)), "of what a padded batch computes")
	}
	b.WriteString("</dl>\n")
}

// picture shows a drawing at least three quarters of its own size; narrow screens scroll. It is of the run's folder, whoever made that: as a picture
// it runs no scripts and asks for nothing.
func picture(svg, alt string) string {
	var w, h int
	if _, box, ok := strings.Cut(svg, `viewBox="0 0 `); ok {
		fmt.Sscan(box, &w, &h)
	}
	return fmt.Sprintf(`<img style="min-width:%dpx" alt="%s" src="data:image/svg+xml;base64,%s"/>`, w*3/4, html.EscapeString(alt), base64.StdEncoding.EncodeToString([]byte(svg)))
}

func prefixed(before, s string) string {
	if s == "" {
		return ""
	}
	return before + s
}

func duration(seconds float64) string {
	d := time.Duration(seconds * 1e9)
	if d >= time.Minute {
		return d.Round(time.Second).String()
	}
	return rounded(d).String()
}

// comparison is a table of several runs.
func comparison(b *strings.Builder, runs []*Run) {
	b.WriteString("<div class=\"wide\"><table><thead><tr><th>run</th><th>steps</th><th>loss</th><th>metric</th><th>pairs/s</th><th>time</th><th>peak memory</th></tr></thead><tbody>\n")
	for i, r := range runs {
		metric, seconds, memory := "", "", ""
		if m := r.metric(); m.n > 0 {
			if metric = m.name + " " + short(m.value); m.at > 0 {
				metric += fmt.Sprintf(" at step %s", grouped(int64(m.at)))
			}
		}
		if r.Record != nil && r.Record.Made > 0 {
			seconds = duration(r.Record.Seconds)
		}
		if p := r.peak(); p > 0 {
			memory = recipe.Size(p)
		}
		steps := 0
		if n := len(r.Steps); n > 0 {
			steps = r.Steps[n-1].Step
		}
		fmt.Fprintf(b, "<tr><td><span class=\"key c%d\"></span>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s</td></tr>\n", i%colors, html.EscapeString(r.Name), grouped(int64(steps)),
			known(r.last(func(s Step) *float64 { return s.Loss })), html.EscapeString(metric), known(r.rate()), seconds, memory)
	}
	b.WriteString("</tbody></table></div>\n")
}

func known(v float64) string {
	if !finite(v) {
		return ""
	}
	return short(v)
}

// charts are the figures over steps.
func charts(runs []*Run) []chart {
	of := func(f func(Step) float64, smooth bool) (ls []line) {
		for i, r := range runs {
			l := line{name: r.Name, color: i, smooth: smooth}
			for _, s := range r.Steps {
				l.x, l.y = append(l.x, float64(s.Step)), append(l.y, f(s))
			}
			ls = append(ls, l)
		}
		return ls
	}
	value := func(v *float64) float64 {
		if v == nil {
			return math.NaN()
		}
		return *v
	}
	out := []chart{
		{title: "Loss", lines: of(func(s Step) float64 { return value(s.Loss) }, true), gaps: true},
	}
	if len(runs) == 1 {
		if lines := byDataset(runs[0]); len(lines) > 1 {
			out = append(out, chart{title: "Loss of each dataset", lines: lines})
		}
	}
	var metrics []string
	evals, losses := 0, make([]line, len(runs))
	for i, r := range runs {
		losses[i] = line{name: r.Name, color: i, dots: true}
		evals += len(r.Evals)
		for _, e := range r.Evals {
			if e.Loss != nil {
				losses[i].x, losses[i].y = append(losses[i].x, float64(e.Step)), append(losses[i].y, *e.Loss)
			}
			if !e.byLoss() && !slices.Contains(metrics, e.Metric) {
				metrics = append(metrics, e.Metric)
			}
		}
	}
	if slices.ContainsFunc(losses, func(l line) bool { return len(l.x) > 0 }) {
		out = append(out, chart{title: "Loss on held-out rows", lines: losses})
	}
	if len(runs) == 1 {
		if lines := byHeldOut(runs[0]); len(lines) > 0 {
			out = append(out, chart{title: "Loss on each held-out dataset", lines: lines})
		}
	}
	for _, m := range metrics {
		c := chart{title: "Evaluation", unit: m}
		for i, r := range runs {
			l := line{name: r.Name, color: i, dots: true}
			for _, e := range r.Evals {
				if e.Metric == m {
					l.x, l.y = append(l.x, float64(e.Step)), append(l.y, e.Value)
				}
			}
			c.lines = append(c.lines, l)
		}
		out = append(out, c)
	}
	if len(runs) == 1 {
		if lines := byTask(runs[0]); len(lines) > 0 {
			out = append(out, chart{title: "Evaluation of each task", lines: lines})
		}
	}
	held, others := "most that the process has held", func(r *Run) bool { return !r.onGPU() }
	switch {
	case !slices.ContainsFunc(runs, others):
		held = "most that was allocated on the GPU"
	case slices.ContainsFunc(runs, (*Run).onGPU):
		held += ", or on a GPU was allocated"
	}
	if evals == 0 {
		out = append(out, chart{title: "Evaluation", none: "No evaluation has given a figure: eval.retrieval, eval.nanobeir, eval.sts, eval.pair_classification, eval.triplets, eval.paraphrases, eval.candidates or eval.loss, in the recipe, measures the model while it trains."})
	}
	return append(out,
		chart{title: "Learning rate", lines: of(func(s Step) float64 { return s.LR }, false), zero: true},
		chart{title: "Gradient norm", unit: "before clipping", lines: of(func(s Step) float64 { return value(s.GradNorm) }, true), log: true, gaps: true},
		chart{title: "Throughput", unit: "pairs per second", lines: of(func(s Step) float64 { return s.Rate }, true), zero: true},
		chart{title: "Memory", unit: held, lines: of(func(s Step) float64 { return float64(s.Peak) / (1 << 20) }, false), zero: true, format: func(v float64) string { return short(v) + " MiB" }},
	)
}

// curves are lines by their names, in the order in which they begin.
type curves struct {
	at    map[string]int
	lines []line
}

// add goes on with the line of l's name, or begins it as l is.
func (c *curves) add(l line, x, y float64) {
	i, ok := c.at[l.name]
	if !ok {
		if c.at == nil {
			c.at = map[string]int{}
		}
		i = len(c.lines)
		c.at[l.name] = i
		c.lines = append(c.lines, l)
	}
	c.lines[i].x, c.lines[i].y = append(c.lines[i].x, x), append(c.lines[i].y, y)
}

// byTask are the values of tasks whose mean a run's evaluations have.
func byTask(r *Run) []line {
	var c curves
	for _, e := range r.Evals {
		for _, t := range e.Tasks {
			c.add(line{name: t.Name + " " + t.Metric, color: len(c.lines), dots: true}, float64(e.Step), t.Value)
		}
	}
	return c.lines
}

// byHeldOut are the losses on several held-out datasets.
func byHeldOut(r *Run) []line {
	var c curves
	for _, e := range r.Evals {
		for _, name := range slices.Sorted(maps.Keys(e.Losses)) {
			c.add(line{name: name, color: len(c.lines), dots: true}, float64(e.Step), e.Losses[name])
		}
	}
	return c.lines
}

// byDataset are a run's losses apart: those of datasets may be of different kinds.
func byDataset(r *Run) []line {
	var c curves
	for _, s := range r.Steps {
		for k, loss := range s.Losses {
			c.add(line{name: fmt.Sprintf("data.train[%d]", k), color: k, smooth: true}, float64(s.Step), loss)
		}
	}
	slices.SortFunc(c.lines, func(a, b line) int { return a.color - b.color })
	return c.lines
}

// where the time went: the graph, its stages, one step.
func where(b *strings.Builder, r *Run, in string) {
	c := r.Record
	fmt.Fprintf(b, "<section><h2>Where the time went%s</h2>\n", html.EscapeString(in))
	if c.Graph != "" {
		fmt.Fprintf(b, "<figure><figcaption>Stages</figcaption><div class=\"wide\">%s</div></figure>\n", picture(c.Graph, "graph of stages"))
	}
	if len(c.Stages) > 0 {
		b.WriteString("<div class=\"wide\"><table><thead><tr><th>stage</th><th class=\"text\">lane</th><th>tasks</th><th>busy</th><th>of the time</th><th>its lane waited for it</th><th>sent</th></tr></thead><tbody>\n")
		for _, s := range c.Stages {
			wait, sent := "", ""
			if s.Lane != "host" {
				wait = duration(s.Wait.Seconds())
			}
			if s.Bytes > 0 {
				sent = recipe.Size(int64(s.Bytes))
			}
			fmt.Fprintf(b, "<tr><td>%s</td><td class=\"text\">%s %s</td><td>%s</td><td>%s</td><td>%.1f %%</td><td>%s</td><td>%s</td></tr>\n", html.EscapeString(s.Stage), html.EscapeString(s.Device),
				html.EscapeString(strings.TrimPrefix(s.Lane, "host")), grouped(int64(s.Tasks)), duration(s.Busy.Seconds()), 100*s.Busy.Seconds()/max(1e-9, c.Seconds), wait, sent)
		}
		b.WriteString("</tbody></table></div>\n")
	}
	if full := slices.DeleteFunc(slices.Clone(c.Edges), func(e pipeline.EdgeSummary) bool { return e.Full < 0.01 }); len(full) > 0 {
		b.WriteString("<p class=\"soft\">Queues that were full at times: what fills them is faster than what they feed. All others always had room.</p>\n")
		b.WriteString("<div class=\"wide\"><table><thead><tr><th>queue</th><th>holds on average</th><th>of at most</th><th>full</th></tr></thead><tbody>\n")
		for _, e := range full {
			fmt.Fprintf(b, "<tr><td>%s</td><td>%.2f</td><td>%d</td><td>%.0f %%</td></tr>\n", html.EscapeString(e.Edge), e.Mean, e.Capacity, 100*e.Full)
		}
		b.WriteString("</tbody></table></div>\n")
	}
	b.WriteString("<figure><figcaption>One step</figcaption>\n")
	timeline(b, c.Step, c.StepOmitted)
	b.WriteString("</figure></section>\n")
}

// data is what the rows came to.
func data(b *strings.Builder, r *Run, in string) {
	c := r.Record
	fmt.Fprintf(b, "<section><h2>Data%s</h2>\n<p>%s rows in %s.</p>\n", html.EscapeString(in), grouped(c.Rows), html.EscapeString(strings.Join(c.Data, ", ")))
	if c.Tokens > 0 {
		fmt.Fprintf(b, "<p>%s tokens were computed. Padding each sub-batch to its longest text would have added %s, %.0f %% more.</p>\n", grouped(int64(c.Tokens)), grouped(int64(c.Padding)), 100*float64(c.Padding)/float64(c.Tokens))
	}
	b.WriteString("<div class=\"wide\"><table><thead><tr><th>left out</th><th>how many</th><th class=\"text\">why</th></tr></thead><tbody>\n")
	row := func(what string, n int64, why string) {
		fmt.Fprintf(b, "<tr><td>%s</td><td>%s</td><td class=\"text prose\">%s</td></tr>\n", html.EscapeString(what), grouped(n), html.EscapeString(why))
	}
	cut, dropped := "longer than model.max_length", c.DroppedBy
	if c.Truncated > 0 {
		cut += fmt.Sprintf("; each counts as often as it was read, in %s rows", grouped(int64(c.Pairs)))
	}
	if c.Dropped > 0 {
		dropped += fmt.Sprintf("; over all epochs, in which %s were read", grouped(int64(c.Pairs)))
	}
	row("ends of texts", int64(c.Truncated), cut)
	if c.Cut > 0 {
		row("ends of texts", c.Cut, "cut by contraflow prep, whose token ids the run took; each counts once, however often the run saw it")
	}
	if c.Done || c.Stopped {
		row("rows", c.Dropped, dropped)
	}
	row("steps", int64(c.NotFinite), "their gradient was not finite (train.on_nan)")
	if len(r.Skipped) == 0 {
		row("rows", int64(c.Skipped), "can't be used (data.on_error)")
	}
	for i, s := range r.Skipped {
		if i == 20 {
			rest := 0
			for _, s := range r.Skipped[i:] {
				rest += s.Rows
			}
			row("rows", int64(rest), fmt.Sprintf("for %d more reasons: skipped.jsonl has every row", len(r.Skipped)-i))
			break
		}
		row("rows", int64(s.Rows), fmt.Sprintf("%s; the first is %s", s.Text, s.Like))
	}
	b.WriteString("</tbody></table></div></section>\n")
}

// recipes prints the first run's, and of others where they differ.
func recipes(b *strings.Builder, runs []*Run) error {
	if len(runs) > 1 {
		b.WriteString("<section><h2>Where the recipes differ</h2>\n")
		rows, err := differences(runs)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			b.WriteString("<p>Nowhere.</p>\n")
		} else {
			b.WriteString("<div class=\"wide\"><table><thead><tr><th>key</th>")
			for _, r := range runs {
				fmt.Fprintf(b, "<th class=\"text\">%s</th>", html.EscapeString(r.Name))
			}
			b.WriteString("</tr></thead><tbody>\n")
			for _, row := range rows {
				b.WriteString("<tr>")
				for i, cell := range row {
					class := " class=\"text\""
					if i == 0 {
						class = ""
					}
					fmt.Fprintf(b, "<td%s>%s</td>", class, html.EscapeString(cell))
				}
				b.WriteString("</tr>\n")
			}
			b.WriteString("</tbody></table></div>\n")
		}
		b.WriteString("</section>\n")
	}
	if runs[0].Recipe != "" {
		name := "Recipe"
		if len(runs) > 1 {
			name += ": " + runs[0].Name
		}
		fmt.Fprintf(b, "<section><h2>%s</h2><pre>%s</pre></section>\n", html.EscapeString(name), html.EscapeString(runs[0].Recipe))
	}
	return nil
}
