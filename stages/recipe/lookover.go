package recipe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"contraflow/gpustage"
	"contraflow/io/atomicfile"
	"contraflow/io/checkpoint"
	"contraflow/io/dataset"
	"contraflow/io/hfmodel"
	"contraflow/io/spelling"
	"contraflow/stages/scoring"
)

// Lookover is what [LookOver] has found.
type Lookover struct {
	Parts  []LookoverPart // of data.train, then of what eval names; texts by ids stand before the rows that name them
	Plan   string         // the steps that training would make; "" if it would not begin
	Wrong  error          // what is wrong with the rows that remain, taken together: too few for a batch, say; nil: nothing
	Others []error        // what is wrong besides data: with the guide, and with save.dir

	skips bool // training goes on without rows that can't be used
}

// LookoverPart is a dataset that trains, or something that a model is measured on.
type LookoverPart struct {
	Key  string              // data.train[0], data.train[0].corpus, eval.retrieval
	Said string              // what it has: "1200 rows, ..."
	Bad  []*dataset.RowError // rows that can't be used
	Errs []error             // why it can't be read, or not all of it: of several files one for each that can't; none: it was

	byID bool // it is texts that rows name
}

// Err is what would end a run, in a line each: a guide or a save.dir that won't do, files that can't be read, rows that can't be used (those that train only where data.on_error is stop), and what is
// wrong with the others; nil: nothing.
func (l *Lookover) Err() error {
	errs := slices.Clone(l.Others)
	var trains, measured, byID int
	for _, p := range l.Parts {
		for _, err := range p.Errs {
			errs = append(errs, fmt.Errorf("%s: %w", p.Key, err))
		}
		switch {
		case p.byID:
			byID += len(p.Bad)
		case strings.HasPrefix(p.Key, "data."):
			trains += len(p.Bad)
		default:
			measured += len(p.Bad)
		}
	}
	if l.Wrong != nil {
		without := ""
		if trains > 0 {
			without = "of the rows that can be used: "
		}
		errs = append(errs, fmt.Errorf("%s%w", without, l.Wrong))
	}
	if trains > 0 && !l.skips {
		errs = append(errs, fmt.Errorf("%s to train on can't be used; %s", spelling.Count(trains, "row", "rows"), skipRows))
	}
	const first = "they have to be put right or taken out, a run ends with the first"
	if byID > 0 {
		errs = append(errs, fmt.Errorf("%s of texts that others name by ids can't be used: %s", spelling.Count(byID, "row", "rows"), first))
	}
	if measured > 0 {
		errs = append(errs, fmt.Errorf("%s to measure the model on can't be used: %s", spelling.Count(measured, "row", "rows"), first))
	}
	return errors.Join(errs...)
}

// LookOver reads all data that a recipe names as a run of it would, and trains nothing: where a run ends with the first thing that is wrong, it finds
// all rows that can't be used. It reads the model's tokenizer and settings, and no weights, and computes nothing on the device, which need only be like the
// run's. The recipe may lack save.dir. An error is of what nothing can be read without: the recipe, or the model.
func LookOver(ctx context.Context, r Recipe, device gpustage.Device, obs Observer) (_ *Lookover, err error) {
	r.Save.unsaved = true
	if r, err = r.Resolve(); err != nil {
		return nil, err
	}
	l, said := &Lookover{skips: r.Data.OnError == "skip"}, r
	r.Data.OnError = "skip" // the list is what this is for
	x := &Run{Recipe: r, obs: obs, paper: true, planned: true, device: gpustage.Dry{Like: device}, shared: newShared(0, 1)}
	defer func() { err = errors.Join(err, x.Close()) }()
	if err := x.openModel(ctx); err != nil {
		return nil, err
	}
	if err := x.openGuide(ctx); err != nil {
		l.Others = append(l.Others, errors.Join(err, x.guide.close()))
		x.guide = nil
	}
	if r.Save.Dir != "" {
		if err := x.lookOverSaving(said); err != nil {
			l.Others = append(l.Others, fmt.Errorf("save.dir: %w", err))
		}
	}
	if err := x.lookOverTraining(ctx, l); err != nil {
		return nil, err
	}
	for key, h := range r.Eval.heldOut() {
		read, err := x.lookOverTexts(ctx, l, key, h.source())
		if err == nil && read {
			err = l.add(ctx, key, func(p *LookoverPart) error { return x.lookOverHeldOut(ctx, p, h) })
		}
		if err != nil {
			return nil, err
		}
	}
	return l, x.lookOverTasks(ctx, l)
}

