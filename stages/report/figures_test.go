package report

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"contraflow/pipeline"
	"contraflow/stages/recipe"
)

// labels are what a page's charts and timelines say to those who can't see them, which is drawn from the same numbers.
func labels(page string) (out []string) {
	for _, m := range regexp.MustCompile(`<svg[^>]* aria-label="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		out = append(out, m[1])
	}
	return out
}

// TestFigures: each figure has its own numbers, from the first finite one to the last.
func TestFigures(t *testing.T) {
	v := func(x float64) *float64 { return &x }
	r := &Run{Name: "run", Steps: []Step{
		{Step: 3, Loss: nil, GradNorm: v(7), LR: 1e-5, Pairs: 10, Tokens: 11, Rate: 1, Peak: 1 << 20},
		{Step: 4, Loss: v(5), GradNorm: v(6), LR: 2e-5, Pairs: 10, Tokens: 12, Rate: 100, Peak: 2 << 20},
		{Step: 5, Loss: v(4), GradNorm: v(5), LR: 3e-5, Pairs: 30, Tokens: 13, Rate: 50, Peak: 3 << 20},
		{Step: 6, Loss: nil, GradNorm: v(3), LR: 4e-5, Pairs: 10, Tokens: 14, Rate: 100, Peak: 4 << 20},
	}, Evals: []Eval{{Step: 4, Metric: "map", Value: 0.9}, {Step: 4, Metric: "ndcg@10", Value: 0.25}, {Step: 5, Metric: "ndcg@10", Value: 0.75}, {Step: 6, Metric: "ndcg@10", Value: 0.5}}}
	var b strings.Builder
	if err := Write(&b, r); err != nil {
		t.Fatal(err)
	}
	p := b.String()
	want := []string{
		"Loss: from 5 at step 4 to 4 at step 5", "Evaluation, map: from 0.9 at step 4 to 0.9 at step 4", "Evaluation, ndcg@10: from 0.25 at step 4 to 0.5 at step 6", "Learning rate: from 1e-05 at step 3 to 4e-05 at step 6",
		"Gradient norm, before clipping: from 7 at step 3 to 3 at step 6", "Throughput, pairs per second: from 1 at step 3 to 100 at step 6", "Memory, most that the process has held: from 1 MiB at step 3 to 4 MiB at step 6",
	}
	if got := labels(p); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for _, want := range []string{
		"<dt>loss</dt><dd>4 <small>of the last step that was finite</small></dd>", "<dt>ndcg@10</dt><dd>0.5 <small>first 0.25</small></dd>", "<dt>peak memory</dt><dd>4 MiB</dd>",
		"<dt>pairs per second</dt><dd>62.5</dd>", // 50 pairs in 0.1 + 0.6 + 0.1 s; the first step warms up
		`<p class="bad">not finite in 2 of 4 steps, first in step 3</p>`,
	} {
		if strings.Count(p, want) != 1 {
			t.Errorf("%d times %s", strings.Count(p, want), want)
		}
	}
	b.Reset()
	if err := Write(&b, r, &Run{Name: "<b>", Steps: []Step{{Step: 1}, {Step: 2}}}); err != nil {
		t.Fatal(err)
	}
	if want := `<p class="bad">run: not finite in 2 of 4 steps, first in step 3; &lt;b&gt;: not finite in 2 of 2 steps, first in step 1</p>`; !strings.Contains(b.String(), want) {
		t.Errorf("no %s", want)
	}
}

// TestTimeline: every task is where and as long as it was; communication is exposed where its own device's lane does not compute, and so is what
// lies under a task that waits.
func TestTimeline(t *testing.T) {
	ms := time.Millisecond
	span := func(device, stage, lane string, from, to int) pipeline.Span {
		return pipeline.Span{Stage: stage, Item: "3", Device: device, Lane: lane, Start: time.Duration(from) * ms, End: time.Duration(to) * ms}
	}
	spans := []pipeline.Span{
		span("cpu:0", "embed", "compute", 0, 10), span("cpu:0", "gather", "comm", 5, 20), span("cpu:1", "embed", "compute", 0, 30), span("cpu:0", "embed", "compute", 6, 8), span("host", "read", "host", 1, 40),
		span("host", "read", "host", 31, 32), span("cpu:0", "embed", "host", -3, -1), // while other steps are made
	}
	spans[3].Part = "waiting"
	var b strings.Builder
	timeline(&b, spans, 0)
	p := b.String()
	// Hidden of the gather's 15 ms are 5 to 6 and 8 to 10.
	if want := "One step of 30ms on 4 lanes; communication takes 15ms of it, of which 20 % are hidden behind computation"; !slices.Equal(labels(p), []string{want}) {
		t.Errorf("%q, want %q", labels(p), want)
	}
	rect := regexp.MustCompile(`<rect class="([^"]*)" x="([\d.]+)" y="(\d+)" width="([\d.]+)" height="\d+"><title>([^<]*)</title>`)
	px := func(ms float64) float64 { return 92 + (860-92-8)*ms/30 }
	want := map[string][2]float64{
		"embed 3: 10ms": {0, 10}, "gather 3: 15ms": {5, 20}, "embed 3: 30ms": {0, 30}, "embed waiting 3: 2ms": {6, 8}, "read 3: 39ms": {1, 30}, // as far as the step goes
		"exposed: 2ms": {6, 8}, "exposed: 10ms": {10, 20},
	}
	rows := map[string]string{}
	for _, m := range rect.FindAllStringSubmatch(p, -1) {
		var x, w float64
		fmt.Sscan(m[2], &x)
		fmt.Sscan(m[4], &w)
		at, ok := want[m[5]]
		if !ok || !(math.Abs(x-px(at[0])) <= 0.1) || !(math.Abs(x+w-px(at[1])) <= 0.2) || (m[1] == "exposed") != strings.HasPrefix(m[5], "exposed") || (m[1] == "idle") != strings.Contains(m[5], "waiting") {
			t.Errorf("%v, want it at %v ms", m[1:], at)
		}
		delete(want, m[5])
		rows[m[5]] = m[3]
	}
	if len(want) > 0 {
		t.Errorf("not drawn: %v", want)
	}
	if rows["embed 3: 10ms"] == rows["embed 3: 30ms"] || rows["embed 3: 10ms"] != rows["embed waiting 3: 2ms"] || rows["read 3: 39ms"] != "6" {
		t.Errorf("rows %v", rows)
	}
}

