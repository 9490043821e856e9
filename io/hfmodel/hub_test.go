package hfmodel

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"contraflow/io/atomicfile"
)

const (
	commit1 = "1111111111111111111111111111111111111111"
	commit2 = "2222222222222222222222222222222222222222"
)

// fakeHub is a hub with one model, org/name, and a second server for large files, as the real one has.
type fakeHub struct {
	*httptest.Server
	content *httptest.Server
	files   map[string]string
	lfs     map[string]bool // files that the content server serves
	commit  string
	token   string // needed for everything, if set
	listing func() any
	header  func(name string, h http.Header) // changes the answer about a file
	serve   func(w http.ResponseWriter, r *http.Request, name string) bool

	mu       sync.Mutex
	requests []string // "GET config.json", and ranges: "GET model.safetensors bytes=10-"
}

func newFakeHub(t *testing.T) *fakeHub {
	h := &fakeHub{files: map[string]string{}, lfs: map[string]bool{"model.safetensors": true}, commit: commit1}
	err := fs.WalkDir(os.DirFS(golden+"st6"), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(golden + "st6/" + path)
		h.files[path] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README.md", ".gitattributes", "pytorch_model.bin", "tf_model.h5", "onnx/model.onnx", "onnx/config.json",
		"openvino/openvino_model.xml", "data_config.json", "rust_model.ot", "checkpoint-3/model.safetensors", "log of 10:30.txt"} {
		h.files[name] = "not needed: " + name
	}
	h.Server = httptest.NewServer(http.HandlerFunc(h.hub))
	h.content = httptest.NewServer(http.HandlerFunc(h.large))
	t.Cleanup(h.Server.Close)
	t.Cleanup(h.content.Close)
	return h
}

func (h *fakeHub) log(r *http.Request, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.Header.Get("Accept-Encoding") != "identity" {
		name += " compressed"
	}
	h.requests = append(h.requests, strings.TrimSpace(r.Method+" "+name+" "+r.Header.Get("Range")))
}

func (h *fakeHub) seen() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := h.requests
	h.requests = nil
	return seen
}

func (h *fakeHub) etag(name string) string {
	if data := h.files[name]; h.lfs[name] {
		return fmt.Sprintf("%x", sha256.Sum256([]byte(data)))
	} else {
		return fmt.Sprintf("%x", sha1.Sum([]byte(fmt.Sprintf("blob %d\x00%s", len(data), data))))
	}
}

func fail(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("X-Error-Code", code)
	w.Header().Set("X-Error-Message", message)
	w.WriteHeader(status)
}

func (h *fakeHub) hub(w http.ResponseWriter, r *http.Request) {
	if got := r.Header.Get("Authorization"); h.token != "" && got != "Bearer "+h.token || got == "Bearer" {
		fail(w, 401, "RepoNotFound", "Repository not found")
		return
	}
	switch path := r.URL.EscapedPath(); {
	case path == "/api/models/org/name/revision/main", path == "/api/models/org/name/revision/refs%2Fpr%2F1",
		path == "/api/models/org/name/revision/"+h.commit:
		h.log(r, "listing")
		var answer any = map[string]any{"sha": h.commit, "siblings": h.siblings()}
		if h.listing != nil {
			answer = h.listing()
		}
		json.NewEncoder(w).Encode(answer)
	case path == "/api/models/name/revision/main": // the short name of days gone by
		http.Redirect(w, r, "/api/models/org/name/revision/main", http.StatusTemporaryRedirect)
	case strings.HasPrefix(path, "/name/resolve/"):
		http.Redirect(w, r, "/org"+path, http.StatusTemporaryRedirect)
	case strings.HasPrefix(path, "/api/models/org/name/revision/"):
		fail(w, 404, "RevisionNotFound", "Invalid rev id")
	case strings.HasPrefix(path, "/org/name/resolve/"+h.commit+"/"):
		h.file(w, r, strings.TrimPrefix(r.URL.Path, "/org/name/resolve/"+h.commit+"/"))
	default:
		fail(w, 401, "RepoNotFound", "Repository not found")
	}
}

