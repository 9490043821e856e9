package prep

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"contraflow/io/atomicfile"
	"contraflow/io/dataset"
	"contraflow/io/internal/filelock"
	"contraflow/io/spelling"
)

// What a run leaves: shards, card.json, README.md (the dataset card that Hugging Face's hub shows), and at last _SUCCESS.
//
// A folder that is half-written never looks complete. Shards are written under _temporary, in a folder of this run, and get their names when
// all of them are there, and an earlier output has gone to _temporary in their place. The folder _temporary is removed last: as long as there is one,
// readers refuse the folder (dataset.Open does), and the next run begins anew. A run that fails, is interrupted or has no more room before that removes
// what it has written itself, and an earlier output is as it was; after a kill the next run does.
//
// Two runs never mix. While a run lives it holds a lock, so that a second one gets an error; and what a dead run has left on other machines
// (workers of a cluster outlive the program that sent them there) finds its folder gone and can't write.

// Temporary is the folder of what is not complete. Success is the file that says that everything is.
const (
	Temporary = dataset.Temporary
	Success   = "_SUCCESS"
	lockFile  = "lock"
	cardFile  = "card.json"
	readme    = "README.md"
)

// ErrNotEmpty is wrapped when the output folder has something in it.
var ErrNotEmpty = errors.New("the output folder is not empty")

// ErrBusy is wrapped when another run is writing the output folder.
var ErrBusy = errors.New("another run of prep is writing it")

// ErrNothingLeft is wrapped when every row has been dropped.
var ErrNothingLeft = errors.New("no row is left")

// Claim is a run's hold on the output folder, from [Begin] to Finish or Abandon.
type Claim struct {
	out  Output
	lock *os.File
	half bool // a run that was killed has left half of its output in place of an earlier one: it must not look whole
}

// temporary is where a run writes.
func (o Output) temporary() string { return filepath.Join(o.Dir, Temporary, o.Run) }

// lock is the file that a run holds while it lives.
func (o Output) lock() string { return filepath.Join(o.Dir, Temporary, lockFile) }

// empty removes all that runs have written to Temporary.
func (o Output) empty() error {
	tmp := filepath.Join(o.Dir, Temporary)
	left, err := os.ReadDir(tmp)
	for _, e := range left {
		if e.Name() != lockFile {
			err = errors.Join(err, os.RemoveAll(filepath.Join(tmp, e.Name())))
		}
	}
	return err
}

// StatsFile is where a run of several processes gathers its counts.
func (o Output) StatsFile() string { return filepath.Join(o.temporary(), "stats.json") }

// Begin makes the output folder ready, once for a run, and names the run in c. What a run that did not end has left is removed.
func Begin(c *Config, overwrite bool) (_ *Claim, err error) {
	dir := c.Output.Dir
	if _, err := free(dir, overwrite); err != nil { // before anything is made
		return nil, err
	}
	x := &Claim{out: Output{Dir: dir}}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	err = os.Mkdir(x.out.temporary(), 0o777)
	made := err == nil
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	x.lock, err = os.OpenFile(x.out.lock(), os.O_CREATE|os.O_RDWR, 0o666)
	busy := errors.Is(err, fs.ErrNotExist) // a run has just ended, and its folder has gone
	if err != nil && !busy {
		if made {
			os.Remove(x.out.temporary()) // an earlier output is as it was; what another run has begun in stays
		}
		return nil, err
	}
	if busy || !filelock.TryLock(x.lock) || !isAt(x.lock, x.out.lock()) {
		x.Release()
		return nil, fmt.Errorf("%s: %w", dir, ErrBusy)
	}
	names, err := free(dir, overwrite)                                    // again: what was there before the lock may have been another run's
	x.half = !made && !slices.Contains(names, Success) && len(names) != 1 // Temporary, without which nothing is ours
	defer func() {
		if err != nil {
			err = errors.Join(err, x.Abandon())
		}
	}()
	if err != nil {
		return nil, err
	}
	if err := x.out.empty(); err != nil {
		return nil, err
	}
	c.Output.Run = rand.Text()[:8]
	x.out = c.Output
	return x, os.Mkdir(x.out.temporary(), 0o777)
}

