package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// A source has ended when it says io.EOF itself: an error that holds one, as of a file that ends too early, is an error, and not the end of the rows.
func TestEndOfSource(t *testing.T) {
	for _, end := range []error{io.EOF, fmt.Errorf("part-3.parquet, page 7: %w", io.EOF)} {
		g := New("ends")
		next, rows := count(2), 0
		Sink(g, "work", Source(g, "rows", func(ctx context.Context) (int, error) {
			v, err := next(ctx)
			if err != nil {
				err = end
			}
			return v, err
		}), func(*Task, int) error { rows++; return nil })
		p, err := g.Build()
		if err != nil {
			t.Fatal(err)
		}
		err = p.Run(t.Context())
		if end == io.EOF && (err != nil || rows != 2) || end != io.EOF && (!errors.Is(err, end) || !strings.HasPrefix(err.Error(), `graph "ends": stage "rows", item #2: part-3`)) {
			t.Errorf("a source that ends with %v: %v after %d rows", end, err, rows)
		}
	}
}

// A task that takes another stage's input or output for its own is told so: it would read and write something else.
func TestAnothersPort(t *testing.T) {
	type ports struct {
		in     Input[int]
		all    Group[int]
		out    Output[int]
		lent   LentOutput[int]
		others Output[string]
	}
	for want, mistake := range map[string]func(*Task, ports){
		`panic: input "row" is stage "theirs"'s, at `:     func(t *Task, x ports) { x.in.Get(t) },
		`panic: input "all" is stage "step"'s, at `:       func(t *Task, x ports) { x.all.All(t) },
		`panic: output "out" is stage "theirs"'s, at `:    func(t *Task, x ports) { x.out.Put(t, 1) },
		`panic: output "lent" is stage "theirs"'s, at `:   func(t *Task, x ports) { x.lent.Put(t, 1, nil) },
		`panic: output "others" is stage "theirs"'s, at `: func(t *Task, x ports) { x.others.Put(t, "1") },
	} {
		g := New("g")
		rows := Source(g, "rows", count(1))
		theirs := g.Stage("theirs")
		x := ports{in: In(theirs, "row", rows), out: Out[int](theirs, "out"), lent: Lent[int](theirs, "lent"), others: Out[string](theirs, "others")}
		theirs.Do(func(t *Task) error {
			x.out.Put(t, 1)
			x.lent.Put(t, 1, nil)
			x.others.Put(t, "1")
			return nil
		})
		step := g.Stage("step", At(Step))
		x.all = Collect(step, "all", summingBatches(g, rows, 1))
		step.Do(func(*Task) error { return nil })
		mine := g.Stage("mine")
		In(mine, "row", rows)
		out := Out[int](mine, "out")
		mine.Do(func(t *Task) error { mistake(t, x); out.Put(t, 1); return nil })
		p, err := g.Build()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), `graph "g": stage "mine", item #0: `+want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
