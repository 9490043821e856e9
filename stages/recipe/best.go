package recipe

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"contraflow/gpustage"
	"contraflow/io/checkpoint"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages"
	"contraflow/stages/transformer"
)

// The best evaluation's model is in the folder best/ of the run, its value and step in every checkpoint since. These have lives of their own: a run
// that is killed after a better evaluation than its last checkpoint knows of leaves a model in best/ that the run, when it goes on from there, may
// never make. So the checkpoint has the hash of what was in best/ when it was made, and a best/ of another hash is not used.

// bestDir is where the best evaluation's model is kept until the end.
func (x *Run) bestDir() string { return filepath.Join(x.Recipe.Save.Dir, bestFolder) }

// factorsFile is beside the best model of a run with LoRA that merges what it saves: what trains of it.
const factorsFile = "factors.safetensors"

// keepBest saves the model as it is as the best one.
func (x *Run) keepBest(s gpustage.Stream) error {
	if err := x.Save(s, x.bestDir()); err != nil {
		return err
	}
	if x.merges() && x.model.Options.Tuning.LoRA != nil {
		tensors, _, err := x.trained(s)
		if err != nil {
			return err
		}
		if err := safetensors.Write(filepath.Join(x.bestDir(), factorsFile), tensors, nil); err != nil {
			return err
		}
	}
	h, err := x.bestHash()
	x.saves.progress.BestModel = h
	return err
}

// bestHash is the hash of the weights in best/, those of its modules included: they may be all that trains. It is "" if there are none.
func (x *Run) bestHash() (string, error) {
	var paths, hashes []string
	for _, kind := range []string{"*.safetensors", "*.pt", "*/*.safetensors"} {
		found, err := fs.Glob(os.DirFS(x.bestDir()), kind) // sorted
		if err != nil {
			return "", err
		}
		paths = append(paths, found...)
	}
	for _, path := range paths {
		h, err := hashFile(filepath.Join(x.bestDir(), path))
		if err != nil {
			return "", err
		}
		hashes = append(hashes, h)
	}
	return strings.Join(hashes, " "), nil
}

// loadBest makes the parameters that train those of the best evaluation, if best/ has them. Nothing is trained after it.
func (x *Run) loadBest(s gpustage.Stream) error {
	p := x.saves.progress
	switch h, err := x.bestHash(); {
	case err != nil:
		return err
	case h == "" || h != p.BestModel:
		x.obs.note("%s does not hold the model of step %d, the best evaluation's: the model is that of the last step", x.bestDir(), p.BestStep)
		return nil
	}
	var tensor func(name string) (safetensors.Tensor, error)
	if x.model.Options.Tuning.LoRA != nil {
		file, prefix := hfmodel.AdapterWeights, hfmodel.AdapterPrefix
		if x.merges() {
			file, prefix = factorsFile, ""
		}
		f, err := safetensors.Open(filepath.Join(x.bestDir(), file))
		if err != nil {
			return err
		}
		defer f.Close()
		tensor = func(name string) (safetensors.Tensor, error) { return f.Tensor(prefix + name) }
	} else {
		f, err := hfmodel.Open(x.bestDir())
		if err != nil {
			return err
		}
		defer f.Close()
		tensor = func(name string) (safetensors.Tensor, error) { return f.Tensor(name, x.model.Config.Prefixes()...) }
	}
	err := x.model.LoadTrained(s, func(p transformer.Param, dst []float32) error {
		t, err := tensor(p.Name)
		if err != nil {
			return err
		}
		return t.Float32s(dst)
	})
	if err != nil {
		return err
	}
	x.obs.note("the model is that of step %d, the best evaluation's", p.BestStep)
	x.saves.kept = true
	x.measured = x.saves.best // nil if that was before the run was resumed
	return nil
}

// bestOf is the value and the step of the model that a run with save.best has come to: the saved one, or of a run that was stopped the one in best/.
// It is nil where the model is another one: without save.best, or if best/ has lost it.
func (x *Run) bestOf(s *Summary) (*float64, int) {
	p := x.saves.progress
	if !x.Recipe.Save.Best || p.Best == nil || !s.Stopped && !x.saves.kept && p.BestStep != s.Steps {
		return nil, 0
	}
	return p.Best, p.BestStep
}

// judge names what evaluations measure, so that their values can be compared: the metric and the content of the data.
func (x *Run) judge() (string, error) {
	e := x.Recipe.Eval
	if !x.Recipe.Save.Best && e.EarlyStopping == nil && !e.AtStart {
		return "", nil
	}
	var names []string
	h := xxh3.New()
	if e.byLoss() {
		return x.lossIdentity()
	}
	for i := range x.tasks {
		name, content := x.tasks[i].identity(e.Metric, x.Recipe.fusion())
		names = append(names, name)
		if err := json.NewEncoder(h).Encode(content); err != nil {
			return "", fmt.Errorf("eval: %w", err)
		}
	}
	if x.Recipe.byProducts() {
		names = append(names, "by inner products")
	}
	return strings.Join(names, ", ") + " on " + stages.Digest(h), nil
}