// TestLongTimeline: of a step with more tasks than are drawn, or recorded, nothing is told that is of those alone.
func TestLongTimeline(t *testing.T) {
	spans := []pipeline.Span{{Stage: "gather", Device: "cpu:0", Lane: "comm", End: maxTasks * 2 * time.Millisecond}}
	for k := range time.Duration(maxTasks * 2) { // the first half is longer, and drawn
		to := (k + 1) * time.Millisecond
		if k >= maxTasks {
			to -= time.Microsecond
		}
		spans = append(spans, pipeline.Span{Stage: "embed", Device: "cpu:0", Lane: "compute", Start: k * time.Millisecond, End: to})
	}
	for omitted, want := range map[int]string{
		0:   "One step of 3s on 2 lanes; communication takes 3s of it, of which 100 % are hidden behind computation",
		999: "The first 3s of one step on 2 lanes, with 3\u202f001 of its 4\u202f000 tasks; communication takes 3s of it, of which 100 % are hidden behind computation",
	} {
		var b strings.Builder
		timeline(&b, spans, omitted)
		if p := b.String(); !slices.Equal(labels(p), []string{want}) || !strings.Contains(p, " 1\u202f501 short tasks are not drawn.") || strings.Contains(p, "exposed: 1.5s") {
			t.Errorf("%q, want %q", labels(p), want)
		}
	}
}

// recorded is a run with a record, as a page.
func recorded(t *testing.T, change func(*recipe.Record)) string {
	t.Helper()
	dir := newRun(t, 30)
	withRecord(t, dir)
	rec, err := recipe.ReadRecord(dir)
	if err != nil {
		t.Fatal(err)
	}
	change(rec)
	text, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "run.json", string(text))
	return page(t, dir)
}

