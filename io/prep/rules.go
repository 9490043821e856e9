package prep

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"unicode"

	"github.com/zeebo/xxh3"

	"contraflow/io/dataset"
	"contraflow/tokenize"
)

// Names of the rules that drop rows, in the order in which they are asked.
const (
	Unusable      = "unusable"       // null, blank or not UTF-8, a line that is no JSON, a label that is no number
	Empty         = "empty"          // nothing is left of a text after normalizing
	LengthRule    = "length"         //
	ScriptRule    = "script"         //
	Require       = "require"        //
	Reject        = "reject"         //
	Contaminated  = "contaminated"   //
	Duplicate     = "duplicate"      // of an earlier row
	NearDuplicate = "near_duplicate" // likewise
	Mixing        = "mix"            // left out to balance the inputs
)

// RuleNames lists them.
var RuleNames = []string{Unusable, Empty, LengthRule, ScriptRule, Require, Reject, Contaminated, Duplicate, NearDuplicate, Mixing}

// ruleKeys are the keys of a configuration that the rules are of. Rows that are unusable are so whatever it says.
var ruleKeys = map[string]string{
	Empty: "normalize", LengthRule: "filter.query, filter.document", ScriptRule: "filter.script", Require: "filter.require", Reject: "filter.reject",
	Contaminated: "decontaminate", Duplicate: "dedupe.exact", NearDuplicate: "dedupe.near", Mixing: "mix",
}

// Row is a row on its way through the rules.
type Row struct {
	ID    int64 // its place among all rows of all inputs
	Input int
	Texts [][]string // by column: query, positive, negatives

	Rule, Why string // what dropped it; "": it stays
	Kind      string // of what is unusable: why, for all such rows alike (dataset.RowError.Kind)
}

// Rules are a configuration's row functions, ready to run. They don't change and may be used from any number of goroutines; a Worker has
// the memory that one of them needs.
type Rules struct {
	Config    Config
	Tokenizer *tokenize.Tokenizer // nil: none

	script          *unicode.RangeTable
	require, reject []*regexp.Regexp
	family          hashFamily
	seen            map[uint64]struct{} // runs of words of evaluation sets

	trouble func(text string) // for tests: may panic
}

// NewRules compiles a configuration and reads the evaluation sets to stay clear of.
func NewRules(ctx context.Context, c Config) (*Rules, error) {
	if err := c.valid(); err != nil {
		return nil, err
	}
	r := &Rules{Config: c}
	var err error
	if r.Tokenizer, err = c.tokenizer(); err != nil {
		return nil, err
	}
	r.script, _ = scripts(c.Filter.Script.Name)
	for _, e := range c.Filter.Require {
		r.require = append(r.require, regexp.MustCompile(e))
	}
	for _, e := range c.Filter.Reject {
		r.reject = append(r.reject, regexp.MustCompile(e))
	}
	if c.Dedupe.Near.Column != "" {
		r.family = newHashFamily(c.Dedupe.Near, c.Seed)
	}
	for i, a := range c.Decontaminate.Against {
		if err := r.avoid(ctx, a); err != nil {
			return nil, fmt.Errorf("decontaminate.against[%d]: %w", i, err)
		}
	}
	return r, nil
}

// avoid adds an evaluation set's runs of words.
func (r *Rules) avoid(ctx context.Context, a Against) error {
	if r.seen == nil {
		r.seen = map[uint64]struct{}{}
	}
	t, err := dataset.OpenTableOf(ctx, a.Path, dataset.All) // rows to train on may be among its own to train on
	if err != nil {
		return err
	}
	defer t.Close()
	t.KeepEmpty() // corpora have some, and they have no words
	for _, column := range a.Columns {
		for c, err := range t.Chunks(ctx, column, 4096) {
			if err != nil {
				return err
			}
			for _, text := range c.Texts {
				wordRuns(r.Config.Normalize.Clean(text), r.Config.Decontaminate.Words, func(h uint64) bool {
					r.seen[h] = struct{}{}
					return true
				})
			}
		}
	}
	return nil
}

// wordRuns gives the hashes of all runs of n words, or of the whole text if it has fewer. Texts without words have none.
func wordRuns(text string, n int, each func(uint64) bool) {
	ring := make([]uint64, n)
	count, more := 0, true
	Words(text, func(w []byte) {
		ring[count%n] = xxh3.Hash(w)
		if count++; more && count >= n {
			more = each(runHash64(ring, count-n, n))
		}
	})
	if count > 0 && count < n {
		each(runHash64(ring, 0, count))
	}
}

// Worker applies rules, one row after the other.
type Worker struct {
	*Rules
	ids      []int32
	shingles []uint32
	minima   []uint64
	bands    []uint64
}

// NewWorker returns a worker with empty memory.
func (r *Rules) NewWorker() *Worker { return &Worker{Rules: r} }

// Normalize cleans the row's texts in place.
func (w *Worker) Normalize(row *Row) {
	for _, list := range row.Texts {
		for i, t := range list {
			if w.trouble != nil {
				w.trouble(t)
			}
			list[i] = w.Config.Normalize.Clean(t)
		}
	}
}