// free lists an output folder, in which a run may begin, or says why none may.
func free(dir string, overwrite bool) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	ours := slices.Contains(names, Success) || slices.Contains(names, Temporary)
	for _, n := range names {
		if n != Temporary && !overwrite {
			return names, fmt.Errorf("%w: %s has %s; --overwrite replaces an earlier output, or choose another output.dir", ErrNotEmpty, dir, n)
		}
		if !isOurs(n) || !ours {
			return names, fmt.Errorf("%w: %s has %s, which prep has not written: choose another output.dir", ErrNotEmpty, dir, n)
		}
	}
	return names, nil
}

// isAt tells whether an open file is still the one at a path.
func isAt(f *os.File, path string) bool {
	open, err := f.Stat()
	there, gone := os.Stat(path)
	return err == nil && gone == nil && os.SameFile(open, there)
}

// Release lets go of the folder: the next run may begin. After Finish it does nothing.
func (x *Claim) Release() { x.lock.Close() }

func isOurs(name string) bool {
	part := strings.HasPrefix(name, "train-") || strings.HasPrefix(name, "dev-")
	return name == Temporary || name == Success || name == cardFile || name == readme || name == beirFolder || part && strings.HasSuffix(name, ".parquet")
}

// cards write what stands beside the shards, which are all written, and lists its names.
func (x *Claim) cards(ctx context.Context, r *Rules, s *Stats) (names []string, err error) {
	tmp := x.out.temporary()
	if err := s.nothingLeft(); err != nil {
		return nil, err
	}
	names = []string{cardFile, readme}
	if split := r.Config.Split; split.BEIR {
		_, train, dev := s.Rows()
		if dev == 0 {
			return nil, fmt.Errorf("split.beir: none of the queries of %d rows is in the development part, which split.dev: %v is the share of: a larger one helps, or another seed", train, split.Dev)
		}
		if s.BEIR, err = writeBEIR(ctx, r, tmp, dev); err != nil {
			return nil, fmt.Errorf("split.beir: %w", err)
		}
		names = append(names, beirFolder)
	}
	card := newCard(r, s)
	js, err := json.MarshalIndent(card, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := atomicfile.WriteFile(filepath.Join(tmp, cardFile), append(js, '\n')); err != nil {
		return nil, err
	}
	if err := atomicfile.WriteFile(filepath.Join(tmp, readme), []byte(card.Markdown())); err != nil {
		return nil, err
	}
	for _, f := range s.Files {
		names = append(names, f.Name)
	}
	return names, nil
}

// Finish completes the output after all shards are written: the cards, the names, the marker. Where no row is left, or one of these can't be written, it
// takes back what is written instead, and an earlier output stays.
func (x *Claim) Finish(ctx context.Context, r *Rules, s *Stats) error {
	defer x.Release()
	names, err := x.cards(ctx, r, s)
	if err != nil {
		return errors.Join(err, x.Abandon())
	}
	back, err := x.place(names)
	if err == nil {
		return x.clean()
	}
	return x.undo(back, fmt.Errorf("completing %s: %w", x.out.Dir, err))
}

// undo takes back a run that has failed to complete its output. What can't be put back stays in Temporary.
func (x *Claim) undo(back func() error, err error) error {
	if lost := back(); lost != nil {
		return errors.Join(err, lost)
	}
	return errors.Join(err, x.Abandon())
}

// place puts what is written in the place of an earlier output, and the marker beside it. back undoes what it has done.
func (x *Claim) place(names []string) (back func() error, err error) {
	dir, tmp := x.out.Dir, x.out.temporary()
	previous := filepath.Join(tmp, "previous")
	var moved [][2]string // from, to
	back = func() (err error) {
		for _, m := range slices.Backward(moved) {
			if err != nil && filepath.Base(m[0]) == Success { // which was the first: without the others it says what is not so
				break
			}
			err = errors.Join(err, os.Rename(m[1], m[0]))
		}
		return err
	}
	move := func(name, from, to string) error {
		from, to = filepath.Join(from, name), filepath.Join(to, name)
		err := os.Rename(from, to)
		if err == nil {
			moved = append(moved, [2]string{from, to})
		}
		return err
	}
	err = errors.Join(os.Mkdir(previous, 0o777), os.WriteFile(filepath.Join(tmp, Success), nil, 0o666))
	if err != nil {
		return back, err
	}
	if err := move(Success, dir, previous); err != nil && !errors.Is(err, fs.ErrNotExist) { // from here on the folder is neither output
		return back, err
	}
	old, err := os.ReadDir(dir)
	if err != nil {
		return back, err
	}
	for _, e := range old {
		if e.Name() != Temporary && isOurs(e.Name()) {
			if err := move(e.Name(), dir, previous); err != nil {
				return back, err
			}
		}
	}
	for _, n := range names {
		if err := move(n, tmp, dir); err != nil {
			return back, err
		}
	}
	if err := atomicfile.SyncDir(dir); err != nil {
		return back, err
	}
	return back, move(Success, tmp, dir)
}

// Abandon takes back what a run has written that comes to nothing, where Finish is not called: an earlier output is as it was.
func (x *Claim) Abandon() error {
	switch {
	case !x.half:
		return x.clean()
	case x.out.Run == "":
		return x.lock.Close()
	}
	return errors.Join(os.RemoveAll(x.out.temporary()), x.lock.Close())
}

// clean removes what is not complete, and with it the folder, unless the next run has begun there.
func (x *Claim) clean() error {
	err := x.out.empty()
	if runtime.GOOS == "windows" { // removes no open file
		x.Release()
	}
	err = errors.Join(err, os.Remove(x.out.lock()))
	x.Release()
	if err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(x.out.Dir, Temporary)); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) { // which is: not empty
		return err
	}
	return atomicfile.SyncDir(x.out.Dir)
}

