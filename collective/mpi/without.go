//go:build !mpi

package mpi

import (
	"context"
	"errors"

	"contraflow/collective"
)

// Available tells whether this program was built with MPI.
const Available = false

// ErrUnavailable is Open's error in a program that was built without MPI.
var ErrUnavailable = errors.New("this program was built without MPI: install its development files (apt-get install libopenmpi-dev openmpi-bin) and build with: go build -tags mpi")

// Open needs the build tag mpi.
func Open(context.Context, ...Option) (collective.World, error) { return nil, ErrUnavailable }
