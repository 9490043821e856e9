package pipeline

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// TraceEvent is one event in Chrome's trace format, which Perfetto and chrome://tracing open. A complete event (Phase "X")
// is one task: its process is the device, its thread the lane or host worker. A counter event ("C") holds the units
// in each edge. Times are microseconds since the trace began.
type TraceEvent struct {
	Name     string         `json:"name"`
	Category string         `json:"cat,omitempty"`
	Phase    string         `json:"ph"`
	Time     float64        `json:"ts"`
	Duration float64        `json:"dur,omitempty"`
	Process  int            `json:"pid"`
	Thread   int            `json:"tid"`
	Args     map[string]any `json:"args,omitempty"`
}

// Tracer writes a run's trace as it happens. Its methods may be called on a nil Tracer and then do nothing.
type Tracer struct {
	mu      sync.Mutex
	w       *bufio.Writer
	enc     *json.Encoder
	began   time.Time
	first   bool
	err     error
	process map[string]int
	thread  map[string]int
}

// NewTracer begins a trace. Close ends it.
func NewTracer(w io.Writer) *Tracer {
	t := &Tracer{w: bufio.NewWriter(w), began: time.Now(), first: true, process: map[string]int{}, thread: map[string]int{}}
	t.enc = json.NewEncoder(t.w)
	_, t.err = t.w.WriteString("[\n")
	return t
}

// Close ends the trace and returns the first error of writing it.
func (t *Tracer) Close() error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		_, t.err = t.w.WriteString("]\n")
	}
	if t.err == nil {
		t.err = t.w.Flush()
	}
	return t.err
}

func (t *Tracer) write(e TraceEvent) {
	if t.err != nil {
		return
	}
	if !t.first {
		t.w.WriteString(",")
	}
	t.first = false
	t.err = t.enc.Encode(e)
}

// ran writes a task that ran on a lane or host worker, or a part of it.
func (t *Tracer) ran(task *Task, part, lane string, start, end time.Time) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	pid, tid := t.place(task.where)
	args := map[string]any{"item": task.Index.String()}
	if part != "" {
		args["part"] = part
	}
	for k, v := range task.notes {
		if args[k] = v; v-v != 0 { // JSON has no such number, and the trace would end here
			args[k] = fmt.Sprint(v)
		}
	}
	t.write(TraceEvent{
		Name: task.stage.name, Category: lane, Phase: "X", Process: pid, Thread: tid,
		Time: t.micros(start), Duration: float64(end.Sub(start).Nanoseconds()) / 1e3, Args: args,
	})
}

func (t *Tracer) micros(at time.Time) float64 { return float64(at.Sub(t.began).Nanoseconds()) / 1e3 }

// place numbers a lane ("cpu:0 compute") or worker ("host 1") on first sight and names it in the trace.
func (t *Tracer) place(where string) (pid, tid int) {
	device := deviceOf(where)
	pid, ok := t.process[device]
	if !ok {
		pid = len(t.process)
		t.process[device] = pid
		t.write(TraceEvent{Name: "process_name", Phase: "M", Process: pid, Args: map[string]any{"name": device}})
	}
	tid, ok = t.thread[where]
	if !ok {
		tid = len(t.thread)
		t.thread[where] = tid
		t.write(TraceEvent{Name: "thread_name", Phase: "M", Process: pid, Thread: tid, Args: map[string]any{"name": where}})
	}
	return pid, tid
}

// deviceOf is the device of a lane's or worker's name.
func deviceOf(where string) string { return where[:strings.LastIndexByte(where, ' ')] }

// holds writes how many units an edge has.
func (t *Tracer) holds(e *edge, n int, at time.Time) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.write(TraceEvent{Name: edgeName(e), Phase: "C", Time: t.micros(at), Args: map[string]any{"units": n, "capacity": e.cap}})
}

// edgeName is "tokenize -> batch.rows": producer, consumer and the consumer's input.
func edgeName(e *edge) string {
	return fmt.Sprintf("%s -> %s.%s", e.from.stage.name, e.to.name, e.input)
}

// ErrTruncated is wrapped by ReadTrace's error, beside the events that there are, if a trace ends before its end, as that of a run that was
// killed.
var ErrTruncated = errors.New("the trace has no end: the run has not ended, or was killed")

// ReadTrace reads what a Tracer wrote, or the other form that viewers know, an object with the events under traceEvents.
func ReadTrace(r io.Reader) ([]TraceEvent, error) {
	d := json.NewDecoder(bufio.NewReader(r))
	alone, err := findEvents(d)
	if err != nil {
		return nil, fmt.Errorf("reading a trace: %w", err)
	}
	var events []TraceEvent
	for d.More() {
		var e TraceEvent
		switch err := d.Decode(&e); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return events, ErrTruncated
		case err != nil:
			return events, fmt.Errorf("reading a trace: event %d: %w", len(events)+1, err)
		}
		events = append(events, e)
	}
	switch _, err := d.Token(); {
	case errors.Is(err, io.EOF):
		return events, ErrTruncated
	case err != nil:
		return events, fmt.Errorf("reading a trace: after event %d: %w", len(events), err)
	case len(events) == 0:
		return nil, errors.New("reading a trace: it has no events")
	}
	if _, err := d.Token(); alone && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("reading a trace: something comes behind its end, after event %d: is it more than one trace?", len(events))
	}
	return events, nil
}

// findEvents goes to where the list of events begins, and tells whether that is all there is.
func findEvents(d *json.Decoder) (alone bool, err error) {
	const want = `want a list of events, or {"traceEvents": [...]}`
	first, err := d.Token()
	if errors.Is(err, io.EOF) {
		return false, errors.New("it is empty")
	}
	if err != nil {
		return false, fmt.Errorf("%w; %s", err, want)
	}
	alone = first == json.Delim('[')
	for first == json.Delim('{') && d.More() {
		key, err := d.Token()
		if err != nil {
			return false, err
		}
		if key == "traceEvents" {
			if first, err = d.Token(); err != nil {
				return false, err
			}
			break
		}
		var other json.RawMessage
		if err := d.Decode(&other); err != nil {
			return false, err
		}
	}
	if first != json.Delim('[') {
		return false, errors.New(want)
	}
	return alone, nil
}
