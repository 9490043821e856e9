package hfmodel

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"contraflow/io/atomicfile"
	"contraflow/io/internal/filelock"
	"contraflow/io/internal/plainfile"
)

// fetchAll brings what Open needs of the repository into its snapshot folder, and returns that.
//
// modules.json comes first: it says which subfolders matter, and a model that can't be used is refused before its
// weights are downloaded. Then, for shards, the index.
func (h *hub) fetchAll(ctx context.Context, repo repository) (string, error) {
	if err := os.MkdirAll(h.storage, 0o777); err != nil {
		return "", err
	}
	// Everything is created through a Root, which does not follow a path out of the folder even where a check failed.
	root, err := os.OpenRoot(h.storage)
	if err != nil {
		return "", err
	}
	defer root.Close()
	d := &download{hub: h, root: root, commit: repo.commit, snapshot: filepath.Join(h.storage, "snapshots", repo.commit)}

	wrap := func(err error) error {
		if ctx.Err() != nil {
			return fmt.Errorf("download of %s interrupted (it will continue where it stopped): %w", h.id, context.Cause(ctx))
		}
		if forbidden(err) {
			return h.explain(err)
		}
		return fmt.Errorf("download of %s from %s: %w", h.id, h.endpoint, err)
	}
	for _, name := range repo.files {
		if err := checkListed(name); err != nil {
			return "", wrap(fmt.Errorf("%w: the repository has a file with the path %w", errRefused, err))
		}
	}
	if slices.Contains(repo.files, "modules.json") {
		for _, name := range []string{"modules.json", modelFile, routerFile} { // the others say what kinds of modules there may be, and where a Router's are
			if !slices.Contains(repo.files, name) {
				continue
			}
			if err := d.fetch(ctx, name); err != nil {
				return "", wrap(err)
			}
		}
	}
	f := &Folder{Dir: d.snapshot, TransformerDir: d.snapshot}
	if err := f.readModules(); err != nil {
		return "", wrap(err)
	}
	files, err := f.neededFiles(repo.files, h.opts.NoWeights)
	if err != nil {
		return "", wrap(err)
	}
	if slices.Contains(files, "config.json") {
		if err := d.fetch(ctx, "config.json"); err != nil {
			return "", wrap(err)
		}
		code, err := layerWiseCode(d.snapshot, repo.files)
		if err != nil {
			return "", wrap(err)
		}
		files = append(files, code...)
	}
	for _, name := range files {
		if isIndex(path.Base(name)) {
			if err := d.fetch(ctx, name); err != nil {
				return "", wrap(err)
			}
			shards, err := shardFiles(d.snapshot, name, repo.files)
			if err != nil {
				return "", wrap(err)
			}
			files = append(files, shards...)
			break
		}
	}
	if err := d.fetch(ctx, files...); err != nil {
		return "", wrap(err)
	}
	if err := complete(d.snapshot, h.opts.NoWeights); err != nil {
		return "", wrap(err)
	}
	if err := h.writeRef(ctx, repo.commit); err != nil {
		return "", wrap(err)
	}
	return d.snapshot, nil
}

