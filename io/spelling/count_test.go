package spelling_test

import (
	"fmt"

	"contraflow/io/spelling"
)

func ExampleCount() {
	for _, n := range []int{0, 1, 2} {
		fmt.Println(spelling.Count(n, "query was", "queries were"), "empty")
	}
	// Output:
	// 0 queries were empty
	// 1 query was empty
	// 2 queries were empty
}
