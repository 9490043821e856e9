package hfmodel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"contraflow/io/atomicfile"
)

// TestHostile: whatever a repository or server says, nothing is written outside of the model's cache folder.
func TestHostile(t *testing.T) {
	noEnvironment(t)
	evil := func(name string) func(*fakeHub) {
		return func(h *fakeHub) { h.files[name] = "evil" }
	}
	modulePath := func(path string) func(*fakeHub) {
		return func(h *fakeHub) {
			h.files["modules.json"] = `[{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "` + path +
				`", "type": "sentence_transformers.models.Pooling"}]`
			h.files[path+"/config.json"] = `{}`
		}
	}
	etag := func(tag string) func(*fakeHub) {
		return func(h *fakeHub) {
			h.header = func(name string, header http.Header) {
				if name == "config.json" {
					header.Set("ETag", tag)
				}
			}
		}
	}
	commit := func(sha string) func(*fakeHub) {
		return func(h *fakeHub) {
			h.listing = func() any { return map[string]any{"sha": sha, "siblings": h.siblings()} }
		}
	}
	shard := func(path string) func(*fakeHub) {
		return func(h *fakeHub) {
			delete(h.files, "model.safetensors")
			h.files["model.safetensors.index.json"] = `{"weight_map": {"x": "` + path + `"}}`
		}
	}
	for name, c := range map[string]struct {
		change func(*fakeHub)
		want   string
	}{
		"up":                  {evil("../../evil.json"), "leads out of its folder"},
		"up in the middle":    {evil("1_Pooling/../../../../evil/config.json"), "leads out of its folder"},
		"absolute":            {evil("/tmp/evil.json"), "is absolute"},
		"backslashes":         {evil(`..\..\evil.json`), "leads out of its folder"},
		"UNC":                 {evil(`\\server\share\evil.json`), "is absolute"},
		"drive":               {evil(`C:\evil.json`), "is absolute"},
		"drive, relative":     {evil(`C:evil.json`), "is absolute"},
		"module up":           {modulePath("../../evil"), "leads out of its folder"},
		"module absolute":     {modulePath("/evil"), "is absolute"},
		"module backslash":    {modulePath(`x\\evil`), "has a backslash"},
		"module stream":       {modulePath("ab:c"), "has a colon"},
		"etag up":             {etag(`"../../../../evil"`), "can't be a file's name"},
		"etag absolute":       {etag(`"/tmp/evil"`), "can't be a file's name"},
		"etag backslash":      {etag(`"..\evil"`), "can't be a file's name"},
		"etag hidden":         {etag(`".incomplete"`), "can't be a file's name"},
		"etag missing":        {etag(""), "can't be a file's name"},
		"etag long":           {etag(strings.Repeat("a", 200)), "can't be a file's name"},
		"commit up":           {commit("../../../../evil"), "for a commit, which is none"},
		"commit short":        {commit("abc"), "for a commit, which is none"},
		"shard up":            {shard("../../../evil.safetensors"), "leads out of its folder"},
		"shard not listed":    {shard("other.safetensors"), "which the repository does not have"},
		"file is also folder": {func(h *fakeHub) { h.files["1_Pooling"] = "evil"; modulePath("config.json")(h) }, "config.json"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newFakeHub(t)
			c.change(h)
			outer := t.TempDir()
			cache := filepath.Join(outer, "a", "b", "cache")
			_, err := resolve(t.Context(), "org/name", Options{Endpoint: h.URL, CacheDir: cache})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			for _, file := range tree(t, outer) {
				if !strings.HasPrefix(file, "a/b/cache/models--org--name/") && !strings.HasPrefix(file, "a/b/cache/.locks/models--org--name/") ||
					strings.Contains(file, "evil") {
					t.Errorf("wrote %s", file)
				}
			}
			for _, file := range []string{"/tmp/evil", "/tmp/evil.json", "evil.json"} {
				if _, err := os.Lstat(file); err == nil {
					t.Errorf("wrote %s", file)
				}
			}
		})
	}
}