// TestData: what was left out is counted under its own reason, and is not said to be nothing before it is known.
func TestData(t *testing.T) {
	left := func(p string) (out []string) {
		for _, m := range regexp.MustCompile(`<tr><td>([a-z ]*)</td><td>(\d+)</td><td class="text prose">([^<]*)</td>`).FindAllStringSubmatch(p, -1) {
			out = append(out, strings.Join(m[1:], "|"))
		}
		return out
	}
	set := func(c *recipe.Record) {
		c.Truncated, c.Dropped, c.DroppedBy, c.NotFinite, c.Tokens, c.Padding, c.Cut, c.Pairs = 7, 5, "batch.drop_last", 4, 300, 100, 9, 60
	}
	p := recorded(t, set)
	if resumed := recorded(t, func(c *recipe.Record) { c.From = 3 }); !strings.Contains(resumed, "<small>since it was resumed after step 3</small>") || strings.Contains(p, "resumed") {
		t.Error("what the time is of is not said")
	}
	want := []string{
		"ends of texts|7|longer than model.max_length; each counts as often as it was read, in 60 rows", "ends of texts|9|cut by contraflow prep, whose token ids the run took; each counts once, however often the run saw it", "rows|5|batch.drop_last; over all epochs, in which 60 were read", "steps|4|their gradient was not finite (train.on_nan)",
		"rows|2|column &#34;query&#34;: null; the first is a.parquet: row group 2, row 3", "rows|1|not JSON; the first is b.jsonl:2",
	}
	if got := left(p); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	// Of what a padded batch computes a quarter would be padding, a third of what was computed.
	for _, want := range []string{"<dt>padding not computed</dt><dd>25 % <small>", "300 tokens were computed. Padding each sub-batch to its longest text would have added 100, 33 % more."} {
		if !strings.Contains(p, want) {
			t.Errorf("no %q", want)
		}
	}
	for name, how := range map[string]func(*recipe.Record){
		"done: 30 of 10\u202f000 steps": func(c *recipe.Record) {},
		"stopped after 30 of 10\u202f000 steps; contraflow train --resume goes on from there": func(c *recipe.Record) { c.Done, c.Stopped = false, true },
		"30 of 10\u202f000 steps so far: it still runs, or was killed":                        func(c *recipe.Record) { c.Done = false },
		"ended after 30 of 10\u202f000 steps with an error: disk &lt;full&gt;":                func(c *recipe.Record) { c.Done, c.Error = false, "disk <full>" },
	} {
		p := recorded(t, func(c *recipe.Record) { set(c); how(c) })
		if !strings.Contains(p, name) {
			t.Errorf("no %q", name)
		}
		ended := strings.HasPrefix(name, "done") || strings.HasPrefix(name, "stopped")
		if slices.Contains(left(p), "rows|5|batch.drop_last; over all epochs, in which 60 were read") != ended {
			t.Errorf("%s: %q", name, left(p))
		}
	}
}

