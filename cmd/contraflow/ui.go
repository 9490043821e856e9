package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"contraflow/io/hfmodel"
	"contraflow/stages/recipe"
)

// ui shows a run's progress: bars on a terminal, plain lines otherwise.
type ui struct {
	w        io.Writer
	quiet    bool
	terminal bool

	bars  *mpb.Progress
	bar   *mpb.Bar
	steps int
	last  recipe.Metrics
	said  time.Time
}

func newUI(w io.Writer, quiet bool) *ui {
	f, ok := w.(*os.File)
	return &ui{w: w, quiet: quiet, terminal: ok && term.IsTerminal(int(f.Fd()))}
}

func (u *ui) printf(format string, args ...any) {
	if !u.quiet {
		fmt.Fprintf(u.w, format, args...)
	}
}

// observer prints a line every so many steps where there is no bar.
func (u *ui) observer(every int) recipe.Observer {
	if u.quiet {
		return recipe.Observer{}
	}
	return recipe.Observer{
		Note:     func(m string) { u.printf("note: %s\n", m) },
		Download: u.download,
		Index:    u.index,
		Step:     func(m recipe.Metrics) { u.step(m, every) },
		Eval: func(e recipe.Evaluation) {
			u.line("step %d: %s %.4f\n", e.Step, e.Metric, e.Value)
		},
	}
}

// line prints above the bar.
func (u *ui) line(format string, args ...any) {
	if u.bars != nil {
		fmt.Fprintf(u.bars, format, args...)
		return
	}
	u.printf(format, args...)
}

// due lets something be said once a second.
func (u *ui) due(done bool) bool {
	if !done && time.Since(u.said) < time.Second {
		return false
	}
	u.said = time.Now()
	return true
}

func (u *ui) download(p hfmodel.Progress) {
	if p.Total > 0 && u.due(p.Done == p.Total) {
		u.printf("downloading %s: %s of %s\n", p.File, recipe.Size(p.Done), recipe.Size(p.Total))
	}
}

func (u *ui) index(done, total int64) {
	if u.due(done == total) {
		u.printf("reading the data: %d of %d rows\n", done, total)
	}
}

// begin starts the bar.
func (u *ui) begin(steps int) {
	u.steps = steps
	if !u.terminal || u.quiet {
		return
	}
	u.bars = mpb.New(mpb.WithOutput(u.w), mpb.WithWidth(48), mpb.WithRefreshRate(200*time.Millisecond))
	u.bar = u.bars.AddBar(int64(steps),
		mpb.PrependDecorators(decor.CountersNoUnit("step %d/%d ")),
		mpb.AppendDecorators(
			decor.Any(func(decor.Statistics) string {
				return fmt.Sprintf(" loss %.4f  %.0f pairs/s  %.0f tokens/s  ", u.last.Loss, u.last.PairsPerS, u.last.TokensPerS)
			}),
			decor.AverageETA(decor.ET_STYLE_GO),
		))
}

func (u *ui) step(m recipe.Metrics, every int) {
	if u.bar != nil {
		u.last = m
		u.bar.Increment()
		return
	}
	if m.Step%every == 0 || m.Step == 1 || m.Step == u.steps {
		u.printf("step %d/%d  loss %.4f  grad %.3g  lr %.3g  %.0f pairs/s  %.0f tokens/s\n", m.Step, u.steps, m.Loss, m.GradNorm, m.LR, m.PairsPerS, m.TokensPerS)
	}
}

// close ends the bar, finished or not. Closing again does nothing.
func (u *ui) close() {
	if u.bar == nil {
		return
	}
	if !u.bar.Completed() {
		u.bar.Abort(false)
	}
	u.bars.Wait()
	u.bar, u.bars = nil, nil
}
