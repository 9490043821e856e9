package hfmodel

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	maxAttempts  = 5
	maxRedirects = 10
	maxListing   = 64 << 20
	// silence is how long a connection may send nothing before it counts as broken.
	silence = 60 * time.Second
)

// client speaks HTTP with the hub: redirects without leaking the token, retries with growing pauses.
type client struct {
	endpoint *url.URL
	token    string
	http     *http.Client
	attempts int
	pause    func(ctx context.Context, d time.Duration) error
}

func newClient(endpoint *url.URL, token string) client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = silence
	// Redirects are followed by hand: net/http would take the token along to subdomains and other ports.
	byHand := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return client{
		endpoint: endpoint, token: token, attempts: maxAttempts,
		http:  &http.Client{Transport: transport, CheckRedirect: byHand},
		pause: pause,
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// statusError is an answer other than success.
type statusError struct {
	status     int
	code       string // the hub's X-Error-Code
	message    string
	url        string
	retryAfter time.Duration
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("%s answered %d %s", e.url, e.status, http.StatusText(e.status))
	if e.message != "" {
		text += ": " + e.message
	}
	return text
}

func newStatusError(resp *http.Response) *statusError {
	message := resp.Header.Get("X-Error-Message")
	if len(message) > 300 {
		message = message[:300] + "..."
	}
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
	// Without its query, which on a content server is a signature that gives access.
	where := *resp.Request.URL
	where.RawQuery = ""
	return &statusError{
		status: resp.StatusCode, code: resp.Header.Get("X-Error-Code"), message: strings.ToValidUTF8(message, "?"),
		url: where.Redacted(), retryAfter: time.Duration(min(max(seconds, 0), 60)) * time.Second,
	}
}

// temporary reports whether trying again may help.
func temporary(err error) bool {
	var status *statusError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &status):
		return slices.Contains([]int{408, 429, 500, 502, 503, 504}, status.status)
	case errors.As(err, &certificate), errors.Is(err, errRefused):
		return false
	}
	return true
}

// errRefused is wrapped by what this client won't do whatever the server says.
var errRefused = errors.New("refused")

// retry calls try until it succeeds, fails for good, or has failed as often as attempts allows. try reports whether it
// got on, in which case it may fail as often again.
func (c *client) retry(ctx context.Context, try func() (progress bool, err error)) error {
	for failed := 0; ; {
		progress, err := try()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !temporary(err):
			return err
		}
		if progress {
			failed = 0
		}
		if failed++; failed >= c.attempts {
			return err
		}
		wait := min(time.Second<<(failed-1), 8*time.Second)
		wait = wait/2 + rand.N(wait/2) // so that many machines don't come back at the same moment
		var status *statusError
		if errors.As(err, &status) {
			wait = max(wait, status.retryAfter)
		}
		if err := c.pause(ctx, wait); err != nil {
			return err
		}
	}
}

// address is a URL below the endpoint; each part is escaped, its slashes too.
func (c *client) address(parts ...string) string {
	var b strings.Builder
	b.WriteString(c.endpoint.String())
	for _, p := range parts {
		b.WriteString("/" + url.PathEscape(p))
	}
	return b.String()
}

// send makes one request and follows redirects until stop, which may be nil, says that resp is what it wants. The token
// goes to the endpoint only. A status above 399 is an error.
func (c *client) send(ctx context.Context, method, address string, header http.Header,
	stop func(resp *http.Response) bool) (*http.Response, error) {
	for range maxRedirects {
		req, err := http.NewRequestWithContext(ctx, method, address, nil)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errRefused, err)
		}
		maps.Copy(req.Header, header)
		req.Header.Set("User-Agent", "contraflow")
		// Sizes and ranges are those of the file, not of its compressed form.
		req.Header.Set("Accept-Encoding", "identity")
		if c.token != "" && req.URL.Scheme == c.endpoint.Scheme && req.URL.Host == c.endpoint.Host {
			req.Header.Set("Authorization", "Bearer "+c.token)
		}
		resp, err := c.http.Do(req)
		if err != nil {
			return nil, withoutQuery(err)
		}
		if resp.StatusCode >= 400 {
			resp.Body.Close()
			return nil, newStatusError(resp)
		}
		if stop != nil && stop(resp) || resp.StatusCode < 300 {
			return resp, nil
		}
		resp.Body.Close()
		next, err := resp.Location()
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w: %s answered %d without a Location", errRefused, req.URL.Redacted(), resp.StatusCode)
		case next.Scheme != "https" && next.Scheme != "http", req.URL.Scheme == "https" && next.Scheme == "http":
			return nil, fmt.Errorf("%w: redirect from %s to the scheme %q", errRefused, req.URL.Redacted(), next.Scheme)
		}
		address = next.String()
	}
	return nil, fmt.Errorf("%w: more than %d redirects from %s", errRefused, maxRedirects, address)
}