// TestStages: shares are of the run's time, and of the queues those are listed that were full.
func TestStages(t *testing.T) {
	p := recorded(t, func(c *recipe.Record) {
		c.Seconds = 50
		c.Edges = append(c.Edges, pipeline.EdgeSummary{Edge: "c -> d.e", Capacity: 3, Mean: 1, Full: 0.001}, pipeline.EdgeSummary{Edge: "f -> g.h", Capacity: 4, Mean: 0.5, Full: 0.02})
		c.Stages = append(c.Stages, pipeline.StageSummary{Stage: "read", Device: "host", Lane: "host", Tasks: 3, Busy: 5 * time.Second, Wait: time.Second})
	})
	for _, want := range []string{
		"<td>embed</td><td class=\"text\">cpu compute</td><td>2</td><td>25s</td><td>50.0 %</td><td>1ms</td>", "<td>f -&gt; g.h</td><td>0.50</td><td>4</td><td>2 %</td>",
		"<td>read</td><td class=\"text\">host </td><td>3</td><td>5s</td><td>10.0 %</td><td></td>", // nothing waits for the host's tasks alone
		"<td>a -&gt; b.c</td><td>1.50</td><td>2</td><td>50 %</td>"} {
		if !strings.Contains(p, want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(p, "c -&gt; d.e") {
		t.Error("a queue is listed that always had room")
	}
	if p := recorded(t, func(c *recipe.Record) { c.Step, c.Stages, c.Edges = nil, nil, nil }); !strings.Contains(p, "Nothing yet: a run writes this every ten seconds") {
		t.Error("a run without a timeline says nothing of it")
	}
}

// TestReasons: of many reasons the most frequent are listed, and the rows of all others counted together.
func TestReasons(t *testing.T) {
	dir := newRun(t, 30)
	withRecord(t, dir)
	var lines strings.Builder
	for reason := range 25 {
		for range 1 + reason%2 {
			fmt.Fprintf(&lines, `{"file":"a.parquet","row":%d,"reason":"reason %d"}`+"\n", reason, reason)
		}
	}
	write(t, dir, "skipped.jsonl", lines.String())
	p := page(t, dir)
	// 12 have two rows each, and of 13 with one row each 8 are listed.
	if want := `<tr><td>rows</td><td>5</td><td class="text prose">for 5 more reasons: skipped.jsonl has every row</td></tr>`; strings.Count(p, "; the first is a.parquet") != 20 || !strings.Contains(p, want) {
		t.Errorf("%d reasons, and no %s", strings.Count(p, "; the first is a.parquet"), want)
	}
}

// TestWhoseMemory: a GPU's memory is not called the process's.
func TestWhoseMemory(t *testing.T) {
	for device, want := range map[string][2]string{
		"cpu:0":  {"Memory, most that the process has held: ", "of the process; planned on the device: 1.0 GiB"},
		"cuda:1": {"Memory, most that was allocated on the GPU: ", "allocated on the GPU; planned: 1.0 GiB"},
	} {
		p := recorded(t, func(c *recipe.Record) { c.Device = device })
		if !strings.Contains(p, `aria-label="`+want[0]) || strings.Count(p, "<small>"+want[1]+"</small>") != 1 {
			t.Errorf("%s: no %q", device, want)
		}
	}
	all := charts([]*Run{{Record: &recipe.Record{Device: "cuda:0"}}, {}})
	if unit := all[len(all)-1].unit; unit != "most that the process has held, or on a GPU was allocated" {
		t.Error(unit)
	}
}

// TestCurves: a mean of what stays the same is that, from the first value on; a scale with zeros is no logarithm; and of many points in one place both ends are drawn,
// whichever comes first.
func TestCurves(t *testing.T) {
	for i, v := range runningMean([]float64{3, 3, math.NaN(), 3, 3}) {
		if i != 2 && !(math.Abs(v-3) <= 1e-12) || i == 2 && !math.IsNaN(v) {
			t.Errorf("place %d: a mean of %v", i, v)
		}
	}
	var b strings.Builder
	chart{title: "x", log: true, lines: []line{{x: []float64{1, 2, 3}, y: []float64{0, 5, 2000}}}}.write(&b)
	if p := b.String(); strings.Contains(p, "NaN") || strings.Contains(p, "Inf") || !strings.Contains(p, ">0</text>") {
		t.Errorf("%s", p)
	}
	nan := math.NaN()
	if d := path([]float64{1, 2, 3, 4, 5}, []float64{nan, 7, nan, 8, 9}, func(v float64) float64 { return v }, func(v float64) float64 { return v }, 1, 5); d != "M2 7h0M4 8h0L5 9" {
		t.Errorf("a point between gaps: %s", d)
	}
	x, y := make([]float64, 1000), make([]float64, 1000)
	for i := range x {
		x[i] = float64(i)
	}
	same := func(v float64) float64 { return v }
	for _, high := range []int{500, 501} {
		clear(y)
		y[high], y[1001-high] = 5, -5
		if d := path(x, y, same, same, 0, 999); !strings.Contains(d, fmt.Sprintf("L%d 5L", high)) || !strings.Contains(d, fmt.Sprintf("L%d -5L", 1001-high)) {
			t.Errorf("high at %d: %s", high, d)
		}
	}
}

// TestNames: what people call their things runs nowhere.
func TestNames(t *testing.T) {
	const evil = `<img src=x onerror=alert(1)>&amp;"'`
	dir := filepath.Join(t.TempDir(), evil)
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Skip("this file system has no such names: ", err)
	}
	write(t, dir, "metrics.jsonl", fmt.Sprintf(`{"step":1,"loss":2}`+"\n"+`{"step":1,"metric":%q,"value":1}`+"\n", evil))
	write(t, dir, "recipe.yaml", fmt.Sprintf("# </pre>%s\nmodel: {path: %q}\n", evil, evil))
	write(t, dir, "skipped.jsonl", fmt.Sprintf(`{"file":%q,"row":1,"column":%q,"reason":%q}`+"\n", evil, evil, evil))
	g := pipeline.New(evil)
	pipeline.Sink(g, evil, pipeline.Source[int](g, "count"+evil, nil), func(*pipeline.Task, int) error { return nil })
	text, err := json.Marshal(recipe.Record{
		Made: 1, Seconds: 1, Error: evil, Model: evil, Family: evil, Description: evil, System: evil, Mesh: evil, Data: []string{evil}, DroppedBy: evil, Graph: g.SVG() + evil,
		Stages: []pipeline.StageSummary{{Stage: evil, Device: evil, Lane: evil}}, Edges: []pipeline.EdgeSummary{{Edge: evil, Full: 1}},
		Step: []pipeline.Span{{Stage: evil, Item: evil, Part: evil, Device: evil, Lane: "compute", End: 1e6}, {Stage: evil, Device: evil, Lane: "comm", End: 2e6}},
	})
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "run.json", string(text))
	other := newRun(t, 2)
	for _, p := range []string{page(t, dir), page(t, dir, other)} {
		if strings.Contains(p, "<img src") || strings.Contains(p, "</pre>&lt;img") || strings.Contains(p, `onerror=alert(1)>`) {
			t.Error("a name became part of the page")
		}
		wellFormed(t, p)
	}
}

