package report

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"contraflow/pipeline"
	"contraflow/stages/recipe"
)

// drawn is a chart as it is on a page.
func drawn(c chart) string {
	var b strings.Builder
	c.write(&b)
	return b.String()
}

// ticksOf are the labels of a drawing's axis of the given class, each with its place across (x) or down (y).
func ticksOf(t *testing.T, drawing, class string) (labels []string, at []float64) {
	t.Helper()
	for _, m := range regexp.MustCompile(`<text class="`+class+`" x="([\d.]+)" y="([\d.]+)">([^<]*)<`).FindAllStringSubmatch(drawing, -1) {
		var v float64
		fmt.Sscan(m[map[string]int{"x": 1, "y": 2}[class]], &v)
		labels, at = append(labels, m[3]), append(at, v)
	}
	return labels, at
}

// An axis is logarithmic where values differ by more than a hundred times, its powers of ten as far from one another, and otherwise it is not; with zero it begins
// there; steps are whole.
func TestAxes(t *testing.T) {
	labels, at := ticksOf(t, drawn(chart{log: true, lines: []line{{x: []float64{1, 2, 3}, y: []float64{2, 30, 4000}}}}), "y")
	if fmt.Sprint(labels) != "[1 10 100 1000 9999]" && fmt.Sprint(labels) != "[1 10 100 1000 10 k]" || len(at) != 5 {
		t.Fatalf("labels %q", labels)
	}
	for i, y := range at {
		if want := chartTop + plotH*(1-float64(i)/4) + 4; !(math.Abs(y-want) <= 0.06) {
			t.Errorf("%s is at %v, want %v", labels[i], y, want)
		}
	}
	for _, c := range []struct {
		c     chart
		class string
		want  string
	}{
		{chart{log: true, lines: []line{{x: []float64{1, 2}, y: []float64{2, 100}}}}, "y", "[0 50 100]"},
		{chart{zero: true, lines: []line{{x: []float64{1, 2}, y: []float64{90, 100}}}}, "y", "[0 50 100]"},
		{chart{lines: []line{{x: []float64{1, 2}, y: []float64{90, 100}}}}, "y", "[90 95 100]"},
		{chart{lines: []line{{x: []float64{1, 2, 3}, y: []float64{1, 2, 3}}}}, "x", "[1 2 3]"},
		{chart{lines: []line{{x: []float64{7}, y: []float64{1}}}}, "x", "[7]"},
	} {
		if got, _ := ticksOf(t, drawn(c.c), c.class); fmt.Sprint(got) != c.want {
			t.Errorf("%+v: %s, want %s", c.c, got, c.want)
		}
	}
	p := drawn(chart{lines: []line{{x: []float64{7}, y: []float64{1}}}})
	if want := fmt.Sprintf(`cx="%d" cy="%d" r="3"><title>step 7: 1<`, chartLeft+plotW/2, chartTop+plotH/2); !strings.Contains(p, want) { // between 0.5 and 1.5
		t.Errorf("one value: no %s in %s", want, p)
	}
	p = drawn(chart{lines: []line{{dots: true, x: []float64{5, 9}, y: []float64{0, 1}}}})
	for _, want := range []string{`data-x0="5" data-x1="9"`, fmt.Sprintf(`cx="%d" cy="%d" r="3"><title>step 5: 0<`, chartLeft, chartTop+plotH), fmt.Sprintf(`cx="%d" cy="%d" r="3"><title>step 9: 1<`, chartW-chartRight, chartTop)} {
		if !strings.Contains(p, want) {
			t.Errorf("no %s in %s", want, p)
		}
	}
}

// From nine values on a curve is a running mean over a fortieth of them, or five, with the values themselves behind it.
func TestRunningMean(t *testing.T) {
	for n, want := range map[int]bool{8: false, 9: true} {
		if p := drawn(chart{lines: []line{{smooth: true, x: make([]float64, n), y: make([]float64, n)}}}); strings.Contains(p, `class="raw`) != want {
			t.Errorf("%d values: %s", n, p)
		}
	}
	for n, window := range map[int]float64{100: 5, 400: 10} {
		y := make([]float64, n)
		for i := n / 2; i < n; i++ {
			y[i] = 1
		}
		if got, want := runningMean(y)[n/2+9], 1-math.Pow(1-1/window, 10); !(math.Abs(got-want) <= 1e-4) {
			t.Errorf("%d values: ten after a step up the mean is %v, want %v", n, got, want)
		}
	}
}