// withoutQuery drops a signed URL's signature from an error's text.
func withoutQuery(err error) error {
	var e *url.Error
	if errors.As(err, &e) {
		e.URL, _, _ = strings.Cut(e.URL, "?")
	}
	return err
}

// repository is what the hub says about a model at a revision.
type repository struct {
	commit string
	files  []string
}

// listings are those that a context has.
type listings struct {
	sync.Mutex
	known map[string]repository
}

type listingsKey struct{}

// ListOnce has what is given the context ask the hub once which files a repository has, and go by that answer: for who reads many files of one, at one
// commit then.
func ListOnce(ctx context.Context) context.Context {
	return context.WithValue(ctx, listingsKey{}, &listings{known: map[string]repository{}})
}

// list is the commit and the names of all files.
func (h *hub) list(ctx context.Context) (repository, error) {
	once, _ := ctx.Value(listingsKey{}).(*listings)
	if once == nil {
		return h.askList(ctx)
	}
	once.Lock() // also while the hub is asked, whom several would ask the same
	defer once.Unlock()
	key := strings.Join([]string{h.endpoint.String(), h.kind, h.id, h.revision}, " ")
	if repo, known := once.known[key]; known {
		return repo, nil
	}
	repo, err := h.askList(ctx)
	if err == nil {
		once.known[key] = repo
	}
	return repo, err
}

func (h *hub) askList(ctx context.Context) (repo repository, err error) {
	parts := append([]string{"api", h.kind}, strings.Split(h.id, "/")...)
	address := h.address(append(parts, "revision", h.revision)...)
	var answer struct {
		SHA      string `json:"sha"`
		Siblings []struct {
			Name string `json:"rfilename"`
		} `json:"siblings"`
	}
	err = h.retry(ctx, func() (bool, error) {
		resp, err := h.send(ctx, http.MethodGet, address, nil, nil)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxListing))
		if err != nil {
			return false, err
		}
		if err := json.Unmarshal(body, &answer); err != nil {
			return false, fmt.Errorf("%w: %s does not answer like a Hugging Face hub: %w", errRefused, address, err)
		}
		return false, nil
	})
	if err != nil {
		return repo, err
	}
	if !commitHash.MatchString(answer.SHA) {
		return repo, fmt.Errorf("%w: %s gives %q for a commit, which is none", errRefused, address, short([]byte(answer.SHA)))
	}
	repo.commit = answer.SHA
	for _, s := range answer.Siblings {
		repo.files = append(repo.files, s.Name)
	}
	return repo, nil
}

// remoteFile is one file of the repository.
type remoteFile struct {
	name string
	etag string // names its content: SHA-256 for large files, Git's hash for small ones
	size int64  // -1: not known
}

// head asks for a file's etag and size.
func (h *hub) head(ctx context.Context, commit, name string) (f remoteFile, err error) {
	err = h.retry(ctx, func() (bool, error) {
		f = remoteFile{name: name, size: -1}
		linked := false
		resp, err := h.send(ctx, http.MethodHead, h.fileAddress(commit, name), nil, func(resp *http.Response) bool {
			// A large file's answer is a redirect to a content server, and carries the file's own etag and size.
			if etag := resp.Header.Get("X-Linked-Etag"); etag != "" {
				linked = true
				f.etag = etag
				if n, err := strconv.ParseInt(resp.Header.Get("X-Linked-Size"), 10, 64); err == nil && n >= 0 {
					f.size = n
				}
			}
			return linked
		})
		if err != nil {
			return false, err
		}
		resp.Body.Close()
		if !linked {
			f.etag = resp.Header.Get("ETag")
		}
		if f.size < 0 && resp.StatusCode < 300 {
			f.size = resp.ContentLength
		}
		return false, nil
	})
	if err != nil {
		return f, fmt.Errorf("file %s: %w", name, err)
	}
	f.etag = strings.Trim(strings.TrimPrefix(f.etag, "W/"), `"`)
	if !safeEtag(f.etag) {
		return f, fmt.Errorf("%w: file %s: the server's etag %q can't be a file's name", errRefused, name, short([]byte(f.etag)))
	}
	return f, nil
}

// safeEtag: an etag names a file in the cache.
func safeEtag(etag string) bool {
	return len(etag) <= 128 && checkPath(etag) == nil && !strings.ContainsAny(etag, "/ ") && !strings.HasPrefix(etag, ".")
}

func (h *hub) fileAddress(commit, name string) string {
	parts := append(strings.Split(h.id, "/"), "resolve", commit)
	if h.kind == "datasets" {
		parts = append([]string{"datasets"}, parts...)
	}
	return h.address(append(parts, strings.Split(name, "/")...)...)
}