// Card is the dataset card.
type Card struct {
	Rows      int64             `json:"rows"`
	Train     int64             `json:"train"`
	Repeated  int64             `json:"repeated"` // of these, by mix
	Dev       int64             `json:"dev"`
	Tokenizer string            `json:"tokenizer,omitempty"` // its hash
	Lengths   map[string]Length `json:"length_quantiles"`
	Config    Config            `json:"config"`
	*Stats
}

// Length are a column's lengths in tokens, or words without a tokenizer.
type Length struct {
	Unit string  `json:"unit"`
	Mean float64 `json:"mean"`
	P50  int     `json:"p50"`
	P90  int     `json:"p90"`
	P99  int     `json:"p99"`
	Max  int     `json:"max"`
	Cut  int64   `json:"cut"` // texts that were longer
}

func newCard(r *Rules, s *Stats) *Card {
	c := &Card{Config: r.Config,
		Stats: s, Lengths: map[string]Length{}}
	c.Config.Output.Dir, c.Config.Output.Run, c.Config.Tokenize.Dir = "", "", "" // the same wherever it is made
	unit := "words"
	if r.Tokenizer != nil {
		c.Tokenizer, unit = r.Tokenizer.Hash(), "tokens"
	}
	c.Rows, c.Train, c.Dev = s.Rows()
	c.Repeated = s.Repeated()
	for name, h := range s.Lengths {
		c.Lengths[name] = Length{unit, h.Mean(), h.Quantile(0.5), h.Quantile(0.9), h.Quantile(0.99), h.Max, h.Cut}
	}
	return c
}