// add looks at a part. Its error is that of a context which ends it all.
func (l *Lookover) add(ctx context.Context, key string, look func(*LookoverPart) error) error {
	p := LookoverPart{Key: key}
	if err := look(&p); err != nil {
		p.Errs = append(p.Errs, err)
	}
	l.Parts = append(l.Parts, p)
	return ctx.Err()
}

// lookOverSaving finds a folder in which the recipe's run neither begins nor goes on.
func (x *Run) lookOverSaving(r Recipe) error {
	store := checkpoint.Open(filepath.Join(r.Save.Dir, checkpointsDir), checkpoint.Disk{})
	steps, err := store.Steps()
	if err != nil {
		return err
	}
	if len(steps) > 0 {
		c, err := store.Latest(nil)
		if err != nil {
			return fmt.Errorf("no run begins where there are checkpoints, and none goes on with these: %w; another folder (--out), or removing %s, begins anew", err, store.Dir())
		}
		_, err = compareRecipes(c.Recipe, r)
		if err = errors.Join(err, c.Close()); err != nil {
			return fmt.Errorf("no run begins where there are checkpoints, and %s: %w", store.Dir(), err)
		}
		x.obs.note("save.dir: %s has checkpoints, up to step %d: train --resume goes on with them, and without --resume it ends with an error", store.Dir(), c.Step)
	}
	return r.takesModels()
}

// takesModels tells why save.dir would not hold a run's checkpoints or models: nothing can be written there, or something else is in their places.
func (r Recipe) takesModels() error {
	for _, dir := range []string{r.Save.Dir, filepath.Join(r.Save.Dir, checkpointsDir)} {
		if err := writable(dir); err != nil {
			return err
		}
	}
	return r.replaceable()
}

// replaceable tells why a model can't be saved in save.dir, which a run would find at its end.
func (r Recipe) replaceable() error {
	if err := hfmodel.Replaceable(filepath.Join(r.Save.Dir, modelFolder)); err != nil || !r.Save.Best {
		return err
	}
	return hfmodel.Replaceable(filepath.Join(r.Save.Dir, bestFolder))
}

