package dataset

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// A header of qrels says where their columns are, also in a file of tabs; without one they are in BEIR's order. Spaces around a number are
// nothing.
func TestJudgementsHeader(t *testing.T) {
	for name, text := range map[string]string{
		"BEIR's.tsv":        "query-id\tcorpus-id\tscore\n1\t2\t 3\n",
		"another order.tsv": "corpus-id\tscore\tquery-id\n2\t3 \t1\n",
		"one more.tsv":      "query_id\tsplit\tdoc_id\trelevance\n1\ttest\t2\t3\n",
		"blank.tsv":         "\ufeff\n\ncorpus-id\tscore\tquery-id\n\n2\t3\t1\n",
		"none.tsv":          "1\t2\t3 \n",
		"a mark.tsv":        "\ufeff1\t2\t3\r\n",
		"other names.tsv":   "qid\tdid\trel\n1\t2\t3\n",
		"commas.csv":        "query_id,relevance,doc_id\n1, 3,2\n",
		"lines.jsonl":       `{"query_id": "1", "doc_id": 2, "relevance": "3 "}`,
	} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := ""
		err := loadJudgements(t.Context(), path, func(query, doc string, relevance float64) { got += fmt.Sprint(query, " ", doc, " ", relevance, ";") })
		if err != nil || got != "1 2 3;" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
