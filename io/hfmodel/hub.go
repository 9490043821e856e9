package hfmodel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"contraflow/io/atomicfile"
	"contraflow/io/dataset"
	"contraflow/io/internal/plainfile"
)

var (
	// ErrNotFound is wrapped when neither a folder nor a model on the hub has the name.
	ErrNotFound = errors.New("not found")
	// ErrNoModel is wrapped when a folder holds no model.
	ErrNoModel = errors.New("not a model folder")
	// ErrNoWeights is wrapped when a model's folder has settings and no weights. OpenSettings opens it.
	ErrNoWeights = errors.New("no weights")
	// ErrOffline is wrapped when the network is needed and switched off.
	ErrOffline = errors.New("offline")
)

// Options of Resolve. What is empty comes from the environment variables that Hugging Face's Python libraries use.
type Options struct {
	CacheDir string // HF_HUB_CACHE, or $HF_HOME/hub, or ~/.cache/huggingface/hub
	Endpoint string // HF_ENDPOINT, or https://huggingface.co
	Token    string // HF_TOKEN, or the file that `hf auth login` wrote ($HF_TOKEN_PATH, $HF_HOME/token)
	Offline  bool   // HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE: never touch the network

	// Progress, if not nil, is called now and then while bytes arrive, always from the same goroutine.
	Progress func(Progress)
	// Warn, if not nil, gets what a user should know although the model was found, such as that the hub did not answer
	// and the cached model is used.
	Warn func(message string)

	Splits dataset.Splits // of a dataset that Data is asked for as a whole

	// NoWeights leaves out a transformer's weights: what OpenSettings reads is downloaded, configurations, the tokenizer and modules' small files.
	// Where the sizes are nowhere but in the weights (static embeddings, Stanford's ColBERT), they are downloaded all the same.
	NoWeights bool
}

// Progress of a download. Sizes are in bytes; what was already there counts as done.
type Progress struct {
	File        string // being fetched, as the repository names it
	Done, Total int64  // over all files of the model
}

// Resolve returns the folder of a model: pathOrID itself if it is a folder, otherwise the model of this id on the hub,
// "org/name" or "org/name@revision" (a branch, tag or commit), from the cache or downloaded into it. A folder wins over
// an id of the same name.
//
// The cache is the one that huggingface_hub keeps (blobs, refs, snapshots, locks), in both directions: what Python
// downloaded is found here, and the other way round. Only what Open needs is downloaded: configurations, tokenizer,
// safetensors. An interrupted download continues where it stopped, also in a later process. A file's length and the
// SHA-256 or Git hash that the hub announces are checked before it gets its place.
//
// Nothing that a repository or server says is trusted: file names, commits and etags become paths only if they can't
// lead out of the model's cache folder, on any system. The token goes to the endpoint alone, not to hosts that it
// redirects to.
func Resolve(ctx context.Context, pathOrID string, o Options) (dir string, err error) {
	info, err := os.Stat(pathOrID)
	switch {
	case err == nil && info.IsDir():
		return pathOrID, resolveBase(ctx, pathOrID, o)
	case err == nil:
		return "", fmt.Errorf("%s is a file; give the model's folder", pathOrID)
	case errors.Is(err, fs.ErrPermission):
		return "", err
	}
	id, revision, idErr := parseID(pathOrID)
	if idErr != nil {
		if looksLikePath(pathOrID) {
			return "", fmt.Errorf("model folder %s: %w", pathOrID, ErrNotFound)
		}
		return "", fmt.Errorf("%q is neither a folder here nor a hub id (org/name, org/name@revision): %w", pathOrID, idErr)
	}
	h, err := newHub(id, revision, o)
	if err != nil {
		return "", err
	}
	if dir, err = h.resolve(ctx); err != nil {
		return "", err
	}
	return dir, resolveBase(ctx, dir, o)
}

// resolveBase fetches an adapter's base model.
func resolveBase(ctx context.Context, dir string, o Options) error {
	if !IsAdapter(dir) {
		return nil
	}
	a, err := readAdapter(dir)
	if err != nil {
		return err
	}
	defer a.file.Close()
	_, err = a.resolve(ctx, o)
	return err
}

