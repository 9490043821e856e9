//go:build !linux || !(amd64 || arm64)

package nccl

import (
	"context"
	"fmt"
	"runtime"

	"contraflow/collective"
	"contraflow/collective/launch"
)

// Open needs Linux.
func Open(context.Context, launch.Job, ...Option) (collective.World, error) {
	return nil, fmt.Errorf("%w on %s/%s: it exists for Linux", ErrUnavailable, runtime.GOOS, runtime.GOARCH)
}
