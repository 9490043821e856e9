package dataset

import (
	"context"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Files that are elsewhere are named by a URL, and a URL may be given wherever a path may: hf://datasets/org/name (package hfmodel), s3:// and
// gs:// (package objects). Whoever knows a scheme registers it; a URL then stands for local copies in a cache, laid out as they are there.

var schemes struct {
	sync.Mutex
	fetch map[string]func(ctx context.Context, pattern string, s Splits) ([]string, error)
}

// RegisterScheme makes URLs of a scheme usable as paths. fetch brings what a URL, whose path may be a glob or a folder, stands for onto this machine, of
// a dataset as a whole such splits, and returns where it is; it may be called from several goroutines.
func RegisterScheme(scheme string, fetch func(ctx context.Context, pattern string, s Splits) ([]string, error)) {
	schemes.Lock()
	defer schemes.Unlock()
	if schemes.fetch == nil {
		schemes.fetch = map[string]func(context.Context, string, Splits) ([]string, error){}
	}
	schemes.fetch[scheme] = fetch
}

// Pick tells which of a store's files a pattern means, in their order: those that it matches as a glob, in which * crosses no slash; or else what
// is inside the folder of that name ("": all there is), the parquet files, or where there are none, the files of JSON, or those of CSV and TSV. What is
// no data by its name, such as config.json, is not among a folder's.
func Pick(names []string, pattern string) (found []string) {
	for _, n := range names {
		if ok, _ := path.Match(pattern, n); ok {
			found = append(found, n)
		}
	}
	for _, kinds := range [][]string{{".parquet"}, {".jsonl", ".ndjson", ".json"}, {".csv", ".tsv"}} {
		if len(found) > 0 {
			return found
		}
		for _, n := range names {
			inside := pattern == "" || strings.HasPrefix(n, pattern+"/")
			if inside && KnownData(n) && slices.Contains(kinds, ending(n)) {
				found = append(found, n)
			}
		}
	}
	return found
}

// Remote tells whether a path is a URL, whose files are brought here first.
func Remote(path string) bool { return strings.Contains(path, "://") }

// fetchURL brings a URL's files here.
func fetchURL(ctx context.Context, url string, s Splits) ([]string, error) {
	scheme, _, _ := strings.Cut(url, "://")
	schemes.Lock()
	f := schemes.fetch[scheme]
	var known []string
	for name := range schemes.fetch {
		known = append(known, name+"://")
	}
	schemes.Unlock()
	if f == nil {
		slices.Sort(known)
		return nil, fail(ErrNoFiles, "%s: no way to read %s:// is known; known are paths and %s", url, scheme, strings.Join(known, ", "))
	}
	paths, err := f(ctx, url, s)
	if err == nil && len(paths) == 0 {
		err = fail(ErrNoFiles, "%s matches no file", url)
	}
	return paths, err
}

// fetchFolder brings a folder in BEIR's or MTEB's layout here, and returns where it is.
func fetchFolder(ctx context.Context, url string) (string, error) {
	url = strings.TrimRight(url, "/")
	if i := max(strings.Index(url, "?config="), strings.Index(url, "?split=")); i > 0 {
		return "", fail(ErrNoFiles, "%s: a dataset that is a task by itself, in BEIR's or MTEB's layout, has its queries, corpus and judgements in files, and %q chooses none of them: without it, it is %s; or the corpus and the judgements (qrels) are named as well, each with its own ?config= or ?split=", url, url[i:], url[:i])
	}
	folder := ""
	for _, part := range []string{"queries", "corpus", "qrels"} {
		var found []string
		var err error
		for _, pattern := range []string{part + ".*", part + "/*"} {
			if found, err = fetchURL(ctx, url+"/"+pattern, HeldOut); err == nil {
				break
			}
		}
		if err != nil {
			return "", err
		}
		if part == "queries" {
			if folder = filepath.Dir(found[0]); filepath.Base(folder) == part {
				folder = filepath.Dir(folder)
			}
		}
	}
	return folder, nil
}
