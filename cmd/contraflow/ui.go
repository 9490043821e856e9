package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/term"

	"contraflow/cmd/internal/help"
	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/io/spelling"
	"contraflow/stages/recipe"
)

// ui shows a run's progress: bars on a terminal that can draw them, plain lines otherwise, or a log of JSON lines.
type ui struct {
	w        io.Writer
	quiet    bool
	terminal bool
	log      *zap.Logger // nil but for JSON lines

	bars   *mpb.Progress
	bar    *mpb.Bar
	steps  int
	said   time.Time
	what   string // progress tells of
	before int64  // done when that began

	mu    sync.Mutex // the bar draws on a thread of its own
	eval  string     // how far an evaluation is
	last  recipe.Metrics
	made  int // steps since began: a resumed run begins in the middle
	began time.Time
	at    time.Time // of the last step
	since time.Time // of an evaluation
}

func newUI(w io.Writer, quiet bool) *ui {
	f, ok := w.(*os.File)
	if out, std := w.(*stdout); std {
		f, ok = out.file, true
	}
	if ok = ok && term.IsTerminal(int(f.Fd())); ok {
		w = f // the bar asks a terminal for its width
	}
	return &ui{w: w, quiet: quiet, terminal: ok}
}

// progressOf shows a command's progress on standard error, unless it has a --quiet, which is given.
func progressOf(cmd *cobra.Command) *ui {
	quiet, _ := cmd.Flags().GetBool("quiet")
	return newUI(cmd.ErrOrStderr(), quiet)
}

// addQuiet is for commands that tell how far they are; but is what they print all the same.
func addQuiet(cmd *cobra.Command, but string) {
	cmd.Flags().BoolP("quiet", "q", false, "print "+but+" only")
}

// withLog makes a ui of a run's log: for people on a terminal and JSON lines otherwise, unless format says which. Machines read a file or
// a pipe; what is said to both is the same.
func (u *ui) withLog(format string) *ui {
	if format == "json" || format == "auto" && !u.terminal {
		enc := zap.NewProductionEncoderConfig()
		enc.EncodeTime = zapcore.RFC3339NanoTimeEncoder
		level := zapcore.InfoLevel
		if u.quiet {
			level = zapcore.ErrorLevel
		}
		u.log = zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(enc), zapcore.AddSync(u.w), level))
		u.terminal = false
	}
	return u
}

// say prints something to read, in a log as a message of that name, with the figures in the text as fields.
func (u *ui) say(name, text string, figures ...zap.Field) {
	if u.log != nil {
		u.log.Info(name, append(figures, zap.String("text", text))...)
		return
	}
	u.printf("%s\n", folded(text, u.draws()))
}

// key is what stands before what is said of it, in lines of a run or a plan that begins.
var key = regexp.MustCompile(`^\S.{6,7} `)

// folded breaks lines that begin with a key, which a terminal would break anywhere; without a terminal nothing.
func folded(text string, width int) string {
	if width == 0 {
		return text
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if k := key.FindString(line); k != "" && len(line) > width {
			lines[i] = help.Wrapped(line[len(k):], k, strings.Repeat(" ", len(k)), width)
		}
	}
	return strings.Join(lines, "\n")
}

// figuresOf are those of a run that begins.
func figuresOf(f recipe.Facts) []zap.Field {
	fields := []zap.Field{zap.String("model", f.Model), zap.String("family", f.Family), zap.Int("layers", f.Layers), zap.Int("hidden", f.Hidden), zap.Int("parameters", f.Parameters), zap.Int("trained", f.Trained),
		zap.Int64("rows", f.Rows), zap.Int("datasets", f.Datasets), zap.Int("steps", f.Steps), zap.Int("global_size", f.GlobalSize), zap.Int("accumulate", f.Accumulate),
		zap.String("device", f.Device), zap.Int64("predicted_memory", f.Predicted)}
	if f.Mesh != "" {
		fields = append(fields, zap.String("mesh", f.Mesh))
	}
	return fields
}

