// Package objects reads files of object stores: importing it makes s3://bucket/key and gs://bucket/key usable wherever package dataset takes a
// path, globs and folders included.
//
// What a URL stands for is listed, and copied into a cache, in which it keeps its place: CACHE/s3/bucket/key. A copy whose length and ETag are still the
// store's is not fetched again. Where a connection breaks, or is silent for a minute, another one goes on from there, until five in a row have brought
// nothing. The files are local ones then, which training reads in random order.
//
// Credentials and endpoints come from where the stores' own tools take them:
//
//	s3   AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; ~/.aws/credentials and AWS_PROFILE; the machine's role. Without any: anonymous.
//	     AWS_REGION, and AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL for other stores with S3's interface
//	gs   application default credentials (GOOGLE_APPLICATION_CREDENTIALS, gcloud, the machine's account). Without any: anonymous.
//	     STORAGE_EMULATOR_HOST
//
// CONTRAFLOW_CACHE is the cache's folder; the default is contraflow in the user's cache folder.
//
// The client is minio-go, which speaks S3 and, with Google's bearer tokens, Cloud Storage's XML interface: a tenth of the size of the two vendors'
// own libraries.
package objects

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"contraflow/io/atomicfile"
	"contraflow/io/dataset"
)

func init() {
	for _, scheme := range []string{"s3", "gs"} {
		dataset.RegisterScheme(scheme, func(ctx context.Context, ref string, _ dataset.Splits) ([]string, error) { return Fetch(ctx, ref) })
	}
}

// Fetch brings what a URL stands for into the cache and returns the copies' paths, in the order of their keys. The key may be a glob, in which * does not
// cross a slash, or a folder, which stands for its data files.
func Fetch(ctx context.Context, ref string) ([]string, error) {
	scheme, rest, _ := strings.Cut(ref, "://") // and not as a URL: the stores' own tools take # and % as the key's, too
	bucket, glob, _ := strings.Cut(rest, "/")
	if bucket == "" || scheme != "s3" && scheme != "gs" {
		return nil, fmt.Errorf("%s: want s3://bucket/key or gs://bucket/key", ref)
	}
	glob = strings.Trim(glob, "/")
	if _, err := path.Match(glob, ""); err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	c, err := client(ctx, scheme)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	found, err := list(ctx, c, bucket, glob)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, explain(ctx, err))
	}
	var paths []string
	done, total := int64(0), int64(0)
	for _, o := range found {
		total += o.Size
	}
	for _, o := range found {
		arriving := func(int64) {}
		if tell := dataset.Progress(ctx); tell != nil {
			arriving = func(bytes int64) { tell(o.Key, done+bytes, total) }
		}
		p, err := keep(ctx, c, filepath.Join(cache, scheme, bucket), bucket, o, arriving)
		if err != nil {
			return nil, fmt.Errorf("%s://%s/%s: %w", scheme, bucket, o.Key, explain(ctx, err))
		}
		paths, done = append(paths, p), done+o.Size
	}
	return paths, nil
}