func (h *fakeHub) siblings() (list []map[string]string) {
	for _, name := range sortedKeys(h.files) {
		list = append(list, map[string]string{"rfilename": name})
	}
	return list
}

func (h *fakeHub) file(w http.ResponseWriter, r *http.Request, name string) {
	h.log(r, name)
	data, ok := h.files[name]
	if !ok {
		fail(w, 404, "EntryNotFound", "Entry not found")
		return
	}
	w.Header().Set("X-Repo-Commit", h.commit)
	w.Header().Set("ETag", `"`+h.etag(name)+`"`)
	if h.lfs[name] {
		w.Header().Set("ETag", `"something-else"`)
		w.Header().Set("X-Linked-Etag", `"`+h.etag(name)+`"`)
		w.Header().Set("X-Linked-Size", strconv.Itoa(len(data)))
		w.Header().Set("Location", h.content.URL+"/"+name+"?signature=secret")
	}
	if h.header != nil {
		h.header(name, w.Header())
	}
	if h.lfs[name] {
		w.WriteHeader(http.StatusFound)
		return
	}
	if h.serve != nil && h.serve(w, r, name) {
		return
	}
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(data))
}

func (h *fakeHub) large(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/")
	h.log(r, "content/"+name)
	if r.Header.Get("Authorization") != "" {
		http.Error(w, "a token was sent to another host", http.StatusTeapot)
		return
	}
	if h.serve != nil && h.serve(w, r, name) {
		return
	}
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(h.files[name]))
}

