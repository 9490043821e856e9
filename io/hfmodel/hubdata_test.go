package hfmodel

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/io/dataset"
)

// serveData has a fake hub serve a dataset: the hub has those under other addresses than models.
func serveData(t *testing.T, h *fakeHub) (s *httptest.Server, cache string) {
	s = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.Replace(r.URL.Path, "/api/datasets/", "/api/models/", 1)
		if path == r.URL.Path {
			var ok bool
			if path, ok = strings.CutPrefix(path, "/datasets"); !ok {
				http.Error(w, "not a dataset's address", http.StatusTeapot)
				return
			}
		}
		r.URL.Path, r.URL.RawPath = path, ""
		h.hub(w, r)
	}))
	t.Cleanup(s.Close)
	cache = t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	t.Setenv("HF_ENDPOINT", s.URL)
	return s, cache
}

// The hub is asked once for the files of a dataset where a context says so, and else each time.
func TestListOnce(t *testing.T) {
	noEnvironment(t)
	h := newFakeHub(t)
	h.files = map[string]string{"README.md": "card", "a/train.jsonl": "{}\n", "b/train.jsonl": "{}\n"}
	serveData(t, h)
	asked := func(ctx context.Context, refs ...string) (n int) {
		h.seen()
		for _, ref := range refs {
			if _, err := Data(ctx, "hf://datasets/org/"+ref, Options{}); err != nil {
				t.Error(err)
			}
		}
		for _, r := range h.seen() {
			if r == "GET listing" {
				n++
			}
		}
		return n
	}
	for _, c := range []struct {
		once bool
		want int
		refs []string
	}{{false, 2, []string{"name/a", "name/b"}}, {true, 1, []string{"name/a", "name/b", "name/a"}}, {true, 2, []string{"name@main/a", "name@" + h.commit + "/a", "name/b"}}} {
		ctx := t.Context()
		if c.once {
			ctx = ListOnce(ctx)
		}
		if n := asked(ctx, c.refs...); n != c.want {
			t.Errorf("%q: the hub was asked %d times, want %d", c.refs, n, c.want)
		}
		if _, err := Data(ctx, "hf://datasets/org/other/b", Options{}); err == nil || !strings.Contains(err.Error(), "org/other not found") {
			t.Errorf("another dataset, which the hub has not: %v", err)
		}
	}
}

func TestData(t *testing.T) {
	noEnvironment(t)
	h := newFakeHub(t)
	h.files = map[string]string{
		"README.md": "card", "queries.jsonl": "{\"_id\": \"q\", \"text\": \"a\"}\n", "corpus.jsonl": "{\"_id\": \"d\", \"title\": \"t\", \"text\": \"b\"}\n",
		"qrels/test.jsonl": "{\"query-id\": \"q\", \"corpus-id\": \"d\", \"score\": 1}\n", "pairs/train-0.jsonl": "{\"query\": \"a\", \"positive\": \"b\"}\n",
	}
	s, cache := serveData(t, h)
	var told []string
	ctx := dataset.WithProgress(t.Context(), func(file string, done, total int64) { told = append(told, fmt.Sprint(file, " ", done, " of ", total)) })
	d, err := dataset.Open(ctx, dataset.Source{Paths: []string{"hf://datasets/org/name/pairs"}, Query: "query", Positive: "positive"})
	if err != nil {
		t.Fatal(err)
	}
	if size := len(h.files["README.md"] + h.files["pairs/train-0.jsonl"]); len(told) == 0 || told[len(told)-1] != fmt.Sprintf("pairs/train-0.jsonl %d of %[1]d", size) {
		t.Errorf("told %q of %d bytes", told, size)
	}
	d.Close()
	if want := filepath.Join(cache, "datasets--org--name", "snapshots", h.commit, "pairs", "train-0.jsonl"); d.Locate(0).File != want {
		t.Errorf("it is %s, want %s", d.Locate(0).File, want)
	}
	r, err := dataset.LoadRetrieval(t.Context(), "hf://datasets/org/name", "", "")
	if err != nil || len(r.Queries) != 1 || r.Docs[0] != "t b" || len(r.Judgements) != 1 {
		t.Fatalf("MTEB's layout: %+v, %v", r, err)
	}
	if _, err := Data(t.Context(), "hf://datasets/org/name/*.parquet", Options{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("no such file: %v", err)
	}
	if _, err := Data(t.Context(), "hf://org/name", Options{}); err == nil || !strings.Contains(err.Error(), "hf://datasets/") {
		t.Errorf("no dataset: %v", err)
	}
	h.files["gated.jsonl"] = "{}\n"
	h.serve = func(w http.ResponseWriter, r *http.Request, name string) bool {
		fail(w, 403, "GatedRepo", "Access to dataset org/name is restricted")
		return true
	}
	if _, err := Data(t.Context(), "hf://datasets/org/name/gated.jsonl", Options{}); err == nil || !strings.Contains(err.Error(), "accept its terms at "+s.URL+"/datasets/org/name and set HF_TOKEN") {
		t.Errorf("gated: %v", err)
	}
	s.Close()
	paths, err := Data(t.Context(), "hf://datasets/org/name@main/pairs/*", Options{Offline: true})
	if err != nil || len(paths) != 1 {
		t.Errorf("offline: %q, %v", paths, err)
	}
	if _, err := Data(t.Context(), "hf://datasets/org/other", Options{Offline: true}); !errors.Is(err, ErrOffline) {
		t.Errorf("offline, not there: %v", err)
	}
}
