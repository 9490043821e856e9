//go:build mpi && !mpich

package mpi

// The two libraries' flags are in files of their own: the go command's build cache knows a package by its files, and would
// take objects made for one library for the other's.

// #cgo pkg-config: ompi
import "C"

// needsPMIx tells that this MPI, as distributions build it, finds the other processes of a Slurm step through PMIx alone.
const needsPMIx = true
