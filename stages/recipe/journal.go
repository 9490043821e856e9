package recipe

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"contraflow/gpustage"
	"contraflow/io/dataset"
	"contraflow/io/tensorboard"
	"contraflow/pipeline"
	"contraflow/stages"
)

// Metrics is a line of metrics.jsonl: one optimizer step.
type Metrics struct {
	Step         int     `json:"step"` // from 1
	Epoch        int     `json:"epoch"`
	Loss         float64 `json:"loss"`
	GradNorm     float64 `json:"grad_norm"`
	LR           float64 `json:"lr"`
	Pairs        int     `json:"pairs"`
	Tokens       int     `json:"tokens"`
	PairsPerS    float64 `json:"pairs_per_s"`
	TokensPerS   float64 `json:"tokens_per_s"`
	PeakMemBytes int64   `json:"peak_mem_bytes"`

	// Where there are several datasets, by their places in data.train, from 0: that of each of the step's batches, and the loss of each one's batches.
	Datasets []int           `json:"datasets,omitempty"`
	Losses   map[int]float64 `json:"losses,omitempty"`

	// With several ranks, of this one: what it sent, how long it communicated, and the share of that time in which it computed
	// as well.
	CommBytes  int64    `json:"comm_bytes,omitempty"`
	CommS      float64  `json:"comm_s,omitempty"`
	CommHidden *float64 `json:"comm_hidden,omitempty"`

	// Of sparse embeddings with loss.flops, each on average over the step's batches that have it: how many features a text has, FLOPS without the weights,
	// and over all batches what of Loss they are. nil: no batch has it.
	QueryActive    *float64 `json:"query_active,omitempty"`
	DocumentActive *float64 `json:"document_active,omitempty"`
	QueryFlops     *float64 `json:"query_flops,omitempty"`
	DocumentFlops  *float64 `json:"document_flops,omitempty"`
	Regularizer    *float64 `json:"regularizer,omitempty"`

	Skipped bool `json:"skipped,omitempty"` // the gradient was not finite, and the step has changed nothing

	Due bool `json:"-"` // by log.every a line tells of the step; metrics.jsonl has all
}

