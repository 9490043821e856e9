package launch

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// What nobody has asked for the longest is dropped, once; what is there is not made again, and what failed is tried again.
func TestRecent(t *testing.T) {
	var made, dropped []int
	r := NewRecent[int](3, func(v int) { dropped = append(dropped, v) })
	get := func(keys ...int) {
		t.Helper()
		for _, k := range keys {
			v, err := r.Get(k, func() (int, error) { made = append(made, k); return 10 * k, nil })
			if err != nil || v != 10*k {
				t.Fatalf("key %d gives %d, error %v", k, v, err)
			}
		}
	}
	get(1, 2, 3, 1, 4, 2)
	if fmt.Sprint(made, dropped) != "[1 2 3 4 2] [20 30]" {
		t.Errorf("made %v, dropped %v", made, dropped)
	}
	failed := errors.New("no plan")
	for range 2 {
		if _, err := r.Get(9, func() (int, error) { made = append(made, 9); return 0, failed }); err != failed {
			t.Errorf("error %v", err)
		}
	}
	get(1, 4, 2) // still there
	if fmt.Sprint(made, dropped) != "[1 2 3 4 2 9 9] [20 30]" || r.order.Len() != 3 {
		t.Errorf("made %v, dropped %v, %d kept", made, dropped, r.order.Len())
	}
	r.Clear()
	slices.Sort(dropped)
	if fmt.Sprint(dropped) != "[10 20 20 30 40]" || r.order.Len() != 0 {
		t.Errorf("in the end dropped %v, %d kept", dropped, r.order.Len())
	}
	get(1)
	if len(made) != 8 {
		t.Errorf("made %v: what was dropped is made again", made)
	}
}
