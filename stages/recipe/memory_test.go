package recipe_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"contraflow/collective"
	"contraflow/collective/sim"
	"contraflow/gpustage"
	"contraflow/gpustage/cpu"
	"contraflow/gpustage/devicetest"
	"contraflow/stages/recipe"
	"contraflow/testdata/harness"
)

var countedDevices = map[int]*devicetest.Counted{} // by rank

func init() {
	var mu sync.Mutex
	gpustage.Register("counted", 0, func(share gpustage.Share) (gpustage.Device, error) {
		d, err := cpu.New(cpu.Threads(1))
		if err != nil {
			return nil, err
		}
		mu.Lock()
		defer mu.Unlock()
		c := &devicetest.Counted{Device: d}
		countedDevices[share.Rank] = c
		return c, nil
	})
}

// silent is a device whose driver does not answer.
type silent struct{ gpustage.Device }

func (silent) FreeMemory() (int64, error) { return 0, errors.New("no answer") }

func init() {
	gpustage.Register("silent", 0, func(gpustage.Share) (gpustage.Device, error) {
		d, err := cpu.New(cpu.Threads(1))
		return silent{d}, err
	})
}

// A GPU that nobody has tried is passed over, and who trains on the processor instead is told why.
func TestAutoSays(t *testing.T) {
	open := func(why error) func(gpustage.Share) (gpustage.Device, error) {
		return func(gpustage.Share) (gpustage.Device, error) { return nil, fmt.Errorf("a card: %w", why) }
	}
	gpustage.Register("card", 99, open(gpustage.ErrUntried))
	defer gpustage.Register("card", -1, open(gpustage.ErrAbsent))
	for device, want := range map[string]int{"auto": 1, "cpu": 0} {
		r, err := recipe.Parse("auto", []byte(overlapRecipe(t, t.TempDir(), 1)), []string{"train.device=" + device})
		if err != nil {
			t.Fatal(err)
		}
		var notes []string
		x, err := recipe.Open(t.Context(), r, recipe.Observer{Note: func(n string) { notes = append(notes, n) }})
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
		if got := strings.Count(strings.Join(notes, "\n"), "train.device: auto takes cpu: a card: has not been run"); got != want {
			t.Errorf("device %s: notes %q", device, notes)
		}
	}
}

// besides is a device that takes memory of its own.
type besides struct{ gpustage.Device }

func (d besides) Info() gpustage.Info {
	i := d.Device.Info()
	i.Besides = 100 << 20
	return i
}

func init() {
	gpustage.Register("besides", 0, func(gpustage.Share) (gpustage.Device, error) {
		d, err := cpu.New(cpu.Threads(1))
		return besides{d}, err
	})
}