func looksLikePath(s string) bool {
	s, _, _ = strings.Cut(s, "@")
	return filepath.IsAbs(s) || strings.HasPrefix(s, ".") || strings.HasPrefix(s, "~") || strings.HasSuffix(s, "/") ||
		strings.ContainsRune(s, '\\') || strings.Count(s, "/") > 1
}

// repoID is huggingface_hub's rule (validate_repo_id).
var repoID = regexp.MustCompile(`^([A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?/)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?$`)

// parseID splits "org/name@revision".
func parseID(s string) (id, revision string, err error) {
	id, revision, found := strings.Cut(s, "@")
	if !found {
		revision = "main"
	}
	switch {
	case len(id) > 96:
		return "", "", errors.New("an id has at most 96 characters")
	case !repoID.MatchString(id):
		return "", "", errors.New("an id has letters, digits, '-', '_' and '.', neither '-' nor '.' at the ends of its parts")
	case strings.Contains(id, "--") || strings.Contains(id, "..") || strings.HasSuffix(id, ".git"):
		return "", "", errors.New(`an id has no "--" or ".." and does not end in ".git"`)
	}
	if err := checkPath(revision); err != nil {
		return "", "", fmt.Errorf("revision %w", err)
	}
	return id, revision, nil
}

// hub finds one model at one revision.
type hub struct {
	client
	id, revision string
	kind         string // of repository, as in the hub's addresses: models or datasets
	cache        string // the folder for all models
	storage      string // the folder of this one
	opts         Options
}

func newHub(id, revision string, o Options) (*hub, error) {
	if o.CacheDir == "" {
		var err error
		if o.CacheDir, err = cacheDir(); err != nil {
			return nil, err
		}
	}
	if o.Endpoint == "" {
		o.Endpoint = os.Getenv("HF_ENDPOINT")
	}
	if o.Endpoint == "" {
		o.Endpoint = "https://huggingface.co"
	}
	endpoint, err := url.Parse(strings.TrimRight(o.Endpoint, "/"))
	if err != nil || endpoint.Scheme != "http" && endpoint.Scheme != "https" || endpoint.Host == "" {
		return nil, fmt.Errorf("HF_ENDPOINT %q is not the address of a server, such as https://huggingface.co", o.Endpoint)
	}
	if o.Token == "" {
		o.Token = implicitToken()
	}
	o.Offline = o.Offline || isTrue("HF_HUB_OFFLINE") || isTrue("TRANSFORMERS_OFFLINE")
	if o.Progress == nil {
		o.Progress = func(Progress) {}
	}
	if o.Warn == nil {
		o.Warn = func(string) {}
	}
	return &hub{
		client: newClient(endpoint, o.Token), id: id, revision: revision, cache: o.CacheDir, kind: "models",
		storage: filepath.Join(o.CacheDir, "models--"+strings.ReplaceAll(id, "/", "--")), opts: o,
	}, nil
}

// Cache is the folder that models are downloaded to (it may not be there yet), with the bytes that this user can still write to its
// disk, if that is known.
func Cache() (dir string, free int64, known bool, err error) {
	if dir, err = cacheDir(); err != nil {
		return "", 0, false, err
	}
	at := dir
	for {
		if _, err := os.Stat(at); err == nil || filepath.Dir(at) == at {
			break
		}
		at = filepath.Dir(at)
	}
	free, known = atomicfile.FreeSpace(at)
	return dir, free, known, nil
}

// cacheDir follows huggingface_hub's constants.py.
func cacheDir() (string, error) {
	for _, key := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"} {
		if dir := os.Getenv(key); dir != "" {
			return expand(dir)
		}
	}
	home, err := hfHome()
	return filepath.Join(home, "hub"), err
}

func hfHome() (string, error) {
	if dir := os.Getenv("HF_HOME"); dir != "" {
		return expand(dir)
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		dir, err := expand(dir)
		return filepath.Join(dir, "huggingface"), err
	}
	return expand("~/.cache/huggingface")
}

