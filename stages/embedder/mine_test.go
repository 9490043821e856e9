package embedder

import (
	"context"
	"reflect"
	"testing"

	"contraflow/gpustage/ref"
	"contraflow/stages/mine"
	"contraflow/testdata/goldens"
)

// Negatives are those of the texts' embeddings with the model's own prompts before them, or with others that are said.
func TestMine(t *testing.T) {
	e, err := Load(goldens.Path(t, "bert/minilm-tiny"))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	e.queryPrompt, e.documentPrompt = "query: ", "passage: "
	ctx := context.Background()
	p := mine.Pair([]string{"one", "two", "three"}, []string{"a", "b c", "d e f"}, []string{"g", "h i"})
	o := mine.Options{Negatives: 3}
	embed := func(prompt string, texts []string) []float32 {
		var with []string
		for _, text := range texts {
			with = append(with, prompt+text)
		}
		vecs, err := e.EmbedPrompt(ctx, "", with)
		if err != nil {
			t.Fatal(err)
		}
		var all []float32
		for _, v := range vecs {
			all = append(all, v...)
		}
		mine.Normalize(all, e.Size())
		return all
	}
	seen := map[string]int64{}
	progress := func(what string, done, total int64) {
		if done == total {
			seen[what] = total
		}
	}
	for _, prompts := range []*[2]string{nil, {"query: ", "passage: "}, {"", ""}, {"q ", ""}} {
		with := [2]string{"query: ", "passage: "}
		if prompts != nil {
			with = *prompts
		}
		want, _, err := p.Mine(ctx, ref.New(), o, embed(with[0], p.Queries), embed(with[1], p.Corpus), e.Size(), nil)
		if err != nil {
			t.Fatal(err)
		}
		got, short, err := e.Mine(ctx, p, Mining{Options: o, Prompts: prompts, Progress: progress})
		if err != nil || short != 0 || len(got) != 3 {
			t.Fatalf("%d rows, %d too short, %v", len(got), short, err)
		}
		for i := range got {
			for k := range got[i].Negatives {
				if d := got[i].Negatives[k].Score - want[i].Negatives[k].Score; d > 1e-5 || d < -1e-5 {
					t.Errorf("prompts %q, pair %d: negatives %v, want %v", with, i, got[i].Negatives, want[i].Negatives)
				}
			}
		}
	}
	if want := map[string]int64{"queries": 3, "documents": 5, "searched": seen["searched"]}; !reflect.DeepEqual(seen, want) || seen["searched"] == 0 {
		t.Errorf("progress %v", seen)
	}
}