// figure is a field of a log, null where it is not finite, as in metrics.jsonl: JSON has no such number.
func figure(key string, v float64) zap.Field {
	if !finite(v) {
		return zap.Reflect(key, nil)
	}
	return zap.Float64(key, v)
}

// outcome are the figures of a run that has ended. Of one that was over when it was resumed, and has made no step, there are few.
func outcome(s *recipe.Summary) []zap.Field {
	fields := []zap.Field{zap.Int("steps", s.Steps)}
	if s.Model != "" {
		fields = append(fields, zap.String("model", s.Model))
	}
	fields = append(fields, zap.Int("pairs", s.Pairs), zap.Int("tokens", s.Tokens))
	if s.Over {
		fields = append(fields, zap.Bool("over", true))
	} else {
		pairs, tokens := s.Rates()
		fields = append(fields, figure("loss", s.Loss), zap.Float64("seconds", s.Seconds), zap.Float64("pairs_per_s", pairs), zap.Float64("tokens_per_s", tokens), zap.Int64("peak_mem_bytes", s.PeakBytes),
			zap.Int("truncated", s.Truncated), zap.Int64("dropped", s.Dropped), zap.Int("skipped", s.Skipped), zap.Int("not_finite", s.NotFinite), zap.Bool("stopped", s.Stopped), zap.Bool("early", s.Early))
	}
	if s.Evaluating > 0 {
		fields = append(fields, zap.Float64("evaluation_seconds", s.Evaluating))
	}
	if s.Fewer > 0 { // of a reranker's mnrl
		fields = append(fields, zap.Int("fewer_negatives", s.Fewer), zap.Int("no_negatives", s.Bare))
	}
	if c := s.Communication; c.Total > 0 {
		fields = append(fields, zap.Float64("comm_s", c.Total.Seconds()), zap.Float64("comm_hidden", c.HiddenShare()), zap.Int64("comm_bytes", int64(c.Bytes)))
	}
	if e := s.Eval; e != nil {
		fields = append(fields, zap.String("metric", e.Metric), zap.Float64("value", e.Value))
	}
	if s.BestStep > 0 {
		fields = append(fields, zap.Float64("best", s.Best), zap.Int("best_step", s.BestStep))
	}
	return fields
}

func (u *ui) printf(format string, args ...any) {
	if u.quiet {
		return
	}
	if u.terminal { // the passing line is on one; a file that the rest goes to has none
		format = overLast() + format
	}
	fmt.Fprintf(u.w, format, args...)
}

// loud says things with --quiet too: what is left out or cut is not so without a word.
func (u *ui) loud() *ui { return &ui{w: u.w, terminal: u.terminal} }

// notes prints what a user should know of data.
func (u *ui) notes(d *dataset.Dataset) {
	for _, n := range d.Notes() {
		u.printf("%s\n", n)
	}
}

// observer prints lines of the steps that log.every names where there is no bar.
func (u *ui) observer() recipe.Observer {
	if u.quiet {
		return recipe.Observer{}
	}
	return recipe.Observer{
		Note:     u.note,
		Download: u.download,
		Index:    u.rows("reading the data"),
		Texts:    u.rows("reading the texts that rows name"),
		Reading:  u.reading,
		Counting: u.rows("counting an epoch's batches"),
		Repeats:  u.rows("looking for rows that repeat"),
		Lengths:  u.rows("looking for texts that are cut"),
		Step:     u.step,
		Measured: u.measured,
		Eval: func(e recipe.Evaluation) {
			u.restart()
			if u.log != nil {
				fields := []zap.Field{zap.Int("step", e.Step), zap.String("metric", e.Metric), zap.Float64("value", e.Value)}
				if e.Base != nil {
					fields = append(fields, zap.Float64("base", *e.Base))
				}
				for _, t := range e.Figures() {
					fields = append(fields, zap.Float64(t.Key(), t.Value))
				}
				u.log.Info("evaluation", fields...)
				return
			}
			when := fmt.Sprintf("step %d", e.Step)
			if e.Step == 0 {
				when = "before the first step"
			}
			u.line("%s: %v\n", when, e)
		},
	}
}