// TestLinkInCache: a link that somebody else left in the cache leads nowhere.
func TestLinkInCache(t *testing.T) {
	noEnvironment(t)
	h := newFakeHub(t)
	outside, cache := t.TempDir(), t.TempDir()
	storage := filepath.Join(cache, "models--org--name")
	if err := os.MkdirAll(storage, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(storage, "snapshots")); err != nil {
		t.Skip(err)
	}
	if _, err := resolve(t.Context(), "org/name", Options{Endpoint: h.URL, CacheDir: cache}); err == nil {
		t.Error("no error")
	}
	if got := tree(t, outside); len(got) != 0 {
		t.Errorf("wrote %q", got)
	}
}

// TestWrongContent: a file that is not what was announced gets no place in the cache.
func TestWrongContent(t *testing.T) {
	noEnvironment(t)
	for name, c := range map[string]struct {
		file   string
		change func(h *fakeHub, real string)
		want   string
	}{
		"other bytes": {"model.safetensors", func(h *fakeHub, real string) {
			h.serve = func(w http.ResponseWriter, r *http.Request, name string) bool {
				if name != "model.safetensors" {
					return false
				}
				w.Write([]byte(strings.Repeat("x", len(real))))
				return true
			}
		}, "hash"},
		"other bytes of a small file": {"config.json", func(h *fakeHub, real string) {
			h.serve = func(w http.ResponseWriter, r *http.Request, name string) bool {
				if name != "config.json" || r.Method == http.MethodHead {
					return false
				}
				w.Write([]byte(strings.Repeat("x", len(real))))
				return true
			}
		}, "hash"},
		"too long": {"model.safetensors", func(h *fakeHub, real string) {
			h.header = func(name string, header http.Header) {
				if name == "model.safetensors" {
					header.Set("X-Linked-Size", "100")
				}
			}
		}, "more than the 100 bytes it announced"},
		"too short": {"model.safetensors", func(h *fakeHub, real string) {
			h.header = func(name string, header http.Header) {
				if name == "model.safetensors" {
					header.Set("X-Linked-Size", "1000000")
				}
			}
		}, "of 1000000 bytes"},
		"a part that begins too late": {"model.safetensors", func(h *fakeHub, real string) {
			h.header = func(name string, header http.Header) {
				if name == "model.safetensors" {
					header.Set("X-Linked-Etag", "opaque") // no hash that would tell
				}
			}
			h.serve = func(w http.ResponseWriter, r *http.Request, name string) bool {
				if name == "model.safetensors" && r.Header.Get("Range") == "" {
					cutAfter(w, real, 100)
				}
				if name != "model.safetensors" {
					return false
				}
				w.Header().Set("Content-Range", fmt.Sprintf("bytes 108-%d/%d", len(real)-1, len(real)))
				w.WriteHeader(http.StatusPartialContent)
				io.WriteString(w, real[108:])
				return true
			}
		}, `asked for the bytes from 100, the server sends "bytes 108-`},
	} {
		t.Run(name, func(t *testing.T) {
			h := newFakeHub(t)
			c.change(h, h.files[c.file])
			cache := t.TempDir()
			_, err := resolve(t.Context(), "org/name", Options{Endpoint: h.URL, CacheDir: cache})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "file "+c.file) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			for _, file := range tree(t, cache) {
				if strings.Contains(file, "/blobs/"+h.etag(c.file)+" ") || strings.HasPrefix(file, "models--org--name/refs") ||
					strings.Contains(file, "snapshots/"+commit1+"/"+c.file) {
					t.Errorf("the cache has %s", file)
				}
			}
		})
	}
}

