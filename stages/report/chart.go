package report

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// line is one curve.
type line struct {
	name   string
	color  int // of the palette
	x, y   []float64
	dots   bool // a mark at each point: few points
	smooth bool // a running mean over a faint curve of the values themselves
}

// chart is a figure with curves over steps.
type chart struct {
	title, unit string
	lines       []line
	format      func(float64) string // of values; nil: short
	zero        bool                 // the axis begins at 0
	log         bool                 // it may be logarithmic, and is if values differ much
	none        string               // said in place of an empty figure
	gaps        bool                 // values that are not finite are said: they are bad news, not missing
}

// A figure's size in its own units, which are pixels on a page wide enough for two of them side by side.
const (
	chartW, chartH           = 420, 220
	chartLeft, chartRight    = 52, 12
	chartTop, chartBottom    = 10, 26
	plotW                    = chartW - chartLeft - chartRight
	plotH                    = chartH - chartTop - chartBottom
	maxPoints, logIfMoreThan = 400, 100
)

// write draws the chart as a figure.
func (c chart) write(b *strings.Builder) {
	format := c.format
	if format == nil {
		format = short
	}
	x0, x1, y0, y1, n := c.bounds()
	fmt.Fprintf(b, `<figure class="chart"><figcaption>%s%s</figcaption>`, html.EscapeString(c.title), unitOf(c.unit))
	if n == 0 {
		none := c.none
		if none == "" {
			none = "Nothing was recorded."
		}
		if c.gone() != "" {
			none = ""
		}
		fmt.Fprintf(b, `<p class="none">%s</p>%s</figure>`+"\n", html.EscapeString(none), c.gone())
		return
	}
	logarithmic := c.log && y0 > 0 && y1/y0 > logIfMoreThan
	if c.zero {
		y0 = min(0, y0)
	}
	var ticks []float64
	if logarithmic {
		ticks = powersOfTen(y0, y1, 8)
	} else {
		ticks = niceTicks(y0, y1, 5)
	}
	y0, y1 = ticks[0], ticks[len(ticks)-1]
	px := func(x float64) float64 {
		if x1 == x0 {
			return chartLeft + plotW/2
		}
		return chartLeft + plotW*(x-x0)/(x1-x0)
	}
	py := func(y float64) float64 {
		if logarithmic {
			return chartTop + plotH*(1-math.Log(y/y0)/math.Log(y1/y0))
		}
		return chartTop + plotH*(1-(y-y0)/(y1-y0))
	}
	fmt.Fprintf(b, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s" data-x0="%s" data-x1="%s">`, chartW, chartH, html.EscapeString(c.describe(format)), num(x0), num(x1))
	label := format
	for digits := 5; c.format == nil && digits < 8 && repeats(ticks, label); digits++ {
		label = func(v float64) string { return shortTo(v, digits) }
	}
	for _, t := range ticks {
		y := py(t)
		fmt.Fprintf(b, `<path class="grid" d="M%d %sH%d"/><text class="y" x="%d" y="%s">%s</text>`, chartLeft, num(y), chartW-chartRight, chartLeft-6, num(y+4), html.EscapeString(label(t)))
	}
	for _, t := range wholeTicks(x0, x1, 5) {
		fmt.Fprintf(b, `<text class="x" x="%s" y="%d">%s</text>`, num(px(t)), chartH-8, grouped(int64(t)))
	}
	for _, l := range c.lines {
		draw := func(class string, x, y []float64) {
			if d := path(x, y, px, py, x0, x1); d != "" {
				fmt.Fprintf(b, `<path class="%s c%d" d="%s"/>`, class, l.color%colors, d)
			}
		}
		if l.smooth && len(l.x) > 8 {
			draw("raw", l.x, l.y)
			draw("line", l.x, runningMean(l.y))
		} else {
			draw("line", l.x, l.y)
		}
		if l.dots && len(l.x) <= 64 || len(l.x) == 1 {
			for i := range l.x {
				if finite(l.y[i]) {
					fmt.Fprintf(b, `<circle class="dot c%d" cx="%s" cy="%s" r="3"><title>step %s: %s</title></circle>`, l.color%colors, num(px(l.x[i])), num(py(l.y[i])), grouped(int64(l.x[i])), html.EscapeString(format(l.y[i])))
				}
			}
		}
	}
	b.WriteString(`</svg>`)
	if len(c.lines) > 1 {
		b.WriteString(`<p class="legend">`)
		for _, l := range c.lines {
			fmt.Fprintf(b, `<span class="key c%d"></span>%s `, l.color%colors, html.EscapeString(l.name))
		}
		b.WriteString(`</p>`)
	}
	b.WriteString(c.gone())
	b.WriteString("</figure>\n")
}

// gone says where values were not finite.
func (c chart) gone() string {
	var parts []string
	for _, l := range c.lines {
		n, first := 0, 0
		for i, y := range l.y {
			if !finite(y) {
				if n++; n == 1 {
					first = int(l.x[i])
				}
			}
		}
		if n == 0 || !c.gaps {
			continue
		}
		text := fmt.Sprintf("not finite in %s of %s steps, first in step %s", grouped(int64(n)), grouped(int64(len(l.y))), grouped(int64(first)))
		if len(c.lines) > 1 {
			text = l.name + ": " + text
		}
		parts = append(parts, text)
	}
	if len(parts) == 0 {
		return ""
	}
	return `<p class="bad">` + html.EscapeString(strings.Join(parts, "; ")) + "</p>"
}

func unitOf(u string) string {
	if u == "" {
		return ""
	}
	return ` <span class="unit">` + html.EscapeString(u) + `</span>`
}

// describe is what a reader who can't see the figure is told.
func (c chart) describe(format func(float64) string) string {
	var parts []string
	for _, l := range c.lines {
		first, last := -1, -1
		for i, y := range l.y {
			if finite(y) {
				if first < 0 {
					first = i
				}
				last = i
			}
		}
		name := ""
		if len(c.lines) > 1 {
			name = l.name + " "
		}
		if first >= 0 {
			parts = append(parts, fmt.Sprintf("%sfrom %s at step %d to %s at step %d", name, format(l.y[first]), int(l.x[first]), format(l.y[last]), int(l.x[last])))
		}
	}
	title := c.title
	if c.unit != "" {
		title += ", " + c.unit
	}
	return title + ": " + strings.Join(parts, "; ")
}

// bounds of what is finite, and how many points are.
func (c chart) bounds() (x0, x1, y0, y1 float64, n int) {
	x0, x1, y0, y1 = math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
	for _, l := range c.lines {
		for i, y := range l.y {
			if finite(y) {
				x0, x1, y0, y1 = min(x0, l.x[i]), max(x1, l.x[i]), min(y0, y), max(y1, y)
				n++
			}
		}
	}
	return
}

func finite(v float64) bool { return v-v == 0 }

// path is a curve with gaps where values are not finite. Of more points than pixels the first, smallest, largest and last of each pixel
// stay.
func path(x, y []float64, px, py func(float64) float64, x0, x1 float64) string {
	var b strings.Builder
	pen := false
	put := func(i int) {
		at := num(px(x[i])) + " " + num(py(y[i]))
		if pen {
			b.WriteString("L" + at)
		} else {
			b.WriteString("M" + at + "h0") // by which one point between gaps is seen
		}
		pen = true
	}
	bucket := func(i int) int { return int(float64(maxPoints/2-1) * (x[i] - x0) / max(1e-300, x1-x0)) }
	for i := 0; i < len(x); {
		if !finite(y[i]) {
			pen = false
			i++
			continue
		}
		j, lo, hi := i, i, i
		for j < len(x) && finite(y[j]) && (len(x) <= maxPoints && j == i || len(x) > maxPoints && bucket(j) == bucket(i)) {
			if y[j] < y[lo] {
				lo = j
			}
			if y[j] > y[hi] {
				hi = j
			}
			j++
		}
		last := i - 1
		for _, k := range []int{i, min(lo, hi), max(lo, hi), j - 1} {
			if k > last {
				put(k)
				last = k
			}
		}
		i = j
	}
	return b.String()
}

// runningMean is exponentially weighted, without the bias of a start at zero; what is not finite is left out of it.
func runningMean(y []float64) []float64 {
	keep := 1 - 1/max(5, float64(len(y))/40)
	out := make([]float64, len(y))
	mean, weight := 0.0, 0.0
	for i, v := range y {
		if !finite(v) {
			out[i] = v
			continue
		}
		mean, weight = keep*mean+(1-keep)*v, keep*weight+(1-keep)
		out[i] = mean / weight
	}
	return out
}

// powersOfTen are up to n of them, as far from one another, that span from lo to hi.
func powersOfTen(lo, hi float64, n int) (out []float64) {
	first, last := math.Floor(math.Log10(lo)), math.Ceil(math.Log10(hi))
	for k, step := first, math.Ceil((last-first)/float64(n-1)); ; k += step {
		out = append(out, math.Pow(10, k))
		if !(k < last) {
			return out
		}
	}
}

// niceTicks are about n round numbers that span from lo to hi. What differs by rounding alone, as a mean of ones that is 0.9999999999999999, is one value: steps
// between such are too small to count by, and labels that tell them apart too long.
func niceTicks(lo, hi float64, n int) []float64 {
	if hi-lo <= 1e-5*max(math.Abs(lo), math.Abs(hi)) {
		d := math.Abs(lo) / 2
		lo, hi = lo-d, hi+d
		if d == 0 {
			hi = 1
		}
	}
	step := roundStep((hi - lo) / float64(n-1))
	var out []float64
	for k := math.Floor(lo/step + 1e-9); ; k++ {
		out = append(out, k*step)
		if !(k*step < hi-1e-9*step) { // nor is what no number holds
			return out
		}
	}
}

// wholeTicks are up to n whole numbers between lo and hi.
func wholeTicks(lo, hi float64, n int) (out []float64) {
	step := max(1, roundStep((hi-lo)/float64(n)))
	for k := math.Ceil(lo / step); k*step <= hi; k++ {
		out = append(out, k*step)
	}
	if len(out) == 0 {
		out = append(out, lo)
	}
	return out
}

// roundStep is the next of 1, 2, 5, 10, 20, ... times a power of ten.
func roundStep(v float64) float64 {
	if v <= 0 {
		return 1
	}
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if v <= m*p*(1+1e-9) {
			return m * p
		}
	}
	return 10 * p
}

// num prints a coordinate.
func num(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// repeats tells whether two neighbours have one label.
func repeats(ticks []float64, label func(float64) string) bool {
	for i := range ticks[1:] {
		if label(ticks[i]) == label(ticks[i+1]) {
			return true
		}
	}
	return false
}

// short prints a value with four digits at most.
func short(v float64) string { return shortTo(v, 4) }

// shortTo prints a value with so many digits at most, from ten thousand on with one less and a unit.
func shortTo(v float64, digits int) string {
	a := math.Abs(v)
	switch {
	case v == 0:
		return "0"
	case a >= 999.5e9: // what is rounded to a thousand is one of the next unit
	case a >= 999.5e6:
		return strconv.FormatFloat(v/1e9, 'g', digits-1, 64) + " G"
	case a >= 999.5e3:
		return strconv.FormatFloat(v/1e6, 'g', digits-1, 64) + " M"
	case a >= 9999.5:
		return strconv.FormatFloat(v/1e3, 'g', digits-1, 64) + " k"
	}
	return strconv.FormatFloat(v, 'g', digits, 64)
}

// grouped prints a whole number with spaces between thousands.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}
