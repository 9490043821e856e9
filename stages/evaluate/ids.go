package evaluate

import (
	"fmt"
	"sort"
	"strings"
)

// IDs numbers strings 0, 1, 2, ... in the order in which they are added.
type IDs struct {
	names   []string
	numbers map[string]int
}

// NewIDs numbers names in their order. A name that comes twice is an error that tells both places.
func NewIDs(names []string) (*IDs, error) {
	ids := &IDs{numbers: make(map[string]int, len(names))}
	for i, name := range names {
		if first, ok := ids.numbers[name]; ok {
			return nil, fmt.Errorf("id %q comes twice, in rows %d and %d: ids must be unique", name, first, i)
		}
		ids.add(name)
	}
	return ids, nil
}

// Len is how many names there are.
func (ids *IDs) Len() int { return len(ids.names) }

// Name is the name with number i, which must be in [0, Len).
func (ids *IDs) Name(i int) string { return ids.names[i] }

// Number is name's number, and whether there is one.
func (ids *IDs) Number(name string) (int, bool) {
	i, ok := ids.numbers[name]
	return i, ok
}

// examples is a few names, quoted, for messages.
func (ids *IDs) examples() string {
	var out []string
	for _, name := range ids.names[:min(3, len(ids.names))] {
		out = append(out, fmt.Sprintf("%q", name))
	}
	return strings.Join(out, ", ")
}

func (ids *IDs) add(name string) int {
	i, ok := ids.numbers[name]
	if !ok {
		i = len(ids.names)
		ids.names = append(ids.names, name)
		ids.numbers[name] = i
	}
	return i
}

// TieOrder says which of two documents with equal scores comes first: the one with the smaller entry. Nil stands for
// the order of the documents' numbers.
type TieOrder []int32

// TieOrder is trec_eval's: by name, compared byte by byte, the greater first.
func (ids *IDs) TieOrder() TieOrder {
	numbers := make([]int32, len(ids.names))
	for i := range numbers {
		numbers[i] = int32(i)
	}
	sort.Slice(numbers, func(a, b int) bool { return ids.names[numbers[a]] > ids.names[numbers[b]] })
	tie := make(TieOrder, len(numbers))
	for place, number := range numbers {
		tie[number] = int32(place)
	}
	return tie
}

func (tie TieOrder) of(doc int32) int32 {
	if tie == nil {
		return doc
	}
	return tie[doc]
}
