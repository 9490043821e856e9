package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"contraflow/stages/recipe"
	"contraflow/testdata/goldens"
)

// TestLog: what is no terminal gets JSON lines, with the numbers of metrics.jsonl.
func TestLog(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	args := []string{"train", "-c", at("recipe.yaml"), "--set", "train.max_steps=4", "--set", "log.every=1"}
	r := succeed(t, append(args, "--out", at("json"))...)
	want := losses(t, at("json/metrics.jsonl"))
	var got []float64
	seen := map[string]bool{}
	for _, line := range strings.Split(strings.TrimSpace(r.stderr), "\n") {
		var m struct {
			Level, Msg, TS, Text string
			Loss                 float64
			Value                *float64
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil || m.Level == "" || m.Msg == "" {
			t.Errorf("%q: %v", line, err)
		}
		if _, err := time.Parse(time.RFC3339Nano, m.TS); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		if m.Msg == "step" {
			got = append(got, m.Loss)
		}
		seen[m.Msg] = true
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("losses %v, metrics.jsonl has %v", got, want)
	}
	for _, msg := range []string{"run", "step", "evaluation", "done", "report"} {
		if !seen[msg] {
			t.Errorf("no %q in %v", msg, seen)
		}
	}
	if r := succeed(t, append(args, "--out", at("human"), "--log", "human", "--metrics-addr", "127.0.0.1:0")...); !strings.Contains(r.stderr, "step 4/4  loss ") || !strings.Contains(r.stderr, "metrics at http://127.0.0.1:") || strings.Contains(r.stderr, "{") || strings.Contains(r.stderr, "\x1b[") {
		t.Errorf("%s", r.stderr)
	}
	if r := succeed(t, append(args, "--out", at("quiet"), "--quiet")...); r.stderr != "" || r.stdout != "" {
		t.Errorf("--quiet says %q %q", r.stdout, r.stderr)
	}
	if r := contraflow(t, "", append(args, "--log", "pretty")...); r.code != 2 || !strings.Contains(r.stderr, `--log is "pretty", want auto, human or json`) {
		t.Errorf("%d: %s", r.code, r.stderr)
	}
	if r := contraflow(t, "", append(args, "--metrics-addr", "nowhere:port")...); r.code != 1 || !strings.Contains(r.stderr, "--metrics-addr: ") || !strings.Contains(r.stderr, "Next: --metrics-addr 127.0.0.1:0") {
		t.Errorf("%d: %s", r.code, r.stderr)
	}
}

// What is not finite is null in a log, as in metrics.jsonl: that of a step which was skipped.
func TestLogOfSkipped(t *testing.T) {
	var b strings.Builder
	newUI(&b, false).withLog("json").step(recipe.Metrics{Step: 1, Loss: 1.5, GradNorm: math.NaN(), Skipped: true, Due: true})
	var m map[string]any
	if err := json.Unmarshal([]byte(b.String()), &m); err != nil || m["loss"] != 1.5 {
		t.Fatalf("%q: %v", b.String(), err)
	}
	if norm, ok := m["grad_norm"]; !ok || norm != nil {
		t.Errorf("grad_norm is %v", norm)
	}
}

// What a run is about to do, and what it came to, are figures in a log: a machine need not read the text.
func TestLogOfRun(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	args := []string{"train", "-c", at("recipe.yaml"), "--set", "train.max_steps=4", "--set", "eval.every=1", "--set", "save.best=true", "--set", "save.every=2", "--out", at("run")}
	messages := func(r result) map[string]map[string]any {
		all := map[string]map[string]any{}
		for _, line := range strings.Split(strings.TrimSpace(r.stderr), "\n") {
			var m map[string]any
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			all[fmt.Sprint(m["msg"])] = m
		}
		return all
	}
	m := messages(succeed(t, args...))
	record, err := recipe.ReadRecord(at("run"))
	if err != nil || record.Best == nil {
		t.Fatalf("%+v, %v", record, err)
	}
	want := losses(t, at("run/metrics.jsonl"))
	for _, c := range []struct {
		msg, key string
		want     any
	}{
		{"run", "model", record.Model}, {"run", "family", "bert"}, {"run", "parameters", float64(record.Parameters)}, {"run", "rows", float64(record.Rows)}, {"run", "datasets", 1.0},
		{"run", "steps", 4.0}, {"run", "device", record.Device}, {"run", "predicted_memory", float64(record.Predicted)},
		{"done", "steps", 4.0}, {"done", "loss", want[3]}, {"done", "pairs", float64(record.Pairs)}, {"done", "tokens", float64(record.Tokens)}, {"done", "model", at("run/model")},
		{"done", "best", *record.Best}, {"done", "best_step", float64(record.BestStep)}, {"done", "metric", m["evaluation"]["metric"]}, {"done", "value", m["evaluation"]["value"]},
		{"done", "stopped", false}, {"done", "early", false}, {"report", "file", at("run/report.html")},
	} {
		if got := m[c.msg][c.key]; got != c.want {
			t.Errorf("%s has %s %v, want %v", c.msg, c.key, got, c.want)
		}
	}
	for _, key := range []string{"seconds", "pairs_per_s", "tokens_per_s", "peak_mem_bytes"} {
		if v, _ := m["done"][key].(float64); !(v > 0) {
			t.Errorf("done has %s %v", key, m["done"][key])
		}
	}
	if text, _ := m["done"]["text"].(string); !strings.Contains(text, "model saved in ") {
		t.Errorf("done says %q", text)
	}
	m = messages(succeed(t, append(args, "--resume")...))
	if done := m["done"]; done["over"] != true || done["steps"] != 4.0 || done["loss"] != nil || done["model"] != at("run/model") {
		t.Errorf("over when it was resumed: %v", done)
	}
}

// Of several datasets a line says whose loss it has.
func TestLogOfDatasets(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	files := fmt.Sprintf("data.train=[{path: %q, query: query, positive: positive}, {path: %q, query: positive, positive: query}]", at("train.parquet"), at("train.parquet"))
	args := []string{"train", "-c", at("recipe.yaml"), "--set", files, "--set", "data.mixing=round_robin", "--set", "log.every=1", "--set", "batch.global_size=8", "--set", "train.max_steps=2"}
	for _, c := range []struct {
		name, accumulate string
		want             []string
	}{
		{"one", "1", []string{" of data.train[0]  grad", " of data.train[1]  grad"}},
		{"both", "2", []string{" (data.train[0] ", ", data.train[1] "}},
	} {
		r := succeed(t, append(args, "--log", "human", "--set", "batch.accumulate="+c.accumulate, "--out", at(c.name))...)
		for _, want := range c.want {
			if !strings.Contains(r.stderr, want) {
				t.Errorf("no %q in %s", want, r.stderr)
			}
		}
	}
	if r := succeed(t, append(args, "--out", at("json"))...); !strings.Contains(r.stderr, `"datasets":[1]`) {
		t.Errorf("%s", r.stderr)
	}
}

// TestMetricsAddr: Prometheus reads what the last step was; afterwards nobody listens.
func TestMetricsAddr(t *testing.T) {
	w, err := serveMetrics("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	told, loss := 0, 0.75
	o := w.observer(recipe.Observer{Step: func(recipe.Metrics) { told++ }})
	for i := range 3 {
		o.Step(recipe.Metrics{Step: i + 1, Loss: 2.5 - float64(i), GradNorm: 1.5 + float64(i), LR: 0.125 * float64(i), PairsPerS: 7, TokensPerS: 11, PeakMemBytes: 13, Pairs: 64, Tokens: 1000, Skipped: i == 1})
	}
	o.Eval(recipe.Evaluation{Metric: "ndcg@10", Value: 0.25, Tasks: []recipe.TaskValue{{Name: "a", Metric: "mrr@10", Value: 0.125}}, Loss: &loss})
	get := func() (string, error) {
		resp, err := http.Get("http://" + w.addr + "/metrics")
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	}
	text, err := get()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"contraflow_step 3\n", "contraflow_loss 0.5\n", "contraflow_grad_norm 3.5\n", "contraflow_learning_rate 0.25\n", "contraflow_pairs_per_second 7\n", "contraflow_tokens_per_second 11\n", "contraflow_peak_memory_bytes 13\n", "contraflow_pairs_total 192\n", "contraflow_tokens_total 3000\n", "contraflow_skipped_steps_total 1\n", `contraflow_evaluation{metric="ndcg@10"} 0.25`, `contraflow_evaluation{metric="a/mrr@10"} 0.125`, `contraflow_evaluation{metric="loss"} 0.75`, "go_goroutines "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	w.close()
	if _, err := get(); err == nil || told != 3 {
		t.Errorf("still served; the other observer was told of %d steps", told)
	}
}

// An evaluation of several tasks is told with each one's value, to people and to machines.
func TestLogOfTasks(t *testing.T) {
	e := recipe.Evaluation{Step: 4, Metric: "mean mrr@10", Value: 0.25, Tasks: []recipe.TaskValue{{Name: "a", Metric: "mrr@10", Value: 0.125}, {Name: "b", Metric: "mrr@10", Value: 0.375}}}
	for format, want := range map[string]string{"human": "step 4: mean mrr@10 0.2500 (a 0.1250, b 0.3750)\n", "json": `"step":4,"metric":"mean mrr@10","value":0.25,"a/mrr@10":0.125,"b/mrr@10":0.375}`} {
		var b strings.Builder
		u := newUI(&b, false).withLog(format)
		u.observer().Eval(e)
		if !strings.Contains(b.String(), want) {
			t.Errorf("%s: %q", format, b.String())
		}
	}
}

// The loss on held-out rows is told beside what decides, or as what does.
func TestLogOfHeldOutLoss(t *testing.T) {
	loss := 0.5
	each := map[string]float64{"b": 0.25, "a": 0.75}
	for _, c := range []struct {
		e           recipe.Evaluation
		human, json string
	}{
		{recipe.Evaluation{Step: 4, Metric: "loss", Value: 0.5, Loss: &loss}, "step 4: held-out loss 0.5000\n", `"metric":"loss","value":0.5}`},
		{recipe.Evaluation{Step: 4, Metric: "loss", Value: 0.5, Loss: &loss, Losses: each, Tasks: []recipe.TaskValue{{Name: "c", Metric: "map", Value: 0.125}}},
			"step 4: held-out loss 0.5000 (a 0.7500, b 0.2500), c map 0.1250\n", `"metric":"loss","value":0.5,"c/map":0.125,"a/loss":0.75,"b/loss":0.25}`},
		{recipe.Evaluation{Step: 4, Metric: "map", Value: 0.125, Loss: &loss, Losses: each}, "step 4: map 0.1250, held-out loss 0.5000 (a 0.7500, b 0.2500)\n", `"metric":"map","value":0.125,"loss":0.5,"a/loss":0.75,"b/loss":0.25}`},
	} {
		for format, want := range map[string]string{"human": c.human, "json": c.json} {
			var b strings.Builder
			u := newUI(&b, false).withLog(format)
			if u.observer().Eval(c.e); !strings.Contains(b.String(), want) {
				t.Errorf("%s: %q, want %q", format, b.String(), want)
			}
		}
	}
}

// The bar tells nothing of steps that have not been, and takes a resumed run's pace from the steps that it has seen.
func TestBarStatus(t *testing.T) {
	u := &ui{steps: 110, began: time.Now().Add(-20 * time.Second)}
	if s := u.status(); s != "" {
		t.Errorf("before the first step: %q", s)
	}
	for step := 91; step <= 100; step++ {
		u.took(recipe.Metrics{Step: step, Loss: 1.5, PairsPerS: 7, TokensPerS: 8})
	}
	if s := u.status(); s != " loss 1.5000  7 pairs/s  8 tokens/s  20s left" {
		t.Errorf("10 steps took 20 s and 10 are left: %q", s)
	}
}

// How far an evaluation is is told where it takes long, or behind the bar, and the time that one before the first step takes is none of the steps'.
func TestLogOfEvaluating(t *testing.T) {
	for format, want := range map[string]string{"human": "evaluating: 20 of 100  1.0/s  1m20s left\n", "json": `"msg":"evaluating","done":20,"of":100}`} {
		var b strings.Builder
		u := newUI(&b, false).withLog(format)
		for range 2 { // evaluations
			o := u.observer()
			o.Measured(10, 100)
			if b.Len() > 0 {
				t.Errorf("%s: said at once: %q", format, b.String())
			}
			u.said, u.since = u.said.Add(-time.Minute), u.since.Add(-10*time.Second)
			o.Measured(20, 100)
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s: %q, want %q", format, b.String(), want)
			}
			if s := u.status(); s != " evaluating: 20 of 100  1.0/s  1m20s left" {
				t.Errorf("behind the bar: %q", s)
			}
			b.Reset()
			u.said = u.said.Add(-time.Minute)
			o.Measured(100, 100)
			if s := u.status() + b.String(); s != "" {
				t.Errorf("%s: in the end: %q", format, s)
			}
		}
		for _, from := range []int{0, 4} { // which a run goes on from
			u.began, u.made, u.steps = u.began.Add(-time.Hour), 0, from+2
			u.observer().Eval(recipe.Evaluation{Metric: "map", Step: from})
			u.took(recipe.Metrics{Step: from + 1})
			if s := u.left(); s != 0 {
				t.Errorf("%v left", s)
			}
		}
		u.began = u.at.Add(-time.Hour)
		if u.observer().Eval(recipe.Evaluation{Metric: "map", Step: 5}); u.at.Sub(u.began) < time.Hour {
			t.Errorf("an evaluation between steps takes none of their time")
		}
	}
}

// Files that a user asks for are put in the place of what was there: another name of that keeps what it has.
func TestWholeFiles(t *testing.T) {
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	succeed(t, "train", "-c", at("recipe.yaml"), "--quiet", "--set", "train.max_steps=1", "--set", "eval.every=0")
	for name, command := range map[string][]string{
		at("out.html"):        {"report", at("run"), "--out", at("out.html")},
		at("run/report.html"): {"report", at("run")},
		at("cpu.prof"):        {"bench", "gemm", "--shape", "8,8,8", "--seconds", "0", "--cpu-profile", at("cpu.prof")},
	} {
		old := "<!doctype html>old"
		if strings.HasSuffix(name, ".prof") {
			old = "\x1f\x8bold"
		}
		if err := os.WriteFile(name, []byte(old), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(name, name+".was"); err != nil {
			t.Skip(err)
		}
		succeed(t, command...)
		was, err := os.ReadFile(name + ".was")
		if is, err := os.ReadFile(name); err != nil || len(is) < 100 {
			t.Errorf("%v: wrote %d bytes, %v", command, len(is), err)
		}
		if err != nil || string(was) != old {
			t.Errorf("%v: what was there is not replaced, but written over: %d bytes, %v", command, len(was), err)
		}
	}
	settings := []string{"import", at("args.json"), "--out", at("imported.yaml")}
	if err := os.WriteFile(at("args.json"), []byte(`{"model": "m", "train_dataset": "x.parquet", "loss": "MultipleNegativesRankingLoss"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	succeed(t, settings...)
	first, err := os.ReadFile(at("imported.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if r := contraflow(t, "", settings...); r.code == 0 || !strings.Contains(r.stderr, "imported.yaml: file already exists") {
		t.Errorf("import over a file: exit code %d\n%s", r.code, r.stderr)
	}
	if again, err := os.ReadFile(at("imported.yaml")); err != nil || string(again) != string(first) {
		t.Errorf("import changed what was there: %v", err)
	}
}

// What can't be printed is an error, not half a file and exit code 0.
func TestPrintsOrFails(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	dir := workspace(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"args.json": `{"model": "m", "train_dataset": "x.parquet", "loss": "MultipleNegativesRankingLoss"}`, "metrics.jsonl": "",
		"trace.json": `[{"name": "embed", "ph": "X", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]`,
		"sts.jsonl":  `{"sentence1": "a", "sentence2": "b", "score": 1}` + "\n" + `{"sentence1": "c", "sentence2": "reads a file", "score": 2}` + "\n"} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tiny := goldens.Path(t, "bert/minilm-tiny")
	for _, args := range [][]string{
		{"version"}, {"recipe", "embedder"}, {"graph", "-c", at("recipe.yaml")}, {"import", at("args.json")}, {"import", at("args.json"), "--out", at("imported.yaml")},
		{"report", dir}, {"plan", "-c", at("recipe.yaml"), "--steps", "1"},
		{}, {"help"}, {"eval", "--help"}, {"--version"}, {"doctor", "--seconds", "0"}, {"completion", "bash"}, {"trace", "summary", at("trace.json")},
		{"eval", "--model", tiny, "--queries", at("queries.parquet"), "--corpus", at("corpus.parquet"), "--qrels", at("qrels.tsv")},
		{"eval", "--model", tiny, "--sts", at("sts.jsonl")},
		{"verify-grads", "-c", at("recipe.yaml"), "--rows", "4", "--sub-batch", "2", "--accumulate", "1", "--replicas", "1", "--shards", "1"},
	} {
		var errs strings.Builder
		cmd := exec.Command(binary, args...)
		cmd.Stdout, cmd.Stderr = full, &errs
		var exit *exec.ExitError
		if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(errs.String(), "no space left on device") {
			t.Errorf("%v: %v\n%s", args, err, errs.String())
		}
		if strings.Contains(errs.String(), "chooses another disk") {
			t.Errorf("%v: no flag chooses another standard output\n%s", args, errs.String())
		}
	}
	if r := contraflow(t, "", "graph", "-c", at("recipe.yaml"), "--out", "/dev/full"); r.code != 1 || !strings.Contains(r.stderr, "is free; --out chooses another disk\n") {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
}

// A report does not take the place of a run's own files, whatever they are called, or their folder is.
func TestReportOut(t *testing.T) {
	dir := t.TempDir()
	run := filepath.Join(dir, "run")
	for name, content := range map[string]string{"run/metrics.jsonl": "", "run/model/config.json": "{}", "run/run.json": "{}"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(run, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"run/metrics.jsonl", "run/../run/run.json", "link/metrics.jsonl", "run/skipped.jsonl", "run/model/config.json"} {
		if r := contraflow(t, "", "report", run, "--out", filepath.Join(dir)+"/"+name); r.code != 2 || !strings.Contains(r.stderr, "would be one of the own files of the run in "+run) {
			t.Errorf("%s: exit code %d\n%s", name, r.code, r.stderr)
		}
	}
	for _, name := range []string{"run/metrics.jsonl", "run/run.json", "run/model/config.json"} {
		if content := mustRead(t, filepath.Join(dir, name)); strings.Contains(content, "<") {
			t.Errorf("%s is %.40q", name, content)
		}
	}
	for _, name := range []string{"run/report.html", "run/model/more", "out", "out.html"} {
		succeed(t, "report", run, "--out", filepath.Join(dir, name))
	}
}
