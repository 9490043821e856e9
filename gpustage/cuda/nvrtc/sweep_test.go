//go:build linux && (amd64 || arm64)

package nvrtc

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"contraflow/gpustage/cuda/kernels"
)

// aged makes a folder with a file in it that was used last so long ago.
func aged(t *testing.T, dir string, ago time.Duration) string {
	t.Helper()
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "a.cu-sm_90-nvrtc12.9.cubin"), []byte("code"), 0o644)
	}
	if at := time.Now().Add(-ago); err == nil {
		err = os.Chtimes(dir, at, at)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Folders of compiled kernels that nobody has used for long are removed when new code is made beside them, and nothing else is.
func TestSweep(t *testing.T) {
	compiler(t)
	const day = 24 * time.Hour
	if name := kernels.Fingerprint() + "-" + Variant(13000); !folder.MatchString(name) {
		t.Errorf("%s is not known as a folder of compiled kernels", name)
	}
	open := func(dir, kernel string) *Cache {
		return &Cache{Dir: dir, Sweep: true, Sources: map[string]Source{"a.cu": {`extern "C" __global__ void ` + kernel + `(int *x) { *x = 1; }`, "sm_90"}}}
	}
	beside := t.TempDir()
	at := func(name string) string { return filepath.Join(beside, name) }
	mine := at("0123456789abcdef-cuda12-ac2b")
	for name, ago := range map[string]time.Duration{
		"1123456789abcdef-cuda12-ac2b": 31 * day, "2123456789abcdef-cuda13-0000.going12": 31 * day, "3123456789abcdef-cuda12-ac2b": 29 * day,
		"4123456789abcdef-cuda12-ac2b.going7": 0, "my-kernels": 400 * day, "0123456789abcdef-cuda12": 400 * day, "0123456789abcdef-cuda12-ac2b-mine": 400 * day,
	} {
		aged(t, at(name), ago)
	}
	file := at("5123456789abcdef-cuda12-ac2b")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(file, time.Time{}, time.Now().Add(-400*day)); err != nil {
		t.Fatal(err)
	}
	if _, err := open(mine, "a").Code("a.cu"); err != nil {
		t.Fatal(err)
	}
	var left []string
	entries, err := os.ReadDir(beside)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	want := []string{"0123456789abcdef-cuda12", "0123456789abcdef-cuda12-ac2b", "0123456789abcdef-cuda12-ac2b-mine", "3123456789abcdef-cuda12-ac2b",
		"4123456789abcdef-cuda12-ac2b.going7", "5123456789abcdef-cuda12-ac2b", "my-kernels"}
	if err != nil || !slices.Equal(left, want) {
		t.Errorf("left are %v, error %v, want %v", left, err, want)
	}

	// Who reads code keeps its folder, and removes nothing.
	old, other := time.Now().Add(-40*day), aged(t, at("6123456789abcdef-cuda12-ac2b"), 40*day)
	if err := os.Chtimes(mine, old, old); err != nil {
		t.Fatal(err)
	}
	if _, err := open(mine, "a").Code("a.cu"); err != nil {
		t.Fatal(err)
	}
	if i, err := os.Stat(mine); err != nil || time.Since(i.ModTime()) > day {
		t.Errorf("a folder that was used is as old as before: %v, error %v", i.ModTime(), err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Error("who reads removes:", err)
	}
	// A folder of code that is no use is not kept by who looks into it.
	if err := os.Chtimes(mine, old, old); err != nil {
		t.Fatal(err)
	}
	c := open(mine, "b")
	c.read()
	if i, err := os.Stat(mine); err != nil || time.Since(i.ModTime()) < day {
		t.Errorf("a folder without code of this source is used: error %v", err)
	}
	// Nor are folders removed beside one that somebody has named.
	named := open(mine, "c")
	named.Sweep = false
	if _, err := named.Code("a.cu"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Error("beside a folder that was named:", err)
	}
	sweep(aged(t, mine, 40*day)) // by a clock that is not the file system's
	if _, err := os.Stat(mine); err != nil {
		t.Error("one's own folder:", err)
	}
}

// Several processes may remove, read and write at a time: code is right, and nothing is left of what was old.
func TestSweepTogether(t *testing.T) {
	compiler(t)
	beside := t.TempDir()
	var old []string
	for _, c := range "abcdef" {
		old = append(old, aged(t, filepath.Join(beside, string(c)+"123456789abcdef-cuda12-ac2b"), 31*24*time.Hour))
	}
	var wait sync.WaitGroup
	for i := range 4 {
		dir := filepath.Join(beside, string(rune('1'+i))+"123456789abcdef-cuda12-ac2b")
		wait.Go(func() {
			for range 20 {
				sweep(dir)
			}
		})
		wait.Go(func() { // of a folder that others remove
			c := &Cache{Dir: old[i], Sweep: true, Sources: map[string]Source{"a.cu": {`extern "C" __global__ void a(int *x) { *x = 1; }`, "sm_90"}}}
			if code, err := c.Code("a.cu"); err != nil || len(code) == 0 {
				t.Errorf("%d bytes of code, error %v", len(code), err)
			}
		})
	}
	wait.Wait()
	for _, e := range old[4:] {
		if _, err := os.Stat(e); err == nil {
			t.Errorf("%s is left", e)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(beside, "*.going*")); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}
