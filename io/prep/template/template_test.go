package template_test

import (
	"fmt"
	"strings"

	"contraflow/io/prep/template"
)

func Example() {
	first, _, _ := strings.Cut(template.Prep, ":")
	fmt.Println(first)
	// Output: # Training data of raw pairs
}
