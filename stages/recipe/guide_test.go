package recipe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"contraflow/collective"
	"contraflow/collective/local"
	"contraflow/gpustage"
)

// Ranks agree on a guide by its parameters: it may lie in another place on each machine, and on another device, but not be another one, or read texts otherwise. Where
// each saves and what it tells is its own.
func TestAgreeOnGuide(t *testing.T) {
	j := newJob(t, 20)
	own := filepath.Join(j.dir, "model")
	elsewhere, other := filepath.Join(t.TempDir(), "guide"), filepath.Join(t.TempDir(), "guide")
	for _, dir := range []string{elsewhere, other} {
		if err := os.CopyFS(dir, os.DirFS(own)); err != nil {
			t.Fatal(err)
		}
	}
	weights := filepath.Join(other, "model.safetensors")
	raw, err := os.ReadFile(weights)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2&^3] ^= 1 // a number's lowest bit
	if err := os.WriteFile(weights, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ guide, want string }{
		"elsewhere":                        {fmt.Sprintf("{path: %q}", elsewhere), ""},
		"there, on a device that is named": {fmt.Sprintf("{path: %q, device: cpu}", own), ""},
		"another":                          {fmt.Sprintf("{path: %q}", other), "the guide"},
		"read less far":                    {fmt.Sprintf("{path: %q, max_length: 9}", own), "max_length"},
		"with prompts":                     {fmt.Sprintf("{path: %q, prompts: {query: a}}", own), "prompts"},
	} {
		guides := []string{fmt.Sprintf("{path: %q}", own), c.guide}
		agreed := new(atomic.Int32)
		err := local.Run(2, func(w collective.World) error {
			r, err := Parse("job", []byte(j.text), []string{"save.dir=" + filepath.Join(j.dir, fmt.Sprint("out", w.Rank())), fmt.Sprint("log.every=", w.Rank()), "mesh.replicate=2", "loss={name: gist, guide: " + guides[w.Rank()] + "}"})
			if err != nil {
				return err
			}
			d, err := asRank(t.Context(), r, Place{w, gpustage.Share{Rank: w.Rank(), Ranks: 2}}, Observer{}, new(atomic.Pointer[ending]), nil, func(*Run) error {
				agreed.Add(1)
				return nil
			})
			if d != nil {
				err = errors.Join(err, d.Close())
			}
			return err
		})
		if both := agreed.Load() == 2; both != (c.want == "") || c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %d ranks agree, %v; want an error with %q", name, agreed.Load(), err, c.want)
		}
	}
}