// writable tells why nothing can be written into a folder, which need not be there.
func writable(dir string) error {
	at := filepath.Clean(dir)
	for {
		_, err := os.Stat(at)
		if errors.Is(err, fs.ErrNotExist) {
			if err := atomicfile.Dangling(at); err != nil {
				return err
			}
		}
		if up := filepath.Dir(at); errors.Is(err, fs.ErrNotExist) && up != at {
			at = up
			continue
		}
		if err != nil {
			return err
		}
		break
	}
	f, err := os.CreateTemp(at, ".check-*")
	if err != nil {
		return fmt.Errorf("%s can't be written to: %w", at, err)
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// lookInto opens a dataset's files and makes the first pass over them; where that is an error, each of them alone, to name all that can't be read, and then
// the others. What it returns is nil where none can be.
func (x *Run) lookInto(ctx context.Context, p *LookoverPart, paths []string, splits dataset.Splits, open func(x *Run, paths []string) (*dataset.Dataset, error)) (*dataset.Dataset, *dataset.Index, error) {
	read := func(x *Run, paths ...string) (*dataset.Dataset, *dataset.Index, error) {
		d, err := open(x, paths)
		if err != nil {
			return nil, nil, err
		}
		index, err := d.Index(ctx, dataset.IndexConfig{Progress: x.obs.Index, SkipBad: true})
		if err != nil {
			return nil, nil, errors.Join(err, d.Close())
		}
		return d, index, nil
	}
	d, index, together := read(x, paths...)
	if together == nil || ctx.Err() != nil {
		return d, index, together
	}
	var files, good []string
	for _, pattern := range paths {
		named, err := dataset.Files(ctx, []string{pattern}, splits)
		if err != nil {
			p.Errs = append(p.Errs, err)
		}
		files = append(files, named...)
	}
	slices.Sort(files)
	for _, f := range slices.Compact(files) {
		y := *x
		y.obs = Observer{}
		d, _, err := read(&y, dataset.InGlob(f))
		if err == nil {
			good = append(good, dataset.InGlob(f))
			err = d.Close()
		}
		if err != nil {
			p.Errs = append(p.Errs, err)
		}
	}
	if most := 20; len(p.Errs) > most {
		p.Errs = append(p.Errs[:most], fmt.Errorf("%s can't be read either", spelling.Count(len(p.Errs)-most, "file more", "files more")))
	}
	switch {
	case len(p.Errs) == 0: // it is what they have together
		return nil, nil, together
	case len(good) == 0:
		return nil, nil, nil
	}
	return read(x, good...)
}

// lookOverTexts reads what the rows of the source at a key name by ids, which is then there for all of its files; false: not all of it can be read, nor those rows.
func (x *Run) lookOverTexts(ctx context.Context, l *Lookover, key string, s Source) (read bool, err error) {
	read = true
	for name, t := range s.texts() {
		err := l.add(ctx, key+"."+name, func(p *LookoverPart) error {
			p.byID = true
			texts, err := x.texts(dataset.WithBadRows(ctx, func(bad *dataset.RowError) { p.Bad = append(p.Bad, bad) }), p.Key, *t)
			if err != nil {
				read = false
				return err
			}
			p.Said = spelling.Count(texts.Len(), "text", "texts")
			if n := len(p.Bad); n > 0 {
				p.Said += fmt.Sprintf(", %d that can't be used", n)
			}
			return nil
		})
		if err != nil {
			return false, err
		}
	}
	return read, nil
}

func (x *Run) lookOverTraining(ctx context.Context, l *Lookover) error {
	for i, src := range x.Recipe.Data.Train {
		key := fmt.Sprintf("data.train[%d]", i)
		read, err := x.lookOverTexts(ctx, l, key, src)
		if err != nil {
			return err
		}
		if !read {
			continue
		}
		err = l.add(ctx, key, func(p *LookoverPart) error {
			d, index, err := x.lookInto(ctx, p, src.Path, dataset.Train, func(x *Run, paths []string) (*dataset.Dataset, error) {
				src.Path = paths
				return x.openFiles(ctx, i, src)
			})
			if index == nil || err != nil {
				return err
			}
			x.data = append(x.data, d)
			part := x.part(d, index)
			if p.Errs == nil {
				x.parts = append(x.parts, part)
			}
			err = p.lookOverRows(ctx, x, d, index, func() (int64, int64, error) {
				if d.Tokens() != nil { // which prep has cut
					return 0, d.Cut(), nil
				}
				return x.text.Cut(ctx, d, i, part.Skip, x.Recipe.Train.Seed, x.obs.Lengths)
			})
			return errors.Join(err, x.checkDims(x.Recipe.lossOf(i), x.Recipe.lossKey(i)))
		})
		if err != nil {
			return err
		}
	}
	if len(x.parts) < len(x.Recipe.Data.Train) { // what batches they make shows when all are read
		return nil
	}
	if l.Wrong = x.planBatches(); l.Wrong == nil {
		l.Wrong = x.Recipe.update(0).Check(x.model.Layout)
	}
	if l.Wrong == nil {
		x.Steps = x.plan.Steps()
		l.Wrong = x.noSteps()
	}
	if l.Wrong == nil {
		l.Plan = fmt.Sprintf("%s of %d x %s", spelling.Count(x.Steps, "step", "steps"), x.Recipe.Batch.Accumulate, spelling.Count(x.Recipe.Batch.GlobalSize, "row", "rows"))
		x.noteOddities()
	}
	return nil
}

// lookOverRows tells of a dataset's rows: how many can't be used, are there already, or have texts that cut counts.
func (p *LookoverPart) lookOverRows(ctx context.Context, x *Run, d *dataset.Dataset, index *dataset.Index, cut func() (texts, cut int64, err error)) error {
	p.Bad = index.Bad()
	said := []string{spelling.Count(d.Rows(), "row", "rows")}
	if n := len(p.Bad); n > 0 {
		said = append(said, fmt.Sprintf("%d that can't be used", n))
	}
	if n, first, of := repeats(d, index, x.obs.Repeats); n > 0 {
		said = append(said, fmt.Sprintf("%d with the query and the document of an earlier one, the first: %v, as %v", n, first, of))
	}
	texts, longer, err := cut()
	one, many := "text", "texts"
	if x.reranker != nil {
		one, many = "pair of texts", "pairs of texts"
	}
	switch {
	case err != nil:
	case longer > 0 && texts > 0:
		said = append(said, fmt.Sprintf("%d of %s longer than model.max_length and cut", longer, spelling.Count(texts, one, many)))
	case longer > 0:
		said = append(said, fmt.Sprintf("%s longer than max_length and cut by prep", spelling.Count(longer, one, many)))
	}
	p.Said = strings.Join(said, ", ")
	return err
}

func (x *Run) lookOverHeldOut(ctx context.Context, p *LookoverPart, h HeldOut) error {
	var held *heldOut
	_, index, err := x.lookInto(ctx, p, h.Path, dataset.HeldOut, func(x *Run, paths []string) (_ *dataset.Dataset, err error) {
		h := h
		h.Path = paths
		if held, err = x.openHeldOutFiles(ctx, p.Key, h); err != nil {
			return nil, err
		}
		return held.data, nil
	})
	if index == nil || err != nil {
		return err
	}
	x.heldOut = append(x.heldOut, held)
	err = p.lookOverRows(ctx, x, held.data, index, func() (int64, int64, error) {
		return held.text.Cut(ctx, held.data, 0, index.Skip(), x.Recipe.Train.Seed, x.obs.Lengths)
	})
	if err == nil && p.Bad == nil && p.Errs == nil {
		err = x.checkLonely(p.Key, held.data, held.loss, held.at)
	}
	return err
}

func (x *Run) lookOverTasks(ctx context.Context, l *Lookover) error {
	ctx = hfmodel.ListOnce(ctx)
	tasks := x.Recipe.Eval.tasks()
	for i, t := range tasks {
		same := func(o task) bool { return o.key == t.key && o.alike(&t) } // by other dimensions
		if slices.ContainsFunc(tasks[:i], same) {
			continue
		}
		err := l.add(ctx, t.at(), func(p *LookoverPart) error {
			err := x.lookOverTask(ctx, p, t)
			for _, o := range tasks[i:] {
				if same(o) {
					err = errors.Join(err, x.checkCut(&o))
				}
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// lookOverTask reads a task's files.
func (x *Run) lookOverTask(ctx context.Context, p *LookoverPart, t task) error {
	ctx = dataset.WithBadRows(x.noting(ctx, p.Key), func(bad *dataset.RowError) { p.Bad = append(p.Bad, bad) })
	if t.kind == nil {
		data, err := t.load(ctx)
		if err != nil {
			return err
		}
		if p.Said = fmt.Sprintf("%s, %s of them", spelling.Count(len(data.Docs), "text", "texts"), spelling.Count(len(data.Judgements), "pair", "pairs")); !t.mined {
			p.Said = fmt.Sprintf("%s, %s, %s", spelling.Count(len(data.Queries), "query", "queries"), spelling.Count(len(data.Docs), "document", "documents"), spelling.Count(len(data.Judgements), "judgement", "judgements"))
		}
		if note := data.Note(); note != "" && p.Bad == nil { // else it tells of what these rows had
			x.obs.note("%s: %s", p.Key, note)
		}
		return nil
	}
	data, err := t.kind.Load(ctx, t.source)
	if err != nil {
		return err
	}
	switch t.kind {
	case scoring.Triplets:
		p.Said = spelling.Count(len(data.A)/2, "triplet", "triplets")
	case scoring.Candidates:
		p.Said = spelling.Count(len(data.A), "pair of a query and a candidate", "pairs of a query and a candidate")
	default:
		p.Said = spelling.Count(len(data.A), "pair of texts", "pairs of texts")
	}
	return nil
}
