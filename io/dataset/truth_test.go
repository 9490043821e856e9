package dataset

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
)

// Labels and scores may be true and false, which are 1 and 0, in parquet, JSON lines and CSV; a weight may not.
func TestTruth(t *testing.T) {
	type row struct {
		Q      string   `parquet:"q"`
		P      string   `parquet:"p"`
		Is     bool     `parquet:"is"`
		Docs   []string `parquet:"docs,list"`
		Labels []bool   `parquet:"labels,list"`
	}
	dir := write(t, map[string]string{
		"a.jsonl":    `{"q": "a", "p": "x", "is": true, "docs": ["x", "y"], "labels": [false, true]}` + "\n" + `{"q": "b", "p": "y", "is": false, "docs": ["z"], "labels": [1]}` + "\n" + `{"q": "c", "p": "z", "is": 1, "docs": ["z"], "labels": [true]}` + "\n",
		"b.csv":      "q,p,is,docs,labels\na,x,True,\"[\"\"x\"\", \"\"y\"\"]\",\"[false, true]\"\nb,y,false,\"[\"\"z\"\"]\",[1]\nc,z,1,\"[\"\"z\"\"]\",[true]\n",
		"late.jsonl": `{"q": "a", "p": "x", "is": 1}` + "\n" + `{"q": "b", "p": "y", "is": true}` + "\n",
	})
	if err := parquet.WriteFile(dir+"/c.parquet", []row{{"a", "x", true, []string{"x", "y"}, []bool{false, true}}, {"b", "y", false, []string{"z"}, []bool{true}}, {"c", "z", true, []string{"z"}, []bool{true}}}); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"a.jsonl", "b.csv", "c.parquet"} {
		d, err := Open(t.Context(), Source{Paths: []string{dir + "/" + file}, Query: "q", Positive: "p", Label: "is"})
		if err != nil {
			t.Fatal(err)
		}
		rows, err := d.NewReader(ReaderConfig{}).Read(t.Context(), 0, []int64{0, 1, 2})
		if err != nil {
			t.Fatal(err)
		}
		if got := []float32{rows[0].Label, rows[1].Label, rows[2].Label}; !slices.Equal(got, []float32{1, 0, 1}) {
			t.Errorf("%s: labels %v", file, got)
		}
		if d, err = Open(t.Context(), Source{Paths: []string{dir + "/" + file}, Query: "q", Documents: "docs", Scores: []string{"labels"}}); err != nil {
			t.Fatal(err)
		}
		if rows, err = d.NewReader(ReaderConfig{}).Read(t.Context(), 0, []int64{0, 1, 2}); err != nil {
			t.Fatal(err)
		}
		if got := slices.Concat(rows[0].Scores, rows[1].Scores, rows[2].Scores); !slices.Equal(got, []float32{0, 1, 1, 1}) {
			t.Errorf("%s: scores %v", file, got)
		}
		if file == "b.csv" { // whose cells are all texts
			if d, err = Open(t.Context(), Source{Paths: []string{dir + "/" + file}, Query: "q", Positive: "p", Weight: "is"}); err != nil {
				t.Fatal(err)
			}
			if _, err := d.NewReader(ReaderConfig{}).Read(t.Context(), 0, []int64{0}); err == nil || !strings.Contains(err.Error(), `it is "True", want a number`) {
				t.Errorf("%s: a weight: %v", file, err)
			}
			continue
		}
		if _, err := Open(t.Context(), Source{Paths: []string{dir + "/" + file}, Query: "q", Positive: "p", Weight: "is"}); !errors.Is(err, ErrColumnType) || !strings.Contains(err.Error(), "want a number") {
			t.Errorf("%s: a weight: %v", file, err)
		}
	}
	d, err := Open(t.Context(), Source{Paths: []string{dir + "/late.jsonl"}, Query: "q", Positive: "p", Weight: "is"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.NewReader(ReaderConfig{}).Read(t.Context(), 0, []int64{1}); err == nil || !strings.Contains(err.Error(), "it is true or false, want a number") {
		t.Errorf("a weight in a later row: %v", err)
	}
}
