package prep

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"sort"
	"strings"

	"contraflow/io/dataset"
)

// Inputs are the opened inputs, seen as one sequence of rows, cut into blocks. Any block can be read from any place: of parquet files
// only what it needs of its row group.
type Inputs struct {
	Rules  *Rules
	Lists  []bool // by column: rows have lists of texts
	Shards int

	sets   []*dataset.Dataset
	first  []int64 // id of each input's first row
	blocks []inputBlock
	starts []int // by shard: its first block
	rows   int64
	root   string // the folder that all files are in, where two of them have one name; ""
}

type inputBlock struct {
	set, block int
	first      int64
	rows       int
}

// shardRows is how many rows of input make a shard if nothing else is said.
const shardRows = 131072

// OpenInputs opens all inputs and checks that they go together.
func OpenInputs(ctx context.Context, r *Rules) (_ *Inputs, err error) {
	x := &Inputs{Rules: r}
	defer func() {
		if err != nil {
			x.Close()
		}
	}()
	for i := range r.Config.Input {
		in := &r.Config.Input[i]
		src := in.source()
		d, err := dataset.Open(ctx, src)
		if err != nil {
			return nil, fmt.Errorf("input %q: %w", in.Name, err)
		}
		x.sets = append(x.sets, d)
		x.first = append(x.first, x.rows)
		lists := d.Lists()
		if i == 0 {
			x.Lists = lists
		}
		for c := range lists {
			if lists[c] != x.Lists[c] {
				return nil, fmt.Errorf("input %q: column %q is a list of texts where %q has one text, or the other way round: inputs must agree", in.Name, d.ColumnName(c), r.Config.Input[0].Name)
			}
		}
		for b := range d.Blocks() {
			first, rows := d.BlockRows(b)
			x.blocks = append(x.blocks, inputBlock{i, b, x.first[i] + first, rows})
		}
		x.rows += d.Rows()
	}
	if x.Shards = r.Config.Output.Shards; x.Shards == 0 {
		x.Shards = int((x.rows + shardRows - 1) / shardRows)
	}
	x.Shards = min(x.Shards, len(x.blocks))
	x.cut()
	x.root = x.shared()
	return x, nil
}

// shared is the folder that all files are in, however deep, if names alone don't tell them apart.
func (x *Inputs) shared() (root string) {
	places := map[string]string{} // by name
	twice := false
	for _, d := range x.sets {
		var row int64
		for _, f := range d.Files() {
			if f.Rows == 0 {
				continue
			}
			path := fullPath(d.Locate(row).File)
			row += f.Rows
			dir := filepath.Dir(path)
			if len(places) == 0 {
				root = dir
			}
			for root != dir && root != filepath.Dir(root) && !strings.HasPrefix(dir, strings.TrimSuffix(root, string(filepath.Separator))+string(filepath.Separator)) {
				root = filepath.Dir(root)
			}
			other, there := places[f.Name]
			twice = twice || there && other != path
			places[f.Name] = path
		}
	}
	if !twice {
		return ""
	}
	return root
}

func fullPath(path string) string {
	if full, err := dataset.FullPath(path); err == nil {
		return full
	}
	return path
}

// Close removes temporary files.
func (x *Inputs) Close() error {
	var errs []error
	for _, d := range x.sets {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// Tell tells what a user should know of the inputs ([dataset.Dataset.Notes]). note may be nil.
func (x *Inputs) Tell(note func(message string)) {
	for i, d := range x.sets {
		for _, n := range d.Notes() {
			if note != nil {
				note(fmt.Sprintf("input %q: %s", x.Rules.Config.Input[i].Name, n))
			}
		}
	}
}

// Rows is the number of rows of all inputs.
func (x *Inputs) Rows() int64 { return x.rows }

// cut groups the blocks into shards: consecutive ones, with about as many rows as every other's, and none without a block.
func (x *Inputs) cut() {
	for s := range x.Shards {
		goal, least := x.rows*int64(s)/int64(x.Shards), 0
		if s > 0 {
			least = x.starts[s-1] + 1
		}
		n := sort.Search(len(x.blocks), func(i int) bool { return x.blocks[i].first >= goal })
		x.starts = append(x.starts, min(max(n, least), len(x.blocks)-(x.Shards-s)))
	}
}

// shard returns the blocks of a shard.
func (x *Inputs) shard(s int) (from, to int) {
	if s+1 == x.Shards {
		return x.starts[s], len(x.blocks)
	}
	return x.starts[s], x.starts[s+1]
}

// InputOf is the input that a row is of.
func (x *Inputs) InputOf(id int64) int {
	return sort.Search(len(x.first), func(i int) bool { return x.first[i] > id }) - 1
}

// locate says where a row is at rest.
func (x *Inputs) locate(id int64) dataset.Location {
	i := x.InputOf(id)
	return x.sets[i].Locate(id - x.first[i])
}

// cite is where a row is at rest, without folders, or with those that tell files of one name apart: a card should say the same wherever it was made.
func (x *Inputs) cite(id int64) string {
	l := x.locate(id)
	name := filepath.Base(l.File)
	if x.root != "" {
		if short, err := filepath.Rel(x.root, fullPath(l.File)); err == nil {
			name = short
		}
	}
	l.File = filepath.ToSlash(name)
	return l.String()
}

// each reads blocks [from, to), normalizes and filters their rows, and calls visit with every row in order, dropped ones included. known,
// if it is not nil, says whether the filters have let a row through before, so that they need not be asked again. A panic while a row is worked on is an error that names it.
func (x *Inputs) each(ctx context.Context, from, to int, known func(id int64) bool, visit func(row *Row, b *dataset.Block, at int) error) error {
	w := x.Rules.NewWorker()
	var block dataset.Block
	var scan *dataset.Scanner
	set := -1
	for _, ref := range x.blocks[from:to] {
		if set != ref.set {
			if scan != nil {
				scan.Close()
			}
			scan, set = x.sets[ref.set].NewScanner(), ref.set
		}
		if err := scan.Read(ctx, ref.block, &block); err != nil {
			scan.Close()
			return err
		}
		for at := range ref.rows {
			if err := x.one(w, &block, ref, at, known, visit); err != nil {
				scan.Close()
				return err
			}
		}
	}
	if scan != nil {
		scan.Close()
	}
	return nil
}

func (x *Inputs) one(w *Worker, b *dataset.Block, ref inputBlock, at int, known func(int64) bool, visit func(*Row, *dataset.Block, int) error) (err error) {
	row := &Row{ID: ref.first + int64(at), Input: ref.set}
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Where: x.locate(row.ID), Value: p, Stack: debug.Stack()}
		}
	}()
	row.Texts = make([][]string, len(x.Lists))
	for c := range row.Texts {
		row.Texts[c] = b.Texts(nil, at, c)
	}
	var bad *dataset.RowError
	if errors.As(b.Check(at), &bad) {
		row.Rule, row.Why, row.Kind = Unusable, bad.Reason, bad.Kind()
		if bad.Column != "" {
			row.Why = fmt.Sprintf("column %q: %s", bad.Column, bad.Reason)
		}
	} else {
		w.Normalize(row)
		if known == nil || !known(row.ID) {
			w.Filter(row)
		}
	}
	return visit(row, b, at)
}

// A PanicError is a row on which a row function panicked: a mistake of the program that this row brings out.
type PanicError struct {
	Where dataset.Location
	Value any
	Stack []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("%v: preparing this row failed: %v (take it out of the input to go on without it)", e.Where, e.Value)
}