// What a page's head says of a run is that run's.
func TestFacts(t *testing.T) {
	v := func(x float64) *float64 { return &x }
	say := func(r *Run) string {
		var b strings.Builder
		facts(&b, r)
		return b.String()
	}
	if p := say(&Run{Steps: []Step{{Step: 1, Pairs: 8, Rate: 40, Peak: 1 << 20}}}); !strings.Contains(p, "<dt>pairs per second</dt><dd>40</dd>") { // there is no other
		t.Errorf("one step: %s", p)
	}
	if p := say(&Run{Steps: []Step{{Step: 1, Peak: 3 << 20}, {Step: 2, Peak: 2 << 20}}}); !strings.Contains(p, "<dt>peak memory</dt><dd>3 MiB</dd>") { // of a run that was resumed
		t.Errorf("a peak before the end: %s", p)
	}
	p := say(&Run{Record: &recipe.Record{Parameters: 2000, Trained: 300, Early: true, Seconds: 59.5, Made: 1, Steps: 7}})
	for _, want := range []string{"2000 parameters, of which 300 train; ", "0 of 7 steps so far: it still runs, or was killed", "<dt>time</dt><dd>59.5s</dd>"} {
		if !strings.Contains(p, want) {
			t.Errorf("no %q in %s", want, p)
		}
	}
	if p := say(&Run{Record: &recipe.Record{Parameters: 2000, Trained: 2000, Seconds: 3661.4, Made: 1}}); !strings.Contains(p, "2000 parameters; ") || !strings.Contains(p, "<dt>time</dt><dd>1h1m1s</dd>") {
		t.Errorf("%s", p)
	}
	if p := say(&Run{Record: &recipe.Record{Seconds: 3, Made: 0}}); strings.Contains(p, "<dt>time") {
		t.Errorf("the time of no steps: %s", p)
	}
	// The best evaluation has no loss on held-out rows, the last has one.
	r := &Run{Evals: []Eval{{Step: 1, Metric: "map", Value: 0.4}, {Step: 2, Metric: "map", Value: 0.2, Loss: v(2)}}, Record: &recipe.Record{Best: v(0.4), BestStep: 1}}
	if p := say(r); !strings.Contains(p, "<dt>held-out loss</dt><dd>2</dd>") {
		t.Errorf("%s", p)
	}
}

// Bytes that stages sent, and how many rows can't be used where no list says which; a picture is shown at three quarters of its size or more.
func TestSentAndSkipped(t *testing.T) {
	r := &Run{Record: &recipe.Record{Skipped: 12, Dropped: 3, Graph: `<svg viewBox="0 0 400 100"/>`, Stages: []pipeline.StageSummary{{Stage: "gather", Device: "d", Lane: "comm", Bytes: 3 << 20, Collectives: 5}}}}
	var b strings.Builder
	where(&b, r, "")
	data(&b, r, "")
	for _, want := range []string{"<td>3 MiB</td></tr>", `<tr><td>rows</td><td>12</td><td class="text prose">can&#39;t be used (data.on_error)</td></tr>`, `<img style="min-width:300px"`} {
		if strings.Count(b.String(), want) != 1 {
			t.Errorf("want once %s in\n%s", want, b.String())
		}
	}
}

// Tasks of the host that follow each other share a row, and have one each where they overlap; the legend begins with what took longest, and of more stages than
// there are colors the shortest share the last one.
func TestTimelineRows(t *testing.T) {
	ms := time.Millisecond
	spans := []pipeline.Span{
		{Stage: "embed", Device: "d", Lane: "compute", Start: 0, End: 50 * ms}, {Stage: "read", Device: "host", Lane: "host", Start: 0, End: 10 * ms},
		{Stage: "read", Device: "host", Lane: "host", Start: 10 * ms, End: 20 * ms}, {Stage: "read", Device: "host", Lane: "host", Start: 15 * ms, End: 30*ms + ms/4},
		{Stage: "embed", Part: "waiting", Device: "d", Lane: "compute", Start: 36 * ms, End: 37 * ms},
	}
	for k := range time.Duration(8) {
		spans = append(spans, pipeline.Span{Stage: fmt.Sprint("s", int(k)), Device: "d", Lane: "fetch", Start: k * 5 * ms, End: k*5*ms + ms*(k+1)/2})
	}
	var b strings.Builder
	timeline(&b, spans, 0)
	p := b.String()
	if n := strings.Count(p, `class="track"`); n != 4 { // two of the host, compute, fetch
		t.Errorf("%d rows", n)
	}
	var legend []string
	for _, m := range regexp.MustCompile(`<span class="key t(\d)"></span>(\w+) `).FindAllStringSubmatch(p, -1) {
		legend = append(legend, m[1]+m[2])
	}
	if want := []string{"0embed", "1read", "2s7", "3s6", "4s5", "5s4", "6s3", "7others"}; !slices.Equal(legend, want) {
		t.Errorf("legend %v, want %v", legend, want)
	}
	for stage, color := range map[string]int{"embed": 0, "s7": 2, "s3": 6, "s2": 7, "s0": 7} {
		if want := regexp.MustCompile(fmt.Sprintf(`class="task t%d"[^>]*><title>%s `, color, stage)); !want.MatchString(p) {
			t.Errorf("%s is not in color %d", stage, color)
		}
	}
	for _, want := range []string{"<title>read : 15.25ms</title>", `y="114" width="15.2" height="4"><title>exposed: 1ms</title>`} { // at the foot of the fetch lane's row
		if !strings.Contains(p, want) {
			t.Errorf("no %s in %s", want, p)
		}
	}
	// The axis below says milliseconds of the step.
	labels, at := ticksOf(t, p, "x")
	if want := []string{"0 ms", "10 ms", "20 ms", "30 ms", "40 ms", "50 ms"}; !slices.Equal(labels, want) || at[0] != timelineLeft || at[5] != timelineW-8 {
		t.Errorf("%q at %v", labels, at)
	}
}
