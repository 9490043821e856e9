package objects_test

import (
	"context"
	"fmt"

	"contraflow/io/objects"
)

// This reads from a store, so it is not run with the tests. Importing the package is enough where a recipe or package dataset names the files.
func ExampleFetch() {
	files, err := objects.Fetch(context.Background(), "s3://bucket/pairs/*.parquet")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(files) // copies in the cache
}
