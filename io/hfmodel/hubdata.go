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
	"slices"
	"strings"

	"contraflow/io/dataset"
	"contraflow/io/internal/plainfile"
)

func init() {
	dataset.RegisterScheme("hf", func(ctx context.Context, url string, s dataset.Splits) ([]string, error) {
		o := Options{Warn: dataset.Note(ctx), Splits: s}
		if tell := dataset.Progress(ctx); tell != nil {
			o.Progress = func(p Progress) { tell(p.File, p.Done, p.Total) }
		}
		return Data(ctx, url, o)
	})
}

const dataPrefix = "hf://datasets/"

// Data returns local copies of files of a dataset on the hub, from the cache that the Python libraries use or downloaded into it:
//
//	hf://datasets/org/name                     the split train, of the default configuration
//	hf://datasets/org/name?config=pair&split=dev
//	hf://datasets/org/name@revision/data       of that the files in a folder (slashes of a revision as %2F)
//	hf://datasets/org/name/data/train-*.parquet
//
// Configurations and splits are what the dataset's card says, or else what its files' names say, as Python's datasets has it; files without a split's
// word in their names are train. Of the files of a split that names say, the parquet files are taken, or where there are none those of JSON, or those of
// CSV and TSV; what is no data by its name, such as README.md or dataset_infos.json, never. Where nothing says which configuration is the default, or the
// split is not there, or no file is what the card names, that is an error with those there are. Options.Splits has a dataset without a split's name
// stand for others than train; of what is to measure with, Options.Warn is told the split.
//
// Offline the same holds of what the cache has. It is an error where the files of a split are not all there, as far as the card or the count in their names
// say, or where the card is not, and the names leave open what is meant.
//
// Everything that [Resolve] promises holds here too.
func Data(ctx context.Context, ref string, o Options) (paths []string, err error) {
	rest, ok := strings.CutPrefix(ref, dataPrefix)
	if !ok {
		return nil, fmt.Errorf("%s: want %sorg/name, and a file, folder or glob in it", ref, dataPrefix)
	}
	rest, p, given, err := cutPart(rest)
	if err != nil {
		return nil, err
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
	meant := meant{whole: whole{url: dataPrefix + strings.TrimRight(rest, "/"), folder: glob, part: p, splits: o.Splits, note: h.opts.Warn}, given: given}
	h.kind = "datasets"
	h.storage = filepath.Join(h.cache, "datasets--"+strings.ReplaceAll(id, "/", "--"))
	if !h.opts.Offline {
		repo, err := h.list(ctx)
		if err == nil {
			return h.data(ctx, repo, ref, meant)
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %w", ref, context.Cause(ctx))
		}
		cached, none := h.cachedData(meant)
		var status *statusError
		if errors.Is(none, errNotCached) || errors.As(err, &status) && status.code == "RevisionNotFound" {
			return nil, h.explain(err)
		}
		if none != nil {
			return nil, fmt.Errorf("%w; and the cached files of %s can't be taken instead: %w", h.explain(err), ref, none)
		}
		h.opts.Warn(fmt.Sprintf("using the cached files of %s: %v", ref, h.explain(err)))
		return cached, nil
	}
	if paths, err = h.cachedData(meant); err != nil {
		return nil, fmt.Errorf("%w: %s: %w; without HF_HUB_OFFLINE it would be downloaded from %s", ErrOffline, ref, err, h.endpoint)
	}
	return paths, nil
}

// meant is what of a dataset a URL means: its folder may be a glob.
type meant struct {
	whole
	given bool // the URL names the part
}

const cardName = "README.md"

// pick tells which of a dataset's files are meant. card reads the dataset's, which is nil where it has none.
func (m meant) pick(files []string, card func() ([]byte, error)) (found []string, err error) {
	matches := func(name string) bool {
		ok, _ := path.Match(m.folder, name)
		return ok && (name == m.folder || !dataset.NoData(name))
	}
	found = slices.DeleteFunc(slices.Clone(files), func(name string) bool { return !matches(name) })
	switch {
	case len(found) > 0 && m.given:
		return nil, errors.New("config and split are of a dataset or a folder of it, and files are named here")
	case len(found) > 0 && m.cached:
		return found, whollyCached(found, matches)
	case len(found) > 0:
		return found, nil
	case strings.ContainsAny(m.folder, "*?["):
		return nil, fmt.Errorf("%w: it has %d files, such as %q, none of which matches", ErrNotFound, len(files), files[:min(3, len(files))])
	}
	m.files = files
	if m.card, err = card(); err != nil {
		return nil, err
	}
	return m.whole.pick()
}

// data downloads what a listing has of it.
func (h *hub) data(ctx context.Context, repo repository, ref string, m meant) (paths []string, err error) {
	for _, name := range repo.files {
		if err := checkListed(name); err != nil {
			return nil, fmt.Errorf("%s: %w: the repository has a file with the path %w", ref, errRefused, err)
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
	wrap := func(err error) error {
		if ctx.Err() != nil {
			return fmt.Errorf("download of %s interrupted (it will continue where it stopped): %w", ref, context.Cause(ctx))
		}
		if forbidden(err) { // of a gated dataset the hub lists the files to all
			err = h.explain(err)
		}
		return fmt.Errorf("download of %s: %w", ref, err)
	}
	var unread error // of the card
	cardless := false
	names, err := m.pick(repo.files, func() ([]byte, error) {
		if cardless = !slices.Contains(repo.files, cardName); cardless {
			return nil, nil
		}
		if unread = d.fetch(ctx, cardName); unread != nil {
			return nil, unread
		}
		return plainfile.Read(filepath.Join(d.snapshot, cardName))
	})
	if unread != nil {
		return nil, wrap(unread)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	for _, n := range names {
		if err := checkPath(n); err != nil {
			return nil, fmt.Errorf("%s: %w: path %w", ref, errRefused, err)
		}
	}
	if err := d.fetch(ctx, names...); err != nil {
		return nil, wrap(err)
	}
	if cardless { // as Python's libraries remember it
		folder := filepath.Join(absent, repo.commit)
		if err := root.MkdirAll(folder, 0o777); err != nil {
			return nil, err
		}
		if err := root.WriteFile(filepath.Join(folder, cardName), nil, 0o666); err != nil {
			return nil, err
		}
	}
	if err := h.writeRef(ctx, repo.commit); err != nil {
		return nil, err
	}
	for _, n := range names {
		paths = append(paths, filepath.Join(d.snapshot, filepath.FromSlash(n)))
	}
	return paths, nil
}

// absent is the folder of a cache with names of files that a commit has not.
const absent = ".no_exist"

// errNotCached is wrapped where nothing of a dataset is in the cache.
var errNotCached = errors.New("not in the cache")

// cachedData is what the cache has of it.
func (h *hub) cachedData(m meant) (paths []string, err error) {
	commit := h.revision
	if !commitHash.MatchString(commit) {
		ref, err := plainfile.Read(filepath.Join(h.storage, "refs", filepath.FromSlash(h.revision)))
		if err != nil {
			return nil, fmt.Errorf("%v@%s is %w %s", h, h.revision, errNotCached, h.cache)
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
	if err != nil || len(names) == 0 {
		return nil, fmt.Errorf("%v@%s is %w %s", h, h.revision, errNotCached, h.cache)
	}
	m.cached = true
	var card []byte
	if slices.Contains(names, cardName) {
		if card, err = plainfile.Read(filepath.Join(snapshot, cardName)); err != nil {
			return nil, err
		}
	} else {
		_, err := os.Stat(filepath.Join(h.storage, absent, commit, cardName))
		m.unknown = err != nil
	}
	names, err = m.pick(names, func() ([]byte, error) { return card, nil })
	if err != nil {
		return nil, fmt.Errorf("of what is in the cache %s: %w", h.cache, err)
	}
	for _, n := range names {
		paths = append(paths, filepath.Join(snapshot, filepath.FromSlash(n)))
	}
	return paths, nil
}
