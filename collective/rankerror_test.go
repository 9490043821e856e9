package collective_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"contraflow/collective"
)

// several is an error that can't be compared.
type several []string

func (s several) Error() string { return fmt.Sprint([]string(s)) }

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
