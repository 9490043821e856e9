package main

import (
	"fmt"
	"os"
	"sync"
)

// stdout is standard output, and remembers the first error of writing there: what a command prints, and whether it looks at errors or not, a
// program that could not print all of it has failed.
type stdout struct {
	file     *os.File
	terminal bool

	mu  sync.Mutex
	err error
}

func (s *stdout) Write(p []byte) (int, error) {
	if s.terminal { // which may show the passing line
		fmt.Fprint(s.file, overLast())
	}
	n, err := s.file.Write(p)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.err == nil {
			s.err = err
		}
	}
	return n, err
}

// failed is the first error of writing.
func (s *stdout) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
