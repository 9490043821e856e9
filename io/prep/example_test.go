package prep_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"contraflow/io/prep"
)

func Example() {
	dir, err := os.MkdirTemp("", "prep")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	raw := `{"question": "<b>What</b> is a goroutine?", "answer": "A lightweight thread managed by the Go runtime."}
{"question": "What is a goroutine?", "answer": "A lightweight  thread managed by the Go runtime."}
{"question": "What is a channel?", "answer": ""}
`
	if err := os.WriteFile(filepath.Join(dir, "raw.jsonl"), []byte(raw), 0o666); err != nil {
		panic(err)
	}
	c := prep.Default()
	c.Input = []prep.Input{{Path: []string{filepath.Join(dir, "*.jsonl")}, Query: "question", Positive: "answer"}}
	c.Output.Dir = filepath.Join(dir, "prepared")
	c.Normalize.HTML = true
	s, err := prep.Run(context.Background(), c, prep.Options{})
	if err != nil {
		panic(err)
	}
	fmt.Println(s.Inputs[0].Read, "rows read,", s.Inputs[0].Train, "written")
	for _, name := range prep.RuleNames {
		if r := s.Rules[name]; r != nil {
			fmt.Println(r.Dropped, name)
		}
	}
	// Output:
	// 3 rows read, 1 written
	// 1 unusable
	// 1 duplicate
}

// The row functions alone, for a pipeline of one's own: a DoFn of Beam makes a worker in its Setup, from a configuration as JSON, and calls it in
// ProcessElement. The input names columns and is not opened.
func ExampleWorker() {
	c := prep.Default()
	c.Input = []prep.Input{{Path: []string{"of-a-pipeline"}, Query: "question", Positive: "answer"}}
	c.Output.Dir = "of-a-pipeline"
	c.Normalize.HTML = true
	c.Filter.Document = prep.Range{Min: 3} // words
	rules, err := prep.NewRules(context.Background(), c)
	if err != nil {
		fmt.Println(err)
		return
	}
	worker := rules.NewWorker() // one for each goroutine
	for id, texts := range [][2]string{{"<b>What</b> is  a goroutine?", "A lightweight   thread."}, {"What is a channel?", "A pipe."}} {
		row := prep.Row{ID: int64(id), Texts: [][]string{{texts[0]}, {texts[1]}}}
		worker.Normalize(&row)
		if worker.Filter(&row); row.Rule != "" {
			fmt.Println("dropped:", row.Rule, row.Why)
			continue
		}
		fmt.Println(row.Texts[0][0], row.Texts[1][0])
	}
	// Output:
	// What is a goroutine? A lightweight thread.
	// dropped: length column "answer": 2 words
}
