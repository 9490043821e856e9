package recipe

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"contraflow/collective"
	"contraflow/io/atomicfile"
	"contraflow/io/checkpoint"
	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/transformer"
)

// ErrRecipeChanged is wrapped when a checkpoint can't be gone on from because the recipe has changed in what matters.
var ErrRecipeChanged = errors.New("the recipe has changed since the checkpoint")

// mayChange are the keys (and sections) that a run may go on with after they have changed: how fast, where and how often, not what is
// computed. Where the data lies may change as well; that it is the same data is checked by its fingerprint. What eval measures may change, but
// not in mid-comparison: see checkBest. What pooling there is, by the recipe or the folder or neither, is compared by itself. How a reranker's pairs are cut changes no batch, and what it changes of long pairs is asked for where one has
// ended the run.
var mayChange = []string{
	"optimizer.lr", "optimizer.groups[].lr", "save", "log", "eval", "mesh", "train.device", "train.epochs", "train.max_steps", "train.sync",
	"batch.sub_batch", "batch.cache", "batch.replay_budget", "model.path", "model.pooling", "model.similarity", "model.truncation", "model.activation_checkpointing", "data.train[].path", "data.train[].queries.path", "data.train[].corpus.path", "loss.guide.path", "loss.guide.device",
}

// beginsToSkip is how compareRecipes says that rows that can't be used no longer end the run. Before a checkpoint there were none of those, and what
// follows goes by their place in the data, them included. The other way round rows that were left out would be in the way.
const beginsToSkip = "data.on_error was stop and is skip"

// compareRecipes lists what differs between a checkpoint's recipe and this run's; what may not differ is an error.
func compareRecipes(was string, now Recipe) (changed []string, err error) {
	a, err := Flatten("the checkpoint's recipe", []byte(was))
	if err != nil {
		return nil, err
	}
	b, err := now.values()
	if err != nil {
		return nil, err
	}
	for _, values := range []map[string]string{a, b} { // either form of it
		if name, ok := values["optimizer.schedule"]; ok {
			delete(values, "optimizer.schedule")
			values["optimizer.schedule.name"] = name
		}
	}
	keys := map[string]bool{}
	for k := range a {
		keys[k] = true
	}
	for k := range b {
		keys[k] = true
	}
	var refused []string
	for k := range keys {
		if a[k] == b[k] {
			continue
		}
		line := fmt.Sprintf("%s was %s and is %s", k, orUnset(a[k]), orUnset(b[k]))
		generic := strings.Replace(indices.ReplaceAllString(k, "[]"), "loss[]", "loss", 1) // of a sum's terms what of a loss
		if line == beginsToSkip || slices.ContainsFunc(mayChange, func(m string) bool { return within(generic, m) }) {
			changed = append(changed, line)
		} else {
			refused = append(refused, line)
		}
	}
	sort.Strings(changed)
	sort.Strings(refused)
	if len(refused) > 0 {
		return changed, fmt.Errorf("%w: %s; put that back, or start anew in another save.dir", ErrRecipeChanged, strings.Join(refused, "; "))
	}
	return changed, nil
}

func orUnset(s string) string {
	if s == "" {
		return "not set"
	}
	return s
}

// Flatten lists the values of a recipe's text by full key: data.train[0].path. Errors begin with the name.
func Flatten(name string, text []byte) (map[string]string, error) {
	root, err := parseTree(name, text)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	var walk func(path string, n *node)
	walk = func(path string, n *node) {
		switch n.kind {
		case mapping:
			for _, e := range n.keys {
				walk(join(path, e.key), e.value)
			}
		case list:
			for i, e := range n.list {
				walk(fmt.Sprintf("%s[%d]", path, i), e)
			}
		case scalar:
			out[path] = n.text
		}
	}
	walk("", root)
	return out, nil
}

// theGuide is its parameters' name among the contents.
const theGuide = "the guide"

// frozenQueries is the name there of a file with frozen weights of queries' tokens, before that of all frozen parameters, of which they are.
const frozenQueries = "the file of frozen weights"

