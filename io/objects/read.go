package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
)

// object reads an object of a store to its end. Where a connection breaks, or sends nothing for a while, it goes on from there over another one.
type object struct {
	ctx    context.Context
	core   minio.Core
	bucket string
	info   minio.ObjectInfo // as it was listed

	arriving func(bytes int64) // is told how many are here

	at     int64
	body   io.ReadCloser // nil: there is no connection
	cancel context.CancelCauseFunc
	within context.Context // of the connection
	broken int             // connections in a row that have brought nothing
	err    error           // what reading has ended with
}

const connections = 5 // in a row that may bring nothing

// silence is how long a connection may send nothing before it counts as broken.
var silence = time.Minute

// between is a pause, longer each time.
var between = time.Second

func (r *object) Read(p []byte) (n int, err error) {
	for r.at < r.info.Size || r.body != nil {
		n, err := r.read(p)
		if r.at == r.info.Size { // where a connection ends, too
			if r.close(); n > 0 {
				r.err = fmt.Errorf("more came than the %d bytes that the listing says", r.at)
			}
			return 0, cmp.Or(r.err, io.EOF)
		}
		if r.at += int64(n); n > 0 {
			r.broken = 0
			r.arriving(r.at)
			return n, nil
		}
		if err == nil {
			continue
		}
		r.close()
		if code := minio.ToErrorResponse(err).StatusCode; r.ctx.Err() != nil || code >= 400 && code < 500 && code != http.StatusRequestTimeout && code != http.StatusTooManyRequests {
			r.err = err
			return 0, err
		}
		if r.broken++; r.broken == connections {
			r.err = fmt.Errorf("its connection broke %d times after byte %d of %d: %w", r.broken, r.at, r.info.Size, err)
			return 0, r.err
		}
		select {
		case <-r.ctx.Done():
		case <-time.After(time.Duration(r.broken) * between):
		}
	}
	return 0, io.EOF
}

// read takes what comes next.
func (r *object) read(p []byte) (n int, err error) {
	if r.body == nil {
		r.within, r.cancel = context.WithCancelCause(r.ctx)
	}
	silence, cancel := silence, r.cancel // an alarm may go off while this returns
	defer time.AfterFunc(silence, func() { cancel(fmt.Errorf("the store has sent nothing for %v", silence)) }).Stop()
	if r.body == nil {
		o := minio.GetObjectOptions{}
		if r.at > 0 {
			err = o.SetRange(r.at, 0)
		}
		if r.at > 0 || r.info.ETag != "" { // no other object, nor part of one
			err = errors.Join(err, o.SetMatchETag(r.info.ETag))
		}
		if err != nil {
			return 0, err
		}
		var header http.Header
		r.body, _, header, err = r.core.GetObject(r.within, r.bucket, r.info.Key, o)
		if part := fmt.Sprintf("bytes %d-", r.at); err == nil && r.at > 0 && !strings.HasPrefix(header.Get("Content-Range"), part) {
			err = fmt.Errorf("the store was asked for %s and has sent something else", part)
		}
	}
	if err == nil {
		n, err = r.body.Read(p[:min(int64(len(p)), max(1, r.info.Size-r.at))])
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
	}
	if cause := context.Cause(r.within); err != nil && cause != nil {
		err = cause
	}
	return n, err
}

func (r *object) close() {
	if r.body != nil {
		r.body.Close()
	}
	if r.cancel != nil {
		r.cancel(nil)
	}
	r.body, r.cancel = nil, nil
}
