// Package flags is what flags of both programs have alike: those that are given once and are not empty, what is said of wrong ones, and the
// signals that end a program.
package flags

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/spf13/pflag"
)

// once is a flag that may be given once only: of two files the last would be taken, and nobody would hear of the other.
type once struct {
	value *string
	given bool
}

// Once is such a flag's value.
func Once(value *string) pflag.Value { return &once{value: value} }

// givenTwice is the error of a second value.
type givenTwice struct{ first, second string }

func (e *givenTwice) Error() string { return fmt.Sprintf("it is %q already", e.first) }

func (o *once) String() string { return *o.value }
func (o *once) Type() string   { return "string" }
func (o *once) Set(v string) error {
	if o.given {
		return &givenTwice{*o.value, v}
	}
	*o.value, o.given = v, true
	return nil
}

// Empty finds a flag that is given as nothing, as by "$OUT" that nobody has set.
func Empty(given *pflag.FlagSet, names ...string) error {
	for _, f := range names {
		if given.Changed(f) && given.Lookup(f).Value.String() == "" {
			return fmt.Errorf("--%s is empty", f)
		}
	}
	return nil
}

// SuchAs annotates a flag with an example of what it takes.
const SuchAs = "such as"

// Error says what a flag wants that is given twice, or no number: what pflag says of them is nothing to a user.
func Error(err error) error {
	var wrong *pflag.InvalidValueError
	var number *strconv.NumError
	var twice *givenTwice
	if errors.As(err, &wrong) && errors.As(err, &twice) {
		return fmt.Errorf("--%s is given twice, as %q and as %q: want one", wrong.GetFlag().Name, twice.first, twice.second)
	}
	if !errors.As(err, &wrong) || !errors.As(err, &number) {
		return err
	}
	want := map[string]string{"int": "a whole number", "uint64": "a whole number of at least 0", "float64": "a number", "intSlice": "whole numbers, such as 1,2", "float64Slice": "numbers, such as 1,0.3,1"}[wrong.GetFlag().Value.Type()]
	if example := wrong.GetFlag().Annotations[SuchAs]; example != nil {
		want = "numbers, such as " + example[0]
	}
	switch {
	case want == "":
		return err
	case errors.Is(number, strconv.ErrRange):
		return fmt.Errorf("--%s is %s, which is too large a number", wrong.GetFlag().Name, wrong.GetValue())
	}
	return fmt.Errorf("--%s is %q, want %s", wrong.GetFlag().Name, wrong.GetValue(), want)
}

// EndSignals ask for a program's end: an interrupt, SIGTERM, and what a closed terminal sends, SIGHUP, unless nohup has it ignored.
func EndSignals() []os.Signal {
	all := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		all = append(all, syscall.SIGHUP)
	}
	return all
}