// checkBest compares what a checkpoint remembers of evaluations with this run's, and begins anew with them where they can't be compared,
// or where the best one's model is gone and won't come again.
func (x *Run) checkBest(changed []string) error {
	p, e := &x.saves.progress, x.Recipe.Eval
	judge, err := x.judge()
	if err != nil {
		return err
	}
	anew := ""
	forget := func() { p.Best, p.BestStep, p.BestModel, p.Mark, p.Worse, p.Spent = nil, 0, "", nil, 0, 0 }
	if p.Best != nil && p.BestBy != "" && judge == "" {
		x.obs.note("nothing asks any more which evaluation is the best (save.best, eval.early_stopping): that one, %.4g at step %d, is forgotten", *p.Best, p.BestStep)
		forget()
	} else if p.Best != nil && p.BestBy != judge {
		if anew = "what eval measures has changed"; p.BestBy == "" {
			anew = "nothing asked which evaluation is the best (save.best, eval.early_stopping), and what it was of is not known"
		}
	} else if x.Recipe.Save.Best && p.BestStep > 0 {
		h, err := x.bestHash()
		switch {
		case err != nil:
			return err
		case h == "":
			anew = fmt.Sprintf("%s has no model", x.bestDir())
		case p.BestModel == "": // of when save.best was not asked for
			anew = fmt.Sprintf("the model of step %d was not kept", p.BestStep)
		case h != p.BestModel && slices.ContainsFunc(changed, changesSteps):
			// Without changes the run makes those steps again, and what is in best/ with them.
			anew = fmt.Sprintf("%s does not hold the model of step %d, but one that the run may not make again", x.bestDir(), p.BestStep)
		}
	}
	if anew != "" {
		x.obs.note("%s: the best evaluation, %.4g at step %d, is forgotten; best and patience begin anew", anew, *p.Best, p.BestStep)
		forget()
	}
	if p.BestBy != judge {
		p.First = nil
	}
	p.BestBy = judge
	if stop, worse := e.EarlyStopping, max(p.Worse, p.Spent); stop == nil || worse < stop.Patience {
		p.Spent = 0
	} else {
		p.Spent = worse
		x.obs.note("%d evaluations in a row were no better than the best before them by more than %g, so that the run ends: a larger eval.early_stopping.patience, or none, lets it go on", worse, stop.MinDelta)
	}
	return nil
}

// changesSteps tells whether a line of compareRecipes is of something that changes what later steps compute.
func changesSteps(line string) bool {
	return !slices.ContainsFunc([]string{"save.", "log.", "model.path ", "data.train["}, func(key string) bool { return strings.HasPrefix(line, key) })
}

// finish gives a run that is over its model, if it isn't there, or was saved otherwise: from the checkpoint of its last step.
func (x *Run) finish(from *checkpoint.Checkpoint) (*Summary, error) {
	if x.Main() { // no later checkpoint does
		if err := x.saves.store.Tidy(); err != nil {
			return nil, fmt.Errorf("save.dir: %w", err)
		}
	}
	dir, step := x.modelDir(), from.Step
	s := &Summary{Steps: step, Counts: x.saves.progress.Counts, Model: dir, Over: true}
	why := ""
	if x.saves.progress.Over && hfmodel.IsModel(dir) {
		changed, err := compareRecipes(from.Recipe, x.Recipe)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(changed, changesFolder)
		if i < 0 {
			return s, nil
		}
		why = changed[i]
	}
	if err := x.model.LoadTrained(x.stream, func(p transformer.Param, dst []float32) error {
		return from.Read("weights", p.Name, 0, gpustage.Bytes(dst))
	}); err != nil {
		return nil, err
	}
	return s, x.saveAnew(step, why)
}

// changesFolder tells whether a line of compareRecipes is of something that changes the folder of a model with the same parameters.
func changesFolder(line string) bool {
	return slices.ContainsFunc([]string{"save.precision ", "save.best ", "model.similarity "}, func(key string) bool { return strings.HasPrefix(line, key) })
}

// saveAnew saves the model of a run that was over after a step, and whose state the model has from a checkpoint: there was none, or why.
func (x *Run) saveAnew(step int, why string) error {
	if err := x.saveOver(x.stream, step); err != nil || !x.Main() {
		return err
	}
	if why == "" {
		x.obs.note("%s had no model of step %d: it is saved anew from the checkpoint", x.modelDir(), step)
		return nil
	}
	x.obs.note("%s is saved anew from the checkpoint of step %d: %s", x.modelDir(), step, why)
	return x.writeRecipe(x.Recipe.Save.Dir)
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	h := xxh3.New()
	_, err = f.WriteTo(h)
	sum := h.Sum128().Bytes()
	return hex.EncodeToString(sum[:]), errors.Join(err, f.Close())
}