// cutAfter serves only n bytes of a large file and then drops the connection.
func cutAfter(w http.ResponseWriter, data string, n int) {
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(http.StatusOK)
	w.Write([]byte(data[:n]))
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// noEnvironment keeps the user's variables out.
func noEnvironment(t *testing.T) {
	for _, key := range []string{"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN",
		"HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN_PATH", "HF_HUB_DISABLE_IMPLICIT_TOKEN"} {
		t.Setenv(key, "")
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("USERPROFILE", os.Getenv("HOME"))
}

// resolve is Resolve without its pauses.
func resolve(ctx context.Context, name string, o Options) (string, error) {
	id, revision, err := parseID(name)
	if err != nil {
		return "", err
	}
	h, err := newHub(id, revision, o)
	if err != nil {
		return "", err
	}
	h.pause = func(context.Context, time.Duration) error { return nil }
	return h.resolve(ctx)
}

func mustResolve(t *testing.T, name string, o Options) string {
	t.Helper()
	dir, err := resolve(t.Context(), name, o)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var neededOfST6 = []string{
	"1_Pooling/config.json", "2_Normalize/config.json", "config.json", "config_sentence_transformers.json", "model.safetensors",
	"modules.json", "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json",
}

// TestDownload checks the cache's layout against huggingface_hub's, and what is asked of the server.
func TestDownload(t *testing.T) {
	noEnvironment(t)
	h := newFakeHub(t)
	t.Setenv("HF_ENDPOINT", h.URL+"/")
	home := filepath.Join(t.TempDir(), "hf")
	t.Setenv("HF_HOME", home)
	var last Progress
	dir, err := Resolve(t.Context(), "org/name", Options{Progress: func(p Progress) { last = p }})
	if err != nil {
		t.Fatal(err)
	}
	storage := filepath.Join(home, "hub", "models--org--name")
	if want := filepath.Join(storage, "snapshots", commit1); dir != want {
		t.Errorf("folder %s, want %s", dir, want)
	}
	if ref, _ := os.ReadFile(filepath.Join(storage, "refs", "main")); string(ref) != commit1 {
		t.Errorf("refs/main is %q", ref)
	}
	var links, blobs []string
	size := int64(0)
	for _, name := range neededOfST6 {
		blobs = append(blobs, h.etag(name))
		path := filepath.Join(dir, filepath.FromSlash(name))
		data, err := os.ReadFile(path)
		if err != nil || string(data) != h.files[name] {
			t.Errorf("%s: %v", name, err)
		}
		size += int64(len(data))
		if runtime.GOOS != "windows" {
			up := strings.Repeat("../", 2+strings.Count(name, "/"))
			if to, err := os.Readlink(path); err != nil || to != up+"blobs/"+h.etag(name) {
				t.Errorf("%s links to %q, %v", name, to, err)
			}
		}
	}
	for _, line := range tree(t, filepath.Join(storage, "snapshots")) {
		links = append(links, strings.TrimPrefix(strings.Fields(line)[0], commit1+"/"))
	}
	if !slices.Equal(links, neededOfST6) {
		t.Errorf("the snapshot has %q", links)
	}
	var stored []string
	for _, line := range tree(t, filepath.Join(storage, "blobs")) {
		stored = append(stored, strings.Fields(line)[0])
	}
	slices.Sort(blobs)
	if !slices.Equal(stored, blobs) {
		t.Errorf("blobs %q, want %q", stored, blobs)
	}
	if last.Done != size || last.Total != size {
		t.Errorf("last progress %+v, the files have %d bytes", last, size)
	}
	open(t, dir)
	if n := len(h.seen()); n != 1+2*len(neededOfST6)+1 {
		t.Errorf("%d requests", n)
	}

	// Again: one question, whether it changed.
	mustResolve(t, "org/name", Options{})
	if seen := h.seen(); !slices.Equal(seen, []string{"GET listing"}) {
		t.Errorf("the second time asked for %q", seen)
	}
	// A commit never changes.
	if again := mustResolve(t, "org/name@"+commit1, Options{}); again != dir || len(h.seen()) != 0 {
		t.Errorf("a cached commit: %s", again)
	}
	// A new commit shares what did not change.
	h.commit, h.files["config.json"] = commit2, strings.Replace(h.files["config.json"], "{", `{"new": 1,`, 1)
	second := mustResolve(t, "org/name", Options{})
	seen := h.seen()
	if second != filepath.Join(storage, "snapshots", commit2) ||
		slices.ContainsFunc(seen, func(s string) bool {
			return strings.HasPrefix(s, "GET") && s != "GET listing" && s != "GET config.json"
		}) {
		t.Errorf("%s, asked for %q", second, seen)
	}
	// Without network.
	for key, other := range map[string]string{"HF_HUB_OFFLINE": "TRANSFORMERS_OFFLINE", "TRANSFORMERS_OFFLINE": "HF_HUB_OFFLINE"} {
		t.Setenv(key, "1")
		t.Setenv(other, "")
		if again := mustResolve(t, "org/name", Options{}); again != second || len(h.seen()) != 0 {
			t.Errorf("offline: %s", again)
		}
	}
	_, err = resolve(t.Context(), "org/other", Options{})
	if !errors.Is(err, ErrOffline) || !strings.Contains(err.Error(), "org/other@main is not in the cache "+filepath.Join(home, "hub")) {
		t.Errorf("offline: %v", err)
	}
	if err := os.Remove(filepath.Join(second, "model.safetensors")); err != nil {
		t.Fatal(err)
	}
	if _, err = resolve(t.Context(), "org/name", Options{}); !errors.Is(err, ErrOffline) || !strings.Contains(err.Error(), "not all of it") {
		t.Errorf("offline and incomplete: %v", err)
	}
}

func TestRevisionsAndShortNames(t *testing.T) {
	noEnvironment(t)
	h := newFakeHub(t)
	o := Options{Endpoint: h.URL, CacheDir: t.TempDir()}
	mustResolve(t, "org/name@refs/pr/1", o)
	if ref, _ := os.ReadFile(filepath.Join(o.CacheDir, "models--org--name/refs/refs/pr/1")); string(ref) != commit1 {
		t.Errorf("the ref is %q", ref)
	}
	if dir := mustResolve(t, "name", o); dir != filepath.Join(o.CacheDir, "models--name", "snapshots", commit1) {
		t.Errorf("the short name gives %s", dir)
	}
}

// A server that does not say how long a file is, and whose answer breaks off: what is kept is the whole file, whether its etag is a hash or not.
func TestUnknownSize(t *testing.T) {
	noEnvironment(t)
	for _, etag := range []string{"", `"opaque"`} {
		h := newFakeHub(t)
		var gets atomic.Int32
		h.header = func(name string, header http.Header) {
			if name == "tokenizer.json" && etag != "" {
				header.Set("ETag", etag)
			}
		}
		h.serve = func(w http.ResponseWriter, r *http.Request, name string) bool {
			if name != "tokenizer.json" {
				return false
			}
			if r.Method == http.MethodHead {
				return true
			}
			data := h.files[name]
			io.WriteString(w, data[:len(data)/2])
			w.(http.Flusher).Flush() // so that the answer has no length
			if gets.Add(1) == 1 {
				panic(http.ErrAbortHandler)
			}
			io.WriteString(w, data[len(data)/2:])
			return true
		}
		cache := t.TempDir()
		blobs := filepath.Join(cache, "models--org--name", "blobs")
		left := h.files["tokenizer.json"] + "and more, which somebody left"
		if err := errors.Join(os.MkdirAll(blobs, 0o700), os.WriteFile(filepath.Join(blobs, "opaque.incomplete"), []byte(left), 0o600)); err != nil {
			t.Fatal(err)
		}
		dir := mustResolve(t, "org/name", Options{Endpoint: h.URL, CacheDir: cache})
		if data, err := os.ReadFile(filepath.Join(dir, "tokenizer.json")); err != nil || string(data) != h.files["tokenizer.json"] || gets.Load() != 2 {
			t.Errorf("etag %q: %d bytes of %d, %v, %d requests", etag, len(data), len(h.files["tokenizer.json"]), err, gets.Load())
		}
	}
}

// What the disk has no room for is not begun, of a file that has begun the rest counts, and where nobody knows how much room there is it is tried.
func TestFreeSpace(t *testing.T) {
	noEnvironment(t)
	defer func() { freeSpace = atomicfile.FreeSpace }()
	h := newFakeHub(t)
	h.files["model.safetensors"] = strings.Repeat("x", 50000)
	name := h.etag("model.safetensors")
	for _, c := range []struct {
		free  int64
		known bool
		have  int
		want  string
	}{
		{0, false, 0, ""}, {50000, true, 0, ""}, {49999, true, 0, "it needs 50.0 kB"}, {30000, true, 20000, ""}, {29999, true, 20000, "it needs 30.0 kB"},
	} {
		cache := t.TempDir()
		blobs := filepath.Join(cache, "models--org--name", "blobs")
		if err := errors.Join(os.MkdirAll(blobs, 0o700), os.WriteFile(filepath.Join(blobs, name+".incomplete"), []byte(h.files["model.safetensors"][:c.have]), 0o600)); err != nil {
			t.Fatal(err)
		}
		freeSpace = func(dir string) (int64, bool) {
			if !strings.HasPrefix(dir, cache) {
				t.Errorf("asked for the room of %s", dir)
			}
			return c.free, c.known
		}
		_, err := resolve(t.Context(), "org/name", Options{Endpoint: h.URL, CacheDir: cache})
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "are free: free some space or set HF_HUB_CACHE")) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A repository without what its files say that it has is refused before anything large is fetched.
func TestMissingParts(t *testing.T) {
	noEnvironment(t)
	for want, change := range map[string]func(h *fakeHub){
		"the repository has neither 2_Dense/model.safetensors nor pytorch_model.bin, the weights of a Dense module": func(h *fakeHub) {
			h.files["modules.json"] = `[{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
				{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]`
			h.files["2_Dense/config.json"] = "{}"
		},
		"the repository has no adapter_model.safetensors beside its adapter_config.json": func(h *fakeHub) {
			h.files["adapter_config.json"] = "{}"
			delete(h.files, "model.safetensors")
		},
		"the repository has no config.json: it is not a model for transformers": func(h *fakeHub) { delete(h.files, "config.json") },
	} {
		h := newFakeHub(t)
		change(h)
		_, err := resolve(t.Context(), "org/name", Options{Endpoint: h.URL, CacheDir: t.TempDir()})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if seen := h.seen(); slices.ContainsFunc(seen, func(s string) bool { return strings.Contains(s, "content/") }) {
			t.Errorf("asked for %q", seen)
		}
	}
}

// TestOldLayout: the transformer in its subfolder, and weights in shards.
func TestOldLayout(t *testing.T) {
	noEnvironment(t)
	h := newFakeHub(t)
	h.files = map[string]string{"README.md": ""}
	os.CopyFS(t.TempDir(), os.DirFS(golden+"st2"))
	for _, name := range []string{"modules.json", "1_Pooling/config.json", "0_Transformer/config.json", "0_Transformer/tokenizer.json"} {
		data, _ := os.ReadFile(golden + "st2/" + name)
		h.files[name] = string(data)
	}
	h.files["0_Transformer/unused.safetensors"] = ""
	sharded, _ := filepath.Glob(golden + "sharded/model*")
	for _, file := range sharded {
		data, _ := os.ReadFile(file)
		h.files["0_Transformer/"+filepath.Base(file)] = string(data)
	}
	f := open(t, mustResolve(t, "org/name", Options{Endpoint: h.URL, CacheDir: t.TempDir()}))
	if _, err := f.Tensor("embeddings.word_embeddings.weight", "bert."); err != nil || len(f.weights.files) != 3 {
		t.Errorf("%v, %d shards", err, len(f.weights.files))
	}
	if seen := h.seen(); slices.ContainsFunc(seen, func(s string) bool { return strings.Contains(s, "unused") }) {
		t.Errorf("asked for %q", seen)
	}
}

// TestLocalFirst: a folder wins over an id, and nothing is asked.
func TestLocalFirst(t *testing.T) {
	noEnvironment(t)
	h := newFakeHub(t)
	t.Setenv("HF_ENDPOINT", h.URL)
	t.Chdir(t.TempDir())
	put(t, ".", "org/name/config.json", "{}")
	put(t, ".", "plain", "")
	if dir, err := Resolve(t.Context(), "org/name", Options{}); err != nil || dir != "org/name" || len(h.seen()) != 0 {
		t.Errorf("%s, %v", dir, err)
	}
	for name, want := range map[string]string{
		"plain":         "plain is a file; give the model's folder",
		"./org/nam":     "model folder ./org/nam: not found",
		"/no/such/x":    "model folder /no/such/x: not found",
		`org\name`:      `model folder org\name: not found`,
		"a/b/c":         "model folder a/b/c: not found",
		"org/na me":     `"org/na me" is neither a folder here nor a hub id`,
		"org/name@../x": "revision",
		"org--x/name":   "neither a folder here nor a hub id",
		"":              "neither a folder here nor a hub id",
	} {
		if _, err := Resolve(t.Context(), name, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", name, err, want)
		}
	}
}

// The cache is where huggingface_hub has it.
func TestCacheDir(t *testing.T) {
	noEnvironment(t)
	root := t.TempDir()
	t.Setenv("SOME_ROOT", root)
	for _, c := range []struct{ key, value, want string }{ // each before those above it
		{"XDG_CACHE_HOME", "$SOME_ROOT/xdg", "xdg/huggingface/hub"}, {"HF_HOME", "$SOME_ROOT/home", "home/hub"}, {"HUGGINGFACE_HUB_CACHE", "${SOME_ROOT}/old", "old"}, {"HF_HUB_CACHE", root + "/new", "new"},
	} {
		t.Setenv(c.key, c.value)
		if dir, _, known, err := Cache(); err != nil || dir != filepath.Join(root, filepath.FromSlash(c.want)) || !known {
			t.Errorf("%s=%s: %s, %v; its disk is known: %t", c.key, c.value, dir, err, known)
		}
	}
}

// TestToken: it comes from the environment or its file, goes to the endpoint, and nowhere else.
func TestToken(t *testing.T) {
	noEnvironment(t)
	h := newFakeHub(t)
	h.token = "hf_secret"
	o := func() Options { return Options{Endpoint: h.URL, CacheDir: t.TempDir()} }

	t.Setenv("HF_TOKEN", "hf_secret\n")
	mustResolve(t, "org/name", o()) // the content server refuses requests with a token
	t.Setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
	if _, err := resolve(t.Context(), "org/name", o()); !errors.Is(err, ErrNotFound) {
		t.Errorf("the token was sent: %v", err)
	}
	t.Setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "")
	t.Setenv("HF_TOKEN", "")
	t.Setenv("HF_HOME", t.TempDir())
	put(t, os.Getenv("HF_HOME"), "token", "hf_secret\n")
	mustResolve(t, "org/name", o())

	// Another port of the same host is another server, and net/http would send the token there.
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Errorf("%s %s got the token", r.Method, r.URL)
		}
		fail(w, 403, "", "signature expired")
	}))
	defer elsewhere.Close()
	away := httptest.NewServer(http.RedirectHandler(elsewhere.URL+"/x?signature=secret", http.StatusFound))
	defer away.Close()
	_, err := resolve(t.Context(), "org/name", Options{Endpoint: away.URL, CacheDir: t.TempDir(), Token: "hf_secret"})
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v: want one without secrets", err)
	}
}

