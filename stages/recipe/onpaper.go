package recipe

import (
	"context"

	"contraflow/collective"
	"contraflow/gpustage"
	"contraflow/stages"
)

// Target is what a run is planned for: a mesh of devices that need not be there.
type Target struct {
	Mesh   collective.Mesh
	Device gpustage.Device // like each of them; nothing is computed on it
	Memory int64           // bytes that each has free when training starts; 0: nobody knows
}

// OpenOnPaper opens a recipe to be planned for a target, with Forecast: its data is read, its model is not. Of the model (and a guide) the settings and the tokenizer
// will do, and from the hub nothing else is downloaded, but where nothing besides the weights says how large they are. What the model is measured on is read
// where it is here, and not downloaded. What does not fit is no error:
// the forecast says so. The run can't train.
func OpenOnPaper(ctx context.Context, r Recipe, t Target, obs Observer) (*Run, error) {
	r, err := r.Resolve()
	if err != nil {
		return nil, err
	}
	r.Mesh.Shard = t.Mesh.Shard
	x := &Run{Recipe: r, obs: obs, paper: true, planned: true, device: gpustage.Dry{Like: t.Device, Free: t.Memory}, ranks: stages.OnPaper(t.Mesh, r.exchanging())}
	if err := x.open(ctx); err != nil {
		return nil, err
	}
	return x, nil
}