// Losses of several datasets have a figure of their own.
func TestLossOfEachDataset(t *testing.T) {
	r := &Run{Steps: []Step{{Step: 1, Losses: map[int]float64{1: 1}}, {Step: 2, Losses: map[int]float64{0: 2}}, {Step: 3, Losses: map[int]float64{0: 4, 1: 6}}, {Step: 4}, {Step: 5, Losses: map[int]float64{1: 5}}}}
	lines := byDataset(r)
	if len(lines) != 2 || fmt.Sprint(lines[0].name, " ", lines[0].x, lines[0].y, " ", lines[1].name, " ", lines[1].x, lines[1].y) != "data.train[0] [2 3] [2 4] data.train[1] [1 3 5] [1 6 5]" {
		t.Errorf("%+v", lines)
	}
	if c := charts([]*Run{r}); c[1].title != "Loss of each dataset" {
		t.Errorf("the second figure is %q", c[1].title)
	}
	r.Steps = r.Steps[1:2]
	if c := charts([]*Run{r}); c[1].title == "Loss of each dataset" {
		t.Error("one dataset has a figure of its own beside the first")
	}
}

// Tasks whose mean an evaluation is have a figure of their own.
func TestEvaluationOfEachTask(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "metrics.jsonl", `{"step":1,"loss":2,"grad_norm":1,"pairs":2}
{"step":1,"metric":"mean ndcg@10","value":0.3,"tasks":[{"name":"a","metric":"ndcg@10","value":0.2,"eval":{"map":1}},{"name":"b","metric":"ndcg@10","value":0.4,"eval":{}}]}
{"step":2,"metric":"mean ndcg@10","value":0.5,"tasks":[{"name":"a","metric":"ndcg@10","value":0.3,"eval":{}},{"name":"b","metric":"ndcg@10","value":0.7,"eval":{}}]}
`)
	r, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, c := range charts([]*Run{r}) {
		if strings.HasPrefix(c.title, "Evaluation") {
			got += c.title + " " + c.unit
			for _, l := range c.lines {
				got += fmt.Sprint(": ", l.name, " ", l.x, l.y)
			}
			got += "; "
		}
	}
	if want := fmt.Sprintf("Evaluation mean ndcg@10: %s [1 2][0.3 0.5]; Evaluation of each task : a ndcg@10 [1 2][0.2 0.3]: b ndcg@10 [1 2][0.4 0.7]; ", r.Name); strings.ReplaceAll(got, "] [", "][") != want {
		t.Errorf("%q, want %q", got, want)
	}
	if c := charts([]*Run{r, r}); slices.ContainsFunc(c, func(c chart) bool { return c.title == "Evaluation of each task" }) {
		t.Error("several runs side by side have a figure of one's tasks")
	}
}