// thePooling is the name there of how embeddings are pooled: where neither the recipe nor the folder says, nothing else keeps it.
const thePooling = "the pooling"

// pooling is how embeddings are pooled; "": nothing that trains is.
func (x *Run) pooling() string {
	if kind := x.Recipe.Model.Kind; kind != "embedder" && kind != "m3" {
		return ""
	}
	return string(embedder.PoolingModes[x.model.Head.Pooling])
}

// checkPooled refuses a checkpoint of another pooling. One that does not say is of when a folder that says nothing had a mean, whatever its model.
func (x *Run) checkPooled(c *checkpoint.Checkpoint) error {
	now := x.pooling()
	if now == "" {
		return nil
	}
	was, known := c.Contents[thePooling]
	if !known {
		values, err := Flatten("the checkpoint's recipe", []byte(c.Recipe))
		if err != nil {
			return err
		}
		y := *x
		if y.Recipe.Model.Pooling = values["model.pooling"]; x.folder.Pooling == nil && y.Recipe.Model.Kind == "embedder" {
			y.Recipe.Model.Pooling = cmp.Or(y.Recipe.Model.Pooling, string(hfmodel.Mean))
		}
		head, err := y.head()
		if err != nil {
			return err
		}
		was = string(embedder.PoolingModes[head.Pooling])
	}
	if was != now {
		return fmt.Errorf("%w: model.pooling: embeddings were pooled by %s, and now are by %s; model.pooling: %[2]s goes on with it, another save.dir starts anew", ErrRecipeChanged, was, now)
	}
	return nil
}

// contents are hashes of what a checkpoint relies on and does not hold: all of the model's folder but the weights that train. Of files that
// are not there the hash is "none", so that one that comes or goes is noticed as well. All ranks call it.
func (x *Run) contents() (map[string]string, error) {
	out := map[string]string{}
	settings := x.folder.Settings()
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		h, err := hashFile(settings[name])
		switch {
		case errors.Is(err, fs.ErrNotExist):
			h = "none"
		case err != nil:
			return nil, fmt.Errorf("model.path: %w", err)
		}
		out[name] = h
	}
	if p := x.pooling(); p != "" {
		out[thePooling] = p
	}
	if x.guide != nil {
		out[theGuide] = x.guide.hash
	}
	if q := x.Recipe.Model.Queries; q != nil && x.config.Queries.Frozen && q.Weights != "" && q.Weights != allOnes {
		h, err := hashFile(q.Weights)
		if err != nil {
			return nil, fmt.Errorf("model.queries.weights: %w", err)
		}
		out[frozenQueries] = h
	}
	if l := x.model.Layout; l.Frozen > 0 {
		h, err := x.hashParams(func(p transformer.Param) bool { return !l.Trains(p) })
		if err != nil {
			return nil, err
		}
		out["the frozen parameters"] = h
	}
	return out, nil
}