// TestInterrupted: a connection that breaks is resumed at the byte where it broke, and so is a process that is killed while it puts a file in its place.
func TestInterrupted(t *testing.T) {
	noEnvironment(t)
	h := newFakeHub(t)
	var cuts atomic.Int32
	h.serve = func(w http.ResponseWriter, r *http.Request, name string) bool {
		if name != "model.safetensors" || cuts.Add(1) > 1 {
			return false
		}
		cutAfter(w, h.files[name], 10000)
		return true
	}
	o := Options{Endpoint: h.URL, CacheDir: t.TempDir()}
	dir := mustResolve(t, "org/name", o)
	open(t, dir)
	var large []string
	for _, s := range h.seen() {
		if strings.HasPrefix(s, "GET content/") {
			large = append(large, s)
		}
	}
	if want := []string{"GET content/model.safetensors", "GET content/model.safetensors bytes=10000-"}; !slices.Equal(large, want) {
		t.Errorf("asked for %q, want %q", large, want)
	}
	file := filepath.Join(dir, weightsFile)
	if err := os.Rename(file, file+".link"); err != nil {
		t.Fatal(err)
	}
	open(t, mustResolve(t, "org/name", o))
	if _, err := os.Lstat(file + ".link"); err == nil {
		t.Errorf("%s.link is left", file)
	}
}

// TestCancelled: a cancelled download leaves what it has, and the next process continues there.
func TestCancelled(t *testing.T) {
	noEnvironment(t)
	for _, ranges := range []bool{true, false} {
		h := newFakeHub(t)
		o := Options{Endpoint: h.URL, CacheDir: t.TempDir()}
		ctx, cancel := context.WithCancel(t.Context())
		first := true
		h.serve = func(w http.ResponseWriter, r *http.Request, name string) bool {
			if name != "model.safetensors" {
				return false
			}
			if !first {
				if !ranges {
					w.Write([]byte(h.files[name]))
				}
				return !ranges
			}
			first = false
			w.Header().Set("Content-Length", "27680")
			w.Write([]byte(h.files[name][:10000]))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return true
		}
		o.Progress = func(p Progress) {
			if p.File == "model.safetensors" {
				cancel()
			}
		}
		_, err := resolve(ctx, "org/name", o)
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "will continue where it stopped") {
			t.Fatalf("error %v", err)
		}
		partial := filepath.Join(o.CacheDir, "models--org--name", "blobs", h.etag("model.safetensors")+".incomplete")
		if info, err := os.Stat(partial); err != nil || info.Size() == 0 {
			t.Fatalf("nothing was kept: %v", err)
		}
		h.seen()
		o.Progress = nil
		open(t, mustResolve(t, "org/name", o))
		seen := h.seen()
		if !slices.ContainsFunc(seen, func(s string) bool { return strings.HasPrefix(s, "GET content/model.safetensors bytes=") }) {
			t.Errorf("asked for %q", seen)
		}
		if _, err := os.Stat(partial); err == nil {
			t.Error("the partial file is still there")
		}
	}
}

// TestForeignPartial: what lies there is not this file's beginning, or no more than that. It is noticed and downloaded again.
func TestForeignPartial(t *testing.T) {
	noEnvironment(t)
	for _, size := range []int{5000, 27680, 30000} {
		h := newFakeHub(t)
		o := Options{Endpoint: h.URL, CacheDir: t.TempDir()}
		put(t, o.CacheDir, "models--org--name/blobs/"+h.etag("model.safetensors")+".incomplete", strings.Repeat("x", size))
		put(t, o.CacheDir, "models--org--name/blobs/"+h.etag("tokenizer.json"), h.files["tokenizer.json"][:100]) // by a disk that was full
		dir := mustResolve(t, "org/name", o)
		open(t, dir)
		if data, err := os.ReadFile(filepath.Join(dir, "tokenizer.json")); err != nil || string(data) != h.files["tokenizer.json"] {
			t.Errorf("tokenizer.json has %d bytes, %v", len(data), err)
		}
	}
}

// TestRetries: a server in trouble is asked again, with growing pauses; one that refuses is not.
func TestRetries(t *testing.T) {
	noEnvironment(t)
	for _, c := range []struct {
		status, failures, requests int
		ok                         bool
	}{{503, 4, 5, true}, {429, 1, 2, true}, {500, 9, 5, false}, {403, 9, 1, false}, {418, 9, 1, false}} {
		h := newFakeHub(t)
		asked := 0
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/api/") {
				if asked++; asked <= c.failures {
					fail(w, c.status, "", "trouble")
					return
				}
			}
			h.hub(w, r)
		}))
		_, err := resolve(t.Context(), "org/name", Options{Endpoint: front.URL, CacheDir: t.TempDir()})
		front.Close()
		if (err == nil) != c.ok || asked != c.requests {
			t.Errorf("%+v: %v after %d requests", c, err, asked)
		}
	}
}

