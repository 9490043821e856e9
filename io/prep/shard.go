package prep

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"contraflow/io/dataset"
)

// The two passes. Every runner is made of these: keys of blocks, and the writing of a shard.

// Keyed is a row that its own rules let through, with what it is compared by. Sketch and Bands are valid until the next.
type Keyed struct {
	ID     int64
	Input  int
	Exact  dataset.Hash128
	Sketch Sketch
	Bands  []uint64
}

// NeedsKeys reports whether rows are compared at all, or counted before they are mixed: if not, there is no first pass.
func (r *Rules) NeedsKeys() bool {
	c := &r.Config
	return r.Dedupes() || c.Mix.Kind != "proportional"
}

// Dedupes reports whether rows are compared.
func (r *Rules) Dedupes() bool { return r.Exact() || r.Config.Dedupe.Near.Column != "" }

// Exact reports whether equal rows are dropped.
func (r *Rules) Exact() bool { e := r.Config.Dedupe.Exact; return e != "" && e != "none" }

// Keys is the first pass over a shard.
func (x *Inputs) Keys(ctx context.Context, shard int, emit func(*Keyed) error) error {
	from, to := x.shard(shard)
	w := x.Rules.NewWorker()
	return x.each(ctx, from, to, nil, func(row *Row, _ *dataset.Block, _ int) error {
		if row.Rule != "" {
			return nil
		}
		k := &Keyed{ID: row.ID, Input: row.Input}
		k.Exact, _ = w.ExactKey(row)
		k.Sketch, k.Bands, _ = w.NearKeys(row)
		return emit(k)
	})
}

// ShardStarts are the ids of the shards' first rows.
func (x *Inputs) ShardStarts() (ids []int64) {
	for s := range x.Shards {
		from, _ := x.shard(s)
		ids = append(ids, x.blocks[from].first)
	}
	return ids
}

// Verdict is what the comparison of rows says of one.
type Verdict struct {
	Rule string // "", Duplicate or NearDuplicate
	Of   int64  // the row that it repeats; -1: not told
	Pass bool   // the row is known to pass its own rules
}