// Filter asks the rules that look at a row alone, of normalized texts, and notes the first that drops it.
func (w *Worker) Filter(row *Row) {
	for column, list := range row.Texts {
		for _, text := range list {
			if row.Rule, row.Why = w.filter(column, text); row.Rule != "" {
				row.Why = fmt.Sprintf("column %q: %s", w.Config.Input[row.Input].columns()[column], row.Why)
				return
			}
		}
	}
}

func (w *Worker) filter(column int, text string) (rule, why string) {
	if dataset.Blank(text) { // or has white space left, where that is not normalized: training takes neither
		return Empty, "nothing is left of the text"
	}
	f := &w.Config.Filter
	length := f.Document
	if column == 0 {
		length = f.Query
	}
	if length != (Range{}) {
		if n := w.measure(text); !length.holds(n) {
			return LengthRule, fmt.Sprintf("%d %s", n, f.Unit)
		}
	}
	if w.script != nil {
		if share := ScriptShare(text, w.script); share < f.Script.Share {
			return ScriptRule, fmt.Sprintf("%.3f of its letters are %s", share, f.Script.Name)
		}
	}
	for _, e := range w.require {
		if !e.MatchString(text) {
			return Require, "does not match " + e.String()
		}
	}
	for _, e := range w.reject {
		if e.MatchString(text) {
			return Reject, "matches " + e.String()
		}
	}
	if len(w.seen) > 0 {
		found := false
		wordRuns(text, w.Config.Decontaminate.Words, func(h uint64) bool {
			_, found = w.seen[h]
			return !found
		})
		if found {
			return Contaminated, "it shares words with an evaluation set"
		}
	}
	return "", ""
}

// measure is a text's length in the filter's unit, without special tokens.
func (w *Worker) measure(text string) int {
	switch w.Config.Filter.Unit {
	case "tokens":
		w.ids, _ = w.Tokenizer.Append(w.ids[:0], text, 0)
		return len(w.ids) - w.Tokenizer.Specials(false)
	case "words":
		return CountWords(text)
	}
	return len([]rune(text))
}

// ExactKey is what must not repeat; ok is false if nothing is deduplicated exactly.
func (w *Worker) ExactKey(row *Row) (key dataset.Hash128, ok bool) {
	switch w.Config.Dedupe.Exact {
	case "query", "positive":
		return joinHash(row.Texts[columnOf(w.Config.Dedupe.Exact):][:1]), true
	case "row":
		return joinHash(row.Texts), true
	}
	return key, false
}

func columnOf(name string) int {
	if name == "positive" {
		return 1
	}
	return 0
}

// joinHash hashes texts with their boundaries.
func joinHash(columns [][]string) dataset.Hash128 {
	var h xxh3.Hasher
	for _, list := range columns {
		for _, t := range list {
			h.WriteString(t)
			h.Write([]byte{0xff}) // no text has it
		}
		h.Write([]byte{0xfe})
	}
	sum := h.Sum128()
	return dataset.Hash128{Hi: sum.Hi, Lo: sum.Lo}
}

// NearKeys are the row's sketch and the keys of its bands, valid until the next call; ok is false if near-duplicates stay.
func (w *Worker) NearKeys(row *Row) (s Sketch, bands []uint64, ok bool) {
	n := &w.Config.Dedupe.Near
	if n.Column == "" {
		return s, nil, false
	}
	columns := row.Texts
	if n.Column != "row" {
		columns = columns[columnOf(n.Column):][:1]
	}
	text := ""
	for _, list := range columns {
		for _, t := range list {
			if dataset.Blank(text) {
				text = t
			} else {
				text += "\n" + t
			}
		}
	}
	w.shingles = Shingles(w.shingles, text, n.Shingle)
	w.bands, w.minima = w.family.bands(w.bands[:0], w.shingles, w.minima)
	return NewSketch(text, w.shingles), w.bands, true
}

// IsDev says whether a row with this query is put aside.
func (r *Rules) IsDev(query string) bool {
	return r.Config.Split.Dev > 0 && fraction(dataset.HashText(query).Lo^r.Config.Seed) < r.Config.Split.Dev
}

// fraction is a hash as a number of at least 0 and below 1.
func fraction(h uint64) float64 { return float64(mix64(h)>>11) / (1 << 53) }

// Copies is how often a row occurs at a rate: the rate itself on average, rounded up or down by the row's id.
func (r *Rules) Copies(id int64, rate float64) int {
	n := int(rate)
	if fraction(uint64(id)^mix64(r.Config.Seed)) < rate-float64(n) {
		n++
	}
	return n
}

// Rates are how often each input's rows occur, on average, for so many rows of each input after everything else: as often as Mix wants,
// and no input's more often than Repeat. Development has no row more often than once, whatever its rate.
func (m Mix) Rates(inputs []Input, rows []int64) []float64 {
	rates := make([]float64, len(rows))
	most := 0.0
	for i, n := range rows {
		switch {
		case m.Kind == "proportional":
			rates[i] = 1
		case n == 0:
		case m.Kind == "balanced":
			rates[i] = 1 / float64(n)
		default:
			rates[i] = inputs[i].Share / float64(n)
		}
		most = math.Max(most, rates[i])
	}
	if m.Kind == "proportional" || most == 0 {
		return rates
	}
	for i := range rates {
		rates[i] *= m.Repeat / most
		if math.Abs(rates[i]-math.Round(rates[i])) < 1e-9 {
			rates[i] = math.Round(rates[i])
		}
	}
	return rates
}
