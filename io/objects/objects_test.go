package objects

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"golang.org/x/oauth2"

	"contraflow/io/atomicfile"
	"contraflow/io/dataset"
)

// store is a server with as much of S3's interface as reading takes, for one bucket.
type store struct {
	*httptest.Server
	objects map[string]string
	now     map[string]string // what has come in their place since they were listed
	mu      sync.Mutex
	gets    int
	cut     int           // so many answers end early
	hold    chan struct{} // what follows an object's first byte is sent once this is closed
	deny    int           // the status that it answers all with
	lists   bool          // but those who list
	whole   bool          // it knows no ranges
	mute    bool          // it lists nothing
	silent  bool          // it sends nothing of an object
	strict  bool          // it compares ETags where a whole object is asked for, too
	busy    int           // so many times it has too many requests
	pages   bool          // it lists one object at a time, each after a while
}

func newStore(t *testing.T) *store {
	s := &store{objects: map[string]string{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	for _, v := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		t.Setenv(v, "test")
	}
	t.Setenv("AWS_REGION", "us-east-1")
	t.Setenv("AWS_ENDPOINT_URL", s.URL)
	t.Setenv("STORAGE_EMULATOR_HOST", strings.TrimPrefix(s.URL, "http://"))
	t.Setenv("CONTRAFLOW_CACHE", t.TempDir())
	return s
}

func (s *store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, ok := strings.CutPrefix(r.URL.Path, "/bucket/")
	switch {
	case s.deny > 0 && !(s.lists && key == ""):
		w.WriteHeader(s.deny)
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>no</Message></Error>", map[int]string{401: "AuthenticationRequired", 403: "SignatureDoesNotMatch", 400: "AccessDenied"}[s.deny])
	case !ok && r.URL.Path != "/bucket":
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, "<Error><Code>NoSuchBucket</Code><Message>none</Message></Error>")
	case key == "" && s.mute:
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case key == "":
		type object struct {
			Key, ETag, LastModified string
			Size                    int
		}
		type result struct {
			XMLName     xml.Name `xml:"ListBucketResult"`
			Name        string
			IsTruncated bool
			Contents    []object

			NextContinuationToken string
		}
		res := result{Name: "bucket"}
		for k, v := range s.objects {
			if strings.HasPrefix(k, r.URL.Query().Get("prefix")) {
				res.Contents = append(res.Contents, object{k, fmt.Sprintf("%q", etag(v)), "2026-01-01T00:00:00.000Z", len(v)})
			}
		}
		slices.SortFunc(res.Contents, func(a, b object) int { return strings.Compare(a.Key, b.Key) })
		if last := r.URL.Query().Get("continuation-token"); s.pages {
			time.Sleep(200 * time.Millisecond)
			res.Contents = slices.DeleteFunc(res.Contents, func(o object) bool { return o.Key <= last })
			res.IsTruncated = len(res.Contents) > 1
			res.Contents = res.Contents[:1]
			res.NextContinuationToken = res.Contents[0].Key
		}
		w.Header().Set("Content-Type", "application/xml")
		xml.NewEncoder(w).Encode(res)
	default:
		v, ok := s.objects[key]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if now, ok := s.now[key]; ok {
			v = now
		}
		if r.Method == http.MethodGet {
			s.mu.Lock()
			s.gets++
			s.mu.Unlock()
		}
		w.Header().Set("ETag", fmt.Sprintf("%q", etag(v)))
		w.Header().Set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
		w.Header().Set("Content-Length", fmt.Sprint(len(v)))
		if s.busy > 0 {
			s.busy--
			w.Header().Set("Content-Length", "0")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		from, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes=")
		ok = ok && !s.whole
		match := r.Header.Get("If-Match")
		if (ok || s.strict && match != "") && match != fmt.Sprintf("%q", etag(v)) {
			w.Header().Set("Content-Length", "0")
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		if ok {
			at, _ := strconv.Atoi(strings.TrimSuffix(from, "-"))
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", at, len(v)-1, len(v)))
			w.Header().Set("Content-Length", fmt.Sprint(len(v)-at))
			w.WriteHeader(http.StatusPartialContent)
			v = v[at:]
		}
		if s.silent && r.Method == http.MethodGet {
			<-r.Context().Done()
			return
		}
		if s.cut > 0 {
			s.cut--
			v = v[:len(v)/2]
		}
		if s.hold != nil && len(v) > 1 {
			fmt.Fprint(w, v[:1])
			w.(http.Flusher).Flush()
			select {
			case <-s.hold:
			case <-r.Context().Done():
				return
			case <-time.After(10 * time.Second): // the test fails
			}
			v = v[1:]
		}
		fmt.Fprint(w, v)
	}
}

// TestRanks: the ranks of a machine ask for the same files at once. One copies them, the others wait for it.
func TestRanks(t *testing.T) {
	s := newStore(t)
	s.objects["a.jsonl"], s.hold = "{\"query\": \"q\"}\n", make(chan struct{})
	var wg, heard sync.WaitGroup
	heard.Add(4)
	go func() {
		heard.Wait()
		close(s.hold) // nobody has come too late to hear of it
	}()
	for i := range 4 {
		wg.Go(func() {
			told := 0
			paths, err := Fetch(dataset.WithProgress(t.Context(), func(file string, done, total int64) {
				if told++; told == 1 {
					heard.Done()
				}
				if file != "a.jsonl" || done < 0 || done > total || total != int64(len(s.objects[file])) {
					t.Errorf("%s: %d of %d bytes", file, done, total)
				}
			}), "s3://bucket/a.jsonl")
			if told == 0 {
				t.Errorf("rank %d hears nothing of what is copied", i)
			}
			if err != nil || len(paths) != 1 {
				t.Errorf("%q, %v", paths, err)
			} else if b, _ := os.ReadFile(paths[0]); string(b) != s.objects["a.jsonl"] {
				t.Errorf("the copy is %q", b)
			}
		})
	}
	wg.Wait()
	if s.gets != 1 {
		t.Errorf("it was fetched %d times", s.gets)
	}
}

// Who waits for another's copy waits no longer than its context.
func TestWaitingEnds(t *testing.T) {
	dir := t.TempDir()
	other, err := atomicfile.Create(filepath.Join(dir, ".a.jsonl.etag"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Abort(nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := keep(ctx, nil, dir, "bucket", minio.ObjectInfo{Key: "a.jsonl", Size: 2, ETag: "e"}, func(int64) {})
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("it still waits")
	}
}

// TestFolder: of a folder with files of both kinds the parquet files count, as on the hub.
func TestFolder(t *testing.T) {
	s := newStore(t)
	s.objects["data/a.parquet"], s.objects["data/deep/b.parquet"], s.objects["data/c.jsonl"], s.objects["database/d.parquet"] = "x", "x", "{}", "x"
	paths, err := Fetch(t.Context(), "s3://bucket/data/")
	if err != nil || len(paths) != 2 || filepath.Base(paths[0]) != "a.parquet" || filepath.Base(paths[1]) != "b.parquet" {
		t.Errorf("%q, %v", paths, err)
	}
}

// The object by which a store's console remembers a folder is not a file, whatever matches it.
func TestFolderObject(t *testing.T) {
	s := newStore(t)
	s.objects["data/"], s.objects["data/a.jsonl"] = "", "{}"
	for _, ref := range []string{"s3://bucket/data/*", "s3://bucket/data/"} {
		paths, err := Fetch(t.Context(), ref)
		if err != nil || len(paths) != 1 || filepath.Base(paths[0]) != "a.jsonl" {
			t.Errorf("%s: %q, %v", ref, paths, err)
		}
	}
}

// TestGlobs: a glob may begin with what it leaves open.
func TestGlobs(t *testing.T) {
	s := newStore(t)
	s.objects["b.jsonl"], s.objects["a.jsonl"], s.objects["a/b.jsonl"] = "{}", "{ }", "x"
	for glob, want := range map[string]string{"*.jsonl": "a.jsonl b.jsonl", "?.jsonl": "a.jsonl b.jsonl", "[ab].jsonl": "a.jsonl b.jsonl", "*/b*": "b.jsonl"} {
		paths, err := Fetch(t.Context(), "s3://bucket/"+glob)
		for i := range paths {
			paths[i] = filepath.Base(paths[i])
		}
		if got := strings.Join(paths, " "); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", glob, got, err, want)
		}
	}
}

// A key is what the store has, whatever its characters mean in the address of a page.
func TestKeys(t *testing.T) {
	s := newStore(t)
	for _, key := range []string{"C/a.jsonl", "C#/a.jsonl", "100%.jsonl", "a b.jsonl", "a%20b.jsonl", "d/x.jsonl", "d//x.jsonl"} {
		s.objects[key] = fmt.Sprintf("{%q: 1}\n", key)
	}
	for _, key := range []string{"C#", "C#/*.jsonl", "100%.jsonl", "a%20b.jsonl"} {
		paths, err := Fetch(t.Context(), "s3://bucket/"+key)
		if err != nil || len(paths) != 1 {
			t.Fatalf("%s: %q, %v", key, paths, err)
		}
		if b, _ := os.ReadFile(paths[0]); !strings.HasPrefix(string(b), `{"`+strings.TrimSuffix(key, "/*.jsonl")) {
			t.Errorf("%s: the copy is %q", key, b)
		}
	}
	s.objects["e/[1].jsonl"], s.objects[`f/x\y.jsonl`] = "{}", "{}"
	if paths, err := Fetch(t.Context(), `s3://bucket/e/\[1].jsonl`); err != nil || len(paths) != 1 || filepath.Base(paths[0]) != "[1].jsonl" {
		t.Errorf("%q, %v", paths, err)
	}
	if paths, err := Fetch(t.Context(), "s3://bucket/f"); err == nil || !strings.Contains(err.Error(), "its key can't be a file's path") { // elsewhere y.jsonl would be in x
		t.Errorf("%q, %v", paths, err)
	}
	// It would be the file of another one, whose rows would come in its place.
	if paths, err := Fetch(t.Context(), "s3://bucket/d"); err == nil || !strings.Contains(err.Error(), "s3://bucket/d//x.jsonl: its key can't be a file's path") {
		t.Errorf("%q, %v", paths, err)
	}
}

// TestProgress: what is copied is told of in bytes of all that was asked for, what is here counts, and of nothing to copy nothing is said.
func TestProgress(t *testing.T) {
	s := newStore(t)
	s.objects["d/a.jsonl"], s.objects["d/b.jsonl"], s.objects["d/c.jsonl"] = "{}\n", "{\"query\": \"q\"}\n", "{ }\n"
	fetch := func(ref string) (told []string) {
		t.Helper()
		if _, err := Fetch(dataset.WithProgress(t.Context(), func(file string, done, total int64) { told = append(told, fmt.Sprint(file, " ", done, " ", total)) }), ref); err != nil {
			t.Fatal(err)
		}
		return told
	}
	if told := fetch("s3://bucket/d/a.jsonl"); len(told) == 0 || told[len(told)-1] != "d/a.jsonl 3 3" {
		t.Errorf("%q", told)
	}
	if told := fetch("s3://bucket/d"); !slices.Contains(told, "d/b.jsonl 18 22") || told[len(told)-1] != "d/c.jsonl 22 22" || strings.HasPrefix(told[0], "d/a") {
		t.Errorf("%q", told)
	}
	if told := fetch("s3://bucket/d"); told != nil {
		t.Errorf("of what is here already: %q", told)
	}
}

func etag(v string) string { return fmt.Sprintf("%x", dataset.HashText(v).Hi) }

func TestFetch(t *testing.T) {
	s := newStore(t)
	for i := range 3 {
		s.objects[fmt.Sprintf("data/train-%d.jsonl", i)] = fmt.Sprintf("{\"query\": \"q%d\", \"positive\": \"p\"}\n", i)
	}
	s.objects["data/readme.txt"], s.objects["data/deep/x.jsonl"] = "no data", "{}\n"
	for _, scheme := range []string{"s3", "gs"} {
		s.gets, s.objects["data/train-1.jsonl"] = 0, strings.ToLower(s.objects["data/train-1.jsonl"])
		d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{scheme + "://bucket/data/train-*.jsonl"}, Query: "query", Positive: "positive"})
		if err != nil {
			t.Fatal(err)
		}
		if d.Rows() != 3 || s.gets != 3 {
			t.Errorf("%s: %d rows, %d objects fetched", scheme, d.Rows(), s.gets)
		}
		d.Close()
		paths, err := Fetch(t.Context(), scheme+"://bucket/data")
		if err != nil || len(paths) != 4 || s.gets != 4 {
			t.Errorf("%s: a folder is %q, %d fetched (%v)", scheme, paths, s.gets, err)
		}
		for i, change := range []func(){
			func() { s.objects["data/train-1.jsonl"] = strings.ToUpper(s.objects["data/train-1.jsonl"]) }, // a new version, as long
			func() { os.Truncate(paths[2], 5) }, // of train-1.jsonl
		} {
			change()
			one, err := Fetch(t.Context(), scheme+"://bucket/data/train-?.jsonl")
			if err != nil || len(one) != 3 || s.gets != 5+i {
				t.Fatalf("%s: %q, %d fetched (%v)", scheme, one, s.gets, err)
			}
			if b, _ := os.ReadFile(one[1]); string(b) != s.objects["data/train-1.jsonl"] {
				t.Errorf("%s: the copy is %q", scheme, b)
			}
		}
	}
}

func TestFetchErrors(t *testing.T) {
	s := newStore(t)
	s.objects["a.jsonl"], s.objects["../out.jsonl"] = "{\"query\": 1}\n", "x"
	open := func(path string) error {
		d, err := dataset.Open(t.Context(), dataset.Source{Paths: []string{path}, Query: "query", Positive: "positive"})
		if err == nil {
			d.Close()
		}
		return err
	}
	for path, want := range map[string]string{
		"s3://bucket/none-*.parquet": "matches no file",
		"s3://elsewhere/a.jsonl":     "no such bucket",
		"s3://bucket/../out.jsonl":   "can't be a file's path",
		"s3:///a":                    "want s3://bucket/key",
		"ftp://host/a":               "known are paths and gs://, s3://",
		"s3://bucket/[a":             "syntax error",
	} {
		if err := open(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	if err := open("ftp://host/a"); !errors.Is(err, dataset.ErrNoFiles) {
		t.Errorf("got %v", err)
	}
	defer func(d time.Duration) { between = d }(between)
	between = time.Millisecond
	s.cut = math.MaxInt
	if err := open("s3://bucket/a.jsonl"); err == nil || !strings.HasSuffix(err.Error(), "s3://bucket/a.jsonl: its connection broke 5 times after byte 12 of 13: unexpected EOF") {
		t.Errorf("of an object that never comes as a whole: %v", err)
	}
	if found, _ := filepath.Glob(filepath.Join(os.Getenv("CONTRAFLOW_CACHE"), "s3", "bucket", "*")); len(found) > 0 {
		t.Errorf("left %q", found)
	}
	for now, want := range map[string]string{
		"{\"query\": 1}\n{}": "s3://bucket/a.jsonl: more came than the 13 bytes that the listing says",
		"{}\n":               "s3://bucket/a.jsonl: it has changed since it was listed",
		"{\"query\": 2}\n":   "s3://bucket/a.jsonl: it has changed since it was listed",
	} {
		s.now, s.cut = map[string]string{"a.jsonl": now}, 0
		if now[len(now)-1] == '\n' {
			s.cut = 1
		}
		if err := open("s3://bucket/a.jsonl"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("of one that is now %q: %v, want %q", now, err, want)
		}
	}
	s.now, s.cut, s.strict = map[string]string{"a.jsonl": "{\"query\": 3}\n"}, 0, true
	if err := open("s3://bucket/a.jsonl"); err == nil || !strings.Contains(err.Error(), "s3://bucket/a.jsonl: it has changed since it was listed") {
		t.Errorf("of another one as long: %v", err)
	}
	s.now, s.cut, s.whole, s.strict = nil, 1, true, false
	if err := open("s3://bucket/a.jsonl"); err == nil || !strings.Contains(err.Error(), "the store was asked for bytes 6- and has sent something else") {
		t.Errorf("of a store that knows no ranges: %v", err)
	}
	s.cut = 0
	for _, s.deny = range []int{401, 403, 400} {
		for _, path := range []string{"s3://bucket/a.jsonl", "gs://bucket/a.jsonl"} {
			s.lists = !s.lists
			err := open(path)
			if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "AWS_ACCESS_KEY_ID") || !strings.Contains(err.Error(), "gcloud auth") {
				t.Errorf("denied by %d: %v", s.deny, err)
			}
		}
	}
}

// Credentials that were good once are told as those that never were: with where they come from.
func TestExpired(t *testing.T) {
	for _, err := range []error{
		minio.ErrorResponse{Code: "ExpiredToken", StatusCode: http.StatusBadRequest, Message: "The provided token has expired."},
		&url.Error{Op: "Get", URL: "https://storage.googleapis.com", Err: &oauth2.RetrieveError{ErrorCode: "invalid_grant"}},
	} {
		if got := explain(t.Context(), err); !errors.Is(got, err) || !strings.Contains(got.Error(), "AWS_PROFILE") || !strings.Contains(got.Error(), "gcloud auth") {
			t.Error(got)
		}
	}
}

// Where a connection breaks or falls silent, what is left of an object comes over another one.
func TestBrokenConnections(t *testing.T) {
	s := newStore(t)
	defer func(b, d time.Duration) { between, silence = b, d }(between, silence)
	between, silence = time.Millisecond, 50*time.Millisecond
	for _, url := range []string{"s3://bucket/cut", "gs://bucket/silent"} {
		name := path.Base(url)
		s.objects[name] = "0123456789" + name
		if s.gets = 0; name == "cut" {
			s.cut = 3
		} else {
			s.hold = make(chan struct{}) // for ever
		}
		files, err := Fetch(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		if b, _ := os.ReadFile(files[0]); string(b) != s.objects[name] || s.gets < 4 {
			t.Errorf("%s: %q after %d connections", name, b, s.gets)
		}
	}
	s.objects["mute"], s.silent, silence = "0", true, 20*time.Millisecond
	if _, err := Fetch(t.Context(), "s3://bucket/mute"); err == nil || !strings.HasSuffix(err.Error(), "broke 5 times after byte 0 of 1: the store has sent nothing for 20ms") {
		t.Error(err)
	}
}

// A store that has too many requests is asked again, as one whose connection breaks.
func TestTooManyRequests(t *testing.T) {
	s := newStore(t)
	defer func(b time.Duration) { between = b }(between)
	between = time.Millisecond
	host, o, err := server(t.Context(), "s3")
	if err != nil {
		t.Fatal(err)
	}
	o.MaxRetries = 1 // of the client's own, which take seconds
	c, err := minio.New(host, o)
	if err != nil {
		t.Fatal(err)
	}
	s.objects["a"] = "0123456789"
	for _, s.busy = range []int{connections - 1, connections} {
		fails := s.busy == connections
		in := &object{ctx: t.Context(), core: minio.Core{Client: c}, bucket: "bucket", info: minio.ObjectInfo{Key: "a", Size: 10, ETag: etag("0123456789")}, arriving: func(int64) {}}
		b, err := io.ReadAll(in)
		if in.close(); fails != (err != nil) || !fails && string(b) != s.objects["a"] {
			t.Errorf("%q, %v; want an error: %t", b, err, fails)
		}
	}
}

// A listing that never comes ends.
func TestMuteListing(t *testing.T) {
	s := newStore(t)
	defer func(d time.Duration) { muteListing = d }(muteListing)
	s.mute, muteListing = true, 50*time.Millisecond
	if _, err := Fetch(t.Context(), "s3://bucket/folder/*.jsonl"); err == nil || !strings.Contains(err.Error(), "s3://bucket/folder/*.jsonl") || !strings.Contains(err.Error(), "the store has listed nothing for 50ms") {
		t.Error(err)
	}
}

// A listing comes in pages, and may take longer than one may bring nothing.
func TestPages(t *testing.T) {
	s := newStore(t)
	defer func(d time.Duration) { muteListing = d }(muteListing)
	s.pages, muteListing = true, 900*time.Millisecond
	for i := range 6 {
		s.objects[fmt.Sprintf("d/%d.jsonl", i)] = "{}"
	}
	if paths, err := Fetch(t.Context(), "s3://bucket/d"); err != nil || len(paths) != 6 || filepath.Base(paths[5]) != "5.jsonl" {
		t.Errorf("%q, %v", paths, err)
	}
}

// Where a store is, and how it is asked, comes from the variables of the stores' own tools.
func TestServer(t *testing.T) {
	for _, v := range []string{"AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "STORAGE_EMULATOR_HOST"} {
		t.Setenv(v, "")
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", filepath.Join(t.TempDir(), "none"))
	for _, c := range []struct {
		scheme string
		env    map[string]string
		host   string
		secure bool
	}{
		{"s3", nil, "s3.amazonaws.com", true},
		{"gs", nil, "storage.googleapis.com", true},
		{"s3", map[string]string{"AWS_ENDPOINT_URL": "https://minio.example:9000"}, "minio.example:9000", true},
		{"s3", map[string]string{"AWS_ENDPOINT_URL": "https://a", "AWS_ENDPOINT_URL_S3": "http://b"}, "b", false},
		{"s3", map[string]string{"STORAGE_EMULATOR_HOST": "a:1"}, "s3.amazonaws.com", true},
		{"gs", map[string]string{"AWS_ENDPOINT_URL": "https://a", "STORAGE_EMULATOR_HOST": "localhost:1"}, "localhost:1", false},
		{"s3", map[string]string{"AWS_ENDPOINT_URL": "https://"}, "", false},
	} {
		t.Run("", func(t *testing.T) {
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			host, o, err := server(t.Context(), c.scheme)
			if c.host == "" {
				if err == nil || !strings.Contains(err.Error(), "not the address of a server") {
					t.Error(err)
				}
			} else if err != nil || host != c.host || o.Secure != c.secure {
				t.Errorf("%v: %s, %v, %v", c.env, host, o, err)
			}
		})
	}
}

// Cloud Storage is asked with the token of the application default credentials; an emulator, and a machine without any, with none.
func TestGoogleCredentials(t *testing.T) {
	var asked string
	google := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"access_token": "of %s", "token_type": "Bearer", "expires_in": 3600}`, r.FormValue("refresh_token"))
			return
		}
		asked = r.Header.Get("Authorization")
	}))
	defer google.Close()
	file := filepath.Join(t.TempDir(), "adc.json")
	adc := fmt.Sprintf(`{"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "mine", "token_uri": "%s/token"}`, google.URL)
	if err := os.WriteFile(file, []byte(adc), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ credentials, emulator, want string }{{file, "", "Bearer of mine"}, {file, google.URL, ""}, {file + ".none", "", ""}} {
		t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", c.credentials)
		t.Setenv("STORAGE_EMULATOR_HOST", c.emulator)
		_, o, err := server(t.Context(), "gs")
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, google.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := o.Transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if asked != c.want {
			t.Errorf("%+v: asked with %q", c, asked)
		}
	}
}