// WriteShard is the second pass over a shard: it reads its rows again and writes those that stay, with their ids. verdict tells what the
// comparison with other rows said; rates are the inputs' (nil: 1). Files are written in the folder that [Begin] has made, each as a whole or not
// at all; writing a shard twice gives the same files.
func (x *Inputs) WriteShard(ctx context.Context, shard int, verdict func(id int64) Verdict, rates []float64) (s *Stats, err error) {
	c := &x.Rules.Config
	s = NewStats(c.Input)
	train, err := x.newOut("train", shard)
	if err != nil {
		return nil, err
	}
	outs := []*out{train}
	if c.Split.Dev > 0 {
		dev, err := x.newOut("dev", shard)
		if err != nil {
			train.w.Abort()
			return nil, err
		}
		outs = append(outs, dev)
	}
	defer func() {
		for _, o := range outs {
			o.w.Abort()
		}
	}()
	from, to := x.shard(shard)
	var v Verdict // of the row at hand
	known := func(id int64) bool { v = verdict(id); return v.Pass }
	err = x.each(ctx, from, to, known, func(row *Row, b *dataset.Block, at int) error {
		in := &s.Inputs[row.Input]
		in.Read++
		if row.Rule == "" && v.Rule != "" {
			row.Rule = v.Rule
			if v.Of >= 0 {
				row.Why = x.repeats(v)
			}
		}
		dev := row.Rule == "" && x.Rules.IsDev(row.Texts[0][0])
		copies := 1
		if row.Rule == "" && rates != nil {
			rate := rates[row.Input]
			if dev {
				rate = min(rate, 1) // a row that is measured twice says no more
			}
			if copies = x.Rules.Copies(row.ID, rate); copies == 0 {
				row.Rule, row.Why = Mixing, fmt.Sprintf("%.4g of the rows of %q stay", rate, c.Input[row.Input].Name)
			}
		}
		if row.Rule != "" {
			s.drop(row.Rule, row.Kind, c.Samples, func() Sample { return x.sample(row) })
			return nil
		}
		o, n := train, &in.Train
		if dev {
			o, n = outs[1], &in.Dev
		}
		*n += int64(copies)
		in.Repeated += int64(copies - 1)
		for range copies {
			if err := o.add(row, b, at, s); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, o := range outs {
		if err := o.close(); err != nil {
			return nil, err
		}
		s.Files = append(s.Files, FileStats{filepath.Base(o.path), o.w.Rows()})
	}
	return s, nil
}

// repeats says what a row has in common with an earlier one.
func (x *Inputs) repeats(v Verdict) string {
	d, of := &x.Rules.Config.Dedupe, x.cite(v.Of)
	switch near := v.Rule == NearDuplicate; {
	case near && d.Near.Column == "row":
		return "repeats " + of + ", nearly"
	case near:
		return "its " + d.Near.Column + " is nearly that of " + of
	case d.Exact == "row":
		return "repeats " + of
	}
	return "its " + d.Exact + " is that of " + of
}

// sample shows a dropped row.
func (x *Inputs) sample(row *Row) Sample {
	text := ""
	for _, list := range row.Texts {
		for _, t := range list {
			text += t + "\n"
		}
	}
	const most = 200
	text = strings.ToValidUTF8(strings.TrimSpace(text), "\uFFFD")
	if r := []rune(text); len(r) > most {
		text = string(r[:most]) + "…"
	}
	return Sample{ID: row.ID, Where: x.cite(row.ID), Why: row.Why, Text: text}
}

// out is a file of a shard that is being written.
type out struct {
	x    *Inputs
	path string
	w    *dataset.ParquetWriter
	cols []dataset.OutColumn
	vals []any // of the rows that wait
	rows int
	cut  map[string]int64 // texts by column, where ids are written
}

// outRows go to the writer at once.
const outRows = 1024

// columnNames are those of the first input; of templates, the roles.
func (c *Config) columnNames() []string {
	names := c.Input[0].columns()
	for i, n := range names {
		if strings.ContainsAny(n, "{}") {
			names[i] = "query"
			if i > 0 {
				names[i] = "positive"
			}
			if i > 1 {
				names[i] = fmt.Sprintf("negative_%d", i-1)
			}
		}
	}
	return names
}

// scoreColumns are the columns of scores that are written: those of the first input, if all have as many, so that a recipe that names them fits
// what is written too. Otherwise its first one has a list of all.
func (c *Config) scoreColumns() []string {
	first := c.Input[0].Scores
	twice := len(slices.Compact(slices.Sorted(slices.Values(first)))) < len(first)
	if twice || slices.ContainsFunc(c.Input, func(in Input) bool { return len(in.Scores) != len(first) }) {
		return slices.Clip(first[:min(1, len(first))])
	}
	return slices.Clip(first)
}

// columns are those that are written, for texts of which some are lists.
func (c *Config) columns(lists []bool) (cols []dataset.OutColumn) {
	add := func(name string, t dataset.OutType) { cols = append(cols, dataset.OutColumn{Name: name, Type: t}) }
	names := c.columnNames()
	for i, name := range names {
		if lists[i] {
			add(name, dataset.TextListOut)
		} else {
			add(name, dataset.TextOut)
		}
	}
	in := &c.Input[0]
	if in.Label != "" {
		add(in.Label, dataset.FloatOut)
	}
	if in.Weight != "" {
		add(in.Weight, dataset.FloatOut)
	}
	for _, name := range c.scoreColumns() {
		add(name, dataset.NumbersOut)
	}
	if len(c.Input) > 1 {
		add("source", dataset.TextOut)
	}
	for i, name := range names {
		add(name+dataset.HashSuffix, dataset.LongsOut)
		if c.writesIDs() {
			add(name+dataset.IDsSuffix, dataset.IDsOut)
			if lists[i] {
				add(name+dataset.CountsSuffix, dataset.IDsOut)
			}
		}
	}
	return cols
}

func (x *Inputs) newOut(part string, shard int) (*out, error) {
	c := &x.Rules.Config
	o := &out{x: x, cols: c.columns(x.Lists), path: filepath.Join(c.Output.temporary(), fmt.Sprintf("%s-%05d-of-%05d.parquet", part, shard, x.Shards))}
	var err error
	if o.w, err = dataset.NewParquetWriter(o.path, o.cols...); err != nil {
		return nil, err
	}
	if t := x.Rules.Tokenizer; t != nil && c.writesIDs() {
		m := dataset.TokenInfo{Tokenizer: t.Hash(), Query: dataset.TokenRole{MaxLength: c.Tokenize.MaxLength.Query, Prompt: c.Tokenize.Prompts.Query},
			Document: dataset.TokenRole{MaxLength: c.Tokenize.MaxLength.Document, Prompt: c.Tokenize.Prompts.Document}}
		b, err := json.Marshal(m)
		if err != nil {
			return nil, err
		}
		o.w.SetMetadata(dataset.TokenKey, string(b))
		o.cut = map[string]int64{}
	}
	o.begin()
	return o, nil
}

// begin starts with no rows.
func (o *out) begin() {
	o.vals, o.rows = nil, 0
	for _, c := range o.cols {
		o.vals = append(o.vals, c.Type.Empty(outRows))
	}
}

// add appends a row and counts its lengths.
func (o *out) add(row *Row, b *dataset.Block, at int, s *Stats) error {
	c, k := &o.x.Rules.Config, 0
	next := func() *any { k++; return &o.vals[k-1] }
	text := func(t string) { v := next(); *v = append((*v).([]string), t) }
	number := func(f float32) { v := next(); *v = append((*v).([]float64), float64(f)) }
	names := o.cols[:len(row.Texts)]
	for i, list := range row.Texts {
		if o.x.Lists[i] {
			v := next()
			*v = append((*v).([][]string), list)
		} else {
			text(list[0])
		}
	}
	in := &c.Input[0]
	if in.Label != "" {
		number(b.Label(at))
	}
	if in.Weight != "" {
		number(b.Weight(at))
	}
	switch names := c.scoreColumns(); len(names) {
	case 0:
	case 1:
		v := next()
		*v = append((*v).([][]float32), b.Scores(nil, at))
	default:
		for i := range names {
			v := next()
			*v = append((*v).([][]float32), b.Score(nil, at, i))
		}
	}
	if len(c.Input) > 1 {
		text(c.Input[row.Input].Name)
	}
	for i, list := range row.Texts {
		hashes := make([]int64, 0, 2*len(list))
		for _, t := range list {
			h := dataset.HashText(t)
			hashes = append(hashes, int64(h.Hi), int64(h.Lo))
		}
		v := next()
		*v = append((*v).([][]int64), hashes)
		o.lengths(names[i].Name, i, list, s.length(names[i].Name), next)
	}
	if o.rows++; o.rows == outRows {
		return o.flush()
	}
	return nil
}

// lengths tokenizes a column's texts, or counts their words, for the statistics.
func (o *out) lengths(name string, column int, list []string, h *Histogram, next func() *any) {
	t, z := o.x.Rules.Tokenizer, &o.x.Rules.Config.Tokenize
	if t == nil {
		for _, text := range list {
			h.add(CountWords(text))
		}
		return
	}
	prompt, limit := z.Prompts.Document, z.MaxLength.Document
	if column == 0 {
		prompt, limit = z.Prompts.Query, z.MaxLength.Query
	}
	writes := o.x.Rules.Config.writesIDs()
	if !writes {
		limit = 0
	}
	var ids, counts []int32
	for _, text := range list {
		from, cut := len(ids), false
		if ids, cut = t.Append(ids, prompt+text, limit); cut {
			h.Cut++
			o.cut[name]++
		}
		counts = append(counts, int32(len(ids)-from))
		h.add(len(ids) - from)
	}
	if !writes {
		return
	}
	v := next()
	*v = append((*v).([][]int32), ids)
	if o.x.Lists[column] {
		v = next()
		*v = append((*v).([][]int32), counts)
	}
}

func (o *out) flush() error {
	if o.rows == 0 {
		return nil
	}
	err := o.w.Write(o.vals...)
	o.begin()
	return err
}

func (o *out) close() error {
	if err := o.flush(); err != nil {
		return err
	}
	if o.cut != nil {
		b, err := json.Marshal(o.cut)
		if err != nil {
			return err
		}
		o.w.SetMetadata(dataset.CutKey, string(b))
	}
	return o.w.Close()
}
