package spelling_test

import (
	"fmt"

	"contraflow/io/spelling"
)

func Example() {
	columns := []string{"query", "positive", "negative", "label"}
	fmt.Printf("no column %q: is %q meant?\n", "Postive", spelling.Nearest("Postive", columns))
	fmt.Printf("%q\n", spelling.Near("embeddings.weight", []string{"pooler.weight", "bert.embeddings.weight"}))
	fmt.Printf("%q\n", spelling.Near("title", columns))
	// Output:
	// no column "Postive": is "positive" meant?
	// ["bert.embeddings.weight"]
	// []
}
