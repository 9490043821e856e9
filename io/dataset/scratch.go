package dataset

import (
	"fmt"
	"os"
)

// scratch is a temporary file. It has lost its name as soon as it is there, so that the system takes it back however the process ends; on Windows it
// has one until dispose.
type scratch struct {
	*os.File
	named bool
}

func newScratch(kind string) (*scratch, error) {
	f, err := os.CreateTemp("", "contraflow-*."+kind)
	if err != nil {
		return nil, aside(err)
	}
	return &scratch{f, os.Remove(f.Name()) != nil}, nil
}

func (s *scratch) Write(b []byte) (n int, err error) {
	if n, err = s.File.Write(b); err != nil {
		err = aside(err)
	}
	return n, err
}

func (s *scratch) dispose() {
	if s.Close(); s.named {
		os.Remove(s.Name())
	}
}

// aside goes on from what is wrong with a temporary file.
func aside(err error) error {
	return fmt.Errorf("the texts are put aside in a temporary file, for which TMPDIR (on Windows TMP) names a folder with room for all of them: %w", err)
}
