package recipe

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"contraflow/io/atomicfile"
	"contraflow/pipeline"
)

// Record is run.json: what a run was and where its time went. It is written when the run begins, every ten seconds, and when it ends.
type Record struct {
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds,omitempty"` // since then
	From    int       `json:"from,omitempty"`    // the step after which it went on then, if it was resumed
	Done    bool      `json:"done"`              // it has made its last step, or ended early
	Stopped bool      `json:"stopped,omitempty"` // it was told to end before that
	Early   bool      `json:"early,omitempty"`   // it is done before that: its evaluations got no better (eval.early_stopping)
	Error   string    `json:"error,omitempty"`   // it ended with this

	System      string `json:"system"` // operating system and architecture
	Device      string `json:"device"`
	Description string `json:"description"` // of the device
	Mesh        string `json:"mesh,omitempty"`

	Model      string   `json:"model"` // what it started from
	Family     string   `json:"family"`
	Layers     int      `json:"layers"`
	Hidden     int      `json:"hidden"`
	Parameters int      `json:"parameters"`
	Trained    int      `json:"trained"`
	Data       []string `json:"data"`
	Rows       int64    `json:"rows"`
	Cut        int64    `json:"cut,omitempty"`    // texts that contraflow prep had cut when it made their ids
	Steps      int      `json:"steps"`            // planned
	Predicted  int64    `json:"predicted_memory"` // bytes

	// What it came to, so far. How many rows were dropped is known when it ends.
	Made      int    `json:"made"` // steps
	Pairs     int    `json:"pairs"`
	Tokens    int    `json:"tokens"`
	Padding   int    `json:"padding"` // tokens that padding each sub-batch to its longest text would have added
	Truncated int    `json:"truncated"`
	Dropped   int64  `json:"dropped"`
	DroppedBy string `json:"dropped_by,omitempty"` // why, by the recipe's keys
	Skipped   int    `json:"skipped"`
	NotFinite int    `json:"not_finite"`
	PeakBytes int64  `json:"peak_bytes"`

	// With save.best: the best evaluation's value, and the step whose model is saved, or kept in best/ until the run is done.
	Best     *float64 `json:"best,omitempty"`
	BestStep int      `json:"best_step,omitempty"`

	// Of rank 0, since the run began or was rolled back.
	Graph    string                  `json:"graph"` // SVG
	StepTime time.Duration           `json:"step_time"`
	Stages   []pipeline.StageSummary `json:"stages"`
	Edges    []pipeline.EdgeSummary  `json:"edges"`
	Step     []pipeline.Span         `json:"step"` // what ran in one step that took about as long as most

	StepOmitted int `json:"step_omitted,omitempty"` // tasks that it had after these
}

const recordFile = "run.json"

// ReadRecord reads a run folder's record.
func ReadRecord(dir string) (*Record, error) {
	path := filepath.Join(dir, recordFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r Record
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &r, nil
}

// recorder writes the record of a run. A nil one, which ranks but the first have, does nothing.
type recorder struct {
	Record
	dir    string
	began  time.Time
	graph  *pipeline.Graph
	totals *pipeline.Totals
	wrote  time.Time
}

// recordEvery is how often the record of a run that goes on is written.
var recordEvery = 10 * time.Second

func (x *Run) newRecord() *recorder {
	c, l := x.model.Config, x.model.Layout
	r := &recorder{dir: x.Recipe.Save.Dir, began: time.Now(), Record: Record{
		System: runtime.GOOS + "/" + runtime.GOARCH, Device: x.device.Name(), Description: x.device.Info().Description,
		Model: x.Recipe.Model.Path, Family: c.Family, Layers: c.Layers, Hidden: c.Hidden, Parameters: l.Len, Trained: l.Trained(),
		Rows: x.rows(), From: x.saves.first, Steps: x.Steps, Predicted: x.Memory.Total(), Skipped: len(x.skipped),
	}}
	if p := x.saves.progress; x.Recipe.Save.Best && p.Best != nil { // of before the run was resumed
		r.Best, r.BestStep = p.Best, p.BestStep
	}
	r.Began = r.began.UTC().Truncate(time.Second)
	if x.ranks != nil {
		r.Mesh = fmt.Sprint(x.ranks.Comm.Mesh)
	}
	for _, src := range x.Recipe.Data.Train {
		r.Data = append(r.Data, src.paths()...)
	}
	for _, d := range x.data {
		r.Cut += d.Cut()
	}
	return r
}

// begin is a pass over a graph.
func (r *recorder) begin(g *pipeline.Graph, t *pipeline.Totals) error {
	if r == nil {
		return nil
	}
	r.graph, r.totals = g, t
	return r.write()
}

// step is after a step, from the graph's thread that journals it.
func (r *recorder) step(s *Summary) error {
	if r == nil || time.Since(r.wrote) < recordEvery {
		return nil
	}
	r.count(s)
	return r.write()
}

func (r *recorder) end(s *Summary) error {
	if r == nil {
		return nil
	}
	r.count(s)
	r.Early = s.Early
	r.Done, r.Stopped, r.Dropped, r.DroppedBy = !s.Stopped, s.Stopped, s.Dropped, s.DroppedBy
	return r.write()
}

func (r *recorder) fail(s *Summary, err error) error {
	if r == nil || r.totals == nil {
		return nil
	}
	r.count(s)
	r.Error = err.Error()
	return r.write()
}

func (r *recorder) count(s *Summary) {
	r.Made, r.Pairs, r.Tokens, r.Padding, r.Truncated = s.Steps, s.Pairs, s.Tokens, s.Padding, s.Truncated
	r.NotFinite, r.PeakBytes = s.NotFinite, s.PeakBytes
}

func (r *recorder) write() error {
	r.wrote = time.Now()
	r.Seconds = time.Since(r.began).Seconds()
	sum := r.totals.Summary()
	r.StepTime, r.Stages, r.Edges = sum.StepTime, sum.Stages, r.totals.Edges()
	r.Step, r.StepOmitted = r.totals.Step()
	notes := map[string]pipeline.Annotation{}
	for _, st := range r.Stages {
		share := st.Busy.Seconds() / r.Seconds
		a := notes[st.Stage] // a stage may run on several lanes: fetch on one of its own
		a.Share += share
		a.Text = fmt.Sprintf("%.1f %% of the time", 100*a.Share)
		notes[st.Stage] = a
	}
	r.Graph = r.graph.AnnotatedSVG(notes)
	text, err := json.Marshal(r.Record)
	if err != nil {
		return err
	}
	return atomicfile.WriteFile(filepath.Join(r.dir, recordFile), append(text, '\n'))
}