// expand replaces $VARIABLES and a leading ~.
func expand(dir string) (string, error) {
	dir = os.ExpandEnv(dir)
	if dir != "~" && !strings.HasPrefix(dir, "~/") && !strings.HasPrefix(dir, `~\`) {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no home folder for the model cache: %w; set HF_HOME", err)
	}
	return filepath.Join(home, dir[1:]), nil
}

func isTrue(key string) bool {
	switch strings.ToUpper(os.Getenv(key)) {
	case "1", "ON", "YES", "TRUE":
		return true
	}
	return false
}

func implicitToken() string {
	if isTrue("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
		return ""
	}
	for _, key := range []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"} {
		if token := strings.TrimSpace(os.Getenv(key)); token != "" {
			return token
		}
	}
	file := os.Getenv("HF_TOKEN_PATH")
	if file == "" {
		home, err := hfHome()
		if err != nil {
			return ""
		}
		file = filepath.Join(home, "token")
	} else if expanded, err := expand(file); err == nil {
		file = expanded
	}
	data, _ := os.ReadFile(file) // most users have none
	return strings.TrimSpace(string(data))
}

var commitHash = regexp.MustCompile(`^[0-9a-f]{40}$`)

// cached is the complete snapshot of the revision in the cache, or why there is none.
func (h *hub) cached() (string, error) {
	commit := h.revision
	if !commitHash.MatchString(commit) {
		ref, err := plainfile.Read(filepath.Join(h.storage, "refs", filepath.FromSlash(h.revision)))
		if err != nil {
			return "", fmt.Errorf("model %s@%s is not in the cache %s", h.id, h.revision, h.cache)
		}
		if commit = strings.TrimSpace(string(ref)); !commitHash.MatchString(commit) {
			return "", fmt.Errorf("the cache %s has no commit for %s@%s, but %q", h.cache, h.id, h.revision, short(ref))
		}
	}
	snapshot := filepath.Join(h.storage, "snapshots", commit)
	if _, err := os.Stat(snapshot); err != nil {
		return "", fmt.Errorf("model %s@%s is not in the cache %s", h.id, h.revision, h.cache)
	}
	if err := complete(snapshot, h.opts.NoWeights); err != nil {
		return "", fmt.Errorf("model %s@%s is in the cache, but not all of it: %w", h.id, h.revision, err)
	}
	return snapshot, nil
}

func there(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// complete checks that a snapshot has all that Open and a tokenizer need: a download by somebody else may have been
// interrupted, or have wanted only some files. bare: what OpenSettings needs.
func complete(snapshot string, bare bool) error {
	f := &Folder{Dir: snapshot, TransformerDir: snapshot}
	if err := f.readModules(); err != nil {
		return err
	}
	for _, m := range f.Modules {
		needs := map[string][]string{"Pooling": {"config.json"}, "Dense": {"config.json"}, "MultiVectorMask": {"config.json"}}[m.Kind()]
		for _, name := range needs {
			if _, err := os.Stat(filepath.Join(snapshot, filepath.FromSlash(m.Path), name)); err != nil {
				return err
			}
		}
		if dir := filepath.Join(snapshot, filepath.FromSlash(m.Path)); m.Kind() == "Dense" && !there(filepath.Join(dir, weightsFile)) && !there(filepath.Join(dir, torchWeightsFile)) {
			return fmt.Errorf("%s has neither %s nor %s", dir, weightsFile, torchWeightsFile)
		}
	}
	if IsAdapter(f.TransformerDir) {
		_, err := os.Stat(filepath.Join(f.TransformerDir, AdapterWeights))
		return err
	}
	if _, err := os.Stat(filepath.Join(f.TransformerDir, "config.json")); err != nil && !f.Static() {
		return err
	}
	if !hasTokenizer(f.TransformerDir) {
		return fmt.Errorf("%s has no tokenizer.json or vocab.txt", f.TransformerDir)
	}
	name := weightsIn(f.TransformerDir)
	switch {
	case bare && !f.sizedByWeights(func(name string) bool { return there(filepath.Join(snapshot, name)) }):
		return nil
	case name == "":
		return noWeights(f.TransformerDir)
	case !isIndex(name):
		_, err := os.Stat(filepath.Join(f.TransformerDir, name))
		return err
	}
	index, err := plainfile.Read(filepath.Join(f.TransformerDir, name))
	if err != nil {
		return err
	}
	shards, err := shardMap(index)
	if err != nil {
		return err
	}
	for _, tensor := range sortedKeys(shards) {
		if _, err := os.Stat(filepath.Join(f.TransformerDir, filepath.FromSlash(shards[tensor]))); err != nil {
			return err
		}
	}
	return nil
}

func (h *hub) resolve(ctx context.Context) (string, error) {
	cached, notCached := h.cached()
	switch {
	case notCached == nil && commitHash.MatchString(h.revision):
		return cached, nil // a commit never changes
	case h.opts.Offline && notCached != nil:
		return "", fmt.Errorf("%w: %w; without HF_HUB_OFFLINE it would be downloaded from %s", ErrOffline, notCached, h.endpoint)
	case h.opts.Offline:
		return cached, nil
	}
	if notCached == nil {
		h.attempts = 1 // there is something to fall back to: don't let a user without network wait
	}
	repo, err := h.list(ctx)
	if err == nil {
		h.attempts = maxAttempts
		return h.fetchAll(ctx, repo)
	}
	if ctx.Err() != nil {
		return "", fmt.Errorf("model %s: %w", h.id, context.Cause(ctx))
	}
	var status *statusError
	if notCached != nil || errors.As(err, &status) && status.code == "RevisionNotFound" {
		return "", h.explain(err)
	}
	h.opts.Warn(fmt.Sprintf("using the cached model in %s: %v", cached, h.explain(err)))
	return cached, nil
}

// String says what is looked for: "model org/name".
func (h *hub) String() string { return strings.TrimSuffix(h.kind, "s") + " " + h.id }

// forbidden reports whether the server wants to know who asks, or that it is somebody else.
func forbidden(err error) bool {
	var status *statusError
	return errors.As(err, &status) && (status.status == http.StatusUnauthorized || status.status == http.StatusForbidden)
}

// explain turns an answer of the server into what a user can do.
func (h *hub) explain(err error) error {
	var status *statusError
	if !errors.As(err, &status) {
		if asked, ok := err.(*url.Error); ok { // whose address says no more than what stands before
			err = asked.Err
		}
		return fmt.Errorf("%s is not a folder here, and %s can't be asked for it: %w", h, h.endpoint, err)
	}
	page := h.endpoint.String() + "/" + h.id
	if h.kind == "datasets" {
		page = h.endpoint.String() + "/datasets/" + h.id
	}
	switch {
	case status.code == "GatedRepo":
		return fmt.Errorf("%s at %s is gated: accept its terms at %s and set HF_TOKEN: %w", h, h.endpoint, page, err)
	case status.code == "RevisionNotFound":
		return fmt.Errorf("%s at %s has no revision %q: %w", h, h.endpoint, h.revision, errors.Join(ErrNotFound, err))
	case status.status == 401 || status.status == 403 || status.status == 404:
		hint := "if it is private, set HF_TOKEN"
		if h.token != "" {
			hint = "or your token may not read it (HF_TOKEN or `hf auth login`)"
		}
		if !strings.Contains(h.id, "/") {
			hint += "; ids have an owner, as in sentence-transformers/" + h.id
		}
		return fmt.Errorf("%s %w at %s; %s (HTTP %d %s)", h, ErrNotFound, h.endpoint, hint, status.status, status.message)
	}
	return fmt.Errorf("%s at %s: %w", h, h.endpoint, err)
}

// writeRef remembers the commit of a branch or tag, for the next time without network.
func (h *hub) writeRef(ctx context.Context, commit string) error {
	if h.revision == commit {
		return nil
	}
	if h.opts.NoWeights && there(filepath.Join(h.storage, "refs", filepath.FromSlash(h.revision))) {
		return nil // a snapshot with weights may be what it names
	}
	file := filepath.Join(h.storage, "refs", filepath.FromSlash(h.revision))
	if old, err := plainfile.Read(file); err == nil && string(old) == commit {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		return err
	}
	for {
		err := atomicfile.WriteFile(file, []byte(commit))
		if !errors.Is(err, atomicfile.ErrBusy) { // with another process, as of several ranks that need the model
			return err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}
