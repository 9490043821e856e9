package report

import (
	"encoding/base64"
	"encoding/json"
	"errors"
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

// newRun makes a run's folder with so many steps: the loss falls, with a spike at step 4,321 and a NaN at step 50.
func newRun(t testing.TB, steps int) string {
	t.Helper()
	dir := t.TempDir()
	var b strings.Builder
	for i := 1; i <= steps; i++ {
		m := recipe.Metrics{Step: i, Epoch: 1, Loss: 5*math.Exp(-float64(i)/3000) + 0.1*math.Sin(float64(i)), GradNorm: 1 + math.Cos(float64(i)), LR: 1e-4, Pairs: 256, Tokens: 20000, PairsPerS: 300, PeakMemBytes: 1 << 30}
		switch i {
		case 4321:
			m.Loss = 77
		case 50:
			m.Loss = math.NaN()
		}
		line, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(append(line, '\n'))
		if i%500 == 0 {
			fmt.Fprintf(&b, `{"step":%d,"metric":"ndcg@10","value":%g,"eval":{}}`+"\n", i, 0.3+float64(i)/1e5)
		}
	}
	write(t, dir, "metrics.jsonl", b.String())
	write(t, dir, "recipe.yaml", "model:\n  path: a<script>alert(1)</script>\nbatch: {global_size: 256}\n")
	return dir
}

func write(t testing.TB, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

// withRecord adds run.json: two compute tasks, one of which hides half of a communication.
func withRecord(t testing.TB, dir string) {
	t.Helper()
	ms := time.Millisecond
	span := func(stage, lane string, from, to time.Duration) pipeline.Span {
		return pipeline.Span{Stage: stage, Item: "3.0.1", Device: "cpu", Lane: lane, Start: from, End: to}
	}
	g := pipeline.New("train")
	pipeline.Sink(g, "look", pipeline.Source[int](g, "count", nil), func(*pipeline.Task, int) error { return nil })
	r := recipe.Record{
		Began: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Seconds: 100, Done: true, Model: "m & n", Family: "bert", Layers: 6, Hidden: 384, Parameters: 22e6, Trained: 22e6,
		Data: []string{"a.parquet"}, Rows: 12345, Steps: 10000, Made: 10000, Tokens: 750, Padding: 250, Truncated: 7, Dropped: 3, Skipped: 3, Predicted: 1 << 30, PeakBytes: 1 << 30,
		Graph:  g.AnnotatedSVG(map[string]pipeline.Annotation{"count": {Text: "12.0 % of the time", Share: 0.12}}),
		Stages: []pipeline.StageSummary{{Stage: "embed", Device: "cpu", Lane: "compute", Tasks: 2, Busy: 25 * time.Second, Wait: ms}},
		Edges:  []pipeline.EdgeSummary{{Edge: "a -> b.c", Capacity: 2, Mean: 1.5, Full: 0.5}},
		Step:   []pipeline.Span{span("embed", "compute", 0, 10*ms), span("gather", "comm", 5*ms, 15*ms), span("backward", "compute", 20*ms, 30*ms), span("read", "host", 1*ms, 9*ms), span("tokenize", "host", 2*ms, 8*ms)},
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "run.json", string(text))
	write(t, dir, "skipped.jsonl", `{"file":"a.parquet","row_group":2,"row":3,"column":"query","reason":"null"}
{"file":"a.parquet","row":9,"column":"query","reason":"null"}
{"file":"b.jsonl","row":1,"line":2,"reason":"not JSON"}
`)
}

func page(t testing.TB, dirs ...string) string {
	t.Helper()
	var runs []*Run
	for _, d := range dirs {
		r, err := Load(d)
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, r)
	}
	var b strings.Builder
	if err := Write(&b, runs...); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// wellFormed checks that every element that is opened is closed in its order, and that every picture says what it shows.
func wellFormed(t *testing.T, page string) {
	t.Helper()
	page = regexp.MustCompile(`(?s)<(style|script)>.*?</(style|script)>`).ReplaceAllString(page, "")
	var open []string
	for _, m := range regexp.MustCompile(`<(/?)([a-zA-Z0-9]+)[^>]*?(/?)>`).FindAllStringSubmatch(page, -1) {
		switch name := m[2]; {
		case m[3] == "/" || name == "meta" || name == "link":
		case m[1] == "":
			open = append(open, name)
		case len(open) == 0 || open[len(open)-1] != name:
			t.Fatalf("</%s> closes %v", name, open)
		default:
			open = open[:len(open)-1]
		}
	}
	if len(open) > 0 {
		t.Errorf("not closed: %v", open)
	}
	for _, img := range regexp.MustCompile(`<img[^>]*>`).FindAllString(page, -1) {
		if !regexp.MustCompile(`^<img style="[^"]*" alt="[^"]{5,}" src="data:image/svg\+xml;base64,[A-Za-z0-9+/=]+"/>$`).MatchString(img) {
			t.Errorf("a picture that has no name or may ask for something: %s", img)
		}
	}
	for _, svg := range regexp.MustCompile(`<svg[^>]*>`).FindAllString(page, -1) {
		if !strings.Contains(svg, `role="img"`) || !regexp.MustCompile(`aria-label="[^"]{5,}`).MatchString(svg) {
			t.Errorf("a picture without a name: %s", svg)
		}
	}
}

func TestReport(t *testing.T) {
	dir := newRun(t, 10000)
	withRecord(t, dir)
	p := page(t, dir)
	wellFormed(t, p)
	if len(p) > 1<<20 {
		t.Errorf("%d bytes", len(p))
	}
	stages, err := base64.StdEncoding.DecodeString(regexp.MustCompile(`base64,([^"]*)`).FindStringSubmatch(p)[1])
	if err != nil || !strings.Contains(string(stages), ">12.0 % of the time<") {
		t.Errorf("the drawing of the stages: %v %s", err, stages)
	}
	for _, want := range []string{
		"done: 10\u202f000 of 10\u202f000 steps", "m &amp; n", "12\u202f345 rows", "a&lt;script&gt;", "25 %</dd>", // padding: 250 of 1,000
		"25.0 %", "column &#34;query&#34;: null; the first is a.parquet: row group 2, row 3",
		"communication takes 10ms of it, of which 50 % are hidden", "exposed: 5ms", // 5 of the gather's 10 ms
		"begun 2026-01-02 03:04 UTC", "<tr><td>a -&gt; b.c</td><td>1.50</td><td>2</td><td>50 %</td></tr>", // of the queue
	} {
		if !strings.Contains(strings.ReplaceAll(p, ` <small>of what a padded batch computes</small>`, ""), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(p, "<script>alert") || strings.Contains(p, "http://") && !strings.Contains(p, "http://www.w3.org") {
		t.Error("the page runs what a recipe says, or needs a network")
	}
	if strings.Contains(p, "NaN") {
		t.Error("a coordinate is NaN")
	}
}

// TestSpike: what happened in one step of ten thousand is still there, at its place.
func TestSpike(t *testing.T) {
	r, err := Load(newRun(t, 10000))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	charts([]*Run{r})[0].write(&b)
	raw := regexp.MustCompile(`class="raw c0" d="([^"]*)"`).FindStringSubmatch(b.String())
	if raw == nil {
		t.Fatal("no curve of the values themselves")
	}
	highest, at, points := math.Inf(1), 0.0, 0
	for _, m := range regexp.MustCompile(`[ML]([\d.]+) ([\d.]+)`).FindAllStringSubmatch(raw[1], -1) {
		var x, y float64
		fmt.Sscan(m[1], &x)
		fmt.Sscan(m[2], &y)
		if y < highest {
			highest, at = y, x
		}
		points++
	}
	// The axis goes to 80: 77 is at 3/80 of the plot's height.
	wantX, wantY := chartLeft+plotW*4320.0/9999, chartTop+plotH*3.0/80
	if !(math.Abs(at-wantX) <= 0.2) || !(math.Abs(highest-wantY) <= 0.2) || points > 2*maxPoints+8 {
		t.Errorf("the highest of %d points is at %g, %g, want %g, %g", points, at, highest, wantX, wantY)
	}
	if strings.Count(raw[1], "M") != 2 {
		t.Errorf("%d pieces, want 2: a NaN lies between", strings.Count(raw[1], "M"))
	}
}

func TestOddRuns(t *testing.T) {
	one := newRun(t, 1)
	wellFormed(t, page(t, one))
	empty := t.TempDir()
	write(t, empty, "metrics.jsonl", "")
	wellFormed(t, page(t, empty))

	cut := t.TempDir() // as a kill leaves it
	write(t, cut, "metrics.jsonl", `{"step":1,"loss":null,"grad_norm":null,"pairs":2}`+"\n"+`{"step":2,"lo`)
	r, err := Load(cut)
	if err != nil || !r.Cut || len(r.Steps) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	wellFormed(t, page(t, cut))

	lost := t.TempDir() // of whose losses none is a number: that is said, not that there are none
	write(t, lost, "metrics.jsonl", `{"step":1,"loss":null,"grad_norm":1,"pairs":2}`+"\n"+`{"step":2,"loss":null,"grad_norm":1,"pairs":2}`+"\n")
	if p := page(t, lost); !strings.Contains(p, `<figcaption>Loss</figcaption><p class="none"></p><p class="bad">not finite in 2 of 2 steps, first in step 1</p>`) {
		t.Errorf("losses that are all lost: %s", p)
	}

	if _, err := Load(t.TempDir()); !errors.Is(err, ErrNoRun) {
		t.Error(err)
	}
	bad := t.TempDir()
	write(t, bad, "metrics.jsonl", "{\"step\":1}\nstep 2\n{\"step\":3}\n")
	if _, err := Load(bad); err == nil || !strings.Contains(err.Error(), "metrics.jsonl:2: ") {
		t.Error(err)
	}
	write(t, one, "run.json", "{")
	if _, err := Load(one); err == nil || !strings.Contains(err.Error(), "run.json: ") {
		t.Error(err)
	}
}

// A run's name is its folder's, also where one stands in it.
func TestName(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x")
	if err := os.MkdirAll(filepath.Join(dir, "model"), 0o777); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "metrics.jsonl", "")
	t.Chdir(filepath.Join(dir, "model"))
	for _, name := range []string{dir, dir + "/", "..", "../../x", "../model/.."} {
		if r, err := Load(name); err != nil || r.Name != "x" {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

func TestCompare(t *testing.T) {
	a, b := newRun(t, 100), newRun(t, 60)
	write(t, b, "recipe.yaml", "model: {path: other}\nbatch: {global_size: 256}\ndata:\n  train:\n  - {path: x}\n")
	p := page(t, a, b)
	wellFormed(t, p)
	for _, want := range []string{"<td>model.path</td>", "<td>data.train[0].path</td>"} {
		if !strings.Contains(p, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Index(p, "<td>data.train[0].path</td>") > strings.Index(p, "<td>model.path</td>") {
		t.Error("keys are not in their order")
	}
	if strings.Contains(p, "<td>batch.global_size</td>") {
		t.Error("a key is listed that does not differ")
	}

	// Of a run without steps nothing is known.
	begun := t.TempDir()
	write(t, begun, "metrics.jsonl", "")
	if p := page(t, a, begun); !strings.Contains(p, "<td>0</td><td></td><td></td><td></td><td></td><td></td></tr>") {
		t.Error("the comparison has figures of a run without steps")
	}

	// One in the middle that differs is one; and of up to four runs each one's time and data are told.
	withRecord(t, a)
	withRecord(t, b)
	for n, want := range map[int]int{3: 3, 4: 4, 5: 1} {
		p = page(t, append([]string{a, b}, slices.Repeat([]string{a}, n-2)...)...)
		if row := "<td>300</td><td>1m40s</td><td>1.0 GiB</td></tr>"; strings.Count(p, row) != n { // pairs a second, time and memory
			t.Errorf("%d runs: the comparison lacks %s", n, row)
		}
		if got := strings.Count(p, "<h2>Where the time went"); !strings.Contains(p, "<td>model.path</td>") || got != want {
			t.Errorf("%d runs: %d say where their time went, or no difference is listed", n, got)
		}
	}
}

// With save.best a run is the model that it saved, not its last evaluation; and who ended it early is said.
func TestBest(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	metrics := `{"step":2,"metric":"ndcg@10","value":0.5632}
{"step":4,"metric":"ndcg@10","value":0.5666}
{"step":17,"loss":1.5,"pairs":2}
{"step":17,"metric":"ndcg@10","value":0.5618}
`
	write(t, dir, "metrics.jsonl", metrics)
	write(t, other, "metrics.jsonl", metrics)
	for record, want := range map[string][]string{
		`{"done":true,"early":true,"steps":22,"best":0.5666,"best_step":4}`: {"<dd>0.5666 <small>at step 4 (saved); last 0.5618; first 0.5632</small>", "done: 17 of 22 steps; evaluations got no better, which ended it (eval.early_stopping)<"},
		`{"stopped":true,"steps":22,"best":0.5666,"best_step":4}`:           {"<dd>0.5666 <small>at step 4 (kept in best/); last 0.5618; first 0.5632</small>"},
		`{"done":true,"steps":17,"best":0.5618,"best_step":17}`:             {"<dd>0.5618 <small>at step 17 (saved); first 0.5632</small>", "done: 17 of 17 steps<"},
		`{"done":true,"steps":17}`:                                          {"<dd>0.5618 <small>first 0.5632</small>"},
	} {
		write(t, dir, "run.json", record)
		p := page(t, dir)
		wellFormed(t, p)
		for _, want := range want {
			if !strings.Contains(p, want) {
				t.Errorf("%s: the page lacks %q", record, want)
			}
		}
	}
	write(t, dir, "run.json", `{"done":true,"steps":17,"best":0.5666,"best_step":4}`)
	p := page(t, dir, other)
	for _, want := range []string{"<td>ndcg@10 0.5666 at step 4</td>", "<td>ndcg@10 0.5618</td>"} {
		if !strings.Contains(p, want) {
			t.Errorf("the comparison lacks %q", want)
		}
	}
}

func TestTicks(t *testing.T) {
	for _, c := range []struct{ lo, hi float64 }{{0, 1}, {-3, 7}, {0.0478, 0.0481}, {5, 5}, {0, 0}, {1e-9, 1e9}, {-2, -1}, {0.9999999999999999, 1}, {2.3, math.Nextafter(2.3, 3)}, {-1e20, math.Nextafter(-1e20, 0)}, {1 - 1e-11, 1}} {
		ts := niceTicks(c.lo, c.hi, 5)
		if len(ts) < 2 || len(ts) > 8 || ts[0] > c.lo || ts[len(ts)-1] < c.hi-1e-9*math.Abs(c.hi) {
			t.Errorf("%v: %v", c, ts)
		}
	}
	if ts := niceTicks(0, 0, 5); ts[0] != 0 {
		t.Errorf("of zeros, as a rate that was not measured, the axis begins at %v", ts[0])
	}
	for _, x := range []float64{math.MaxFloat64, 5e-324} { // of which there are no steps
		niceTicks(-x, x, 5)
		niceTicks(x, x, 5)
	}
	if ts := powersOfTen(2e-3, 5e30, 8); len(ts) > 8 || len(ts) < 5 || ts[0] > 2e-3 || ts[len(ts)-1] < 5e30 {
		t.Errorf("powers of ten: %v", ts)
	}
	if ts := powersOfTen(0.02, 3, 8); fmt.Sprint(ts) != "[0.01 0.1 1 10]" {
		t.Errorf("powers of ten: %v", ts)
	}
}

// A tick's label is not its neighbour's.
func TestTickLabels(t *testing.T) {
	label := regexp.MustCompile(`<text class="y"[^>]*>([^<]*)<`)
	for want, y := range map[string][]float64{
		"0.9999 0.99995 1": {0.99991, 0.99998, 1}, "1 1.000005 1.00001 1.000015 1.00002": {1, 1.00002}, "0.5 1 1.5": {1, 1 - 1e-9}, "12.34 k 12.342 k 12.344 k 12.346 k 12.348 k 12.35 k": {12341, 12349}, "0 0.5 1": {0, 1},
	} {
		var b strings.Builder
		chart{lines: []line{{x: []float64{1, 2, 3}[:len(y)], y: y}}}.write(&b)
		var got []string
		for _, m := range label.FindAllStringSubmatch(b.String(), -1) {
			got = append(got, m[1])
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%v: %q, want %s", y, got, want)
		}
	}
}

func TestShort(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.12345: "0.1235", 999.95: "1000", 9999: "9999", 9999.6: "10 k", 12345: "12.3 k", 999.4e3: "999 k", 999600: "1 M", -22.7e6: "-22.7 M", 999.6e6: "1 G", 7e9: "7 G", 1e30: "1e+30"} {
		if got := short(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}

func TestGrouped(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1 000", -1234567: "-1 234 567"} {
		if got := strings.ReplaceAll(grouped(n), "\u202f", " "); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}

// WriteFile replaces the report as a whole: another name of the former one keeps it.
func TestWriteFileReplaces(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"metrics.jsonl": `{"step":1,"loss":2.3}` + "\n", File: "old"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	was := filepath.Join(dir, "was.html")
	if err := os.Link(filepath.Join(dir, File), was); err != nil {
		t.Skip(err)
	}
	if _, err := WriteFile(dir); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(was); err != nil || string(text) != "old" {
		t.Errorf("the former report has %d bytes, %v", len(text), err)
	}
}

func Example() {
	dir, err := os.MkdirTemp("", "run")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	// What train leaves; here two steps.
	metrics := `{"step":1,"loss":2.3,"grad_norm":1.1,"lr":1e-4,"pairs":64,"pairs_per_s":120}
{"step":2,"loss":2.1,"grad_norm":1.0,"lr":1e-4,"pairs":64,"pairs_per_s":125}
`
	if err := os.WriteFile(filepath.Join(dir, "metrics.jsonl"), []byte(metrics), 0o666); err != nil {
		panic(err)
	}
	file, err := WriteFile(dir)
	fmt.Println(filepath.Base(file), err)
	// Output: report.html <nil>
}
