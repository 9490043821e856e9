package gpustage

import (
	"cmp"
	"errors"
	"fmt"
	"sort"
	"strings"
	"sync"
)

// A program chooses its devices by importing them: a device's package registers itself, as database/sql's drivers do. That
// keeps rooms that only use devices free of any particular one.
//
//	import _ "contraflow/gpustage/cpu"

var registry struct {
	sync.Mutex
	kinds map[string]kindOf
}

type kindOf struct {
	rank int
	open func(Share) (Device, error)
}

// Register adds a kind of device under its name. Of several kinds that open, "auto" takes the one with the highest rank, and none
// of rank 0 or below, such as ref: a program that has forgotten to import a device would be slow without a word.
func Register(kind string, rank int, open func(Share) (Device, error)) {
	registry.Lock()
	defer registry.Unlock()
	if registry.kinds == nil {
		registry.kinds = map[string]kindOf{}
	}
	registry.kinds[kind] = kindOf{rank, open}
}

// Kinds lists the registered kinds, the highest rank first.
func Kinds() []string {
	registry.Lock()
	defer registry.Unlock()
	var names []string
	for n := range registry.kinds {
		names = append(names, n)
	}
	sort.Slice(names, func(i, j int) bool { return registry.kinds[names[i]].rank > registry.kinds[names[j]].rank })
	return names
}

func rank(kind string) int {
	registry.Lock()
	defer registry.Unlock()
	return registry.kinds[kind].rank
}

// Share says which of several ranks in one process, or on one machine, a device is for: processors divide their threads among them,
// GPUs are given out in turn. The zero Share is a rank of its own.
type Share struct {
	Rank, Ranks int
	Bound       bool // the rank has processors of its own: what it sees of them need not be divided
}

// Of divides n threads among the ranks; each gets at least 1.
func (s Share) Of(n int) int {
	if s.Bound {
		return n
	}
	return max(1, n/max(1, s.Ranks))
}

// On is which of n devices the rank gets, where they are given out in turn, and how many ranks get that one.
func (s Share) On(n int) (device, ranks int) {
	device = s.Rank % n
	return device, max(1, (max(s.Ranks, s.Rank+1)-device+n-1)/n)
}

// ErrAbsent is wrapped by errors about hardware that a machine simply doesn't have: "auto" then looks further. Any other error
// means that something is wrong with what is there.
var ErrAbsent = errors.New("this machine has none")

// ErrUntried is wrapped by errors about devices that nobody has run yet on hardware as it is here: the error says how to try. "auto" looks further.
var ErrUntried = errors.New("has not been run on such hardware yet, and nothing is known of its results")

// ErrUnfit is wrapped by errors about devices that are there and lack what the ops need: the error says what. "auto" looks further.
var ErrUnfit = errors.New("can't compute what is asked of it here")

// Open opens a device of a kind, or with "auto" or "" the best one that this machine has.
func Open(kind string) (Device, error) { return OpenShare(kind, Share{}) }

// OpenAuto opens the best device that this machine has and says of which kind it is. passed is why a better one that is there was passed over, because
// nobody has run this program on such hardware or because it is unfit; nil if there is none.
func OpenAuto(share Share) (kind string, d Device, passed, err error) {
	kinds := Kinds()
	for _, k := range kinds {
		if rank(k) <= 0 {
			break
		}
		d, err := openKind(k, share)
		switch {
		case errors.Is(err, ErrUntried), errors.Is(err, ErrUnfit):
			passed = errors.Join(passed, err)
		case !errors.Is(err, ErrAbsent):
			return k, d, passed, err
		}
	}
	return "", nil, passed, fmt.Errorf("no device opens; this program has: %s (import contraflow/gpustage/cpu for the processor)", cmp.Or(strings.Join(kinds, ", "), "none"))
}

// OpenBest is Open("auto"). warn, which may be nil, is told if a better device that is there was passed over, and why.
func OpenBest(warn func(message string)) (Device, error) {
	kind, d, passed, err := OpenAuto(Share{})
	if err == nil && passed != nil && warn != nil {
		warn(fmt.Sprintf("computing on %s: %v", kind, passed))
	}
	return d, err
}

// OpenShare is Open for one of several ranks.
func OpenShare(kind string, share Share) (Device, error) {
	if kind == "" || kind == "auto" {
		_, d, _, err := OpenAuto(share)
		return d, err
	}
	kinds := Kinds()
	for _, k := range kinds {
		if k == kind {
			return openKind(k, share)
		}
	}
	built := ""
	if kind == "cuda" {
		built = "; go build -tags cuda ./cmd/contraflow makes one that has it as well"
	}
	return nil, fmt.Errorf("there is no device %q; this program has: auto, %s%s", kind, strings.Join(kinds, ", "), built)
}

func openKind(kind string, share Share) (Device, error) {
	registry.Lock()
	k := registry.kinds[kind]
	registry.Unlock()
	d, err := k.open(share)
	if err != nil {
		return nil, err // and no device that is one's own nil
	}
	return d, nil
}