// The loss on held-out rows has figures of its own, whatever decides, and is not called as training's.
func TestHeldOutLoss(t *testing.T) {
	for lines, want := range map[string]string{
		`{"step":1,"metric":"loss","value":3,"loss":3}
{"step":2,"metric":"loss","value":2.5,"loss":2.5,"tasks":[{"name":"a","metric":"map","value":0.2}]}`: "Loss on held-out rows: RUN [1 2] [3 2.5]; Evaluation of each task: a map [2] [0.2]; ",
		`{"step":1,"metric":"map","value":0.1,"loss":3,"losses":{"b":2,"a":4}}
{"step":2,"metric":"map","value":0.2}`: "Loss on held-out rows: RUN [1] [3]; Loss on each held-out dataset: a [1] [4]: b [1] [2]; Evaluation: RUN [1 2] [0.1 0.2]; ",
	} {
		dir := t.TempDir()
		write(t, dir, "metrics.jsonl", `{"step":1,"loss":2,"grad_norm":1,"pairs":2}`+"\n"+lines+"\n")
		r, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, c := range charts([]*Run{r}) {
			if strings.HasPrefix(c.title, "Evaluation") || strings.HasPrefix(c.title, "Loss on") {
				got += c.title
				for _, l := range c.lines {
					got += fmt.Sprint(": ", l.name, " ", l.x, " ", l.y)
				}
				got += "; "
			}
		}
		if want = strings.ReplaceAll(want, "RUN", r.Name); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if p := page(t, dir); strings.Contains(p, "<dt>held-out loss</dt><dd>2.5 ") != strings.Contains(lines, "2.5") || strings.Count(p, "<dt>loss</dt>") != 1 || strings.Count(p, "<dt>held-out loss</dt>") != min(1, strings.Count(lines, "2.5")) {
			t.Errorf("%s", lines)
		}
	}
}

// Where tasks decide which step's model is the best, the loss on held-out rows is that model's, beside what it was at last.
func TestHeldOutLossOfBest(t *testing.T) {
	const evals = `{"step":1,"metric":"map","value":0.4,"loss":3}` + "\n" + `{"step":2,"metric":"map","value":0.2,"loss":2}` + "\n"
	for record, want := range map[string]string{
		`"best":0.4,"best_step":1`: "<dt>held-out loss</dt><dd>3 <small>of the saved model, step 1; last 2</small></dd>",
		`"best":0.2,"best_step":2`: "<dt>held-out loss</dt><dd>2</dd>",
		`"best":0.5,"best_step":9`: "<dt>held-out loss</dt><dd>2</dd>", // which is not among them
		`"steps":2`:                "<dt>held-out loss</dt><dd>2</dd>",
	} {
		dir := t.TempDir()
		write(t, dir, "metrics.jsonl", `{"step":1,"loss":2,"grad_norm":1,"pairs":2}`+"\n"+evals)
		write(t, dir, "run.json", "{"+record+"}")
		if p := page(t, dir); strings.Count(p, want) != 1 || strings.Count(p, "<dt>held-out loss</dt>") != 1 {
			t.Errorf("%s: want %s in\n%s", record, want, p)
		}
	}
}
