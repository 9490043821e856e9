package stages_test

import (
	"strings"
	"testing"

	"contraflow/stages"
	"contraflow/stages/loss"
	"contraflow/stages/transformer"
)

// A model and a batch one of which has tokens that the others do not attend to, and not the other, do not train: with all attended to it would be another model.
func TestSeenAgrees(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	reading := transformer.Reading{Length: 9, Fill: 1, Unseen: true}
	for _, c := range []struct{ model, text bool }{{true, false}, {false, true}, {true, true}, {false, false}} {
		text := p.text
		p.model.Config.Tokens.Query, text.Heads.Query = transformer.Reading{}, transformer.Reading{}
		if c.model {
			p.model.Config.Tokens.Query = reading
		}
		if c.text {
			text.Heads.Query = reading
		}
		norms, err := wire(t.Context(), p, nil, wiring{size: stages.Size{Rows: 8}}, text, plain, loss.InfoNCE{})
		switch {
		case c.model == c.text:
			if err != nil || len(norms) == 0 {
				t.Errorf("%+v: %v after %d steps", c, err, len(norms))
			}
		case err == nil || !strings.Contains(err.Error(), `stage "embed"`) || !strings.Contains(err.Error(), "Text.Heads is the model's Config.Tokens"):
			t.Errorf("%+v: %v", c, err)
		}
	}
}
