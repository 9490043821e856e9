package recipe_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"contraflow/collective"
	"contraflow/collective/sim"
	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/cuda/onhost"
	"contraflow/stages/recipe"
)

// roomy is a processor that always has the same memory free, and computes nothing where it is planned for.
type roomy struct{ gpustage.Device }

const roomyFree = 72 << 20

func (roomy) FreeMemory() (int64, error) { return roomyFree, nil }

// planned is a device that must not be asked for anything but its habits.
type planned struct{ roomy }

func (planned) Alloc(int) (gpustage.Memory, error)   { panic("memory is allocated") }
func (planned) OpenStream() (gpustage.Stream, error) { panic("a stream is opened") }
func (d planned) PackedBytes(k, n int, bf16 bool) int {
	return gpustage.Dry{Like: d.Device}.PackedBytes(k, n, bf16)
}
func (d planned) RoundedCols(cols int) int          { return gpustage.Dry{Like: d.Device}.RoundedCols(cols) }
func (d planned) KeepsBF16() bool                   { return gpustage.KeepsBF16(d.Device) }
func (d planned) Bags() bool                        { return gpustage.Bags(d.Device) }
func (d roomy) PackedBytes(k, n int, bf16 bool) int { return planned{d}.PackedBytes(k, n, bf16) }
func (d roomy) RoundedCols(cols int) int            { return planned{d}.RoundedCols(cols) }
func (d roomy) KeepsBF16() bool                     { return planned{d}.KeepsBF16() }

func init() {
	gpustage.Register("roomy", 0, func(gpustage.Share) (gpustage.Device, error) {
		d, err := cpu.New(cpu.Threads(1))
		return roomy{d}, err
	})
}