// resume finds where the run goes on and takes the data there; nil if it begins. All ranks call it.
func (x *Run) resume(ctx context.Context, again bool) (*checkpoint.Checkpoint, error) {
	c, err := x.agreeOn(ctx, func() (*checkpoint.Checkpoint, error) { return x.findCheckpoint(again) })
	if err != nil || c == nil {
		return nil, err
	}
	if err := x.goOn(c); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// agreeOn opens the checkpoint that rank 0 finds on all ranks; nil if it finds none.
func (x *Run) agreeOn(ctx context.Context, find func() (*checkpoint.Checkpoint, error)) (*checkpoint.Checkpoint, error) {
	type found struct {
		Step   int // 0: none
		Failed string
	}
	var mine found
	var c *checkpoint.Checkpoint
	if x.Main() {
		var err error
		if c, err = find(); err != nil && x.ranks == nil {
			return nil, err
		} else if err != nil {
			mine.Failed = err.Error()
		} else if c != nil {
			mine.Step = c.Step
		}
	}
	all, err := stages.Consult(collective.For(ctx, "opening a checkpoint"), x.ranks, mine)
	switch {
	case err != nil && c != nil:
		return nil, errors.Join(err, c.Close())
	case err != nil:
		return nil, err
	case all[0].Failed != "":
		return nil, errors.New(all[0].Failed)
	case all[0].Step == 0 || c != nil:
		return c, nil
	}
	if c, err = x.saves.store.LoadChecked(all[0].Step); err != nil {
		return nil, fmt.Errorf("%w; every rank reads the checkpoints: save.dir must be on a file system that all of them see", err)
	}
	return c, nil
}

// rollBack takes the run to the last checkpoint's state, and the data to what follows the step that can't be used.
func (x *Run) rollBack(ctx context.Context, r stages.StepResult) (*checkpoint.Checkpoint, error) {
	if x.saves.rollbacks++; x.saves.rollbacks > maxRollbacks {
		return nil, fmt.Errorf("step %d is not finite, after %d rollbacks; %s", r.Step+1, maxRollbacks, x.Recipe.lowerRate())
	}
	c, err := x.agreeOn(ctx, func() (*checkpoint.Checkpoint, error) {
		return x.saves.store.Latest(func(folder string, err error) { x.obs.note("%s can't be used, trying the one before: %v", folder, err) })
	})
	if err != nil {
		return nil, fmt.Errorf("step %d is not finite, and there is nothing to roll back to: %w; save.every makes checkpoints, and train.on_nan: skip needs none", r.Step+1, err)
	}
	x.obs.note("step %d is not finite: going on with the state of step %d and the data after step %d", r.Step+1, c.Step, r.Step+1)
	var then progress
	if err := errors.Join(json.Unmarshal(c.Progress, &then), x.plan.ResumeAfter(r)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	x.saves.progress.Missed = then.Missed + r.Step + 1 - c.Step
	x.saves.first = r.Step + 1
	return c, nil
}

const maxRollbacks = 10

// CheckSaving finds a save.dir into which nothing can be written, or whose folders of models hold something else, or in which a new run can't begin, because an
// earlier one's checkpoints are there, or a model's files and no checkpoints; one that goes on can. Train finds all but these too, after the model and the data have been read.
func (r Recipe) CheckSaving(again bool) error {
	store := checkpoint.Open(filepath.Join(r.Save.Dir, checkpointsDir), checkpoint.Disk{})
	steps, err := store.Steps()
	if err == nil && !again {
		if err := begunBefore(store, steps); err != nil {
			return err
		}
	}
	if name := hfmodel.ModelFile(r.Save.Dir); err == nil && len(steps) == 0 && name != "" {
		return fmt.Errorf("save.dir: %s has a model's files (%s), among which a run's would be: another folder (--out) keeps them apart", r.Save.Dir, name)
	}
	if err == nil {
		err = r.takesModels()
	}
	if err != nil {
		return fmt.Errorf("save.dir: %w", err)
	}
	return nil
}

func begunBefore(store *checkpoint.Store, steps []int) error {
	if len(steps) == 0 {
		return nil
	}
	return fmt.Errorf("save.dir: %s has checkpoints of an earlier run, up to step %d: --resume goes on with it; another folder (--out), or removing that one, begins anew", store.Dir(), steps[len(steps)-1])
}

// findCheckpoint is rank 0's search.
func (x *Run) findCheckpoint(again bool) (*checkpoint.Checkpoint, error) {
	store := x.saves.store
	steps, err := store.Steps()
	if err != nil {
		return nil, err
	}
	if !again {
		return nil, begunBefore(store, steps)
	}
	if len(steps) == 0 {
		x.obs.note("%s has no checkpoint yet: the run begins with step 1", store.Dir())
		return nil, nil
	}
	c, err := store.Latest(func(folder string, err error) {
		x.obs.note("%s can't be used, trying the one before (it stays where it is, and save.keep does not count it): %v", folder, err)
	})
	if err != nil {
		return nil, fmt.Errorf("%w\nanother save.dir (--out), or removing %s, begins anew", err, store.Dir())
	}
	return c, nil
}

// goOn takes the run to a checkpoint's place.
func (x *Run) goOn(c *checkpoint.Checkpoint) error {
	changed, err := compareRecipes(c.Recipe, x.Recipe)
	if err != nil {
		return err
	}
	if err := x.checkPooled(c); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(c.Contents)) {
		if h, known := x.content[name]; known && h != c.Contents[name] {
			key := "model.path"
			switch name {
			case theGuide:
				key, _ = x.Recipe.guide()
			case frozenQueries:
				key = "model.queries.weights"
			}
			return fmt.Errorf("%w: %s: changed: %s; put that back, or start anew in another save.dir", ErrRecipeChanged, key, name)
		}
	}
	if err := json.Unmarshal(c.Progress, &x.saves.progress); err != nil {
		return fmt.Errorf("what the checkpoint remembers: %w", err)
	}
	if err := x.own.mark().check(x.saves.progress.Own); err != nil {
		return err
	}
	var cursor dataset.Cursor
	if err := json.Unmarshal(c.Data, &cursor); err != nil {
		return fmt.Errorf("the checkpoint's place in the data: %w", err)
	}
	if c.Step > x.Steps && len(x.filesChanged(c.Files)) == 0 { // with several datasets the place is beyond what the epochs have
		return fmt.Errorf("the run is to make %d steps, and has made %d: train.max_steps or train.epochs must allow for those, or begin anew in another save.dir", x.Steps, c.Step)
	}
	restore := x.sampler.Restore
	if slices.Contains(changed, beginsToSkip) {
		restore = x.sampler.RestoreSkipping
	}
	if err := restore(cursor); err != nil {
		why := x.filesChanged(c.Files)
		why = append(why, x.onlyTrain(why)...)
		for _, line := range changed {
			if strings.HasPrefix(line, "data.") {
				why = append(why, line)
			}
		}
		return fmt.Errorf("%w; %s", byKey(err), strings.Join(append(why, "put that back, or start anew in another save.dir"), "; "))
	}
	x.plan.FirstStep, x.saves.first, x.saves.steps = c.Step, c.Step, c.Step
	if mesh := x.ranks.MeshName(); mesh != c.Mesh {
		changed = append(changed, fmt.Sprintf("the mesh was %s and is %s", c.Mesh, mesh))
	}
	x.obs.note("going on after step %d of %d", c.Step, x.Steps)
	for _, line := range changed {
		if strings.HasPrefix(line, "model.path was ") {
			line += "; training goes on with the checkpoint's weights, not with that model's: a new run, in another save.dir, begins with those"
		}
		x.obs.note("changed since then: %s", line)
	}
	x.noteRate(c.Step)
	return x.checkBest(changed)
}

// noteRate tells of a learning rate that does not go on from where it was: a schedule that ends is drawn anew over more steps, or optimizer.lr is another one.
func (x *Run) noteRate(done int) {
	u, was := x.Recipe.update(x.Steps), x.saves.progress.LR
	if was == nil || done < 1 || done >= x.Steps {
		return
	}
	before, next := u.LR*u.Factor(done-1), u.LR*u.Factor(done)
	if !jumps(*was, before) || !jumps(*was, next) { // as it was, or by chance where it was
		return
	}
	x.obs.note("the learning rate jumps from %.3g in step %d to %.3g in step %d, for optimizer.schedule: %s is now over %d steps, with optimizer.lr: %.3g", *was, done, next, done+1, x.Recipe.Optimizer.Schedule.Name, x.Steps, u.LR)
}

// jump is how much of a learning rate is told of where a run goes on: less is what any change of its length makes.
const jump = 0.05

func jumps(from, to float64) bool { return math.Abs(to-from) > jump*max(to, from) }

// onlyTrain says of datasets of the hub what it takes to go on with files of them that are gone: a run may have begun with files of other splits.
func (x *Run) onlyTrain(changed []string) (hints []string) {
	for i, src := range x.Recipe.Data.Train {
		of := fmt.Sprintf("data.train[%d]", i)
		if !slices.ContainsFunc(changed, func(line string) bool { return strings.HasPrefix(line, of+": ") && strings.HasSuffix(line, " is gone") }) {
			continue
		}
		for _, p := range src.Path {
			if strings.HasPrefix(p, "hf://datasets/") && !strings.ContainsAny(p, "*[") && !strings.Contains(p, "split=") {
				url, config, with := p, "", "?"
				if i := strings.Index(p, "?config="); i > 0 {
					url, config, with = p[:i], p[i:], p[i:]+"&"
				}
				hints = append(hints, fmt.Sprintf("%s.path, %s, is its split train alone: with other splits as well it is %s.path: [%s%s, %[4]s%[6]ssplit=test], and with files %[4]s/FOLDER/*.parquet, or as they are called", of, p, of, url, config, with))
			}
		}
	}
	return hints
}

// filesChanged says which of the data's files are not as a checkpoint has them, or new, or gone; nothing if it does not know.
func (x *Run) filesChanged(then json.RawMessage) (changed []string) {
	var was [][]dataset.File
	if json.Unmarshal(then, &was) != nil {
		return nil // of a version that did not write them
	}
	for i, here := range x.files() {
		if i >= len(was) {
			break // other datasets are another change
		}
		of := fmt.Sprintf("data.train[%d]: ", i)
		if otherOrder(was[i], here) {
			changed = append(changed, of+"the files are in another order: they are read in that of their full paths")
			continue
		}
		before, now := byName(was[i]), byName(here)
		for _, name := range slices.Sorted(maps.Keys(before)) {
			b, n := before[name], now[name]
			switch {
			case len(n) == 0:
				changed = append(changed, fmt.Sprintf("%s%s is gone", of, name))
			case len(b) == 1 && len(n) == 1 && b[0].Rows != n[0].Rows:
				changed = append(changed, fmt.Sprintf("%s%s had %d rows and has %d", of, name, b[0].Rows, n[0].Rows))
			case !slices.Equal(b, n):
				changed = append(changed, fmt.Sprintf("%s%s has other rows", of, name))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(now)) {
			if len(before[name]) == 0 {
				changed = append(changed, fmt.Sprintf("%s%s is new", of, name))
			}
		}
	}
	if most := 5; len(changed) > most {
		changed = append(changed[:most-1], fmt.Sprintf("and %d other files", len(changed)-most+1))
	}
	return changed
}

// otherOrder tells whether the same files are in another order.
func otherOrder(was, now []dataset.File) bool {
	sorted := func(files []dataset.File) []dataset.File {
		return slices.SortedFunc(slices.Values(files), func(a, b dataset.File) int {
			return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Content, b.Content))
		})
	}
	return !slices.Equal(was, now) && slices.Equal(sorted(was), sorted(now))
}

func byName(files []dataset.File) map[string][]dataset.File {
	out := map[string][]dataset.File{}
	for _, f := range files {
		out[f.Name] = append(out[f.Name], f)
	}
	return out
}

// trimLog keeps the lines of a .jsonl file of steps up to the given one: later ones will be written again, and so will its evaluation, if that is
// yet to be made. A kill on the way leaves the file as
// it was.
func trimLog(path string, step int, unmeasured bool) error {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var kept bytes.Buffer
	lines := bufio.NewReader(bytes.NewReader(raw))
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			break // what is not a whole line was cut off by a kill
		}
		var at struct {
			Step   *int    `json:"step"`
			Metric *string `json:"metric"`
		}
		if json.Unmarshal(line, &at) == nil && at.Step != nil && *at.Step <= step && step > 0 && !(unmeasured && *at.Step == step && at.Metric != nil) {
			kept.Write(line)
		}
	}
	return atomicfile.WriteFile(path, kept.Bytes())
}
