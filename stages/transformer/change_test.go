package transformer

import (
	"context"
	"errors"
	"testing"

	"contraflow/gpustage"
	"contraflow/gpustage/ref"
)

// A copy of the parameters is of one step: what changes them while they are copied, or has begun to, is an error, and what has changed them on
// another stream comes before the copy.
func TestUnchanged(t *testing.T) {
	m, s := loadStatic(t, ref.New(), Head{}, Options{DType: gpustage.F32}, func(*Config) {})
	opened, err := m.Device.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	other := &waiting{Stream: opened}
	nothing := func() error { return nil }
	if err := m.Unchanged(other, nothing); err != nil {
		t.Error("nothing has changed:", err)
	}
	first := m.Params.Columns(0, 1)
	for name, read := range map[string]func() error{
		"a change meanwhile": func() error {
			m.Change(s, func() { s.Fill(first, 1) })
			return nil
		},
		"one that began meanwhile": func() (err error) {
			m.Change(s, func() { err = m.Unchanged(other, nothing) })
			return err
		},
	} {
		if err := m.Unchanged(other, read); !errors.Is(err, ErrChanged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	boom := errors.New("boom")
	if err := m.Unchanged(other, func() error { return boom }); !errors.Is(err, boom) {
		t.Error(err)
	}
	m.Change(s, func() { s.Fill(first, 3) })
	other.waited = nil
	var got []float32
	if err := m.Unchanged(other, func() (err error) {
		got, err = m.ReadVector(other, first)
		return err
	}); err != nil || got[0] != 3 || len(other.waited) != 1 || other.waited[0] != m.changes.last {
		t.Errorf("%v, %v; waited for %v, want %v", got, err, other.waited, m.changes.last)
	}
}

// waiting knows what a stream was told to wait for.
type waiting struct {
	gpustage.Stream
	waited []gpustage.Event
}

func (w *waiting) Wait(e gpustage.Event) {
	w.waited = append(w.waited, e)
	w.Stream.Wait(e)
}

// A run has the model until its context is done, whoever's copy of it is asked.
func TestClaim(t *testing.T) {
	m, _ := loadStatic(t, ref.New(), Head{}, Options{DType: gpustage.F32}, func(*Config) {})
	first, end := context.WithCancel(t.Context())
	for range 2 {
		if err := m.Claim(first, "graph one"); err != nil {
			t.Error(err)
		}
	}
	same := *m
	for _, err := range []error{same.Busy(), same.Claim(t.Context(), "graph two")} {
		if err == nil || err.Error() != "the model is in training by graph one" {
			t.Errorf("error %v", err)
		}
	}
	end()
	for _, err := range []error{m.Busy(), same.Claim(t.Context(), "graph two")} {
		if err != nil {
			t.Errorf("the run has ended: %v", err)
		}
	}
}
