package recipe

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"contraflow/io/spelling"
)

// Period is how often something is done: after so many steps, a share of the run's steps, each epoch of the data, or a time such as 10m. The zero
// value is never.
type Period struct {
	Steps int
	Share float64 // less than 1
	Epoch bool
	Time  time.Duration
}

func (p *Period) decode(d *decoder, path string, n *node) {
	*p = Period{}
	if n.kind == scalar {
		if n.text == "epoch" {
			p.Epoch = true
			return
		}
		if t, err := time.ParseDuration(n.text); err == nil && t > 0 {
			p.Time = t
			return
		}
	}
	if n.kind == scalar && !n.quoted {
		if steps, err := strconv.Atoi(strings.ReplaceAll(n.text, "_", "")); err == nil && steps >= 0 {
			p.Steps = steps
			return
		}
		if share, err := strconv.ParseFloat(n.text, 64); err == nil && share > 0 && share < 1 {
			p.Share = share
			return
		}
	}
	want := "a number of steps, a share of the run such as 0.1, or epoch"
	if path == "save.every" {
		want = "a number of steps, a share of the run such as 0.1, epoch, or a time such as 10m"
	}
	d.fail(n.at, path, "want %s, got %s", want, describe(n))
}

// spelled is a time as a recipe has it: 10m, where time.Duration says 10m0s.
func (p Period) spelled() string {
	text := p.Time.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// MarshalYAML writes it as it was given.
func (p Period) MarshalYAML() (any, error) {
	switch {
	case p.Epoch:
		return "epoch", nil
	case p.Share > 0:
		return p.Share, nil
	case p.Time > 0:
		return p.spelled(), nil
	}
	return p.Steps, nil
}

// steps is how many lie between two of the period's, of a run of so many: 0 if it goes by none, or by epochs. A share is rounded up, as transformers
// does.
func (p Period) steps(total int) int {
	if p.Share > 0 {
		return int(math.Ceil(p.Share * float64(total)))
	}
	return p.Steps
}

// due tells whether it is a period's time after so many steps, which a time never says.
func (x *Run) due(p Period, done int) bool {
	if p.Epoch {
		_, ends := slices.BinarySearch(x.epochs, done)
		return ends
	}
	n := p.steps(x.Steps)
	return n > 0 && done%n == 0
}

// tells tells whether a line is due of a step, counted from 1: of the first and the last it always is.
func (x *Run) tells(step int) bool {
	return step == 1 || step == x.Steps || x.due(x.Recipe.Log.Every, step)
}

// dues is how many of the run's steps are a period's.
func (x *Run) dues(p Period) int {
	switch every := p.steps(x.Steps); {
	case p.Epoch:
		return len(x.epochs)
	case every > 0:
		return x.Steps / every
	}
	return 0
}

// when says after which steps the run evaluates and saves, and how its learning rate goes: lines of a word and what it says.
func (x *Run) when() (lines [][2]string) {
	r := x.Recipe
	lines = append(lines, [2]string{"rate", x.describeSchedule()})
	if x.evaluates() {
		lines = append(lines, [2]string{"eval", x.describePeriod(r.Eval.Every, "after the last step")})
	}
	if text := x.describePeriod(r.Save.Every, ""); text != "" {
		lines = append(lines, [2]string{"save", text})
	}
	return lines
}

// describePeriod says when it is a period's time, and then what comes last in any case.
func (x *Run) describePeriod(p Period, last string) string {
	const shown = 3
	var parts []string
	switch n, every := len(x.epochs), p.steps(x.Steps); {
	case p.Time > 0:
		parts = append(parts, fmt.Sprintf("every %s", p.spelled()))
	case every > x.Steps:
		parts = append(parts, fmt.Sprintf("every %d steps, which are more than the run has", every))
	case every == 1:
		parts = append(parts, "every step")
	case every > 0:
		parts = append(parts, fmt.Sprintf("every %d steps", every))
	case p.Epoch && n == 0:
		parts = append(parts, "at each epoch's end, which none has within "+spelling.Count(x.Steps, "step", "steps"))
	case p.Epoch:
		var steps []string
		for _, s := range x.epochs[:min(n, shown)] {
			steps = append(steps, strconv.Itoa(s))
		}
		if n > shown+1 {
			steps = append(steps, "...")
		}
		if n > shown {
			steps = append(steps, strconv.Itoa(x.epochs[n-1]))
		}
		parts = append(parts, fmt.Sprintf("at each epoch's end, after step %s", strings.Join(steps, ", ")))
	}
	if last != "" {
		parts = append(parts, last)
	}
	return strings.Join(parts, ", and ")
}