// An adapter's base model is fetched with it.
func TestAdapterFromHub(t *testing.T) {
	noEnvironment(t)
	h := newFakeHub(t)
	o := Options{Endpoint: h.URL, CacheDir: t.TempDir()}
	adapter := copyAdapter(t, "bert-qv", func(c map[string]any) { c["base_model_name_or_path"] = "org/name" })
	if dir, err := Resolve(t.Context(), adapter, o); err != nil || dir != adapter {
		t.Fatal(dir, err)
	}
	h.Close() // it is here now
	dir, err := Resolve(t.Context(), "org/name", Options{CacheDir: o.CacheDir, Offline: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, weightsFile)); err != nil {
		t.Error(err)
	}
}

// TestMessages: what the server says becomes what a user can do.
func TestMessages(t *testing.T) {
	noEnvironment(t)
	for name, c := range map[string]struct {
		id, token string
		change    func(*fakeHub)
		want      []string
	}{
		"unknown":       {"org/other", "", nil, []string{"model org/other not found at http://127", "if it is private, set HF_TOKEN"}},
		"unknown short": {"other", "", nil, []string{"as in sentence-transformers/other"}},
		"bad token":     {"org/name", "wrong", func(h *fakeHub) { h.token = "right" }, []string{"not found", "your token may not read it"}},
		"revision":      {"org/name@v9", "", nil, []string{"model org/name at http://127", `has no revision "v9"`}},
		"gated": {"org/name", "", func(h *fakeHub) {
			h.serve = func(w http.ResponseWriter, r *http.Request, name string) bool {
				fail(w, 403, "GatedRepo", "Access to model org/name is restricted")
				return true
			}
		}, []string{"is gated: accept its terms at http://127", "/org/name and set HF_TOKEN"}},
		"no weights": {"org/name", "", func(h *fakeHub) { delete(h.files, "model.safetensors"); delete(h.files, "pytorch_model.bin") },
			[]string{"neither model.safetensors nor model.safetensors.index.json"}},
		"no model":     {"org/name", "", func(h *fakeHub) { delete(h.files, "config.json") }, []string{"has no config.json"}},
		"no tokenizer": {"org/name", "", func(h *fakeHub) { delete(h.files, "tokenizer.json") }, []string{"no tokenizer.json or vocab.txt"}},
		"not a hub": {"org/name", "", func(h *fakeHub) { h.listing = func() any { return []int{1} } },
			[]string{"does not answer like a Hugging Face hub"}},
		"a module we can't": {"org/name", "", func(h *fakeHub) {
			h.files["modules.json"] = `[{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "2_Router", "type": "sentence_transformers.models.Router"}]`
		}, []string{"Router modules are not supported yet"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newFakeHub(t)
			if c.change != nil {
				c.change(h)
			}
			_, err := resolve(t.Context(), c.id, Options{Endpoint: h.URL, CacheDir: t.TempDir(), Token: c.token})
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q lacks %q", err, want)
				}
			}
			if slices.ContainsFunc(h.seen(), func(s string) bool { return strings.Contains(s, "GET content/model.safetensors") }) &&
				name != "gated" && name != "no tokenizer" {
				t.Error("the weights of a model that can't be used were downloaded")
			}
		})
	}
	_, err := resolve(t.Context(), "org/name", Options{Endpoint: "ftp://x", CacheDir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "HF_ENDPOINT") {
		t.Error(err)
	}
}

