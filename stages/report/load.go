package report

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"

	"contraflow/stages/recipe"
)

// Run is what a run's folder tells.
type Run struct {
	Name    string // the folder
	Steps   []Step
	Evals   []Eval
	Recipe  string         // YAML, as resolved
	Record  *recipe.Record // nil if the folder has no run.json
	Skipped []Reason       // rows that could not be used
	Cut     bool           // the last line of metrics.jsonl is not whole: the run is being written, or was killed
}

// Step is a line of metrics.jsonl. What was not finite is nil.
type Step struct {
	Step     int      `json:"step"`
	Loss     *float64 `json:"loss"`
	GradNorm *float64 `json:"grad_norm"`
	LR       float64  `json:"lr"`
	Pairs    int      `json:"pairs"`
	Tokens   int      `json:"tokens"`
	Rate     float64  `json:"pairs_per_s"`
	Peak     int64    `json:"peak_mem_bytes"`
	Skipped  bool     `json:"skipped"`

	Losses map[int]float64 `json:"losses"` // of each dataset that the step has batches of, where the run has several
}

// Eval is an evaluation's line.
type Eval struct {
	Step   int     `json:"step"`
	Metric string  `json:"metric"`
	Value  float64 `json:"value"`

	Tasks []Eval `json:"tasks"` // whose mean the value is, if it is one; or what else was measured, where the value is a loss
	Name  string `json:"name"`  // of a task

	Loss   *float64           `json:"loss"`   // on held-out rows
	Losses map[string]float64 `json:"losses"` // of several datasets of such, each one's
}

// Reason is why so many rows were skipped.
type Reason struct {
	Text string
	Rows int
	Like string // where the first of them is
}

// ErrNoRun is wrapped when a folder holds no run.
var ErrNoRun = errors.New("not a run's folder")

// Load reads a run's folder.
func Load(dir string) (*Run, error) {
	r := &Run{Name: filepath.Base(dir)}
	if whole, err := filepath.Abs(dir); err == nil { // of "." too
		r.Name = filepath.Base(whole)
	}
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return nil, fmt.Errorf("%s: %w: it is a file; name the folder that it is in", dir, ErrNoRun)
	}
	if err := r.readMetrics(filepath.Join(dir, "metrics.jsonl")); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w: it has no metrics.jsonl, which contraflow train writes into save.dir", dir, ErrNoRun)
	} else if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "recipe.yaml"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	r.Recipe = string(text)
	if r.Record, err = recipe.ReadRecord(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := r.readSkipped(filepath.Join(dir, "skipped.jsonl")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return r, nil
}

// lines calls f with every line of a file. A last line without an end may be cut: cut tells f that.
func lines(file string, f func(line []byte, cut bool) error) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	b := bufio.NewReader(in)
	for n := 1; ; n++ {
		line, err := b.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return err
		}
		if len(line) > 0 {
			if err := f(line, err == io.EOF); err != nil {
				return fmt.Errorf("%s:%d: %w", file, n, err)
			}
		}
		if err == io.EOF {
			return nil
		}
	}
}

func (r *Run) readMetrics(file string) error {
	return lines(file, func(line []byte, cut bool) error {
		var kind struct {
			Metric *string `json:"metric"`
		}
		err := json.Unmarshal(line, &kind)
		switch {
		case err != nil:
		case kind.Metric != nil:
			var e Eval
			err = json.Unmarshal(line, &e)
			r.Evals = append(r.Evals, e)
		default:
			var s Step
			err = json.Unmarshal(line, &s)
			r.Steps = append(r.Steps, s)
		}
		if err != nil && cut {
			r.Cut = true
			return nil
		}
		return err
	})
}

func (r *Run) readSkipped(file string) error {
	at := map[string]int{}
	err := lines(file, func(line []byte, _ bool) error {
		var row recipe.SkippedRow
		if err := json.Unmarshal(line, &row); err != nil {
			return err
		}
		text := row.Reason
		if row.Column != "" {
			text = fmt.Sprintf("column %q: %s", row.Column, row.Reason)
		}
		i, ok := at[text]
		if !ok {
			i = len(r.Skipped)
			at[text] = i
			r.Skipped = append(r.Skipped, Reason{Text: text, Like: row.Where().String()})
		}
		r.Skipped[i].Rows++
		return nil
	})
	sort.SliceStable(r.Skipped, func(i, j int) bool { return r.Skipped[i].Rows > r.Skipped[j].Rows })
	return err
}