// onPaper plans a recipe whose model has lost its weights.
func onPaper(t *testing.T, r recipe.Recipe, at recipe.Target) *recipe.Forecast {
	t.Helper()
	model := t.TempDir()
	if err := os.CopyFS(model, os.DirFS(r.Model.Path)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(model, "model.safetensors")); err != nil {
		t.Fatal(err)
	}
	r.Model.Path = model
	x, err := recipe.OpenOnPaper(t.Context(), r, at, recipe.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	f, err := x.Forecast(t.Context(), at.Mesh, sim.Link{}, x.RatesAt(1e5))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// ofSize are the bytes of a Size in words.
func ofSize(t *testing.T, size string) (b float64) {
	t.Helper()
	unit := ""
	if n, err := fmt.Sscan(size, &b, &unit); n != 2 {
		t.Errorf("%q: %v", size, err)
	}
	return b * map[string]float64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]
}

// What other shardings would send is what the plan of each says that it sends.
func TestPlanOfShardings(t *testing.T) {
	text := overlapRecipe(t, t.TempDir(), 2)
	d, err := cpu.New(cpu.Threads(1))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	would, are := map[string]string{}, map[string]string{}
	for _, sets := range [][]string{{}, {"mesh.parameters=resident", "mesh.gradients=late"}, {"mesh.parameters=resident", "mesh.gradients=early"}, {"mesh.parameters=streamed", "mesh.gradients=early"}} {
		r, err := recipe.Parse("plan", []byte(text), append(sets, "mesh.replicate=2", "mesh.shard=2", "train.device=roomy", "model.max_length=64", "batch.sub_batch={rows: 4}", "save.dir="+t.TempDir()))
		if err != nil {
			t.Fatal(err)
		}
		f := onPaper(t, r, recipe.Target{Mesh: collective.Mesh{Replicate: 2, Shard: 2}, Device: planned{roomy{d}}, Memory: 1 << 40})
		if want := " " + recipe.Size(f.Sent) + " sent per step"; !strings.Contains(f.String(), want) {
			t.Errorf("%v: no %q in %s", sets, want, f.String())
		}
		for _, h := range f.Shardings {
			switch held := fmt.Sprintf("%d of state, %d sent", h.State, h.Sent); {
			case len(sets) == 0:
				would[h.Choice] = held
			case h.Chosen:
				are[h.Choice] = held
			}
		}
	}
	if len(would) != 3 || !maps.Equal(would, are) {
		t.Errorf("would be %q\nare %q", would, are)
	}
}

// What is planned without weights, by a device's habits alone, is what train predicts on that device: every part of the memory, the sharding that is chosen,
// and what may be kept of activations.
func TestPlanIsTrains(t *testing.T) {
	t.Parallel()
	text := overlapRecipe(t, t.TempDir(), 2)
	d, err := cpu.New(cpu.Threads(1))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	kept, less := map[bool]bool{}, false
	for _, sets := range [][]string{
		{"mesh.replicate=1"},
		{"mesh.replicate=1", "train.precision=bf16", "model.lora={targets: all-linear}", "model.activation_checkpointing=true"},
		{"mesh.replicate=2", "model.freeze={layers: 1, embeddings: true}", "batch.replay_budget=1MiB"},
		{"mesh.replicate=2", "mesh.shard=2"},
		{"mesh.replicate=1", "mesh.shard=6", "batch.global_size=24"}, // too little for all parameters
		{"mesh.replicate=1", "mesh.shard=2", "mesh.gradients=early", "mesh.parameters=streamed"},
		{"mesh.replicate=1", "mesh.shard=2", "model.lora={rank: 1, targets: all-linear}"}, // embeddings are much of what is sent
		{"mesh.replicate=1", "mesh.shard=2", "model.kind=reranker", "batch.cache=never", "batch.global_size=8", "loss=mnrl"},
		{"mesh.replicate=1", "loss={name: gist, guide: %s}"},
	} {
		for i := range sets {
			if strings.Contains(sets[i], "%s") {
				sets[i] = fmt.Sprintf(sets[i], strings.Fields(strings.NewReplacer("{path: ", "", "\"", "", ",", " ").Replace(text[strings.Index(text, "{path: "):]))[0])
			}
		}
		r, err := recipe.Parse("plan", []byte(text), append(sets, "train.device=roomy", "model.max_length=64", "batch.sub_batch={rows: 4}", "save.dir="+t.TempDir()))
		if err != nil {
			t.Fatal(err)
		}
		var train recipe.Memory
		var says string
		if err := recipe.OnRanks(t.Context(), r, recipe.Place{}, recipe.Observer{}, func(x *recipe.Run) error {
			if x.Main() {
				train, says = x.Memory, x.Describe()
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		mesh := collective.Mesh{Replicate: int(r.Mesh.Replicate), Shard: r.Mesh.Shard}
		room := roomyFree/int64(mesh.Size()) + train.Parameters // where it trains, the model is there when memory is counted
		if strings.Contains(strings.Join(sets, " "), "guide") {
			room += train.Parameters // which is the guide, too
		}
		f := onPaper(t, r, recipe.Target{Mesh: mesh, Device: planned{roomy{d}}, Memory: room})
		if f.Memory != train || f.Fits != nil {
			t.Errorf("%v: planned %+v, which fits: %v\ntrain predicts %+v", sets, f.Memory, f.Fits, train)
		}
		if _, parts, _ := strings.Cut(says, "\nmemory  "); !strings.Contains(f.String(), "\nmemory   "+strings.Split(parts, "\n")[0]) {
			t.Errorf("%v: planned\n%s\ntrain says\n%s", sets, f, says)
		}
		for line := range strings.Lines(says) { // what other shardings would take; the plan has seen the step's texts, which may be short
			held, most, ok := strings.Cut(strings.TrimSuffix(line, " sent per step\n"), " on each rank and at most ")
			if !ok {
				continue
			}
			_, planned, _ := strings.Cut(f.String()+"\n", held+" on each rank and ")
			sent, _, _ := strings.Cut(planned, " sent per step\n")
			if ofSize(t, sent) > ofSize(t, most) {
				t.Errorf("%v: train says %sthe plan is\n%s", sets, line, f)
			}
			less = less || ofSize(t, sent) < ofSize(t, most)/2
		}
		if f.Budget >= 0 && train.Activations > f.Budget || f.Kept < train.Activations {
			t.Errorf("%v: %d bytes of activations are kept, the budget is %d and all are %d", sets, train.Activations, f.Budget, f.Kept)
		}
		kept[f.Budget >= 0 && f.Kept > f.Budget] = true
	}
	if !less {
		t.Error("what is sent of short texts is planned as if they were long")
	}
	if len(kept) != 2 {
		t.Errorf("of no recipe, or of all, the budget is smaller than what there is to keep")
	}
}

// A model that is planned for a GPU takes what it takes on one: in bf16 activations lie in its memory as they are computed, and some parameters twice.
func TestPlanForGPU(t *testing.T) {
	text := overlapRecipe(t, t.TempDir(), 2)
	d, err := cpu.New(cpu.Threads(1))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for precision, less := range map[string]bool{"f32": false, "bf16": true} {
		r, err := recipe.Parse("plan", []byte(text), []string{"mesh.replicate=1", "batch.cache=never", "train.precision=" + precision})
		if err != nil {
			t.Fatal(err)
		}
		alone := collective.Mesh{Replicate: 1, Shard: 1}
		here, there := onPaper(t, r, recipe.Target{Mesh: alone, Device: d}), onPaper(t, r, recipe.Target{Mesh: alone, Device: onhost.Idle(onhost.Plain)})
		if (there.First-there.Memory.Packed < here.First-here.Memory.Packed) != less || (there.Memory.Packed > 0) != less {
			t.Errorf("%s: %d bytes in the first step on a GPU, %d here; %d of packed weights", precision, there.First, here.First, there.Memory.Packed)
		}
		if here.Room != 0 || !strings.Contains(here.String(), "--memory says what there is") {
			t.Errorf("a device of unknown memory:\n%s", here)
		}
	}
}

// What does not fit comes with a way that fits, from what is free of charge to what changes the training.
func TestLighter(t *testing.T) {
	if testing.Short() {
		t.Skip("overlapRecipe has two layers then")
	}
	text := overlapRecipe(t, t.TempDir(), 6)
	mesh := collective.Mesh{Replicate: 4, Shard: 1}
	plan := func(memory int64, sets ...string) *recipe.Forecast {
		t.Helper()
		r, err := recipe.Parse("plan", []byte(text), append([]string{"mesh.replicate=4", "batch.sub_batch={tokens: 1024}", "batch.global_size=128"}, sets...))
		if err != nil {
			t.Fatal(err)
		}
		return onPaper(t, r, recipe.Target{Mesh: collective.Mesh{Replicate: mesh.Size() / r.Mesh.Shard, Shard: r.Mesh.Shard}, Device: onhost.Idle(onhost.Recorded), Memory: memory})
	}
	seen := map[string]int{}
	whole := plan(1 << 40).Memory
	last := 0
	for _, percent := range []int64{75, 20, 10, 8, 6, 5, 4} {
		memory := (whole.Total()-whole.Device)*percent/100 + whole.Device
		f := plan(memory)
		if f.Fits == nil {
			if f.Memory.Total() > memory {
				t.Errorf("%d bytes fit into %d", f.Memory.Total(), memory)
			}
			continue
		}
		_, way, ok := strings.Cut(f.Fits.Error(), "; it fits with ")
		if !ok {
			continue
		}
		var sets []string
		rank := 0
		for _, s := range strings.Split(way, " and ") {
			key, value, _ := strings.Cut(s, ": ")
			sets = append(sets, key+"="+value)
			seen[key]++
			rank = max(rank, map[string]int{"model.activation_checkpointing": 1, "mesh.shard": 2, "batch.global_size": 3}[key])
		}
		if g := plan(memory, sets...); g.Fits != nil || g.Memory.Total() > memory {
			t.Errorf("%d bytes with %q: %v", memory, sets, g.Fits)
		}
		if n := 0; rank == 0 {
			if _, err := fmt.Sscanf(way[strings.Index(way, "batch.sub_batch"):], "batch.sub_batch: {tokens: %d}", &n); err != nil {
				t.Fatal(err)
			}
			if g := plan(memory, fmt.Sprintf("batch.sub_batch={tokens: %d}", 2*n)); g.Fits == nil {
				t.Errorf("%d bytes: %s, and sub-batches of twice that fit", memory, way)
			}
		}
		if rank < last {
			t.Errorf("%d bytes: %s, and with more memory something that costs more", memory, way)
		}
		last = rank
	}
	for _, key := range []string{"batch.sub_batch", "model.activation_checkpointing", "mesh.shard", "mesh.replicate", "mesh.parameters", "mesh.gradients"} {
		if seen[key] == 0 {
			t.Errorf("%s was never advised: %v", key, seen)
		}
	}
}

// A token's time is shared out by products: backward makes two for each of forward's where everything trains, one where little more than the inputs' gradient is
// wanted, none below the lowest layer that trains.
func TestRatesAt(t *testing.T) {
	if testing.Short() {
		t.Skip("overlapRecipe has two layers then")
	}
	text := overlapRecipe(t, t.TempDir(), 4)
	for set, want := range map[string]float64{
		"model.freeze={}": 2, "model.lora={rank: 1, targets: [query]}": 1, "model.freeze={layers: 1, embeddings: true}": 1.5, "model.activation_checkpointing=true": 3,
	} {
		r, err := recipe.Parse("plan", []byte(text), []string{set})
		if err != nil {
			t.Fatal(err)
		}
		x, err := recipe.OpenOnPaper(context.Background(), r, recipe.Target{Mesh: collective.Mesh{Replicate: 1, Shard: 1}, Device: onhost.Idle(onhost.Plain)}, recipe.Observer{})
		if err != nil {
			t.Fatal(err)
		}
		rates := x.RatesAt(1000)
		if got := rates.Backward / rates.Forward; !(math.Abs(got-want) <= 0.02) || !(math.Abs(rates.TokensPerS()-1000) <= 1e-6) {
			t.Errorf("%s: backward takes %.3f times as long as forward, want %v; %v tokens/s", set, got, want, rates.TokensPerS())
		}
		for _, tokens := range []float64{1e-200, 1e15} {
			if _, err := x.Forecast(t.Context(), collective.Mesh{Replicate: 1, Shard: 1}, sim.Link{}, x.RatesAt(tokens)); err == nil || !strings.Contains(err.Error(), "no step takes a time") {
				t.Errorf("%s, %g tokens/s: %v", set, tokens, err)
			}
		}
		// A product of so many multiplications and additions takes as long wherever it is.
		perProduct := rates.Forward / float64(x.Facts().Parameters)
		if rates.Score < perProduct*3*128 || rates.Score > 3*perProduct*3*128 {
			t.Errorf("%s: a score takes %v s, a token's pass %v", set, rates.Score, rates.Forward)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}