// Of says which of several datasets a step's loss is of: " of data.train[1]", or of more than one each one's loss. Without several it is empty.
func (m Metrics) Of() string {
	keys := slices.Sorted(maps.Keys(m.Losses))
	if len(keys) == 1 {
		return fmt.Sprintf(" of data.train[%d]", keys[0])
	}
	var parts []string
	for _, k := range keys {
		parts = append(parts, fmt.Sprintf("data.train[%d] %.4f", k, m.Losses[k]))
	}
	if parts == nil {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// MarshalJSON writes numbers that are not finite as null: JSON has none.
func (m Metrics) MarshalJSON() ([]byte, error) {
	type plain Metrics
	w := struct {
		Step     int      `json:"step"`
		Epoch    int      `json:"epoch"`
		Loss     *float64 `json:"loss"`
		GradNorm *float64 `json:"grad_norm"`
		plain
	}{m.Step, m.Epoch, known(m.Loss), known(m.GradNorm), plain(m)}
	return json.Marshal(w)
}

func known(v float64) *float64 {
	if v-v != 0 {
		return nil
	}
	return &v
}

// perSecond is a rate, which is finite whatever the clock says: to one that ticks every half millisecond, as that of Windows, a small step takes no time.
func perSecond(n int, took time.Duration) float64 {
	return float64(n) / max(took, time.Microsecond).Seconds()
}

// journal writes metrics.jsonl and tells the observer.
type journal struct {
	enc     *json.Encoder
	obs     Observer
	last    time.Time
	began   time.Time
	summary Summary
	next    *dataset.Cursor     // after the last step
	over    bool                // the last step ends the run early, whoever else asked for its end
	events  *tensorboard.Writer // nil unless log.tensorboard
	record  *recorder           // nil but on rank 0

	watched struct {
		steps  int
		memory int64                // at first, and what evaluations have added
		peak   int64                // of the step before
		losses map[int]*watchedLoss // by dataset
		zero   bool                 // it was said that all embeddings are 0
	}
	several bool // datasets

	totals *pipeline.Totals // of the pass at hand
	comm   pipeline.Communication
}

// communicated is what the step communicated: its bytes, and how long anything was since the step before.
func (j *journal) communicated(step int) pipeline.Communication {
	c := j.totals.Lap(step)
	j.comm.Total, j.comm.Hidden, j.comm.Bytes = j.comm.Total+c.Total, j.comm.Hidden+c.Hidden, j.comm.Bytes+c.Bytes
	return c
}

// byDataset are the losses of a step's batches of each dataset, whose rows count as they do in the step's loss. A batch without any row that
// counts has none.
func byDataset(r stages.StepResult) map[int]float64 {
	sums, weights := map[int]float64{}, map[int]float64{}
	for i, k := range r.Sources {
		if v := known(r.Losses[i]); v != nil {
			sums[k], weights[k] = sums[k]+r.Weights[i]**v, weights[k]+r.Weights[i]
		}
	}
	for k := range sums {
		sums[k] /= weights[k]
	}
	return sums
}

// watchedLoss is what a dataset's losses have been: those of others may be of another size.
type watchedLoss struct {
	steps          int
	mean, variance float64 // exponentially weighted
}

// watch tells of losses and of memory that are not what they were. What an evaluation behind the step has taken besides was planned for: it is no leak.
func (j *journal) watch(m Metrics, evaluated bool) {
	w := &j.watched
	if evaluated {
		w.memory += m.PeakMemBytes - w.peak
	}
	w.peak = m.PeakMemBytes
	if m.Skipped {
		j.obs.note("step %d is not finite and changes nothing", m.Step)
		return
	}
	if w.losses == nil {
		w.losses = map[int]*watchedLoss{}
	}
	losses := m.Losses
	if losses == nil {
		losses = map[int]float64{0: m.Loss}
	}
	for _, k := range slices.Sorted(maps.Keys(losses)) {
		l, loss := w.losses[k], losses[k]
		if l == nil {
			l = &watchedLoss{}
			w.losses[k] = l
		}
		l.steps++
		if d := loss - l.mean; l.steps > watchFrom && d > spike*math.Sqrt(l.variance) && loss > 1.2*l.mean {
			of := ""
			if m.Losses != nil {
				of = fmt.Sprintf(", on data.train[%d],", k)
			}
			j.obs.note("the loss of step %d%s is %.4g, after a mean of %.4g: its gradient's norm is %.3g", m.Step, of, loss, l.mean, m.GradNorm)
		} else { // a spike is not what later losses are measured by
			keep := min(0.98, 1-1/float64(l.steps))
			l.mean += (1 - keep) * d
			l.variance = keep * (l.variance + (1-keep)*d*d)
		}
	}
	w.steps++
	if w.steps == watchFrom {
		w.memory = m.PeakMemBytes
	} else if w.steps > watchFrom && m.PeakMemBytes > 2*w.memory {
		j.obs.note("the process has taken %s at step %d, %s at first: a longer text, a larger batch, or a leak", Size(m.PeakMemBytes), m.Step, Size(w.memory))
		w.memory = m.PeakMemBytes
	}
}

// What is watched is compared with the steps before, once there are enough of them.
const (
	watchFrom = 20
	spike     = 6 // standard deviations
)

func (j *journal) step(r stages.StepResult, ev *Evaluation, enc *stages.Encoder) error {
	now := time.Now()
	took := now.Sub(j.last)
	if ev != nil {
		took -= ev.took
	}
	j.last = now
	given, host := enc.Model.Device.Info().PeakAllocated, gpustage.HostPeakMemory()
	peak := cmp.Or(given, host, enc.PeakBytes()) // a GPU's memory, not the process's
	m := Metrics{
		Step: r.Step + 1, Epoch: r.Epoch + 1, Loss: r.Loss, GradNorm: r.GradNorm, LR: r.LR, Pairs: r.Pairs, Tokens: r.Tokens,
		PairsPerS: perSecond(r.Pairs, took), TokensPerS: perSecond(r.Tokens, took), PeakMemBytes: peak,
	}
	m.Skipped = r.Skipped
	if j.several {
		m.Datasets, m.Losses = r.Sources, byDataset(r)
	}
	m.sparsity(r.Sparsity)
	j.watch(m, ev != nil)
	j.watchSparse(m)
	if c := j.communicated(r.Step); c.Total > 0 {
		share := c.HiddenShare()
		m.CommBytes, m.CommS, m.CommHidden = int64(c.Bytes), c.Total.Seconds(), &share
	}
	s := &j.summary
	j.next, j.over = r.Next, r.Asked.Finish
	s.Steps, s.Loss, s.PeakBytes = m.Step, m.Loss, peak
	if given == 0 && host > 0 {
		s.peakOf = "of the process "
	}
	s.add(r)
	if err := j.enc.Encode(m); err != nil {
		return fmt.Errorf("writing metrics: %w", err)
	}
	if err := j.event(now, m); err != nil {
		return fmt.Errorf("log.tensorboard: %w", err)
	}
	if err := j.record.step(s); err != nil {
		return fmt.Errorf("save.dir: %w", err)
	}
	if j.obs.Step != nil {
		j.obs.Step(m)
	}
	if ev == nil {
		return nil
	}
	s.Eval = ev
	return j.evaluation(*ev)
}

// evaluation writes an evaluation's line.
func (j *journal) evaluation(ev Evaluation) error {
	j.summary.Evaluating += ev.took.Seconds()
	if err := j.enc.Encode(ev); err != nil {
		return fmt.Errorf("writing metrics: %w", err)
	}
	if ev.best != nil && j.record != nil {
		j.record.Best, j.record.BestStep = ev.best, ev.bestStep
	}
	if j.events != nil {
		values := []tensorboard.Scalar{{Tag: "eval/" + ev.Metric, Value: ev.Value}}
		for _, t := range ev.Figures() {
			values = append(values, tensorboard.Scalar{Tag: "eval/" + t.Key(), Value: t.Value})
		}
		if err := j.events.Write(ev.Step, time.Now(), values...); err != nil {
			return fmt.Errorf("log.tensorboard: %w", err)
		}
	}
	if j.obs.Eval != nil {
		j.obs.Eval(ev)
	}
	return nil
}

// beside writes an evaluation, if there is one, that has been made before the steps: the next one's time begins here.
func (j *journal) beside(ev *Evaluation) (err error) {
	if ev != nil {
		err = j.evaluation(*ev)
	}
	j.last = time.Now()
	return err
}

// event writes a step for TensorBoard.
func (j *journal) event(at time.Time, m Metrics) error {
	if j.events == nil {
		return nil
	}
	s := []tensorboard.Scalar{
		{Tag: "train/loss", Value: m.Loss}, {Tag: "train/grad_norm", Value: m.GradNorm}, {Tag: "train/lr", Value: m.LR}, {Tag: "train/epoch", Value: float64(m.Epoch)},
		{Tag: "speed/pairs_per_s", Value: m.PairsPerS}, {Tag: "speed/tokens_per_s", Value: m.TokensPerS}, {Tag: "memory/peak_bytes", Value: float64(m.PeakMemBytes)},
	}
	for _, k := range slices.Sorted(maps.Keys(m.Losses)) {
		s = append(s, tensorboard.Scalar{Tag: fmt.Sprintf("train/loss/data.train[%d]", k), Value: m.Losses[k]})
	}
	s = append(s, m.sparseScalars()...)
	if m.CommHidden != nil {
		s = append(s, tensorboard.Scalar{Tag: "communication/seconds", Value: m.CommS}, tensorboard.Scalar{Tag: "communication/hidden", Value: *m.CommHidden})
	}
	return j.events.Write(m.Step, at, s...)
}
