package dataset

import "testing"

func TestX(t *testing.T) {
	f := write(t, map[string]string{"c.jsonl": `{"_id": "a", "title": "A", "text": "one"}
{"_id": 7, "title": "", "text": "two"}
`, "q.tsv": "1\twhat\n2\twhy\n", "qrels.tsv": "1 0 a 1\n1 0 x 0\n2 0 7 1\n"})
	_ = f
	c, err := OpenTexts(t.Context(), TextSource{Paths: []string{f + "/c.jsonl"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range c.Len() {
		id, text := c.entry(uint32(i))
		t.Logf("%s %s", id, text)
	}
}
