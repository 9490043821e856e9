package gopairs_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"contraflow/stages/gopairs"
)

func Example() {
	root, err := os.MkdirTemp("", "gopairs")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(root)
	source := "package sum\n\n// Sum adds up all of the numbers.\nfunc Sum(numbers ...int) (sum int) {\n\tfor _, n := range numbers {\n\t\tsum += n\n\t}\n\treturn sum\n}\n"
	if err := os.WriteFile(filepath.Join(root, "sum.go"), []byte(source), 0o666); err != nil {
		log.Fatal(err)
	}
	x, err := gopairs.Extract(context.Background(), root, nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range x.Pairs {
		fmt.Printf("%s %s\nquery: %s\ndocument:\n%s\n", p.ID(), p.Name, p.Comment, p.Body)
	}
	// Output:
	// sum.go:4 Sum
	// query: Sum adds up all of the numbers.
	// document:
	// for _, n := range numbers {
	// 	sum += n
	// }
	// return sum
}