// What a device takes beside tensors is planned.
func TestMemoryBesides(t *testing.T) {
	var planned []int64 // but for activations, whose budget is of what is left
	text := overlapRecipe(t, t.TempDir(), 2)
	for _, device := range []string{"counted", "besides"} {
		r, err := recipe.Parse("memory", []byte(text), []string{"mesh.replicate=1", "train.device=" + device})
		if err != nil {
			t.Fatal(err)
		}
		x, err := recipe.Open(t.Context(), r, recipe.Observer{})
		if err != nil {
			t.Fatal(err)
		}
		planned = append(planned, x.Memory.Total()-x.Memory.Activations)
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
	if more := planned[1] - planned[0]; more != 100<<20 {
		t.Errorf("%d bytes are planned for a device that takes 100 MiB beside tensors, for another %d", planned[1], planned[0])
	}
}

// A run does not begin without knowing what memory there is.
func TestMemoryUnknown(t *testing.T) {
	r, err := recipe.Parse("memory", []byte(overlapRecipe(t, t.TempDir(), 2)), []string{"train.device=silent", "train.max_steps=1", "batch.global_size=8", "save.dir=" + t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := recipe.Open(t.Context(), r, recipe.Observer{}); err == nil || !strings.Contains(err.Error(), "train.device: what memory it has left: no answer") {
		t.Errorf("error %v", err)
	}
}

// Where the loss takes more than a sub-batch's way back, it comes on top of all activations that are kept; a sum's gradient too.
func TestMemoryOfLoss(t *testing.T) {
	harness.Thorough(t)
	testMemoryOfLoss(t, "mnrl")
	testMemoryOfLoss(t, "[{similarity: dot}, {weight: 2, similarity: dot}]")
}

func testMemoryOfLoss(t *testing.T, loss string) {
	t.Helper()
	dir := t.TempDir()
	r, err := recipe.Parse("memory", []byte(overlapRecipe(t, dir, 2)), []string{
		"mesh.replicate=1", "train.max_steps=1", "train.device=counted", "batch.global_size=768", "batch.sub_batch={rows: 64}", "batch.no_duplicates=false",
		"model.max_length=4", "batch.cache=never", "loss=" + loss,
	})
	if err != nil {
		t.Fatal(err)
	}
	x, err := recipe.Open(t.Context(), r, recipe.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Train(t.Context()); err != nil {
		t.Fatal(err)
	}
	if held, planned := int64(countedDevices[0].Peak()), x.Memory.Total()-x.Memory.Snapshot; held > planned+4096 { // the norm, and what else is a number
		t.Errorf("loss %s: %d bytes are held, %d planned: %+v", loss, held, planned, x.Memory)
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}

// What the plan says a device will hold is what it holds, within a tenth, whatever ranks hold of the model; and the more of it is
// cut, the less that is.
func TestPlannedMemory(t *testing.T) {
	harness.Thorough(t)
	if raceEnabled {
		t.Skip("memory is counted while others give theirs back")
	}
	harness.Thorough(t)
	dir := t.TempDir()
	text := overlapRecipe(t, dir, 12)
	all := [][2]string{{"resident", "late"}, {"resident", "early"}, {"streamed", "early"}}
	testPlannedMemory(t, dir, strings.Replace(text, "positive: p", "positive: p, negatives: [q]", 1), "model.kind=reranker", all[1:2])
	full := int64(0)
	for _, tuning := range []string{"model.freeze={}", "model.freeze={layers: 6, embeddings: true}", "model.lora={targets: all-linear}"} {
		held := testPlannedMemory(t, dir, text, tuning, all)
		// Gradients and the optimizer's state are of what trains: three quarters of what is held, were it everything.
		if full == 0 {
			full = held
		} else if held > full*7/10 {
			t.Errorf("%s holds %d bytes, when everything trains %d are held", tuning, held, full)
		}
	}
	if held := testPlannedMemory(t, dir, text, "model.kind=m3", all); held <= full {
		t.Errorf("with parts of tokens %d bytes are held, without %d", held, full)
	}
}

// testPlannedMemory returns what is held when nothing but the optimizer's state is cut.
func testPlannedMemory(t *testing.T, dir, text, tuning string, modes [][2]string) (whole int64) {
	last := int64(1) << 60
	for _, mode := range modes {
		r, err := recipe.Parse("memory", []byte(text), []string{
			tuning, "mesh.replicate=1", "mesh.shard=2", "mesh.parameters=" + mode[0], "mesh.gradients=" + mode[1], "train.max_steps=2", "train.device=counted",
			"batch.global_size=8", "batch.sub_batch={rows: 2}", "batch.replay_budget=1MiB", "model.max_length=16", "save.dir=" + t.TempDir(),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		var bound recipe.Memory
		if err := recipe.OnRanks(ctx, r, recipe.Place{}, recipe.Observer{}, func(x *recipe.Run) error {
			if x.Main() {
				bound = x.Memory
			}
			_, err := x.Train(ctx)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		measured := int64(countedDevices[0].Peak())
		// The prediction is above by what may be kept and is not, and below by no more than parameters on their way to a file.
		if above := bound.Total() - bound.Snapshot - measured; above > bound.Activations+64<<10 || above < -1<<20 {
			t.Errorf("%s, %v: %d bytes are predicted besides snapshots, and %d held", tuning, mode, bound.Total()-bound.Snapshot, measured)
		}
		x, err := recipe.Open(ctx, r, recipe.Observer{})
		if err != nil {
			t.Fatal(err)
		}
		f, err := x.Forecast(ctx, collective.Mesh{Replicate: 1, Shard: 2}, sim.Link{}, recipe.Rates{})
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s, %v: planned %d, measured %d", tuning, mode, f.First, measured)
		if off := f.First - measured; off > measured/10 || off < -measured/10 {
			t.Errorf("%s, %v: planned %d bytes, measured %d", tuning, mode, f.First, measured)
		}
		less := last * 19 / 20
		if mode == [2]string{"resident", "early"} && tuning != "model.freeze={}" {
			less = last // there are fewer gradients to cut
		}
		if measured > less {
			t.Errorf("%s, %v holds %d bytes, less cut %d", tuning, mode, measured, last)
		}
		last, whole = measured, max(whole, measured)
	}
	return whole
}

// Where memory is short a run gives back what it has got until then: whoever then tries with less has the device's memory.
func TestOutOfMemory(t *testing.T) {
	harness.Thorough(t)
	r, err := recipe.Parse("memory", []byte(overlapRecipe(t, t.TempDir(), 2)), []string{
		"mesh={replicate: 1}", "train.device=counted", "train.max_steps=1", "batch.global_size=8", "batch.sub_batch={rows: 4}", "model.max_length=8",
	})
	if err != nil {
		t.Fatal(err)
	}
	x, err := recipe.Open(t.Context(), r, recipe.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}()
	d := countedDevices[0]
	none := func() error { return nil } // to give back
	for _, tt := range []struct {
		what  string
		open  func() error
		least int // allocations
	}{
		{"graph", func() error { _, err := x.Graph(); return err }, 4},
		{"calibrate", func() error { _, err := x.Calibrate(t.Context(), 1, 1); return err }, 6},
	} {
		if n := devicetest.OutOfMemory(t, d, func() (func() error, error) { return none, tt.open() }); n < tt.least {
			t.Errorf("%s: %d allocations, want at least %d", tt.what, n, tt.least)
		}
	}
	before := d.Held()
	for n, refused := 1, true; refused; n += n/2 + 1 { // some of a great many
		d.Refuse(n)
		_, err := x.Verify(t.Context(), recipe.VerifyOptions{Rows: 2, Accumulate: []int{1}})
		refused = d.Refused()
		d.Refuse(0)
		if held := d.Held(); refused != errors.Is(err, gpustage.ErrOutOfMemory) || held != before {
			t.Errorf("allocation %d of verifying (refused: %v): %d bytes are still held, error %v", n, refused, held-before, err)
		}
	}
}

// What evaluations take is planned: passes, documents that are ranked and rows that a loss is measured on, of which a batch may be larger than training's.
func TestMemoryOfEvaluation(t *testing.T) {
	harness.Thorough(t)
	dir := t.TempDir()
	var queries, corpus, qrels, rows strings.Builder
	for i := range 900 {
		fmt.Fprintf(&queries, "{\"id\": \"q%d\", \"text\": \"which one is %d\"}\n", i, i)
		fmt.Fprintf(&corpus, "{\"id\": \"d%d\", \"text\": \"this one is %d of them\"}\n", i, i)
		fmt.Fprintf(&qrels, "{\"query_id\": \"q%d\", \"doc_id\": \"d%d\", \"relevance\": 1}\n", i, i)
		fmt.Fprintf(&rows, "{\"q\": \"which is %d\", \"p\": \"it is %d\", \"n\": [%s\"a\"]}\n", i, i, strings.Repeat(fmt.Sprintf("\"not %d\", ", i), 30))
	}
	for name, text := range map[string]*strings.Builder{"q": &queries, "c": &corpus, "r": &qrels, "rows": &rows} {
		if err := os.WriteFile(filepath.Join(dir, name+".jsonl"), []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	retrieval := fmt.Sprintf("eval.retrieval={queries: %q, corpus: %q, qrels: %q}", filepath.Join(dir, "q.jsonl"), filepath.Join(dir, "c.jsonl"), filepath.Join(dir, "r.jsonl"))
	for _, sets := range [][]string{
		{retrieval}, {retrieval, "model.kind=m3"}, {retrieval, "model.kind=multi_vector"},
		{fmt.Sprintf("eval.loss={path: %q, query: q, positive: p, negatives: [n], negatives_per_query: all}", filepath.Join(dir, "rows.jsonl"))},
	} {
		sets = append(sets, "mesh.replicate=1", "train.max_steps=1", "train.device=counted", "batch.global_size=64", "batch.sub_batch={rows: 8}", "batch.no_duplicates=false",
			"batch.cache=always", "model.max_length=16", "eval.every=1", "save.dir="+t.TempDir())
		r, err := recipe.Parse("memory", []byte(overlapRecipe(t, dir, 2)), sets)
		if err != nil {
			t.Fatal(err)
		}
		x, err := recipe.Open(t.Context(), r, recipe.Observer{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := x.Train(t.Context()); err != nil {
			t.Fatal(err)
		}
		held, planned := int64(countedDevices[0].Peak()), x.Memory.Total()-x.Memory.Snapshot
		if t.Logf("%s: %d held, %d planned, %d of them for evaluations", sets[:len(sets)-10], held, planned, x.Memory.Evaluation); held > planned+4096 || held <= planned-x.Memory.Evaluation {
			t.Errorf("%s: %d bytes are held, %d planned, %d of them for evaluations", sets[0], held, planned, x.Memory.Evaluation)
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}