func (u *ui) note(m string) {
	if u.log != nil {
		u.log.Warn(m)
		return
	}
	u.line("note: %s\n", m)
}

// line prints above the bar.
func (u *ui) line(format string, args ...any) {
	if u.bars != nil {
		fmt.Fprintf(u.bars, format, args...)
		return
	}
	u.printf(format, args...)
}

// due lets something be said once a second, and once in ten where it is kept, in a log.
func (u *ui) due(done bool) bool {
	pause := time.Second
	if !u.terminal {
		pause *= 10
	}
	if !done && time.Since(u.said) < pause {
		return false
	}
	u.said = time.Now()
	return true
}

// progress says how much of what many is called is done, once in a while and in the end; of what takes long how fast it is, and how long it still takes.
// of says of which task.
func (u *ui) progress(done, total int64, of, one, many string) {
	if u.what != of+many {
		u.what, u.before, u.began = of+many, done, time.Now()
	}
	u.passing(done == total, fmt.Sprintf("%s%d of %s%s", of, done, spelling.Count(total, one, many), pace(done-u.before, total-done, time.Since(u.began))))
	if done == total {
		u.what = "" // what comes next may be called the same
	}
}

// passing says how far something is, if that is due. On a terminal a line takes the place of the one before, and whatever is said next the last one's.
func (u *ui) passing(done bool, text string) {
	if u.quiet || !u.due(done) {
		return
	}
	if width := u.draws(); width > 0 && !done {
		if runes := []rune(text); len(runes) >= width {
			text = strings.TrimRight(string(runes[:width-1]), " ")
		}
		fmt.Fprintf(u.w, "%s%s\r", overLast(), text)
		passing.Store(true)
		return
	}
	u.printf("%s\n", text)
}

// passing tells that the terminal's line is one that others take the place of.
var passing atomic.Bool

// overLast is what a terminal needs before a line that takes the place of one that was passing.
func overLast() string {
	if passing.Swap(false) {
		return "\033[K"
	}
	return ""
}

// pace is a rate, and what is left at it, once there is enough to tell by.
func pace(made, left int64, took time.Duration) string {
	if made == 0 || took < 5*time.Second {
		return ""
	}
	rate, digits := float64(made)/took.Seconds(), 0
	if rate < 10 {
		digits = 1
	}
	text := fmt.Sprintf("  %.*f/s", digits, rate)
	if left > 0 {
		text += fmt.Sprintf("  %v left", time.Duration(float64(took)*float64(left)/float64(made)).Round(time.Second))
	}
	return text
}

func (u *ui) download(p hfmodel.Progress) {
	if u.log != nil && u.due(p.Done == p.Total) {
		u.log.Info("download", zap.String("file", p.File), zap.Int64("bytes", p.Done), zap.Int64("of", p.Total))
	} else if u.log == nil && p.Total > 0 {
		u.passing(p.Done == p.Total, fmt.Sprintf("downloading %s: %s of %s", p.File, recipe.Size(p.Done), recipe.Size(p.Total)))
	}
}

// rows says how far what goes through rows has come.
func (u *ui) rows(what string) func(done, total int64) {
	return func(done, total int64) {
		if u.log != nil && u.due(done == total) {
			u.log.Info(what, zap.Int64("rows", done), zap.Int64("of", total))
		} else if u.log == nil {
			u.passing(done == total, fmt.Sprintf("%s: %d of %s", what, done, spelling.Count(total, "row", "rows")))
		}
	}
}

// reading says with how many texts something has been done.
func (u *ui) reading(what string, texts int) {
	if u.log != nil && u.due(false) {
		u.log.Info(what, zap.Int("texts", texts))
	} else if u.log == nil {
		u.passing(false, fmt.Sprintf("%s: %d texts", what, texts))
	}
}

// embedded says how many of a task's queries or documents are embedded.
func (u *ui) embedded(of string) func(what string, done, total int) {
	return func(what string, done, total int) {
		u.progress(int64(done), int64(total), of, what+" embedded", what+" embedded")
	}
}

