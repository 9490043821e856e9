package hfmodel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	"contraflow/io/dataset"
)

func init() {
	dataset.RegisterScheme("hf", func(ctx context.Context, url string) ([]string, error) { return Data(ctx, url, Options{}) })
}

const dataPrefix = "hf://datasets/"

// Data returns local copies of files of a dataset on the hub, from the cache that the Python libraries use or downloaded into it:
//
//	hf://datasets/org/name                     all parquet files, or else all files of JSON lines
//	hf://datasets/org/name@revision/data       those in a folder (slashes of a revision as %2F)
//	hf://datasets/org/name/data/train-*.parquet
//
// Everything that [Resolve] promises holds here too.
func Data(ctx context.Context, ref string, o Options) (paths []string, err error) {
	rest, ok := strings.CutPrefix(ref, dataPrefix)
	if !ok {
		return nil, fmt.Errorf("%s: want %sorg/name, and a file, folder or glob in it", ref, dataPrefix)
	}
	parts := strings.SplitN(rest, "/", 3)
	if len(parts) < 2 {
		return nil, fmt.Errorf("%s: want %sorg/name", ref, dataPrefix)
	}
	name, err := url.PathUnescape(parts[0] + "/" + parts[1])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	id, revision, err := parseID(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	glob := ""
	if len(parts) == 3 {
		glob = strings.TrimRight(parts[2], "/")
	}
	if _, err := path.Match(glob, ""); err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	h, err := newHub(id, revision, o)
	if err != nil {
		return nil, err
	}
	h.kind = "datasets"
	h.storage = filepath.Join(h.cache, "datasets--"+strings.ReplaceAll(id, "/", "--"))
	if !h.opts.Offline {
		repo, err := h.list(ctx)
		if err == nil {
			return h.data(ctx, repo, ref, glob)
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %w", ref, context.Cause(ctx))
		}
		cached, none := h.cachedData(glob)
		var status *statusError
		if none != nil || errors.As(err, &status) && status.code == "RevisionNotFound" {
			return nil, h.explain(err)
		}
		h.opts.Warn(fmt.Sprintf("using the cached files of %s: %v", ref, h.explain(err)))
		return cached, nil
	}
	if paths, err = h.cachedData(glob); err != nil {
		return nil, fmt.Errorf("%w: %s: %w; without HF_HUB_OFFLINE it would be downloaded from %s", ErrOffline, ref, err, h.endpoint)
	}
	return paths, nil
}

// data downloads what a listing has of it.
func (h *hub) data(ctx context.Context, repo repository, ref, glob string) (paths []string, err error) {
	for _, name := range repo.files {
		if err := checkListed(name); err != nil {
			return nil, fmt.Errorf("%s: %w: the repository has a file with the path %w", ref, errRefused, err)
		}
	}
	names := dataset.Pick(repo.files, glob)
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: %w: it has %d files, such as %q, none of which is meant", ref, ErrNotFound, len(repo.files), repo.files[:min(3, len(repo.files))])
	}
	for _, n := range names {
		if err := checkPath(n); err != nil {
			return nil, fmt.Errorf("%s: %w: path %w", ref, errRefused, err)
		}
	}
	if err := os.MkdirAll(h.storage, 0o777); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(h.storage)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	d := &download{hub: h, root: root, commit: repo.commit, snapshot: filepath.Join(h.storage, "snapshots", repo.commit)}
	if err := d.fetch(ctx, names...); err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("download of %s interrupted (it will continue where it stopped): %w", ref, context.Cause(ctx))
		}
		return nil, fmt.Errorf("download of %s: %w", ref, err)
	}
	if err := h.writeRef(repo.commit); err != nil {
		return nil, err
	}
	for _, n := range names {
		paths = append(paths, filepath.Join(d.snapshot, filepath.FromSlash(n)))
	}
	return paths, nil
}

// cachedData is what the cache has of it.
func (h *hub) cachedData(glob string) (paths []string, err error) {
	commit := h.revision
	if !commitHash.MatchString(commit) {
		ref, err := os.ReadFile(filepath.Join(h.storage, "refs", filepath.FromSlash(h.revision)))
		if err != nil {
			return nil, fmt.Errorf("%v@%s is not in the cache %s", h, h.revision, h.cache)
		}
		if commit = strings.TrimSpace(string(ref)); !commitHash.MatchString(commit) {
			return nil, fmt.Errorf("the cache %s has no commit for %v@%s, but %q", h.cache, h, h.revision, short(ref))
		}
	}
	snapshot := filepath.Join(h.storage, "snapshots", commit)
	var names []string
	err = fs.WalkDir(os.DirFS(snapshot), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, name)
		}
		return err
	})
	if err == nil {
		names = dataset.Pick(names, glob)
	}
	if err != nil || len(names) == 0 {
		return nil, fmt.Errorf("%v@%s is not in the cache %s", h, h.revision, h.cache)
	}
	for _, n := range names {
		paths = append(paths, filepath.Join(snapshot, filepath.FromSlash(n)))
	}
	return paths, nil
}
