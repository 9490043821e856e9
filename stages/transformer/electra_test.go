package transformer

import (
	"fmt"
	"strings"
	"testing"
)

// Where ELECTRA's embeddings have as many features as its hidden states (ms-marco-electra-base), it is BERT.
func TestELECTRAWithoutProjection(t *testing.T) {
	parameters := func(family string, more string) (list []string) {
		c, err := ParseConfig(fmt.Appendf(nil, `{"model_type":%q,"hidden_size":64,"num_attention_heads":4,"intermediate_size":96,"num_hidden_layers":2%s}`, family, more))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range c.parameters() {
			list = append(list, fmt.Sprint(p.Name, p.Shape()))
		}
		return list
	}
	if got, want := strings.Join(parameters("electra", `,"embedding_size":64`), "\n"), strings.Join(parameters("bert", ""), "\n"); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if got := strings.Join(parameters("electra", ""), "\n"); !strings.Contains(got, "embeddings_project.weight[64 128]") {
		t.Errorf("no projection: %s", got)
	}
}
