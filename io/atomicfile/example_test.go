package atomicfile_test

import (
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"contraflow/io/atomicfile"
)

func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "report.txt")
	if err := atomicfile.WriteFile(path, []byte("of yesterday")); err != nil {
		log.Fatal(err)
	}

	// A writer that fails half-way leaves what was there.
	err = atomicfile.Write(path, func(w io.Writer) error {
		fmt.Fprint(w, "of to")
		return errors.New("the numbers are not in yet")
	})
	text, _ := os.ReadFile(path)
	fmt.Println(err != nil, string(text))

	err = atomicfile.Write(path, func(w io.Writer) error {
		_, err := fmt.Fprint(w, "of today")
		return err
	})
	text, _ = os.ReadFile(path)
	fmt.Println(err != nil, string(text))
	// Output:
	// true of yesterday
	// false of today
}

func ExampleWriteDir() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	model := filepath.Join(dir, "model")
	for _, name := range []string{"first.bin", "second.bin"} {
		err := atomicfile.WriteDir(model, func(tmp string) error {
			return os.WriteFile(filepath.Join(tmp, name), []byte("weights"), 0o666)
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	files, _ := os.ReadDir(model)
	fmt.Println(files) // replaced, not merged
	// Output: [- second.bin]
}
