package loss

import (
	"slices"
	"strings"
	"testing"
)

// oneScore takes scores of 1 alone.
type oneScore struct{ Groups }

func (oneScore) CheckScore(y float64) error { return CosineSimilarity{}.CheckLabel(2 * y) }

// A loss that is made of others takes a row if all of them do, and says which does not.
func TestRowsOfLossesInLosses(t *testing.T) {
	type checks interface {
		CheckLabel(float64) error
		CheckScore(float64) error
		CheckNegatives(int) error
	}
	wraps := map[string]func(Loss) (Loss, error){
		"term 1, ": func(l Loss) (Loss, error) { return Sum(Term{InfoNCE{}, 1}, Term{l, 0}) },
		"term 0, ": func(l Loss) (Loss, error) { // no mean over rows
			return Sum(Term{l, 1}, Term{Groups{Name: GroupLambda}, 1})
		},
		"":  func(l Loss) (Loss, error) { return Matryoshka(l, []int{2}, nil, 0) },
		" ": func(l Loss) (Loss, error) { return Flops{Loss: l.(RowMean)}, nil },
	}
	for says, wrap := range wraps {
		for k, l := range []Loss{InfoNCE{}, CosineSimilarity{}, oneScore{}, Triplet{}} {
			made, err := wrap(l)
			if err != nil {
				t.Fatal(err)
			}
			c, ok := made.(checks)
			if !ok {
				t.Fatalf("%T does not check rows", made)
			}
			good := []error{c.CheckLabel(.5), c.CheckScore(.5), c.CheckNegatives(1)}
			bad := []error{nil, c.CheckLabel(2), c.CheckScore(2), c.CheckNegatives(0)}
			if slices.ContainsFunc(good, func(err error) bool { return err != nil }) {
				t.Errorf("%T of %T refuses what it takes: %v", made, l, good)
			}
			for i, err := range bad {
				if (err != nil) != (i == k && i > 0) || err != nil && !strings.HasPrefix(err.Error(), strings.TrimSpace(says)) {
					t.Errorf("%T of %T, check %d: %v", made, l, i, err)
				}
			}
		}
	}
}
