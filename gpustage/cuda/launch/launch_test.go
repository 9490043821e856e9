package launch

import (
	"strings"
	"testing"

	"contraflow/gpustage"
)

// More arguments than a launch has room for are an error.
func TestArguments(t *testing.T) {
	args := func(n int, v any) []any {
		out := make([]any, n)
		for i := range out {
			out[i] = v
		}
		return out
	}
	for _, c := range []struct {
		args []any
		want string
	}{
		{args(48, 1), ""},
		{args(49, 1), "k: more than 48 arguments"},
		{args(24, gpustage.Tensor{}), ""},
		{args(25, gpustage.Tensor{}), "k: more than 48 arguments"},
		{args(1, &updateArgs{}), ""},
		{args(2, &updateArgs{}), "or more than 4096 bytes of them"},
		{args(1, 1<<31), "k: a size of 2147483648 is beyond"},
		{args(1, gpustage.Tensor{Rows: 2, Stride: 1 << 31}), "k: a size of 2147483648 is beyond"},
	} {
		d := &tape{}
		s := NewStream(gpustage.Dry{}, d)
		s.launch("k", [3]int{1, 1, 1}, [3]int{1, 1, 1}, 0, c.args...)
		switch err := s.Err(); {
		case c.want == "":
			if err != nil || d.started != 1 {
				t.Errorf("%d of %T: error %v", len(c.args), c.args[0], err)
			}
		case err == nil || !strings.Contains(err.Error(), c.want) || d.started != 0:
			t.Errorf("%d of %T: error %v, want %s", len(c.args), c.args[0], err, c.want)
		}
	}
}
