package prep

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"
)

// Stats are the counts of a part of the work. Those of several parts merge in any order to the same whole.
type Stats struct {
	Inputs  []InputStats          `json:"inputs"`
	Rules   map[string]*RuleStats `json:"rules"`
	Lengths map[string]*Histogram `json:"lengths"` // by written column
	Files   []FileStats           `json:"files"`
	BEIR    *BEIRStats            `json:"beir,omitempty"` // once all parts are there
}

// InputStats are the rows of an input, in and out: what is read is dropped or written, and what is repeated is written besides.
type InputStats struct {
	Name     string `json:"name"`
	Read     int64  `json:"read"`
	Train    int64  `json:"train"`
	Repeated int64  `json:"repeated"` // of these: what a row occurs more often than once
	Dev      int64  `json:"dev"`
}

// RuleStats are what a rule dropped, and the first rows of it.
type RuleStats struct {
	Dropped int64            `json:"dropped"`
	Reasons map[string]int64 `json:"reasons,omitempty"` // of unusable rows: how many by reason (dataset.RowError.Kind)
	Firsts  Firsts           `json:"firsts,omitempty"`  // and which ones are the first with each
	Samples []Sample         `json:"samples,omitempty"`
}

// Firsts are the first rows with each reason, at most 3 of it, ascending.
type Firsts map[string][]Place

// Place is a row and where it is at rest, without the folders that all files are in.
type Place struct {
	ID    int64  `json:"id"`
	Where string `json:"where"`
}

// mostFirsts is how many rows are named with a reason: enough to see whether they stand together.
const mostFirsts = 3

// add notes rows with a reason.
func (f Firsts) add(reason string, places ...Place) {
	all := append(f[reason], places...)
	slices.SortFunc(all, func(a, b Place) int { return cmp.Compare(a.ID, b.ID) })
	f[reason] = all[:min(mostFirsts, len(all))]
}

// Sample is a dropped row.
type Sample struct {
	ID    int64  `json:"id"`
	Where string `json:"where"`
	Why   string `json:"why,omitempty"`
	Text  string `json:"text,omitempty"` // its beginning
}

// FileStats is a written file.
type FileStats struct {
	Name string `json:"name"`
	Rows int64  `json:"rows"`
}

// NewStats are the counts of nothing.
func NewStats(inputs []Input) *Stats {
	s := &Stats{Rules: map[string]*RuleStats{}, Lengths: map[string]*Histogram{}}
	for _, in := range inputs {
		s.Inputs = append(s.Inputs, InputStats{Name: in.Name})
	}
	return s
}

// drop counts a dropped row and keeps it if it is among the first so many. Rows come in their order.
func (s *Stats) drop(rule, reason string, most int, sample func() Sample) {
	r := s.rule(rule)
	r.Dropped++
	r.because(reason, 1)
	if reason != "" && r.Reasons[reason] <= mostFirsts {
		row := sample()
		r.first(reason, Place{row.ID, row.Where})
	}
	if len(r.Samples) < most {
		r.Samples = append(r.Samples, sample())
	}
}

func (s *Stats) rule(name string) *RuleStats     { return entry(s.Rules, name) }
func (s *Stats) length(column string) *Histogram { return entry(s.Lengths, column) }

// entry returns what stands under a name, and begins it if nothing does.
func entry[T any](m map[string]*T, name string) *T {
	if m[name] == nil {
		m[name] = new(T)
	}
	return m[name]
}

func (r *RuleStats) because(reason string, rows int64) {
	if reason == "" {
		return
	}
	if r.Reasons == nil {
		r.Reasons = map[string]int64{}
	}
	r.Reasons[reason] += rows
}

func (r *RuleStats) first(reason string, places ...Place) {
	if r.Firsts == nil {
		r.Firsts = Firsts{}
	}
	r.Firsts.add(reason, places...)
}

// Where names the first rows with a reason: "a.jsonl:3, a.jsonl:8 and 12 more". Of a rule without reasons it is the first sample, for the reason "".
func (r *RuleStats) Where(reason string) string {
	var names []string
	rows := r.Reasons[reason]
	for _, p := range r.Firsts[reason] {
		names = append(names, p.Where)
	}
	if reason == "" && len(r.Samples) > 0 {
		names, rows = []string{r.Samples[0].Where}, r.Dropped
	}
	text := strings.Join(names, ", ")
	if more := rows - int64(len(names)); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Most lists the reasons, of most rows first, and how many rows are of others than the first so many.
func (r *RuleStats) Most(most int) (reasons []string, others int64) {
	reasons = slices.SortedFunc(maps.Keys(r.Reasons), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.Reasons[b], r.Reasons[a]), cmp.Compare(a, b))
	})
	for _, reason := range reasons[min(most, len(reasons)):] {
		others += r.Reasons[reason]
	}
	return reasons[:min(most, len(reasons))], others
}

