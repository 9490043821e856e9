package prep

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"contraflow/io/atomicfile"
	"contraflow/testdata/harness"
)

// TestFullDisk prepares on a disk that has room for n files more, or n pages, for each n until that is enough. A run that finds no room leaves nothing of
// its own, and an earlier output as it was.
func TestFullDisk(t *testing.T) {
	harness.SmallDisk(t, func(root string) {
		for _, earlier := range []bool{false, true} {
			for _, limit := range []string{"nr_inodes=%d", "size=%d"} {
				onFullDisk(t, filepath.Join(root, fmt.Sprint(earlier, limit)), limit, earlier)
			}
		}
	})
}

func onFullDisk(t *testing.T, disk, limit string, earlier bool) {
	c, _ := corpus(t, 20)
	c.Split = Split{Dev: 0.3, BEIR: true}
	c.Output.Dir = filepath.Join(disk, "out")
	mount := func(flags uintptr, limit string) {
		if err := syscall.Mount("tmpfs", disk, "tmpfs", flags, limit); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(disk, 0o777); err != nil {
		t.Fatal(err)
	}
	mount(0, "")
	if earlier {
		mustRun(t, c)
	}
	c.Seed++ // another output
	before := contents(t, c.Output.Dir)
	var used syscall.Statfs_t
	if err := syscall.Statfs(disk, &used); err != nil {
		t.Fatal(err)
	}
	for more := 1; ; more++ {
		room := int64(used.Files-used.Ffree) + int64(more)
		if limit == "size=%d" {
			room = int64(used.Blocks-used.Bfree+uint64(more)) * used.Bsize
		}
		mount(syscall.MS_REMOUNT, fmt.Sprintf(limit, room))
		_, err := Run(t.Context(), c, Options{Overwrite: true, TempDir: t.TempDir()})
		after := contents(t, c.Output.Dir)
		if err == nil {
			if _, half := os.Stat(filepath.Join(c.Output.Dir, Temporary)); half == nil || maps.Equal(before, after) || more < 5 {
				t.Errorf(limit+": done with %d more: %v", room, more, slices.Sorted(maps.Keys(after)))
			}
			return
		}
		_, half := os.Stat(filepath.Join(c.Output.Dir, Temporary))
		if !atomicfile.IsFull(err) || half == nil || !maps.Equal(before, after) {
			t.Errorf(limit+": %v: there were %v, and are %v and (%v) %s", room, err, slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)), half, Temporary)
		}
	}
}
