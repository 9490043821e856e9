//go:build linux && (amd64 || arm64)

package nvrtc

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"sync"
)

// Source is a text and the architecture that it is compiled for, "sm_90".
type Source struct{ Text, Arch string }

// Cache has the machine code of sources, in a folder from which other processes and later ones read it. What is
// missing there is compiled when the first of it is asked for, all of it at once: a program's first start on a machine waits for the source
// that takes longest (flash.cu, some 10 s), not for one after the other (30 s). Its methods may be called concurrently.
type Cache struct {
	Dir     string            // may be empty, or may not be written: then each process compiles
	Driver  int               // its CUDA version, 12090 for 12.9; 0: there is none
	Sources map[string]Source // by name; a text that changes wants another name, or another folder

	mu       sync.Mutex
	compiler *Compiler
	code     map[string][]byte
}

// Code is that of a source.
func (c *Cache) Code(name string) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.code == nil {
		c.code = map[string][]byte{}
		if c.Dir != "" {
			for n := range c.Sources {
				if code, err := os.ReadFile(c.file(n)); err == nil {
					c.code[n] = code
				}
			}
		}
	}
	if c.code[name] == nil {
		if err := c.compile(); err != nil {
			return nil, err
		}
	}
	return c.code[name], nil
}

// Forget makes Code compile a source again, whose code in the folder turned out to be damaged.
func (c *Cache) Forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.code, name)
}

func (c *Cache) file(name string) string {
	return filepath.Join(c.Dir, name+"-"+c.Sources[name].Arch+".cubin")
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
			code, _, err := c.compiler.Compile(n, source.Text, source.Arch, false)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			c.code[n] = code
			if c.Dir != "" {
				keep(c.file(n), code)
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

// keep writes a file that other processes may be reading or writing. What fails costs only time, at the next start.
func keep(file string, code []byte) {
	if os.MkdirAll(filepath.Dir(file), 0o755) != nil {
		return
	}
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*")
	if err != nil {
		return
	}
	defer os.Remove(f.Name())
	_, err = f.Write(code)
	if errors.Join(err, f.Close()) == nil {
		os.Rename(f.Name(), file)
	}
}