// Of a layer-wise reranker the code comes along that its config.json names and the repository has; of another model none.
func TestDownloadCode(t *testing.T) {
	noEnvironment(t)
	const layerWise = `{"architectures": ["LayerWiseMiniCPMForCausalLM"], "model_type": "minicpm", "auto_map": `
	for _, c := range []struct{ config, code, err string }{
		{layerWise + `{"AutoConfig": "configuration_x.C", "AutoModel": ["modeling_x.M", null]}}`, "configuration_x.py modeling_x.py", ""},
		{layerWise + `{"AutoConfig": "configuration_x.C", "AutoModel": "missing.M", "AutoTokenizer": "some/where--other.T"}}`, "configuration_x.py", ""},
		{layerWise + `{"AutoConfig": "configuration_x.C", "AutoModel": "code/inside.M"}}`, "", ""},
		{layerWise + `{"AutoConfig": "configuration_x.C", "AutoModel": "../modeling_x.M"}}`, "", ""},
		{layerWise + `"configuration_x.C"}`, "", "config.json: auto_map"},
		{`{"architectures": ["BertModel"], "model_type": "bert", "auto_map": {"AutoModel": "modeling_x.M"}}`, "", ""},
		{`{"architectures": ["LayerWise`, "", ""}, // which Open tells
	} {
		h := newFakeHub(t)
		delete(h.files, "modules.json")
		h.files["config.json"], h.files["reranker.json"] = c.config, `{"instruction": "judge"}`
		for _, name := range []string{"configuration_x.py", "modeling_x.py", "other.py", "code/inside.py"} {
			h.files[name] = "# " + name
		}
		dir, err := resolve(t.Context(), "org/name", Options{Endpoint: h.URL, CacheDir: t.TempDir()})
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %q", c.config, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.config, err)
			continue
		}
		var code []string
		for _, line := range tree(t, dir) {
			name := strings.Fields(line)[0]
			if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(data) != h.files[name] {
				t.Errorf("%s: %s is %q, %v", c.config, name, data, err)
			}
			if strings.HasSuffix(name, ".py") {
				code = append(code, name)
			}
		}
		if got := strings.Join(code, " "); got != c.code {
			t.Errorf("%s: the code %q came, want %q", c.config, got, c.code)
		}
		f, err := Open(dir)
		if !json.Valid([]byte(c.config)) {
			if err == nil || !strings.Contains(err.Error(), "config.json") {
				t.Errorf("%s: %v", c.config, err)
			}
			continue
		}
		if err != nil || f.Reranker == nil || f.Reranker.Instruction != "judge" {
			t.Errorf("%s: %v, of reranker.json %+v", c.config, err, f)
		}
		if err == nil {
			f.Close()
		}
	}
}
