package recipe

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A card is published: it names no folder of the machine that trained, and the run and its recipe keep their paths.
func TestCardPaths(t *testing.T) {
	j := newJob(t, 30)
	data := filepath.Join(j.dir, "data.jsonl")
	held := fmt.Sprintf("eval.loss=[{path: [%q, %q], query: q, positive: p}]", data, data)
	if _, err := j.run(t, "run", nil, 0, false, "eval.retrieval=["+strings.Join(j.tasks(t), ", ")+"]", held, "train.max_steps=1"); err != nil {
		t.Fatal(err)
	}
	card := j.card(t, "run")
	if strings.Contains(card, j.dir) || !strings.Contains(card, "| data.jsonl | q, p | 30 |") || !strings.Contains(card, "path: data.jsonl") && !strings.Contains(card, "- data.jsonl") || !strings.Contains(card, "- Trained from: `model`") ||
		!strings.Contains(card, "| data.jsonl, data.jsonl | loss |") || !strings.Contains(card, "dir: run") {
		t.Errorf("%s has\n%s", j.dir, card)
	}
	text, err := os.ReadFile(filepath.Join(j.dir, "run", "recipe.yaml"))
	if err != nil || !strings.Contains(string(text), data) {
		t.Errorf("%v: %s", err, text)
	}
	x := j.opened(t, []string{held, "save.dir=" + filepath.Join(j.dir, "run")})
	x.saves = x.openCheckpoints(nil)
	before, err1 := x.Recipe.YAML()
	_, err2 := x.card()
	after, err3 := x.Recipe.YAML()
	if err := errors.Join(err1, err2, err3); err != nil || !bytes.Equal(before, after) {
		t.Errorf("%v: the run's own recipe is\n%s\nand was\n%s", err, after, before)
	}
}
