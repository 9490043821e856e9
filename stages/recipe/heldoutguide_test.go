package recipe

import (
	"fmt"
	"path/filepath"
	"testing"
)

// A guide looks at the held-out rows of the recipe's loss, and at no others; by what a best evaluation is known depends on the guide's parameters and on how it
// reads the rows.
func TestHeldOutGuide(t *testing.T) {
	j := newJob(t, 20)
	path, _ := j.heldRows(t, "dev.jsonl", 9)
	other := newJobModel(t, j)
	open := func(prompt string) *Run {
		t.Helper()
		r := must(Parse("job", []byte(j.text), []string{
			"save.dir=" + filepath.Join(j.dir, "run"), fmt.Sprintf("loss={name: gist, guide: {path: %q, prompts: {query: %q}}}", other, prompt), "mesh.replicate=1",
			fmt.Sprintf("eval.loss=[{name: a, path: %q, query: q, positive: p}, {name: b, path: %[1]q, query: q, positive: p, loss: {name: mnrl}}]", path),
		}))(t)
		x := must(Open(t.Context(), r, Observer{}))(t)
		t.Cleanup(func() { x.Close() })
		return x
	}
	x := open("which: ")
	if x.guide == nil || x.heldOut[0].rows.Guide != x.guide.model || x.heldOut[1].rows.Guide != nil {
		t.Errorf("guides of held-out rows: %v, and with a loss of their own %v", x.heldOut[0].rows.Guide, x.heldOut[1].rows.Guide)
	}
	seen := map[string]string{}
	tell := func(what string, x *Run) {
		t.Helper()
		id := must(x.lossIdentity())(t)
		if was, ok := seen[id]; ok {
			t.Errorf("%s: known as %s is", what, was)
		}
		seen[id] = what
	}
	tell("a guide", x)
	x.guide.hash += "0"
	tell("another one", x)
	tell("one that reads other texts", open("whose: ")) // of as many tokens
}
