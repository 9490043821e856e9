package dataset

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// A header of qrels says where their columns are, also in a file of tabs; without one they are in BEIR's order.
func TestJudgementsHeader(t *testing.T) {
	for name, text := range map[string]string{
		"BEIR's":        "query-id\tcorpus-id\tscore\n1\t2\t3\n",
		"another order": "corpus-id\tscore\tquery-id\n2\t3\t1\n",
		"one more":      "query_id\tsplit\tdoc_id\trelevance\n1\ttest\t2\t3\n",
		"none":          "1\t2\t3\n",
		"a mark":        "\ufeff1\t2\t3\r\n",
		"other names":   "qid\tdid\trel\n1\t2\t3\n",
	} {
		path := filepath.Join(t.TempDir(), "qrels.tsv")
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
