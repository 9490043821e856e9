package collective_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"contraflow/collective"
)

// several is an error that can't be compared.
type several []string

func (s several) Error() string { return fmt.Sprint([]string(s)) }

// known is an error of which all ranks know whose it is.
type known int

func (known) Error() string { return "a bad row" }
func (k known) OfRank() int { return int(k) }

func TestRankError(t *testing.T) {
	var found several
	err := collective.NewRankError(3, fmt.Errorf("step 7: %w", several{"a", "b"}))
	if !errors.As(err, &found) || len(found) != 2 || err.Error() != "rank 3: step 7: [a b]" {
		t.Errorf("%v holds %v", err, found)
	}
	// A rank that fails because of it is not the reason.
	if again := collective.NewRankError(0, fmt.Errorf("gather: %w", err)); again != err {
		t.Errorf("%v", again)
	}
	// Where all ranks know whose fault it is, it is that one's, whoever says so.
	if of := collective.NewRankError(0, fmt.Errorf("step 7: %w", known(2))); of.Rank != 2 || of.Reason != "step 7: a bad row" {
		t.Errorf("%v", of)
	}
	if none := collective.NewRankError(2, nil); none.Rank != 2 || none.Error() != "rank 2: it has ended the job, and gives no reason" {
		t.Errorf("%v", none)
	}
	text := collective.RankError{Rank: 3, Reason: "gone"}
	if text.Unwrap() != nil {
		t.Errorf("%v holds %v", &text, text.Unwrap())
	}
	// It can be compared and written, whatever the error is.
	same, other := *err, *collective.NewRankError(3, several{"a"})
	if same != *err || same == other || text != (collective.RankError{Rank: 3, Reason: "gone"}) {
		t.Error("RankErrors don't compare")
	}
	if raw, err := json.Marshal(other); err != nil || string(raw) != `{"Rank":3,"Reason":"[a]"}` {
		t.Errorf("%s, %v", raw, err)
	}
}

// A context that has ended says why, and that it has, once.
func TestStopped(t *testing.T) {
	why := errors.New("enough")
	for _, tt := range []struct {
		cause error
		want  string
	}{{nil, "context canceled"}, {why, "enough (context canceled)"}, {fmt.Errorf("%w: %w", why, context.Canceled), "enough: context canceled"}} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(tt.cause)
		if err := collective.Stopped(ctx); err.Error() != tt.want || !errors.Is(err, context.Canceled) || tt.cause != nil && !errors.Is(err, why) {
			t.Errorf("cause %v: %v, want %s", tt.cause, err, tt.want)
		}
	}
}
