package stages_test

import (
	"path/filepath"
	"strings"
	"testing"

	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
	"contraflow/stages/reranker"
	"contraflow/stages/transformer"
)

// What a program has left out, and a loss from which a model that scores would learn nothing, Build tells, and not a step.
func TestRefused(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	model, err := reranker.LoadTrainable(filepath.Join(p.dir, "model"), p.device, reranker.TextOptions{Seed: 1}, transformer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	groups := loss.Groups{Name: "cross_entropy"}
	sum, err := loss.Sum(loss.Term{Loss: groups, Factor: 1}, loss.Term{Loss: loss.CoSENT{}, Factor: 1})
	if err != nil {
		t.Fatal(err)
	}
	own := loss.Host(func(*loss.Batch, [][]float32, [][]float32) (loss.Result, error) { return loss.Result{}, nil })
	none := func(*pipeline.Graph, stages.Chain, *stages.Encoder) {}
	for _, c := range []struct {
		loss loss.Loss
		add  func(*pipeline.Graph, stages.Chain, *stages.Encoder)
		want string // "": nothing is refused
	}{
		{groups, none, ""},
		{own, none, ""},
		{loss.ByDataset{groups}, none, ""},
		{loss.InfoNCE{}, none, `stage "loss": loss.InfoNCE compares embeddings, and the model gives pairs of texts a score: loss.Groups learns from these`},
		{sum, none, `compares embeddings`},
		{loss.ByDataset{groups, loss.MarginMSE{}}, none, `loss.ByDataset compares embeddings`},
		{groups, func(g *pipeline.Graph, c stages.Chain, e *stages.Encoder) { stages.Snapshot(g, c.Results, e, nil) }, `stage "snapshot": nothing says after which steps`},
		{groups, func(g *pipeline.Graph, c stages.Chain, e *stages.Encoder) {
			states := stages.Snapshot(g, c.Results, e, func(stages.StepResult) (any, bool) { return nil, true })
			stages.Checkpoint(g, states, e, stages.Checkpoints{})
		}, `stage "checkpoint": Checkpoints.Store is nil`},
	} {
		g := pipeline.New("refused")
		enc, err := stages.NewEncoder(g, model.Model, 0, -1, 1)
		if err != nil {
			t.Fatal(err)
		}
		rows := stages.MapRows(g, "rows", stages.Ingest(g, stages.Plan{}), nil)
		chain, err := stages.Train(g, rows, enc, stages.Step{Text: stages.TextOfPairs(model), Size: stages.Size{Rows: 2}, Loss: c.loss}, stages.Update{Optimizer: optim.SGD{}, LR: 1})
		if err != nil {
			t.Fatal(err)
		}
		c.add(g, chain, enc)
		_, err = enc.Build()
		if err == nil || !strings.Contains(err.Error(), `stage "rows": its function is nil`) || !strings.Contains(err.Error(), c.want) || c.want == "" && strings.Contains(err.Error(), "\n") {
			t.Errorf("%T: %v, want %q", c.loss, err, c.want)
		}
		if err := enc.Close(); err != nil {
			t.Error(err)
		}
	}
}
