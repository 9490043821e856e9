//go:build !unix

package dataset

import "errors"

func mapMemory(int) ([]byte, error) { return nil, errors.ErrUnsupported }

func unmapMemory([]byte) {}
