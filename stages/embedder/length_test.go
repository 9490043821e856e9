package embedder

import (
	"testing"

	"contraflow/io/hfmodel"
	"contraflow/stages/transformer"
)

// Texts of a model without positions are cut where its folder says, or where config.json says that it was trained, and may be longer if asked.
func TestLengthWithoutPositions(t *testing.T) {
	for _, config := range []string{`{"model_type":"t5","n_positions":300}`, `{"model_type":"deberta-v2","max_position_embeddings":300,"position_biased_input":false}`} {
		c, err := transformer.ParseConfig([]byte(config))
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range []struct{ folder, asked, want int }{{0, 0, 300}, {77, 0, 77}, {900, 0, 900}, {77, 1000, 1000}} {
			if got, err := MaxLengthOf(&hfmodel.Folder{MaxSeqLength: x.folder}, c, x.asked); err != nil || got != x.want {
				t.Errorf("%s, %+v: %d, %v", config, x, got, err)
			}
		}
	}
}

// Where a model has positions no text is longer than those, whatever its folder says, and more than those is not asked for.
func TestLengthWithPositions(t *testing.T) {
	c := transformer.Config{MaxPositions: 300}
	for _, x := range []struct{ folder, asked, want int }{{0, 0, 300}, {77, 0, 77}, {300, 0, 300}, {900, 0, 300}, {77, 300, 300}, {77, 301, 0}} {
		f := &hfmodel.Folder{MaxSeqLength: x.folder, LengthGiven: x.folder > 0}
		got, err := MaxLengthOf(f, c, x.asked)
		if got != x.want || (err == nil) != (x.want > 0) {
			t.Errorf("%+v: %d, %v", x, got, err)
		}
		if note := LengthNote(f, c, x.asked); (note != "") != (x.folder == 900) {
			t.Errorf("%+v: the note is %q", x, note)
		}
	}
}