// Merge adds another part's counts; of samples the most first rows stay.
func (s *Stats) Merge(o *Stats, most int) {
	for i := range o.Inputs {
		s.Inputs[i].Read += o.Inputs[i].Read
		s.Inputs[i].Train += o.Inputs[i].Train
		s.Inputs[i].Repeated += o.Inputs[i].Repeated
		s.Inputs[i].Dev += o.Inputs[i].Dev
	}
	for name, r := range o.Rules {
		mine := s.rule(name)
		mine.Dropped += r.Dropped
		for reason, n := range r.Reasons {
			mine.because(reason, n)
		}
		for reason, places := range r.Firsts {
			mine.first(reason, places...)
		}
		mine.Samples = append(mine.Samples, r.Samples...)
		slices.SortFunc(mine.Samples, func(a, b Sample) int { return cmp.Compare(a.ID, b.ID) })
		mine.Samples = mine.Samples[:min(most, len(mine.Samples))]
	}
	for name, h := range o.Lengths {
		s.length(name).merge(h)
	}
	s.Files = append(s.Files, o.Files...)
	slices.SortFunc(s.Files, func(a, b FileStats) int { return cmp.Compare(a.Name, b.Name) })
}

// Rows are those of all inputs: read, and written to either part.
func (s *Stats) Rows() (read, train, dev int64) {
	for _, in := range s.Inputs {
		read, train, dev = read+in.Read, train+in.Train, dev+in.Dev
	}
	return read, train, dev
}

// Repeated are the rows for training that are there besides their first.
func (s *Stats) Repeated() (n int64) {
	for _, in := range s.Inputs {
		n += in.Repeated
	}
	return n
}

// Cut are the written texts that tokenize.max_length has cut.
func (s *Stats) Cut() (n int64) {
	for _, h := range s.Lengths {
		n += h.Cut
	}
	return n
}

// nothingLeft is the error of a run that has dropped every row; nil if it has not.
func (s *Stats) nothingLeft() error {
	read, train, dev := s.Rows()
	if train+dev > 0 {
		return nil
	}
	var rules []string
	for _, name := range RuleNames {
		r := s.Rules[name]
		if r == nil {
			continue
		}
		text := fmt.Sprintf("%s has dropped %d", name, r.Dropped)
		if key := ruleKeys[name]; key != "" {
			text += " (" + key + ")"
		}
		if len(r.Samples) > 0 {
			first := r.Samples[0]
			text += ", first " + first.Where
			if first.Why != "" {
				text += ": " + first.Why
			}
		}
		rules = append(rules, text)
	}
	return fmt.Errorf("%w of %d rows, and nothing is written: %s. Change what drops rows that should stay", ErrNothingLeft, read, strings.Join(rules, "; "))
}

// Histogram counts lengths: each up to 15 in a bin of its own, then eight bins for every doubling.
type Histogram struct {
	Count int64   `json:"count"`
	Sum   int64   `json:"sum"`
	Max   int     `json:"max"`
	Cut   int64   `json:"cut,omitempty"` // of texts that were longer: what tokenize.max_length has left of them is counted
	Bins  []int64 `json:"bins"`
}

func bin(n int) int {
	if n < 16 {
		return n
	}
	e := bits.Len(uint(n)) - 4 // n>>e is 8 to 15
	return 8*e + n>>e
}

// binStart is the smallest length in a bin.
func binStart(b int) int {
	if b < 16 {
		return b
	}
	e := b/8 - 1
	return (b - 8*e) << e
}

func (h *Histogram) add(n int) {
	b := bin(n)
	for len(h.Bins) <= b {
		h.Bins = append(h.Bins, 0)
	}
	h.Bins[b]++
	h.Count++
	h.Sum += int64(n)
	h.Max = max(h.Max, n)
}

func (h *Histogram) merge(o *Histogram) {
	for len(h.Bins) < len(o.Bins) {
		h.Bins = append(h.Bins, 0)
	}
	for i, n := range o.Bins {
		h.Bins[i] += n
	}
	h.Count += o.Count
	h.Sum += o.Sum
	h.Max = max(h.Max, o.Max)
	h.Cut += o.Cut
}

// Mean is the mean length.
func (h *Histogram) Mean() float64 { return float64(h.Sum) / float64(max(1, h.Count)) }

// Quantile is a length that a share q of all don't exceed: the largest of its bin, so at most an eighth too much.
func (h *Histogram) Quantile(q float64) int {
	want, seen := int64(math.Ceil(q*float64(h.Count)-1e-9)), int64(0) // 0.07 * 100 is a little more than 7
	for b, n := range h.Bins {
		if seen += n; n > 0 && seen >= want {
			return min(binStart(b+1)-1, h.Max)
		}
	}
	return h.Max
}
