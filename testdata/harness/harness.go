// Package harness is what tests of hostile input and of processes share. It is for tests only.
//
// Bounded is for fuzz targets of readers: a file from a stranger may be refused or read, but may not take all memory or all
// time. Start is for tests that look at a program while it runs, and Tied for launchers: what a test has started ends with the test, killed or
// not. SmallDisk is a disk that is soon full. Missing is for tests that need more than Go, and Thorough for long tests of numbers, which the race detector has nothing to learn from.
package harness

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime/metrics"
	"testing"
	"time"
)

// MostBytes and MostTime are what a reader may take for a file of a few kilobytes.
const (
	MostBytes = 1 << 30
	MostTime  = 10 * time.Second
)

// Bounded runs f and fails the test if it has allocated more than MostBytes, which bounds what it held, or taken more than MostTime.
// Others must not allocate meanwhile: fuzz with -parallel 1.
func Bounded(t testing.TB, f func()) {
	t.Helper()
	before, began := allocated(), time.Now()
	f()
	if n, took := allocated()-before, time.Since(began); n > MostBytes || took > MostTime {
		t.Fatalf("%d MiB allocated in %v; want at most %d MiB in %v", n>>20, took, MostBytes>>20, MostTime)
	}
}

// Thorough skips a test with -short, which is how the race detector runs: it compares numbers, and goroutines meet in it no otherwise
// than in other tests.
func Thorough(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("short: it compares numbers")
	}
}

// Few is the first n of a test's cases with -short, where goroutines meet in the others as in these.
func Few[T any](cases []T, n int) []T {
	if testing.Short() {
		return cases[:n]
	}
	return cases
}

// Tenth is a tenth of a benchmark's rows with -short, which is to show that it runs.
func Tenth(rows int) int {
	if testing.Short() {
		return rows / 10
	}
	return rows
}

// Missing skips a test that needs something which is not here, but fails where all has been installed on purpose.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// FreePort is a port of this machine that nobody listens to, of those that no system gives to who asks for any: what the test starts may do
// so before it listens to this one.
func FreePort(t testing.TB) int {
	t.Helper()
	var err error
	for range 100 {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprint("127.0.0.1:", 15000+rand.IntN(15000))); err == nil {
			defer l.Close()
			return l.Addr().(*net.TCPAddr).Port
		}
	}
	t.Fatal(err)
	return 0
}

// allocated is the bytes that the heap has given out so far.
func allocated() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
