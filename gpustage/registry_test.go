package gpustage

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// Ranks of one process divide a processor's threads: together they never have more than there are, unless there are more ranks.
func TestShare(t *testing.T) {
	for _, c := range []struct{ ranks, threads, want int }{{0, 8, 8}, {1, 8, 8}, {2, 8, 4}, {3, 8, 2}, {8, 8, 1}, {9, 8, 1}, {2, 1, 1}} {
		if got := (Share{Ranks: c.ranks}).Of(c.threads); got != c.want {
			t.Errorf("%d ranks with %d threads have %d each, want %d", c.ranks, c.threads, got, c.want)
		}
	}
	if got := (Share{Rank: 1, Ranks: 2, Bound: true}).Of(4); got != 4 {
		t.Errorf("a rank bound to 4 processors has %d threads", got)
	}
}

// Every rank gets a device, and the numbers of those that share one add up to the ranks.
func TestShareOn(t *testing.T) {
	for ranks := 1; ranks <= 9; ranks++ {
		for n := 1; n <= 4; n++ {
			on, said := make([]int, n), make([]int, n)
			for r := range ranks {
				d, sharing := (Share{Rank: r, Ranks: ranks}).On(n)
				on[d]++
				said[d] = sharing
			}
			for d := range min(n, ranks) {
				if on[d] != said[d] {
					t.Errorf("%d ranks, %d devices: device %d is that of %d, which are told %d", ranks, n, d, on[d], said[d])
				}
			}
		}
	}
	if d, ranks := (Share{}).On(2); d != 0 || ranks != 1 {
		t.Errorf("a rank alone has device %d with %d", d, ranks)
	}
}

type absent struct{ Device }

// A device that does not open is nil, also where its package returns a nil of its own.
func TestOpenFails(t *testing.T) {
	why := errors.New("no power")
	Register("absent", -1, func(Share) (Device, error) { return (*absent)(nil), why })
	defer delete(registry.kinds, "absent")
	if d, err := Open("absent"); d != nil || !errors.Is(err, why) {
		t.Errorf("device %v, error %v", d, err)
	}
}

// "auto" takes the best device that opens. It goes past hardware that a machine does not have without a word, past such that nobody has tried, or
// that is unfit, with its reason, and stops at one that is there and does not work.
func TestOpenAuto(t *testing.T) {
	type good struct{ Device }
	broken, untried, unfit := errors.New("broken"), fmt.Errorf("a card that %w", ErrUntried), fmt.Errorf("an old card: it %w", ErrUnfit)
	for kind, of := range map[string]kindOf{
		"missing": {100, func(Share) (Device, error) { return nil, fmt.Errorf("no card: %w", ErrAbsent) }},
		"untried": {99, func(Share) (Device, error) { return nil, untried }},
		"unfit":   {98, func(Share) (Device, error) { return nil, unfit }},
		"good":    {97, func(Share) (Device, error) { return good{}, nil }},
		"worse":   {96, func(Share) (Device, error) { return nil, broken }},
	} {
		Register(kind, of.rank, of.open)
		defer delete(registry.kinds, kind)
	}
	if kind, d, passed, err := OpenAuto(Share{}); kind != "good" || d != (good{}) || !errors.Is(passed, ErrUntried) || !errors.Is(passed, ErrUnfit) || err != nil {
		t.Errorf("%s, %v, passed %v, %v", kind, d, passed, err)
	}
	if d, err := Open("auto"); d != (good{}) || err != nil {
		t.Errorf("%v, %v", d, err)
	}
	var told []string
	if d, err := OpenBest(func(m string) { told = append(told, m) }); d != (good{}) || err != nil || len(told) != 1 || told[0] != "computing on good: "+untried.Error()+"\n"+unfit.Error() {
		t.Errorf("%v, %v, told %q", d, err, told)
	}
	delete(registry.kinds, "good")
	if _, d, _, err := OpenAuto(Share{}); d != nil || !errors.Is(err, broken) {
		t.Errorf("%v, %v", d, err)
	}
	delete(registry.kinds, "worse")
	Register("slow", 0, func(Share) (Device, error) { return good{}, nil })
	defer delete(registry.kinds, "slow")
	if _, d, _, err := OpenAuto(Share{}); d != nil || err == nil || !strings.Contains(err.Error(), "(import contraflow/gpustage/cpu for the processor)") {
		t.Errorf("what is for tests: %v, %v", d, err)
	}
	if d, err := Open("slow"); d != (good{}) || err != nil {
		t.Errorf("by its name: %v, %v", d, err)
	}
}

// Who asks for a GPU in a program that was built without is told how to build one with.
func TestOpenElsewhere(t *testing.T) {
	for kind, says := range map[string]bool{"cuda": true, "tpu": false} {
		if _, err := Open(kind); err == nil || strings.Contains(err.Error(), "-tags cuda") != says {
			t.Errorf("%s: %v", kind, err)
		}
	}
}
