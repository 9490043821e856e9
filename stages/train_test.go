package stages_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"contraflow/collective"
	"contraflow/collective/local"
	"contraflow/gpustage/ref"
	"contraflow/io/checkpoint"
	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
)

func animals(t *testing.T) *dataset.Dataset {
	t.Helper()
	type pair struct{ Q, P string }
	d, err := dataset.FromRows(t.Context(), "animals", []pair{{"what barks", "a dog"}, {"who barks", "a dog"}, {"what swims", "fish"}, {"what flies", "a bird"}}, dataset.Source{Query: "Q", Positive: "P"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// A plan of several datasets has all their rows, without a text twice in a batch where the order says so.
func TestNewPlan(t *testing.T) {
	a, b := animals(t), animals(t)
	p, err := stages.NewPlan(t.Context(), dataset.SamplerConfig{GlobalSize: 2, Epochs: 1, NoDuplicates: true}, a, b)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int][]int64{}
	for batch, ok := p.Sampler.Next(); ok; batch, ok = p.Sampler.Next() {
		if slices.Contains(batch.Rows, 0) && slices.Contains(batch.Rows, 1) {
			t.Error("one batch has both rows of one document")
		}
		seen[batch.Source] = append(seen[batch.Source], batch.Rows...)
	}
	for source := range 2 {
		if slices.Sort(seen[source]); !slices.Equal(seen[source], []int64{0, 1, 2, 3}) {
			t.Errorf("of dataset %d there are rows %v", source, seen[source])
		}
	}
	for want, try := range map[string]func() (stages.Plan, error){
		"dataset 1 is nil": func() (stages.Plan, error) {
			return stages.NewPlan(t.Context(), dataset.SamplerConfig{GlobalSize: 2, Epochs: 1}, a, nil)
		},
		"no datasets": func() (stages.Plan, error) {
			return stages.NewPlan(t.Context(), dataset.SamplerConfig{GlobalSize: 2, Epochs: 1})
		},
		"no Skip": func() (stages.Plan, error) {
			return stages.NewPlan(t.Context(), dataset.SamplerConfig{GlobalSize: 2, Epochs: 1, Skip: []int64{1}}, a)
		},
	} {
		if _, err := try(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A rank whose run fails tells the others why, however soon it ends: they don't wait for it. Rows that can't be used end them all, and the job has not failed.
func TestRunEndsOthers(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	full, unusable := errors.New("the disk is full"), errors.New("no use")
	for _, want := range []error{full, unusable} {
		worlds, errs := local.New(2, local.Deadline(30*time.Second)), make([]error, 2)
		var wait sync.WaitGroup
		for r, w := range worlds {
			data := animals(t)
			wait.Go(func() {
				comm, err := collective.Connect(t.Context(), w, collective.Mesh{Replicate: 2, Shard: 1})
				if err != nil {
					t.Error(err)
					return
				}
				ranks, err := stages.Join(t.Context(), comm, stages.Exchanging{})
				if err != nil {
					t.Error(err)
					return
				}
				rows := 0
				row := func(*stages.Chunk, *dataset.Example) error {
					if rows++; want == unusable && r == 1 && rows == 3 { // in the second step
						return unusable
					}
					return nil
				}
				_, errs[r] = trained(t.Context(), p, []*dataset.Dataset{data}, ranks, loss.InfoNCE{Scale: 20}, row, func(g *pipeline.Graph, c stages.Chain, e *stages.Encoder) error {
					s := g.Stage("fails", pipeline.At(pipeline.Step))
					pipeline.Collect(s, "contributions", c.Contributions)
					s.Do(func(t *pipeline.Task) error {
						if want == full && r == 1 && t.Index.Step == 1 {
							return full
						}
						return nil
					})
					return nil
				})
			})
		}
		wait.Wait()
		var re *collective.RankError
		for r, err := range errs {
			if err == nil || !strings.Contains(err.Error(), want.Error()) {
				t.Errorf("rank %d: %v, want %v", r, err, want)
			}
		}
		if err := worlds[0].Err(); (want == full) != errors.As(err, &re) || re != nil && (re.Rank != 1 || !errors.Is(re, full)) {
			t.Errorf("%v: the job has ended with %v", want, err)
		}
	}
}

// trained trains by Train on some rows, and gives its steps.
func trained(ctx context.Context, p parts, data []*dataset.Dataset, ranks *stages.Replicas, l loss.Loss, row func(*stages.Chunk, *dataset.Example) error, add func(*pipeline.Graph, stages.Chain, *stages.Encoder) error) (steps []stages.StepResult, err error) {
	model, err := embedder.LoadTrainable(filepath.Join(p.dir, "model"), ref.New())
	if err != nil {
		return nil, err
	}
	defer model.Close()
	plan, err := stages.NewPlan(ctx, dataset.SamplerConfig{GlobalSize: 4, Epochs: 4}, data...)
	if err != nil {
		return nil, err
	}
	plan.Rank, plan.Ranks = ranks.Rank(), ranks.Size()
	g := pipeline.New("trained")
	enc, err := stages.NewEncoder(g, model.Model, 0, -1, 1, stages.With(ranks))
	if err != nil {
		return nil, err
	}
	defer enc.Close()
	c := stages.Forward(g, stages.MapRows(g, "own", stages.Ingest(g, plan), row), enc, stages.Step{Text: p.text, Size: stages.Size{Rows: 1}, Loss: l})
	c.Contributions = stages.Sync(g, stages.Backward(g, c.Subs, c.Gradients, enc), enc)
	if err := add(g, c, enc); err != nil {
		return nil, err
	}
	if c.Results, err = stages.Apply(g, c.Contributions, c.Gradients, enc, stages.Update{Optimizer: optim.AdamW{}, LR: 1e-3}); err != nil {
		return nil, err
	}
	pipeline.Sink(g, "keep", c.Results, func(_ *pipeline.Task, s stages.StepResult) error {
		steps = append(steps, s)
		return nil
	})
	return steps, enc.Run(ctx)
}

// two runs f on two ranks.
func two(ctx context.Context, f func(*stages.Replicas) error) error {
	return local.Run(2, func(w collective.World) error {
		comm, err := collective.Connect(ctx, w, collective.Mesh{Replicate: 2, Shard: 1})
		if err != nil {
			return err
		}
		ranks, err := stages.Join(ctx, comm, stages.Exchanging{})
		if err != nil {
			return err
		}
		return f(ranks)
	})
}

func unchanged(*stages.Chunk, *dataset.Example) error { return nil }

func nothing(*pipeline.Graph, stages.Chain, *stages.Encoder) error { return nil }

// What BeforeUpdate's stage sees is the gradient that the update has the norm of, times the rows' weight, on every rank.
func TestBeforeUpdate(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	data := []*dataset.Dataset{animals(t)}
	check := func(ranks *stages.Replicas) error {
		var norms []float64
		steps, err := trained(t.Context(), p, data, ranks, loss.InfoNCE{Scale: 5}, unchanged, func(g *pipeline.Graph, c stages.Chain, enc *stages.Encoder) error {
			stages.BeforeUpdate(g, "norm", c.Contributions, enc, func(task *pipeline.Task) error {
				vs, err := enc.Model.ReadVector(stages.Stream(task), enc.Gradients())
				sum := 0.0
				for _, v := range vs {
					sum += float64(v) * float64(v)
				}
				norms = append(norms, math.Sqrt(sum)/4) // rows of a step
				return err
			})
			return nil
		})
		if err != nil {
			return err
		}
		if len(steps) != 4 || len(norms) != 4 {
			return fmt.Errorf("%d steps, %d norms", len(steps), len(norms))
		}
		for i, s := range steps {
			if s.GradNorm == 0 || math.Abs(norms[i]-s.GradNorm) > 1e-5*s.GradNorm {
				t.Errorf("rank %d, step %d: %v, want %v", ranks.Rank(), i, norms[i], s.GradNorm)
			}
		}
		return nil
	}
	if err := check(nil); err != nil {
		t.Error(err)
	}
	if err := two(t.Context(), check); err != nil {
		t.Error(err)
	}
}

// A stage that would look at the gradient when the update has cleared it is an error before the first step.
func TestBeforeUpdateTooLate(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	g := pipeline.New("late")
	enc, err := stages.NewEncoder(g, p.model, 0, -1, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	plan, err := stages.NewPlan(t.Context(), dataset.SamplerConfig{GlobalSize: 4, Epochs: 1}, animals(t))
	if err != nil {
		t.Fatal(err)
	}
	c, err := stages.Train(g, stages.Ingest(g, plan), enc, stages.Step{Text: p.text, Size: stages.Size{Rows: 4}, Loss: loss.InfoNCE{}}, plain)
	if err != nil {
		t.Fatal(err)
	}
	stages.BeforeUpdate(g, "late", c.Contributions, enc, func(*pipeline.Task) error { return nil })
	if err := enc.Run(t.Context()); err == nil || !strings.Contains(err.Error(), `graph "late": stage "late": it is to look at a gradient behind stages.Apply`) {
		t.Error(err)
	}
}

// MapRows gives changed texts their hashes, by which duplicates are masked; what it must not change is an error with the row's place, and a row that it refuses
// ends the run before its step.
func TestMapRows(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	data := []*dataset.Dataset{animals(t), animals(t)}
	run := func(row func(*stages.Chunk, *dataset.Example) error) ([]stages.StepResult, error) {
		return trained(t.Context(), p, data, nil, loss.InfoNCE{Scale: 5, MaskDuplicates: true}, row, nothing)
	}
	alike, err := run(func(_ *stages.Chunk, e *dataset.Example) error {
		e.Texts[0], e.Texts[1] = "one", "and the same"
		return nil
	})
	if err != nil || len(alike) != 8 || alike[0].Loss != 0 { // no row has a negative
		t.Errorf("%v, %v", alike, err)
	}
	if apart, err := run(unchanged); err != nil || apart[0].Loss == 0 {
		t.Errorf("rows as they are: %v, %v", apart, err)
	}
	for want, row := range map[string]func(*dataset.Example) error{
		"animals: row 2: boom": func(e *dataset.Example) error { return errors.New("boom") },
		"animals: row 2: of row 6 with 2 texts has been made row 6 with 1": func(e *dataset.Example) error { e.Texts = e.Texts[:1]; return nil },
		"animals: row 2: of row 6 with 2 texts has been made row 7 with 2": func(e *dataset.Example) error { e.Row = 7; return nil },
	} {
		steps, err := run(func(c *stages.Chunk, e *dataset.Example) error {
			if e.Row == 6 && c.Epoch == 2 {
				return row(e)
			}
			return nil
		})
		refused := (*stages.RowsError)(nil)
		if err == nil || !strings.Contains(err.Error(), want) || errors.As(err, &refused) != strings.Contains(want, "boom") {
			t.Errorf("%v, want %q", err, want)
		}
		if refused != nil && len(steps) != 4 && len(steps) != 5 { // two epochs, and maybe the other dataset's batch
			t.Errorf("%d steps before the row's", len(steps))
		}
	}
}

// Without a checkpoint the plan begins at its beginning; a damaged one is not gone by without a word.
func TestResumeLatest(t *testing.T) {
	dir := t.TempDir()
	store := checkpoint.Open(dir, checkpoint.Disk{})
	plan, err := stages.NewPlan(t.Context(), dataset.SamplerConfig{GlobalSize: 4, Epochs: 1}, animals(t))
	if err != nil {
		t.Fatal(err)
	}
	none, err := plan.ResumeLatest(store)
	if none != nil || err != nil || none.Close() != nil || plan.FirstStep != 0 {
		t.Errorf("%v, %v, step %d", none, err, plan.FirstStep)
	}
	if err := os.Mkdir(filepath.Join(dir, checkpoint.FolderName(3)), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := plan.ResumeLatest(store); err == nil || !strings.Contains(err.Error(), checkpoint.FolderName(3)) || plan.FirstStep != 0 {
		t.Errorf("%v, step %d", err, plan.FirstStep)
	}

	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, _, err := trainOrResume(t.Context(), p, "run", 0); err != nil { // of 12 steps, with checkpoints of steps 9 and 12
		t.Fatal(err)
	}
	parts, err := filepath.Glob(filepath.Join(p.dir, "run", "checkpoints", checkpoint.FolderName(12), "*.safetensors"))
	if err != nil || len(parts) != 1 {
		t.Fatalf("%v, %v", parts, err)
	}
	if err := os.Truncate(parts[0], 100); err != nil {
		t.Fatal(err)
	}
	if _, _, err := trainOrResume(t.Context(), p, "run", 0); err == nil || !strings.Contains(err.Error(), checkpoint.FolderName(12)+" is damaged") || !strings.Contains(err.Error(), "from step 9") {
		t.Error(err)
	}
}

// What is called in another order than it belongs, or twice, is an error that says what it wants.
func TestTrainMisused(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	elsewhere, err := embedder.LoadTrainable(filepath.Join(p.dir, "model"), ref.New())
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	guide := p.text
	chain := func(device int, g *stages.Guide) (*stages.Encoder, func() error, error) {
		graph := pipeline.New("misused")
		enc, err := stages.NewEncoder(graph, p.model, device, -1, 1)
		if err != nil {
			return nil, nil, err
		}
		t.Cleanup(func() { enc.Close() })
		plan, err := stages.NewPlan(t.Context(), dataset.SamplerConfig{GlobalSize: 4, Epochs: 1}, animals(t))
		if err != nil {
			return nil, nil, err
		}
		text := p.text
		if g != nil {
			text.Guide = &guide
		}
		chunks := stages.Ingest(graph, plan)
		train := func() error {
			_, err := stages.Train(graph, chunks, enc, stages.Step{Text: text, Size: stages.Size{Rows: 4}, Loss: loss.InfoNCE{}, Guide: g}, plain)
			return err
		}
		return enc, train, nil
	}
	run := func(device int, g *stages.Guide) error {
		enc, train, err := chain(device, g)
		return errors.Join(err, train(), enc.Run(t.Context()))
	}
	for want, try := range map[string]func() error{
		`graph "misused" has been built before`: func() error {
			enc, train, err := chain(0, nil)
			if err := errors.Join(err, train(), enc.Run(t.Context())); err != nil {
				t.Error(err)
			}
			return enc.Run(t.Context())
		},
		"the encoder has an update already": func() error {
			_, train, err := chain(0, nil)
			if err := errors.Join(err, train()); err != nil {
				t.Error(err)
			}
			return train()
		},
		"Restore comes after Train": func() error {
			enc, _, err := chain(0, nil)
			return errors.Join(err, enc.Restore(&checkpoint.Checkpoint{}))
		},
		"no model is on device 0 of those that are counted from 0, but on [1]": func() error { return run(1, nil) },
		"but on [-1 0]":                   func() error { return run(0, &stages.Guide{Model: elsewhere.Model, Device: -1}) },
		"but on [0 2]":                    func() error { return run(0, &stages.Guide{Model: elsewhere.Model, Device: 2}) },
		"Guide.Device is 0, as the enc":   func() error { return run(0, &stages.Guide{Model: elsewhere.Model}) },
		`stage "guide": Guide.Model is n`: func() error { return run(0, &stages.Guide{}) },
	} {
		if err := try(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := errors.Join(run(0, &stages.Guide{Model: elsewhere.Model, Device: 1}), run(1, &stages.Guide{Model: elsewhere.Model})); err != nil {
		t.Error(err)
	}
}

// Another stage that reads the chunks of which MapRows changes the rows sees them as they were.
func TestMapRowsLeavesChunks(t *testing.T) {
	data := animals(t)
	before := &stages.Chunk{Data: data, Examples: []dataset.Example{dataset.NewExample(0, "what barks", "a dog")}}
	e := &before.Examples[0]
	e.Scores, e.Teacher = []float32{1}, []float32{2}
	want := e.Hashes[0]
	after, err := before.MapRows(nil, func(_ *stages.Chunk, e *dataset.Example) error {
		e.Texts[0], e.Scores[0], e.Teacher[0], e.Weight = "who barks", 3, 4, 5
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if e.Texts[0] != "what barks" || e.Hashes[0] != want || e.Scores[0] != 1 || e.Teacher[0] != 2 || e.Weight != 1 {
		t.Errorf("it has become %+v", *e)
	}
	if x := after.Examples[0]; x.Texts[0] != "who barks" || x.Hashes[0] != dataset.HashText("who barks") || x.Scores[0] != 3 || x.Teacher[0] != 4 || x.Weight != 5 {
		t.Errorf("%+v", x)
	}
	if none, err := (*stages.Chunk)(nil).MapRows(nil, nil); none != nil || err != nil { // Tokenize says so
		t.Errorf("%v, %v", none, err)
	}
}

// A rank that fails while its own lane waits for another rank, which waits as well, ends both runs, long before anything's deadline.
func TestRunEndsOtherRanks(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	data := []*dataset.Dataset{animals(t)}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err = two(ctx, func(ranks *stages.Replicas) error {
		_, err := trained(ctx, p, data, ranks, loss.InfoNCE{}, unchanged, func(g *pipeline.Graph, c stages.Chain, enc *stages.Encoder) error {
			if ranks.Rank() == 0 {
				stages.BeforeUpdate(g, "waits", c.Contributions, enc, func(t *pipeline.Task) error {
					select {
					case <-ranks.Comm.World.Done():
						return errors.New("the job is over")
					case <-t.Context().Done():
						return t.Context().Err()
					}
				})
				return nil
			}
			pipeline.Sink(g, "fails", c.Batches, func(t *pipeline.Task, _ *stages.Batch) error {
				if t.Index.Step == 0 {
					return nil
				}
				time.Sleep(500 * time.Millisecond) // by then the gather of this step waits for rank 0
				return errors.New("boom")
			})
			return nil
		})
		return err
	})
	if err == nil || !strings.Contains(err.Error(), `rank 1: graph "trained": stage "fails", item 1.0: boom`) || ctx.Err() != nil {
		t.Errorf("%v, %v", err, ctx.Err())
	}
}

// What one rank wants all ranks do, whichever it is: they end with the same step, of which all know that, and why.
func TestOneRankAsks(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	data := []*dataset.Dataset{animals(t)}
	for asks, want := range []stages.Asked{{Finish: true}, {Stop: true, Save: true}} { // the rank that does
		err := two(t.Context(), func(ranks *stages.Replicas) error {
			steps, err := trained(t.Context(), p, data, ranks, loss.InfoNCE{}, unchanged, func(_ *pipeline.Graph, _ stages.Chain, enc *stages.Encoder) error {
				n := 0
				enc.Ask = func() (a stages.Asked) {
					if n++; n == 2 && ranks.Rank() == asks {
						a = want
					}
					return a
				}
				return nil
			})
			if err == nil && (len(steps) != 2 || steps[0].Asked != (stages.Asked{}) || steps[1].Asked != want) {
				t.Errorf("rank %d asks for %+v: rank %d has ended after %d steps, the last one %+v", asks, want, ranks.Rank(), len(steps), steps[len(steps)-1].Asked)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A checkpoint that fails, late as it may be, leaves nothing behind: a disk that was full has the room again.
func TestFailedCheckpointLeavesNothing(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	dir, full := t.TempDir(), errors.New("no note")
	written := 0
	_, err = wire(t.Context(), p, nil, wiring{}, p.text, plain, loss.InfoNCE{}, func(g *pipeline.Graph, steps pipeline.Port[stages.StepResult], enc *stages.Encoder) {
		states := stages.Snapshot(g, steps, enc, func(r stages.StepResult) (any, bool) { return nil, r.Step == 0 })
		stages.Checkpoint(g, states, enc, stages.Checkpoints{Store: checkpoint.Open(dir, checkpoint.Disk{}), State: func(*checkpoint.State) error {
			files, err := os.ReadDir(dir)
			written = len(files)
			return errors.Join(full, err)
		}})
	})
	files, e := os.ReadDir(dir)
	if !errors.Is(err, full) || written == 0 || e != nil || len(files) > 0 {
		t.Errorf("%v; of %d files and folders there are %v left, %v", err, written, files, e)
	}
}

// What Run is told besides counts before what it knows itself: a plan put behind some steps without a checkpoint.
func TestRunOptions(t *testing.T) {
	p, err := openParts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	plan, err := stages.NewPlan(t.Context(), dataset.SamplerConfig{GlobalSize: 4, Epochs: 2}, animals(t))
	if err != nil {
		t.Fatal(err)
	}
	plan.FirstStep = 3
	g := pipeline.New("from 3")
	enc, err := stages.NewEncoder(g, p.model, 0, -1, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	c, err := stages.Train(g, stages.Ingest(g, plan), enc, stages.Step{Text: p.text, Size: stages.Size{Rows: 4}, Loss: loss.InfoNCE{}}, plain)
	if err != nil {
		t.Fatal(err)
	}
	var steps []int
	pipeline.Sink(g, "keep", c.Results, func(_ *pipeline.Task, r stages.StepResult) error {
		steps = append(steps, r.Step)
		return nil
	})
	if err := enc.Run(t.Context(), pipeline.FirstStep(3)); err != nil || !slices.Equal(steps, []int{3, 4}) {
		t.Errorf("steps %v, %v", steps, err)
	}
}
