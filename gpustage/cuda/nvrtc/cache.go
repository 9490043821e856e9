//go:build linux && (amd64 || arm64)

package nvrtc

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Source is a text and the architecture that it is compiled for, "sm_90".
type Source struct{ Text, Arch string }

// Cache has the machine code of sources, in a folder from which other processes and later ones read it. What is
// missing there is compiled when the first of it is asked for, all of it at once: a program's first start on a machine waits for the source
// that takes longest (flash.cu, some 10 s), not for one after the other (30 s). Its methods may be called concurrently.
//
// A file's name says which NVRTC made it, and it ends with a seal. So a folder may come from elsewhere (command ahead): code is used if it is
// whole, of this very text, and of an NVRTC of the version (13.0) that is here; what is not is compiled as if it were not there. Where there is no NVRTC, that
// of any version does.
type Cache struct {
	Dir     string            // may be empty, or may not be written: then each process compiles
	Driver  int               // its CUDA version, 12090 for 12.9; 0: there is none
	Sources map[string]Source // by name

	// Sweep has folders beside Dir removed that are of other sources, other options or another CUDA, and that nobody has used for long (see sweep).
	Sweep bool

	mu       sync.Mutex
	compiler *Compiler // once code is read, and nil as long as none is found
	code     map[string][]byte
	unkept   error // why code that was compiled is not in the folder
}

// Code is that of a source.
func (c *Cache) Code(name string) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read()
	if c.code[name] == nil {
		if err := c.compile(); err != nil {
			return nil, err
		}
	}
	return c.code[name], nil
}

// Ready compiles what is missing, and says whether something was and where the code is. It is an error that it could not be kept there only to who
// wants it kept.
func (c *Cache) Ready() (said string, unkept, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	began := time.Now()
	c.read()
	missing := len(c.Sources) - len(c.code)
	if missing > 0 {
		if err := c.compile(); err != nil {
			return "", nil, err
		}
	}
	by := "NVRTC"
	if c.compiler != nil {
		by += " " + c.compiler.version()
	}
	switch {
	case c.unkept != nil:
		return fmt.Sprintf("compiled by %s in %.0f s, and again in each program: %v", by, time.Since(began).Seconds(), c.unkept), c.unkept, nil
	case missing == 0:
		return fmt.Sprintf("compiled before, by %s, in %s", by, c.Dir), nil, nil
	}
	return fmt.Sprintf("compiled by %s in %.0f s, and kept in %s", by, time.Since(began).Seconds(), c.Dir), nil, nil
}

// Forget makes Code compile a source again, whose code the driver does not take.
func (c *Cache) Forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.code, name)
}

// read reads what the folder has, once.
func (c *Cache) read() {
	if c.code != nil {
		return
	}
	c.code = map[string][]byte{}
	c.compiler, _ = Open(c.Driver) // 8 ms; compile says why there is none
	for n := range c.Sources {
		if code := c.kept(n); code != nil {
			c.code[n] = code
		}
	}
	if c.Sweep && len(c.code) > 0 {
		use(c.Dir)
	}
}

// kept is a source's code in the folder; nil if there is none that can be used.
func (c *Cache) kept(name string) []byte {
	if c.Dir == "" {
		return nil
	}
	var files []string
	if c.compiler != nil {
		files = []string{c.file(name, c.compiler.version())}
	} else {
		before, after, _ := strings.Cut(filepath.Base(c.file(name, "*")), "*")
		files = within(c.Dir, before, after)
	}
	for _, f := range files {
		all, err := os.ReadFile(f)
		if at := len(all) - sha256.Size; err == nil && at > 0 && bytes.Equal(all[at:], c.seal(name, f, all[:at])) {
			return all[:at:at]
		}
	}
	return nil
}

// within are the files of a folder whose names begin and end so. The folder's own name may have any letters, which filepath.Glob would read as a pattern.
func within(dir, before, after string) (files []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if n := e.Name(); len(n) >= len(before)+len(after) && strings.HasPrefix(n, before) && strings.HasSuffix(n, after) {
			files = append(files, filepath.Join(dir, n))
		}
	}
	return files
}

func (c *Cache) file(name, version string) string {
	return filepath.Join(c.Dir, name+"-"+c.Sources[name].Arch+"-nvrtc"+version+".cubin")
}

// seal is what a file ends with: a digest of its name and of what the code was made from, and of the code.
func (c *Cache) seal(name, file string, code []byte) []byte {
	h := sha256.New()
	for _, part := range []string{filepath.Base(file), strings.Join(always, " "), c.Sources[name].Text} {
		fmt.Fprintf(h, "%d %s", len(part), part)
	}
	h.Write(code)
	return h.Sum(nil)
}

// Keep puts a source's code, which NVRTC of some version ("13.0") has made, into the folder, where other processes may be reading or writing it.
func (c *Cache) Keep(name, version string, code []byte) error {
	if c.Dir == "" {
		return errors.New("there is no folder to keep it in")
	}
	file := c.file(name, version)
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(c.Dir, filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(slices.Concat(code, c.seal(name, file, code)))
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil { // an image's kernels are often made by another user
		return err
	}
	return os.Rename(f.Name(), file)
}

// compile makes all code that is missing.
func (c *Cache) compile() (err error) {
	if c.compiler == nil {
		if c.compiler, err = Open(c.Driver); err != nil {
			return err
		}
	}
	missing := maps.Clone(c.Sources)
	for n := range c.code {
		delete(missing, n)
	}
	var wait sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for n, source := range missing {
		wait.Go(func() {
			var code []byte
			arch, err := c.compiler.target(source.Arch)
			if err == nil {
				code, _, err = c.compiler.Compile(n, source.Text, arch, false)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			c.code[n] = code
			if err := c.Keep(n, c.compiler.version(), code); err != nil { // it costs only time, at the next start
				c.unkept = err
			}
		})
	}
	wait.Wait()
	if c.Sweep && len(errs) == 0 && c.unkept == nil {
		sweep(c.Dir)
	}
	return errors.Join(errs...)
}