// Markdown is the card to read.
func (c *Card) Markdown() string {
	var b strings.Builder
	b.WriteString("---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: train-*.parquet\n")
	if c.Config.Split.Dev > 0 {
		b.WriteString("  - split: dev\n    path: dev-*.parquet\n")
	}
	fmt.Fprintf(&b, "---\n\n# Dataset\n\nMade by `contraflow prep`: %s read, %d for training, %d for development.\n\n", spelling.Count(c.Rows, "row", "rows"), c.Train, c.Dev)
	if c.Repeated > 0 {
		fmt.Fprintf(&b, "Of the rows for training %d are repeats of others (`mix`).\n\n", c.Repeated)
	}
	b.WriteString("| input | read | train | of these repeats | dev |\n|---|---|---|---|---|\n")
	for _, in := range c.Inputs {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", in.Name, in.Read, in.Train, in.Repeated, in.Dev)
	}
	if c.BEIR != nil {
		fmt.Fprintf(&b, "\nThe folder `%s` is a retrieval task: %v.\n", beirFolder, c.BEIR)
	}
	b.WriteString("\n| rule | rows dropped |\n|---|---|\n")
	for _, name := range RuleNames {
		if r := c.Rules[name]; r != nil {
			fmt.Fprintf(&b, "| %s | %d |\n", name, r.Dropped)
		}
	}
	b.WriteString("\n## Lengths\n\n")
	if n := c.Cut(); n > 0 {
		m := c.Config.Tokenize.MaxLength
		fmt.Fprintf(&b, "%s longer than `tokenize.max_length` (query %d, document %d) and cut: lengths are of what is left.\n\n", spelling.Count(n, "text was", "texts were"), m.Query, m.Document)
	}
	b.WriteString("| column | unit | mean | median | 90 % | 99 % | longest | cut |\n|---|---|---|---|---|---|---|---|\n")
	var columns []string
	for name := range c.Lengths {
		columns = append(columns, name)
	}
	slices.Sort(columns)
	for _, name := range columns {
		l := c.Lengths[name]
		fmt.Fprintf(&b, "| %s | %s | %.1f | %d | %d | %d | %d | %d |\n", name, l.Unit, l.Mean, l.P50, l.P90, l.P99, l.Max, l.Cut)
	}
	for _, name := range columns {
		fmt.Fprintf(&b, "\n%s\n\n```\n%s```\n", name, c.Stats.Lengths[name].chart())
	}
	if c.Tokenizer != "" {
		fmt.Fprintf(&b, "\nToken ids are those of the tokenizer with the hash `%s`.\n", c.Tokenizer)
	}
	b.WriteString("\n## Dropped rows\n")
	for _, name := range RuleNames {
		r := c.Rules[name]
		if r == nil || len(r.Samples)+len(r.Reasons) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n### %s\n\n", name)
		if len(r.Reasons) > 0 {
			b.WriteString("| reason | rows | the first |\n|---|---|---|\n")
			all, _ := r.Most(len(r.Reasons))
			for _, reason := range all {
				cell := func(s string) string { return strings.ReplaceAll(s, "|", "\\|") }
				fmt.Fprintf(&b, "| %s | %d | %s |\n", cell(reason), r.Reasons[reason], cell(r.Where(reason)))
			}
			b.WriteString("\n")
		}
		for _, s := range r.Samples {
			fmt.Fprintf(&b, "- `%s`", s.Where)
			if s.Why != "" {
				fmt.Fprintf(&b, ": %s", s.Why)
			}
			fmt.Fprintf(&b, "\n  %q\n", s.Text)
		}
	}
	return b.String()
}

// chart draws a histogram by doublings.
func (h *Histogram) chart() string {
	type bar struct {
		from, to int
		n        int64
	}
	var bars []bar
	most := int64(1)
	for i, n := range h.Bins {
		from := binStart(i)
		to := 1
		for to <= from {
			to *= 2
		}
		if len(bars) == 0 || bars[len(bars)-1].to != to-1 {
			bars = append(bars, bar{to / 2, to - 1, 0})
		}
		last := &bars[len(bars)-1]
		last.n += n
		most = max(most, last.n)
	}
	var b strings.Builder
	for _, r := range bars {
		fmt.Fprintf(&b, "%6d-%-6d %10d %s\n", r.from, r.to, r.n, strings.Repeat("#", int((r.n*50+most-1)/most)))
	}
	return b.String()
}
