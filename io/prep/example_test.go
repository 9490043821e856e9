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
