package mix_test

import (
	"context"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/gpustage/cpu"
	"contraflow/io/dataset"
	"contraflow/stages/embedder"
	"contraflow/stages/mix"
	"contraflow/testdata/goldens"
)

// The loss is the mean of -log softmax(20 cos(q, d)) over a batch's documents, here in double precision from the model's own embeddings: batches of two rows, each with its
// positive and its negative.
func TestLoss(t *testing.T) {
	rows := [][3]string{
		{"the cat", "a cat sat on the mat", "dogs bark"}, {"what is a gradient?", "the slope of a loss", "a hill"},
		{"where is it?", "it is here", "nowhere"}, {"a dog", "the dog ran", "red"},
		{"a dog", "the dog ran", "blue"}, {"the dog", "the dog ran", "a stone"}, // which share a positive
	}
	var text strings.Builder
	for _, r := range rows {
		text.WriteString(`{"q": "` + r[0] + `", "p": "` + r[1] + `", "n": "` + r[2] + `"}` + "\n")
	}
	dir := t.TempDir()
	put(t, dir, map[string]string{"dev.jsonl": text.String()})
	ctx, model := context.Background(), goldens.Path(t, "bert/minilm-tiny")
	data, err := dataset.Open(ctx, dataset.Source{Paths: []string{filepath.Join(dir, "dev.jsonl")}, Query: "q", Positive: "p", Negatives: []string{"n"}})
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	d, err := cpu.New()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	got, err := mix.Loss(ctx, d, model, data, 2)
	if err != nil {
		t.Fatal(err)
	}

	e, err := embedder.Load(model, embedder.OnDevice(d))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	embed := func(prompt string, texts ...string) [][]float32 {
		vecs, err := e.EmbedPrompt(ctx, prompt, texts)
		if err != nil {
			t.Fatal(err)
		}
		return vecs
	}
	want := 0.0
	for b := 0; b < len(rows); b += 2 {
		q := embed("query", rows[b][0], rows[b+1][0])
		docs := embed("document", rows[b][1], rows[b+1][1], rows[b][2], rows[b+1][2])
		for i := range q {
			sum, own := 0.0, 0.0
			for k, doc := range docs {
				if k < 2 && k != i && rows[b+k][1] == rows[b+i][1] {
					continue // the row's own positive is no negative
				}
				dot := 0.0
				for j, v := range doc {
					dot += float64(v) * float64(q[i][j])
				}
				if sum += math.Exp(20 * dot); k == i {
					own = 20 * dot
				}
			}
			want += (math.Log(sum) - own) / float64(len(rows))
		}
	}
	if !(math.Abs(got-want) <= 20*8*f32Eps) { // 20 cosines, each a few roundings off
		t.Errorf("the loss is %v, want %v", got, want)
	}
	if _, err := mix.Loss(ctx, d, folderOf(t, "splade/encoder"), data, 2); err == nil || !strings.Contains(err.Error(), "one dense embedding") {
		t.Error(err)
	}
	if _, err := mix.Loss(ctx, d, folderOf(t, "rerank/cross"), data, 2); err == nil || !strings.Contains(err.Error(), "is a reranker") {
		t.Error(err)
	}
	if _, err := mix.Loss(ctx, d, folderOf(t, "colbert"), data, 2); err == nil || !strings.Contains(err.Error(), "one dense embedding") {
		t.Error(err)
	}
	// Without columns of negatives the last of three rows is alone in its batch; with one row a batch, each is.
	put(t, dir, map[string]string{"pairs.jsonl": strings.Join(strings.SplitAfter(text.String(), "\n")[:3], ""), "same.jsonl": strings.Repeat(`{"q": "a", "p": "b"}`+"\n", 4),
		"positive.jsonl": `{"q": "a", "p": "b"}` + "\n" + `{"q": "c", "p": "b"}` + "\n",
		"echo.jsonl":     `{"q": "a", "p": "b"}` + "\n" + `{"q": "c", "p": "a"}` + "\n", // the first's other document is its own query
		"bad.jsonl":      `{"q": "a", "p": null}` + "\n",
		"query.jsonl":    `{"q": "a", "p": "b"}` + "\n" + `{"q": "a", "p": "c"}` + "\n"})
	for _, c := range []struct {
		file string
		rows int
		at   string
	}{{"pairs.jsonl", 2, "pairs.jsonl:3: "}, {"pairs.jsonl", 1, "pairs.jsonl:1: "}, {"same.jsonl", 4, "same.jsonl:1: "}, {"query.jsonl", 2, "query.jsonl:1: "}, {"echo.jsonl", 2, "echo.jsonl:1: "}, {"positive.jsonl", 2, "positive.jsonl:1: "}, {"pairs.jsonl", 3, ""}, {"bad.jsonl", 1, ""}} {
		alone, err := dataset.Open(ctx, dataset.Source{Paths: []string{filepath.Join(dir, c.file)}, Query: "q", Positive: "p"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = mix.Loss(ctx, d, model, alone, c.rows)
		if c.file == "bad.jsonl" && (err == nil || !strings.Contains(err.Error(), `bad.jsonl:1, column "p"`)) {
			t.Error(err)
		} else if c.file != "bad.jsonl" && (c.at == "" && err != nil || c.at != "" && (err == nil || !strings.Contains(err.Error(), c.at+"no other document of its batch"))) {
			t.Errorf("%s in batches of %d: %v", c.file, c.rows, err)
		}
		if err := alone.Close(); err != nil {
			t.Error(err)
		}
	}
}