// TestServerDown: without an answer, the cached model is used, and the user is told.
func TestServerDown(t *testing.T) {
	noEnvironment(t)
	h := newFakeHub(t)
	var warnings []string
	o := Options{Endpoint: h.URL, CacheDir: t.TempDir(), Warn: func(m string) { warnings = append(warnings, m) }}
	dir := mustResolve(t, "org/name", o)
	h.token = "now private"
	if again := mustResolve(t, "org/name", o); again != dir || len(warnings) != 1 || !strings.Contains(warnings[0], "set HF_TOKEN") {
		t.Errorf("%s, warnings %q", again, warnings)
	}
	asked := 0
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer front.Close()
	o.Endpoint = front.URL
	if again := mustResolve(t, "org/name", o); again != dir || len(warnings) != 2 || asked != 1 { // nobody waits where there is a model
		t.Errorf("%s, warnings %q, asked %d times", again, warnings, asked)
	}
	h.Server.Close()
	o.Endpoint, warnings = h.URL, warnings[1:]
	if again := mustResolve(t, "org/name", o); again != dir || len(warnings) != 2 || !strings.Contains(warnings[1], "using the cached model in "+dir) {
		t.Errorf("%s, warnings %q", again, warnings)
	}
	_, err := resolve(t.Context(), "org/other", o)
	if err == nil || !strings.Contains(err.Error(), "model org/other is not a folder here, and "+h.URL+" can't be asked for it") {
		t.Error(err)
	}
}

// TestRedirects: loops and other schemes end.
func TestRedirects(t *testing.T) {
	noEnvironment(t)
	for to, want := range map[string]string{"/loop": "more than 10 redirects", "file:///etc/passwd": `scheme "file"`} {
		asked := 0
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked++
			w.Header().Set("Location", to)
			w.WriteHeader(http.StatusFound)
		}))
		_, err := resolve(t.Context(), "org/name", Options{Endpoint: s.URL, CacheDir: t.TempDir()})
		s.Close()
		if err == nil || !strings.Contains(err.Error(), want) || asked > 10 {
			t.Errorf("%s: %v after %d requests", to, err, asked)
		}
	}
}

// Who remembers a commit while another process does waits for it.
func TestTwoRefs(t *testing.T) {
	h := &hub{storage: t.TempDir(), revision: "main"}
	put(t, h.storage, "refs/main", "")
	file, done := filepath.Join(h.storage, "refs", "main"), make(chan error, 1)
	err := atomicfile.Write(file, func(w io.Writer) error {
		go func() { done <- h.writeRef(t.Context(), commit1) }()
		time.Sleep(60 * time.Millisecond)
		_, err := io.WriteString(w, commit2)
		return err
	})
	if err = errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != commit1 {
		t.Errorf("%s: %v", got, err)
	}
}

// From an encrypted connection no redirect leads to one that is not.
func TestDowngrade(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	s := httptest.NewTLSServer(http.RedirectHandler(plain.URL, http.StatusFound))
	defer s.Close()
	endpoint, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(endpoint, "")
	c.http.Transport = s.Client().Transport
	if _, err := c.send(t.Context(), http.MethodGet, s.URL, nil, nil); !errors.Is(err, errRefused) || !strings.Contains(err.Error(), `scheme "http"`) {
		t.Error(err)
	}
}

// TestTwoAtOnce: two downloads of one model fetch each file once.
func TestTwoAtOnce(t *testing.T) {
	noEnvironment(t)
	h := newFakeHub(t)
	o := Options{Endpoint: h.URL, CacheDir: t.TempDir()}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if _, err := resolve(t.Context(), "org/name", o); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	counts := map[string]int{}
	for _, s := range h.seen() {
		counts[s]++
	}
	if counts["GET content/model.safetensors"] != 1 || counts["GET config.json"] != 1 {
		t.Errorf("requests %v", counts)
	}
}
