package hfmodel

import (
	"context"
	"net/http"
	"net/url"
	"testing"
	"time"
)

// A server may say when to come again, within a minute.
func TestRetryAfter(t *testing.T) {
	for said, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "900": time.Minute, "-3": 0, "Fri, 01 Jan 2027 00:00:00 GMT": 0} {
		resp := &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {said}}, Request: &http.Request{URL: &url.URL{Host: "hub.test"}}}
		if got := newStatusError(resp).retryAfter; got != want {
			t.Errorf("%q: %v, want %v", said, got, want)
		}
	}
}

// Pauses between attempts grow, and are no shorter than the server has asked for.
func TestPauses(t *testing.T) {
	for _, asked := range []time.Duration{0, 30 * time.Second} {
		var waits []time.Duration
		c := client{attempts: 4, pause: func(_ context.Context, d time.Duration) error {
			waits = append(waits, d)
			return nil
		}}
		err := c.retry(t.Context(), func() (bool, error) { return false, &statusError{status: 429, retryAfter: asked} })
		if err == nil || len(waits) != 3 {
			t.Errorf("%v after the pauses %v", err, waits)
		}
		for i, d := range waits {
			if most := time.Second << i; asked == 0 && (d < most/2 || d > most) || asked > 0 && d != asked {
				t.Errorf("asked for %v, pause %d is %v", asked, i, d)
			}
		}
	}
}

// What a tokenizer says of its model's length, of which a number without end says nothing.
func TestModelMaxLength(t *testing.T) {
	for said, want := range map[string]int{
		`{"model_max_length": 512}`: 512, `{"model_max_length": 1}`: 1, `{"model_max_length": 1000000000000000019884624838656}`: 0, `{"model_max_length": 0}`: 0, `{"model_max_length": null}`: 0, `{}`: 0,
		`{`: -1, `{"model_max_length": "long"}`: -1,
	} {
		dir := t.TempDir()
		put(t, dir, tokenizerConfig, said)
		if got, err := modelMaxLength(dir); (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%s: %d, %v, want %d", said, got, err, want)
		}
	}
}

// Each file that is not in the cache is told once.
func TestWhollyCached(t *testing.T) {
	all := func(string) bool { return true }
	err := whollyCached([]string{"a-00000-of-00003.parquet", "a-00002-of-00003-0f.parquet", "b.parquet"}, all)
	if want := "a-00001-of-00003.parquet of it are not in the cache: it takes to be online once"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if err := whollyCached([]string{"a-00000-of-00002.parquet", "a-00001-of-00002.parquet"}, all); err != nil {
		t.Error(err)
	}
}