func cacheDir() (string, error) {
	if dir := os.Getenv("CONTRAFLOW_CACHE"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	return filepath.Join(dir, "contraflow"), err
}

// client connects to a store.
func client(ctx context.Context, scheme string) (*minio.Client, error) {
	host, o, err := server(ctx, scheme)
	if err != nil {
		return nil, err
	}
	return minio.New(host, o)
}

// server is where a store is, and how it is asked.
func server(ctx context.Context, scheme string) (host string, o *minio.Options, err error) {
	transport, err := minio.DefaultTransport(true)
	if err != nil {
		return "", nil, err
	}
	o = &minio.Options{Secure: true, Transport: transport, Region: os.Getenv("AWS_REGION")}
	host = "s3.amazonaws.com"
	endpoint := os.Getenv("AWS_ENDPOINT_URL_S3")
	if endpoint == "" {
		endpoint = os.Getenv("AWS_ENDPOINT_URL")
	}
	if scheme == "gs" {
		host, endpoint, o.Region = "storage.googleapis.com", os.Getenv("STORAGE_EMULATOR_HOST"), "auto"
		o.BucketLookup = minio.BucketLookupPath
		if endpoint == "" {
			if found, err := google.FindDefaultCredentials(ctx, "https://www.googleapis.com/auth/devstorage.read_only"); err == nil {
				o.Transport = &oauth2.Transport{Source: found.TokenSource, Base: transport}
			}
		}
		o.Creds = credentials.New(&credentials.Static{Value: credentials.Value{SignerType: credentials.SignatureAnonymous}})
	} else {
		o.Creds = credentials.NewChainCredentials([]credentials.Provider{
			&credentials.EnvAWS{}, &credentials.FileAWSCredentials{},
			&credentials.IAM{Client: &http.Client{Timeout: 2 * time.Second}}, // where there is no role, nobody answers
		})
	}
	if endpoint != "" {
		if !strings.Contains(endpoint, "://") {
			endpoint = "http://" + endpoint
		}
		u, err := url.Parse(endpoint)
		if err != nil || u.Host == "" {
			return "", nil, fmt.Errorf("the endpoint %q is not the address of a server", endpoint)
		}
		host, o.Secure, o.BucketLookup = u.Host, u.Scheme == "https", minio.BucketLookupPath
	}
	if o.Secure && transport.TLSClientConfig == nil {
		transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return host, o, nil
}

// muteListing is how long a listing, which is asked for again where it fails, may bring no object.
var muteListing = 5 * time.Minute

// list finds the objects that a key, folder or glob means.
func list(ctx context.Context, c *minio.Client, bucket, glob string) (found []minio.ObjectInfo, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil) // ends the listing's goroutine
	wait := muteListing
	alarm := time.AfterFunc(wait, func() { cancel(fmt.Errorf("the store has listed nothing for %v", wait)) })
	defer alarm.Stop()
	prefix := glob
	if i := strings.IndexAny(glob, "*?[\\"); i >= 0 {
		prefix = glob[:i]
	}
	objects := map[string]minio.ObjectInfo{}
	var keys []string
	for o := range c.ListObjects(ctx, bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		alarm.Reset(wait)
		if o.Err != nil {
			return nil, cmp.Or(context.Cause(ctx), o.Err)
		}
		if !strings.HasSuffix(o.Key, "/") { // by which consoles remember a folder
			objects[o.Key], keys = o, append(keys, o.Key)
		}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	slices.Sort(keys)
	for _, key := range dataset.Pick(keys, glob) {
		found = append(found, objects[key])
	}
	return found, nil
}

// keep returns the copy of an object, and makes it if there is none. It says how many bytes have arrived, whoever copies them.
func keep(ctx context.Context, c *minio.Client, dir, bucket string, o minio.ObjectInfo, arriving func(bytes int64)) (string, error) {
	if !filepath.IsLocal(filepath.FromSlash(o.Key)) || path.Clean(o.Key) != o.Key || strings.ContainsAny(o.Key, "\x00\\:") { // a//b is another object than a/b
		return "", errors.New("its key can't be a file's path here")
	}
	file := filepath.Join(dir, filepath.FromSlash(o.Key))
	tag := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".etag")
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		return "", err
	}
	whole := func() bool {
		info, err := os.Stat(file)
		if err != nil || info.Size() != o.Size {
			return false
		}
		old, err := os.ReadFile(tag)
		return err == nil && string(old) == o.ETag
	}
	var sign *atomicfile.File // the tag to be: who holds it copies
	for sign == nil {
		if whole() {
			return file, nil
		}
		var err error
		sign, err = atomicfile.Create(tag)
		if errors.Is(err, atomicfile.ErrBusy) { // the other ranks of a machine want it too: one of them copies it
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
				if info, err := os.Stat(atomicfile.Partial(file)); err == nil {
					arriving(min(info.Size(), o.Size))
				}
			}
			err = ctx.Err()
		}
		if err != nil {
			return "", err
		}
	}
	defer sign.Abort(nil)
	if whole() { // since it was looked for
		return file, nil
	}
	out, err := atomicfile.Create(file)
	if err != nil {
		return "", err
	}
	in := &object{ctx: ctx, core: minio.Core{Client: c}, bucket: bucket, info: o, arriving: arriving}
	defer in.close()
	if _, err := out.ReadFrom(in); err != nil {
		if in.err != nil { // which is none of the file's
			out.Abort(nil)
			return "", in.err
		}
		return "", out.Abort(err)
	}
	if err := out.Commit(); err != nil {
		return "", err
	}
	if _, err := sign.WriteString(o.ETag); err != nil {
		return "", sign.Abort(err)
	}
	return file, sign.Commit()
}

// explain adds what a user can do.
func explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var token *oauth2.RetrieveError // what gcloud has left is worth none
	switch r := minio.ToErrorResponse(err); {
	case r.StatusCode == http.StatusPreconditionFailed || r.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return fmt.Errorf("it has changed since it was listed: %w", err)
	case r.Code == "AccessDenied" || r.Code == "ExpiredToken" || errors.As(err, &token) || r.StatusCode == http.StatusForbidden || r.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%w (s3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; gs: gcloud auth application-default login)", err)
	case r.Code == "NoSuchBucket":
		return fmt.Errorf("there is no such bucket: %w", err)
	}
	return err
}