// checkListed refuses a repository that names a file outside of itself. It is milder than checkPath, which every file
// that is fetched must pass: a repository may hold names that some system can't store, as long as nobody wants them.
func checkListed(name string) error {
	slashes := strings.ReplaceAll(name, `\`, "/")
	switch {
	case strings.HasPrefix(slashes, "/"), len(name) > 1 && name[1] == ':':
		return fmt.Errorf("%q is absolute", name)
	case slices.Contains(strings.Split(slashes, "/"), ".."):
		return fmt.Errorf("%q leads out of its folder", name)
	}
	return nil
}

// neededFiles picks what Open, or OpenSettings (bare), and a tokenizer read from the files of a repository. Every name it returns has passed checkPath.
func (f *Folder) neededFiles(listed []string, bare bool) (files []string, err error) {
	names := map[string]bool{}
	for _, name := range listed {
		names[name] = true
	}
	return f.needed(func(name string) bool { return names[name] }, bare)
}

// sizedByWeights tells whether nothing but the weights says how large a model is.
func (f *Folder) sizedByWeights(has func(name string) bool) bool {
	return f.Static() || f.Modules == nil && has(metadataFile)
}

// needed is neededFiles of whatever has tells of.
func (f *Folder) needed(has func(name string) bool, bare bool) (files []string, err error) {
	add := func(dir string, names ...string) (n int) {
		for _, name := range names {
			if name = path.Join(dir, name); has(name) {
				files = append(files, name)
				n++
			}
		}
		return n
	}
	transformer := ""
	add("", "modules.json", "config_sentence_transformers.json", rerankerFile)
	for i, m := range f.Modules {
		if i == 0 { // readModules wants it to be a transformer, or static embeddings
			transformer = m.Path
			continue
		}
		add(m.Path, "config.json")
		if m.Kind() == "Dense" && add(m.Path, weightsFile) == 0 && add(m.Path, torchWeightsFile) == 0 {
			return nil, fmt.Errorf("the repository has neither %s nor %s, the weights of a Dense module", path.Join(m.Path, weightsFile), torchWeightsFile)
		}
	}
	if q := f.Queries; q != nil {
		add("", q.router)
		add(q.path, append([]string{"config.json", weightsFile, torchWeightsFile}, tokenizerFiles...)...)
		for _, dir := range []string{q.path, ""} { // a file of token to weight in their place is called so
			add(dir, "idf.json")
		}
	}
	adapter := has(path.Join(transformer, adapterConfigFile)) && !has(path.Join(transformer, weightsFile)) && !has(path.Join(transformer, indexFile))
	if adapter && add(transformer, adapterConfigFile, AdapterWeights) < 2 {
		return nil, fmt.Errorf("the repository has no %s beside its %s", AdapterWeights, adapterConfigFile)
	}
	if add(transformer, "config.json") == 0 && !adapter && !f.Static() {
		return nil, fmt.Errorf("the repository has no %s: it is not a model for transformers", path.Join(transformer, "config.json"))
	}
	add(transformer, transformerFiles...)
	add(transformer, tokenizerFiles...)
	for _, name := range m3Files {
		add(transformer, name+".pt", name+".safetensors")
	}
	if f.Modules == nil {
		add("", metadataFile)
	}
	weightless := adapter || bare && !f.sizedByWeights(has)
	if !weightless && !slices.ContainsFunc(weightFiles, func(name string) bool { return add(transformer, name) > 0 }) {
		return nil, fmt.Errorf("the repository has neither %s nor %s", path.Join(transformer, weightsFile), indexFile)
	}
	for _, name := range files {
		if err := checkPath(name); err != nil {
			return nil, fmt.Errorf("%w: path %w", errRefused, err)
		}
	}
	return files, nil
}

// shardFiles reads the index in the snapshot and lists its shards as the repository names them.
func shardFiles(snapshot, index string, listed []string) (files []string, err error) {
	data, err := plainfile.Read(filepath.Join(snapshot, filepath.FromSlash(index)))
	if err != nil {
		return nil, err
	}
	byTensor, err := shardMap(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", index, err)
	}
	seen := map[string]bool{}
	for _, name := range byTensor {
		seen[path.Join(path.Dir(index), name)] = true
	}
	for _, name := range sortedKeys(seen) {
		if !slices.Contains(listed, name) {
			return nil, fmt.Errorf("%s lists %s, which the repository does not have", index, name)
		}
		files = append(files, name)
	}
	return files, nil
}

// download fills one snapshot.
type download struct {
	*hub
	root             *os.Root // of the model's storage
	commit, snapshot string
	done, total      int64
}

// fetch brings files into the snapshot that aren't there yet.
func (d *download) fetch(ctx context.Context, names ...string) error {
	var todo []remoteFile
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(d.snapshot, filepath.FromSlash(name))); err == nil {
			continue
		}
		f, err := d.head(ctx, d.commit, name)
		if err != nil {
			return err
		}
		todo = append(todo, f)
		d.total += max(f.size, 0)
	}
	for _, f := range todo {
		if err := d.file(ctx, f); err != nil {
			return fmt.Errorf("file %s: %w", f.name, err)
		}
	}
	return nil
}

// file brings one file's content into blobs, and its name into the snapshot.
func (d *download) file(ctx context.Context, f remoteFile) error {
	unlock, err := d.lock(ctx, f)
	if err != nil {
		return err
	}
	defer unlock()
	blob := path.Join("blobs", f.etag)
	// Not through the Root: huggingface_hub may keep a blob in a store shared by all models, behind a link.
	info, err := os.Stat(filepath.Join(d.storage, filepath.FromSlash(blob)))
	if err != nil || f.size >= 0 && info.Size() != f.size {
		if err := d.root.MkdirAll("blobs", 0o777); err != nil {
			return err
		}
		if err := d.blob(ctx, f, blob); err != nil {
			return err
		}
	} else {
		d.done += max(f.size, 0)
		d.opts.Progress(Progress{File: f.name, Done: d.done, Total: d.total})
	}
	return d.link(blob, path.Join("snapshots", d.commit, f.name))
}

// lock keeps two processes from downloading the same file; it is the lock that huggingface_hub takes as well.
func (d *download) lock(ctx context.Context, f remoteFile) (unlock func(), err error) {
	dir := filepath.Join(d.cache, ".locks", filepath.Base(d.storage))
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(dir, f.etag+".lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, err
	}
	for waiting := false; !filelock.TryLock(file); waiting = true {
		if !waiting {
			d.opts.Warn(fmt.Sprintf("waiting for another process that is downloading %s of %s", f.name, d.id))
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			file.Close()
			return nil, err
		}
	}
	return func() { file.Close() }, nil
}

// link gives the blob its name in the snapshot: a relative symbolic link, so that the cache can be moved; where the
// system has none, a hard link or a copy.
func (d *download) link(blob, pointer string) error {
	if err := d.root.MkdirAll(path.Dir(pointer), 0o777); err != nil {
		return err
	}
	in := func(name string) string { return filepath.Join(d.storage, filepath.FromSlash(name)) }
	if want, err := os.Stat(in(blob)); err != nil {
		return err
	} else if have, err := os.Stat(in(pointer)); err == nil && os.SameFile(have, want) {
		return nil // another process was here first
	}
	// Whoever looks meanwhile, having found the model complete, must not find it without this file: the link appears in one step.
	fresh := pointer + ".link"
	if err := d.root.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	up := strings.Repeat("../", strings.Count(pointer, "/"))
	if d.root.Symlink(filepath.FromSlash(up+blob), fresh) == nil || d.root.Link(blob, fresh) == nil {
		return d.root.Rename(fresh, pointer)
	}
	return atomicfile.Write(in(pointer), func(w io.Writer) error {
		from, err := os.Open(in(blob))
		if err != nil {
			return err
		}
		defer from.Close()
		_, err = io.Copy(w, from)
		return err
	})
}

// freeSpace is a variable so that tests can have a disk of another size, or of an unknown one.
var freeSpace = atomicfile.FreeSpace

// blob downloads into blob+".incomplete", continuing what an earlier attempt left there, and renames it when its
// content is what the etag says.
func (d *download) blob(ctx context.Context, f remoteFile, blob string) error {
	partial := blob + ".incomplete"
	file, err := d.root.OpenFile(partial, os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return err
	}
	defer file.Close()
	for again := false; ; again = true {
		if err := d.body(ctx, f, file); err != nil {
			return err
		}
		wrong := verify(file, f)
		if wrong == nil {
			break
		}
		// What was left there may have been another file's beginning. Once more, from the start.
		if err := file.Truncate(0); err != nil {
			return err
		}
		if again {
			file.Close()
			d.root.Remove(partial)
			return wrong
		}
	}
	if err := file.Sync(); err != nil {
		return d.full(err, f)
	}
	if err := file.Close(); err != nil {
		return d.full(err, f)
	}
	if err := d.root.Rename(partial, blob); err != nil {
		return err
	}
	d.done += max(f.size, 0)
	return atomicfile.SyncDir(filepath.Join(d.storage, "blobs"))
}

// body downloads f to the end of file, which holds its first bytes.
func (d *download) body(ctx context.Context, f remoteFile, file *os.File) error {
	furthest := int64(0) // starting over and coming as far as before is no progress
	return d.retry(ctx, func() (progress bool, err error) {
		have, err := file.Seek(0, io.SeekEnd)
		if err != nil {
			return false, refused(err)
		}
		if f.size >= 0 && have > f.size {
			if have, err = 0, file.Truncate(0); err != nil {
				return false, refused(err)
			}
		}
		if have == f.size {
			return false, nil
		}
		if free, ok := freeSpace(d.storage); ok && f.size >= 0 && free < f.size-have {
			return false, refused(fmt.Errorf("it needs %s in %s, where %s are free: free some space or set HF_HUB_CACHE",
				atomicfile.Bytes(f.size-have), d.cache, atomicfile.Bytes(free)))
		}
		at, err := d.part(ctx, f, file, have)
		progress = at > furthest
		furthest = max(furthest, at)
		return progress, err
	})
}

// part makes one request for the bytes from have on, and reports how far it came.
func (d *download) part(ctx context.Context, f remoteFile, file *os.File, have int64) (at int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	alarm := time.AfterFunc(silence, func() { cancel(fmt.Errorf("the server sent nothing for %v", silence)) })
	defer alarm.Stop()

	header := http.Header{}
	if have > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", have))
	}
	resp, err := d.send(ctx, http.MethodGet, d.fileAddress(d.commit, f.name), header, nil)
	var status *statusError
	if errors.As(err, &status) && status.status == http.StatusRequestedRangeNotSatisfiable && have > 0 {
		if err := file.Truncate(0); err != nil {
			return at, refused(err)
		}
		return at, fmt.Errorf("the server can't continue at byte %d", have)
	}
	if err != nil {
		return at, err
	}
	defer resp.Body.Close()
	start := int64(0)
	if resp.StatusCode == http.StatusPartialContent {
		if _, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-", &start); err != nil || start > have {
			return at, fmt.Errorf("%w: asked for the bytes from %d, the server sends %q", errRefused, have, resp.Header.Get("Content-Range"))
		}
	}
	// A server without ranges sends all of it again.
	if err := file.Truncate(start); err != nil {
		return at, refused(err)
	}
	if _, err := file.Seek(start, io.SeekStart); err != nil {
		return at, refused(err)
	}
	size := f.size
	if size < 0 && resp.ContentLength >= 0 {
		size = start + resp.ContentLength
	}
	at = start
	buffer := make([]byte, 1<<20)
	for {
		n, err := resp.Body.Read(buffer)
		alarm.Reset(silence)
		if size >= 0 && at+int64(n) > size {
			return at, fmt.Errorf("%w: the server sends more than the %d bytes it announced", errRefused, size)
		}
		if n > 0 {
			if _, err := file.Write(buffer[:n]); err != nil {
				return at, refused(d.full(err, f))
			}
			at += int64(n)
			d.opts.Progress(Progress{File: f.name, Done: d.done + at, Total: max(d.total, d.done+at)})
		}
		switch {
		case err == io.EOF && size >= 0 && at < size:
			return at, fmt.Errorf("the connection ended after %d of %d bytes", at, size)
		case err == io.EOF:
			return at, nil
		case ctx.Err() != nil:
			return at, context.Cause(ctx)
		case err != nil:
			return at, withoutQuery(err)
		}
	}
}

// refused marks an error of this machine, which asking the server again can't repair.
func refused(err error) error { return &local{err} }

type local struct{ error }

func (e *local) Unwrap() []error { return []error{errRefused, e.error} }

func (d *download) full(err error, f remoteFile) error {
	if !atomicfile.IsFull(err) {
		return err
	}
	return fmt.Errorf("the disk of %s is full; the file has %s: free some space or set HF_HUB_CACHE: %w",
		d.cache, atomicfile.Bytes(f.size), err)
}

var (
	sha256Etag = regexp.MustCompile(`^[0-9a-f]{64}$`)
	gitEtag    = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// verify compares the file with its announced size and, where the etag is one, its hash: the hub names large files by
// their SHA-256 and others by Git's hash of a blob.
func verify(file *os.File, f remoteFile) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if f.size >= 0 && info.Size() != f.size {
		return fmt.Errorf("got %d bytes, the server announced %d", info.Size(), f.size)
	}
	var h hash.Hash
	switch {
	case sha256Etag.MatchString(f.etag):
		h = sha256.New()
	case gitEtag.MatchString(f.etag):
		h = sha1.New()
		fmt.Fprintf(h, "blob %d\x00", info.Size())
	default:
		return nil
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if _, err := io.Copy(h, file); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != f.etag {
		return fmt.Errorf("the content's hash is %s, the server announced %s: damaged on the way, or not what it claims to be",
			got, f.etag)
	}
	return nil
}
