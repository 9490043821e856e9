package gpustage

import (
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
	open func() (Device, error)
}

// Register adds a kind of device under its name. Of several kinds that open, "auto" takes the one with the highest rank.
func Register(kind string, rank int, open func() (Device, error)) {
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

// ErrAbsent is wrapped by errors about hardware that a machine simply doesn't have: "auto" then looks further. Any other error
// means that something is wrong with what is there.
var ErrAbsent = errors.New("this machine has none")

// Open opens a device of a kind, or with "auto" or "" the best one that this machine has.
func Open(kind string) (Device, error) {
	kinds := Kinds()
	if kind == "" || kind == "auto" {
		for _, k := range kinds {
			if d, err := openKind(k); !errors.Is(err, ErrAbsent) {
				return d, err
			}
		}
		return nil, fmt.Errorf("no device opens; this program has: %s (import contraflow/gpustage/cpu for the processor)", strings.Join(kinds, ", "))
	}
	for _, k := range kinds {
		if k == kind {
			return openKind(k)
		}
	}
	return nil, fmt.Errorf("there is no device %q; this program has: auto, %s", kind, strings.Join(kinds, ", "))
}

func openKind(kind string) (Device, error) {
	registry.Lock()
	k := registry.kinds[kind]
	registry.Unlock()
	return k.open()
}