// measured says how far an evaluation is: behind the bar, or if it takes longer than what is due. Its end its figures tell.
func (u *ui) measured(done, total int64) {
	if u.what != evaluates {
		u.what, u.before, u.since, u.said = evaluates, done, time.Now(), time.Now()
	}
	text := fmt.Sprintf("evaluating: %d of %d%s", done, total, pace(done-u.before, total-done, time.Since(u.since)))
	if done == total {
		text, u.what = "", ""
	}
	u.mu.Lock()
	u.eval = text
	u.mu.Unlock()
	switch {
	case u.bar != nil || text == "":
	case u.log == nil:
		u.passing(false, text)
	case u.due(false):
		u.log.Info("evaluating", zap.Int64("done", done), zap.Int64("of", total))
	}
}

// evaluates is what progress is of.
const evaluates = "evaluation"

// draws is the width of a terminal that can move its cursor, and on which a bar can be drawn; 0: there is none.
func (u *ui) draws() int {
	f, ok := u.w.(*os.File)
	if !u.terminal || !ok || os.Getenv("TERM") == "dumb" {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// restart begins the time that steps take, if there has been none: what is before the first one is not part of it.
func (u *ui) restart() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.made == 0 {
		u.began = time.Now()
	}
}

// begin starts the bar.
func (u *ui) begin(steps int) {
	u.steps, u.last, u.made, u.began = steps, recipe.Metrics{}, 0, time.Now()
	if u.quiet || u.draws() == 0 {
		return
	}
	u.bars = mpb.New(mpb.WithOutput(u.w), mpb.WithWidth(48), mpb.WithRefreshRate(200*time.Millisecond))
	u.bar = u.bars.AddBar(int64(steps),
		mpb.PrependDecorators(decor.CountersNoUnit("step %d/%d ")),
		mpb.AppendDecorators(
			decor.Any(func(decor.Statistics) string { return u.status() }),
		))
}

// status stands behind the bar: the last step's figures, and when the run will be over at the pace that it has had.
func (u *ui) status() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.eval != "" {
		return " " + u.eval
	}
	if u.made == 0 {
		return ""
	}
	return fmt.Sprintf(" loss %.4f%s  %.0f pairs/s  %.0f tokens/s  %v left", u.last.Loss, u.last.Of(), u.last.PairsPerS, u.last.TokensPerS, u.left())
}

// left is how long the run still takes at the pace that it has had, after a step.
func (u *ui) left() time.Duration {
	took := time.Duration(float64(u.at.Sub(u.began)) / float64(u.made) * float64(u.steps-u.last.Step))
	return max(0, took-time.Since(u.at)).Round(time.Second)
}

func (u *ui) step(m recipe.Metrics) {
	u.took(m)
	if u.bar != nil {
		u.bar.SetCurrent(int64(m.Step))
		return
	}
	if !m.Due {
		return
	}
	if u.log != nil {
		fields := []zap.Field{zap.Int("step", m.Step), zap.Int("of", u.steps), zap.Int("epoch", m.Epoch), figure("loss", m.Loss), figure("grad_norm", m.GradNorm), zap.Float64("lr", m.LR),
			zap.Float64("pairs_per_s", m.PairsPerS), zap.Float64("tokens_per_s", m.TokensPerS), zap.Int64("peak_mem_bytes", m.PeakMemBytes)}
		if m.Datasets != nil {
			fields = append(fields, zap.Ints("datasets", m.Datasets))
		}
		u.log.Info("step", fields...)
	} else {
		left := ""
		if m.Step < u.steps {
			left = fmt.Sprintf("  %v left", u.left())
		}
		u.printf("step %d/%d  loss %.4f%s  grad %.3g  lr %.3g  %.0f pairs/s  %.0f tokens/s%s\n", m.Step, u.steps, m.Loss, m.Of(), m.GradNorm, m.LR, m.PairsPerS, m.TokensPerS, left)
	}
}

// took notes a step for the pace.
func (u *ui) took(m recipe.Metrics) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last, u.at = m, time.Now()
	u.made++
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

func finite[T float32 | float64](v T) bool { return v-v == 0 }
