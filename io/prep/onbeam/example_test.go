//go:build beam

package onbeam_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"contraflow/io/prep"
	"contraflow/io/prep/onbeam"
)

// What prep.Run does in the process, on Beam's Prism. A program that runs elsewhere begins with onbeam.Worker(os.Args[1:]).
func ExampleRun() {
	dir, err := os.MkdirTemp("", "onbeam")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	raw := `{"question": "What is a goroutine?", "answer": "A lightweight thread managed by the Go runtime."}
{"question": "What is a goroutine?", "answer": "A lightweight  thread managed by the Go runtime."}
`
	if err := os.WriteFile(filepath.Join(dir, "raw.jsonl"), []byte(raw), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	c := prep.Default()
	c.Input = []prep.Input{{Path: []string{filepath.Join(dir, "raw.jsonl")}, Query: "question", Positive: "answer"}}
	c.Output.Dir = filepath.Join(dir, "prepared")
	s, err := onbeam.Run(context.Background(), c, onbeam.Options{Runner: "prism"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s.Inputs[0].Read, "rows read,", s.Inputs[0].Train, "written")
	// Output: 2 rows read, 1 written
}
