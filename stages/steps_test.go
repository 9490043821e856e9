package stages_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"contraflow/collective"
	"contraflow/collective/local"
	"contraflow/gpustage"
	_ "contraflow/gpustage/cpu"
	"contraflow/gpustage/ref"
	"contraflow/io/dataset"
	"contraflow/pipeline"
	"contraflow/stages"
	"contraflow/stages/embedder"
	"contraflow/stages/loss"
	"contraflow/stages/optim"
	"contraflow/stages/transformer"
	"contraflow/testdata/goldens"
	"contraflow/testdata/harness"
	"contraflow/tokenize"
)

// goldenRun trains testdata/golden/bert/minilm-tiny on the texts of testdata/golden/steps through the whole graph: JSON
// lines, tokenizer, batches, sub-batches, loss, backward, AdamW.
type goldenRun struct {
	device     gpustage.Device
	dtype      gpustage.DType
	bf16       bool
	negatives  bool
	source     func(*dataset.Source) // changes where rows come from
	loss       loss.Loss
	size       stages.Size
	budget     int64
	every      int     // activation checkpointing
	lr         float64 // 0: 1e-3
	dropout    float64
	accumulate int
	globalSize int
	optimizer  optim.Optimizer
	workers    int
	tokenizers int
	maxSteps   int
	epochs     int // 0: 1
	ranks      int // trains as so many
	shards     int // of which so many share a replica's state
	exchange   stages.Exchanging
	dense      []transformer.Dense
	vectors    int     // features of heads of tokens; 0: none
	special    []int32 // tokens without lexical weight; nil: 0 to 3
	colbert    bool    // vectors of tokens alone, with dense layers for a projection
	unseen     bool    // of colbert's queries the tokens are not attended to that fill them up
	sparse     string  // embeddings are: with a decoder that is "tied" to the word embeddings, or "untied"
	weighed    bool    // queries are weights of tokens
	adapted    string  // one of testdata/golden/lora/steps, in minilm-tiny's place

	loraDropout float64
	groups      []stages.Group
	guide       string          // a model folder
	guideDevice gpustage.Device // nil: the model's
}

// processor is a CPU device, shared by the package's tests, or what CONTRAFLOW_TEST_DEVICE names: testdata/peers/gpu.sh has a GPU take
// these steps.
func processor(t testing.TB) gpustage.Device {
	t.Helper()
	d, err := cpuDevice()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

var cpuDevice = sync.OnceValues(func() (gpustage.Device, error) {
	return gpustage.Open(cmp.Or(os.Getenv("CONTRAFLOW_TEST_DEVICE"), "cpu"))
})

type goldenResult struct {
	steps   []stages.StepResult
	weights []byte // every parameter's bits after the last step
	grad    []byte // of the first step, divided
	spans   []pipeline.Span
	model   *transformer.Model
	stream  gpustage.Stream
	subs    int              // of the first step
	batches []*stages.Global // likewise
	traffic struct {
		counted map[collective.Op][2]int64 // of all steps: calls and bytes
		planned []stages.Call              // likewise
		calls   []stages.Call              // of the first step, as planned
	}
}

// traffic is what a rank has issued and sent so far.
func traffic(r *stages.Replicas) map[collective.Op][2]int64 {
	out := map[collective.Op][2]int64{}
	if r == nil {
		return out
	}
	groups := []collective.Group{r.Comm.World, r.Comm.Replicate, r.Comm.Shard}
	if r.Params != nil {
		groups = append(groups, r.Params)
	}
	for _, g := range groups {
		t := g.Traffic()
		for op, n := range t.Calls {
			if op != collective.OpExchange {
				out[op] = [2]int64{out[op][0] + n, out[op][1] + t.Bytes[op]}
			}
		}
	}
	return out
}

// run returns what rank 0 has; all ranks have the same, to the bit.
func (r goldenRun) run(t testing.TB) goldenResult {
	t.Helper()
	if r.device == nil {
		r.device = processor(t)
	}
	if r.ranks == 0 {
		return r.train(t, nil)
	}
	results := make([]goldenResult, r.ranks)
	err := local.Run(r.ranks, func(w collective.World) error {
		done := false
		defer func() {
			if !done { // t.Fatal
				w.Abort(errors.New("the test failed"))
			}
		}()
		ctx := context.Background()
		c, err := collective.Connect(ctx, w, collective.Mesh{Replicate: r.ranks / max(1, r.shards), Shard: max(1, r.shards)})
		if err != nil {
			return err
		}
		ranks, err := stages.Join(ctx, c, r.exchange)
		if err != nil {
			return err
		}
		results[w.Rank()] = r.train(t, ranks)
		done = true
		return nil
	}, local.Deadline(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	for rank, other := range results[1:] {
		if !bytes.Equal(other.weights, results[0].weights) || !bytes.Equal(other.grad, results[0].grad) {
			t.Errorf("rank %d of %d has other gradients or weights than rank 0", rank+1, r.ranks)
		}
	}
	return results[0]
}

func tokenID(t testing.TB, tok *tokenize.Tokenizer, token string) int32 {
	t.Helper()
	id, ok := tok.ID(token)
	if !ok {
		t.Fatalf("there is no token %q", token)
	}
	return id
}

func (r goldenRun) train(t testing.TB, ranks *stages.Replicas) goldenResult {
	dir := goldens.Path(t, "bert/minilm-tiny")
	from, head, tuning := adaptation(t, r.adapted)
	if tuning.LoRA != nil {
		tuning.LoRA.Dropout = r.loraDropout
	}
	raw, err := os.ReadFile(filepath.Join(goldens.Path(t, from), "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := transformer.ParseConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	config.HiddenDropout, config.AttentionDropout, config.Dense = r.dropout, r.dropout, r.dense
	if r.vectors > 0 {
		config.Tokens = config.M3Heads(r.vectors, true, 0)
		config.Tokens.Special = r.special
		if r.special == nil {
			config.Tokens.Special = []int32{0, 1, 2, 3}
		}
	}
	tok, err := tokenize.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if r.colbert {
		config.Dense = []transformer.Dense{{Name: "1_Dense", Out: 24}, {Name: "2_Dense", Out: 10}}
		config.Tokens = config.ColBERT(true, 0)
		config.Tokens.Query = transformer.Reading{Length: 14, Fill: tokenID(t, tok, "[MASK]"), Unseen: r.unseen}
		config.Tokens.Document.Skip = []int32{tokenID(t, tok, "."), tokenID(t, tok, "the"), tokenID(t, tok, ",")}
	}
	if r.sparse != "" {
		head = transformer.Head{}
		if config.MLMHead, err = config.MLM([]byte(fmt.Sprintf(`{"tie_word_embeddings": %v}`, r.sparse == "tied")), false); err != nil {
			t.Fatal(err)
		}
		config.Queries.There = r.weighed
	}
	model, err := transformer.New(r.device, config, head, transformer.Options{DType: r.dtype, BF16: r.bf16, CheckpointEvery: r.every, Tuning: tuning, Own: ranks.Own()})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := r.device.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stream.Close() }) // what a run returns may be read with it
	weights := goldens.Load(t, from+"/model")
	if err := model.Load(stream, func(p transformer.Param, dst []float32) error {
		if !strings.Contains(p.Name, "Dense") && !p.Head {
			copy(dst, weights.F32(t, p.Name))
			return nil
		}
		rng := rand.New(rand.NewPCG(uint64(len(dst)), 3))
		for i := range dst {
			dst[i] = float32(rng.NormFloat64()) / 4
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if r.adapted != "" {
		start := goldens.Load(t, "lora/steps")
		name, _, saves := strings.Cut(r.adapted, "-save")
		if saves {
			name += "-qv"
		}
		if err := model.LoadFactors(stream, func(p transformer.Param, dst []float32) error {
			copy(dst, start.F32(t, name+"/start/"+p.Name))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	src := dataset.Source{Paths: []string{goldenTexts(t)}, Query: "query", Positive: "positive"}
	if r.negatives {
		src.Negatives = []string{"negative"}
	}
	if r.source != nil {
		r.source(&src)
	}
	ctx := context.Background()
	data, err := dataset.Open(ctx, src)
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	if r.globalSize == 0 {
		r.globalSize, r.accumulate = 16, 1
	}
	order := dataset.SamplerConfig{GlobalSize: r.globalSize, Epochs: max(1, r.epochs)}
	sampler, err := dataset.NewMixer([]dataset.Part{{Layout: data.Layout()}}, order, dataset.Mixing{})
	if err != nil {
		t.Fatal(err)
	}

	g := pipeline.New("golden")
	enc, err := stages.NewEncoder(g, model, 0, r.budget, 42, stages.With(ranks))
	if err != nil {
		t.Fatal(err)
	}
	plan := stages.Plan{Data: []*dataset.Dataset{data}, Sampler: sampler, Accumulate: r.accumulate, MaxSteps: r.maxSteps, Rank: ranks.Rank(), Ranks: ranks.Size()}
	text := stages.Text{Tokenizer: tok, QueryLength: 48, DocumentLength: 48, Threads: r.tokenizers, Weighed: r.weighed}
	if r.colbert {
		text.Heads = config.Tokens
	}
	devices := []pipeline.Device{stages.OnDevice(r.device)}
	var guide stages.Guide
	if r.guide != "" {
		place := r.device
		if r.guideDevice != nil {
			place, guide.Device, devices = r.guideDevice, 1, append(devices, stages.OnDevice(r.guideDevice))
		}
		m, err := embedder.LoadTrainable(r.guide, place)
		if err != nil {
			t.Fatal(err)
		}
		guide.Model, guide.Tokens = m.Model, 100
		text.Guide = &stages.Text{Tokenizer: m.Tokenizer, QueryLength: 30, DocumentLength: 40, QueryPrompt: "ask: "}
	}
	chunks := stages.Ingest(g, plan)
	step := stages.Step{Text: text, Size: r.size, Loss: r.loss}
	if r.guide != "" {
		step.Guide = &guide
	}
	c := stages.Forward(g, chunks, enc, step)
	grads := c.Gradients
	contributions := stages.Sync(g, stages.Backward(g, c.Subs, grads, enc), enc)
	if r.optimizer == nil {
		r.optimizer = optim.AdamW{WeightDecay: 0.01}
	}
	res := goldenResult{model: model, stream: stream}
	place := pipeline.On(0, pipeline.Compute) // before the update, which runs there
	if r.shards > 1 {
		place = enc.OnComm() // before the norm, which the update waits for
	}
	look := g.Stage("look", place, pipeline.At(pipeline.Step))
	pipeline.Collect(look, "contributions", contributions)
	enc.AfterSync(look)
	all := pipeline.Collect(look, "losses", grads)
	var extra, before map[collective.Op][2]int64 // what the test itself makes ranks send
	look.Do(func(task *pipeline.Task) error {
		var globals []*stages.Global
		for _, l := range all.All(task) {
			globals = append(globals, l.Batch.Global)
		}
		calls := enc.Calls(globals)
		res.traffic.planned = append(res.traffic.planned, calls...)
		if task.Index.Step > 0 {
			return nil
		}
		w := 0.0
		for _, l := range all.All(task) {
			res.subs += len(l.Batch.Subs)
			switch g := l.Batch.Global; {
			case g != nil && g.Weights != nil:
				for _, v := range g.Weights {
					w += v
				}
			case g != nil:
				w += float64(g.Rows)
			default:
				w += l.Weight
			}
		}
		res.batches, res.traffic.calls = globals, calls
		before = traffic(ranks)
		whole, err := enc.Complete(stages.Stream(task))
		extra = traffic(ranks)
		if err != nil {
			return err
		}
		vs := read64(t, stages.Stream(task), whole)
		for i := range vs {
			vs[i] /= w
		}
		res.grad = gpustage.Bytes(vs)
		return nil
	})
	results, err := stages.Apply(g, contributions, grads, enc, stages.Update{
		Optimizer: r.optimizer, LR: cmp.Or(r.lr, 1e-3), Schedule: optim.Linear, WarmupSteps: 2, TotalSteps: plan.Steps(), MaxGradNorm: 1, Groups: r.groups,
	})
	if err != nil {
		t.Fatal(err)
	}
	pipeline.Sink(g, "record", results, func(_ *pipeline.Task, s stages.StepResult) error {
		res.steps = append(res.steps, s)
		return nil
	})
	p, err := g.Build(pipeline.Devices(devices...), pipeline.Workers(max(2, r.workers)))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	if err := p.Run(ctx, pipeline.WithSpans(func(s pipeline.Span) {
		mu.Lock()
		defer mu.Unlock()
		res.spans = append(res.spans, s)
	})); err != nil {
		t.Fatal(err)
	}
	res.traffic.counted = map[collective.Op][2]int64{}
	for op, n := range traffic(ranks) {
		n[0], n[1] = n[0]-extra[op][0]+before[op][0], n[1]-extra[op][1]+before[op][1]
		if n != [2]int64{} {
			res.traffic.counted[op] = n
		}
	}
	if !model.Partial() {
		res.weights = gpustage.Bytes(read64(t, stream, model.Params))
		return res
	}
	var values []float64
	if err := ranks.Parameters(stream, model, func(transformer.Param) bool { return true }, func(_ transformer.Param, vs []float32) error {
		for _, v := range vs {
			values = append(values, float64(v))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	res.weights = gpustage.Bytes(values)
	return res
}

func read64(t testing.TB, s gpustage.Stream, x gpustage.Tensor) []float64 {
	t.Helper()
	wide, err := gpustage.NewTensor(s.Device(), gpustage.F64, x.Rows, x.Cols)
	if err != nil {
		t.Fatal(err)
	}
	s.Copy(wide, x)
	out := make([]float64, x.Len())
	s.CopyOut(gpustage.Bytes(out), wide)
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	return out
}

// goldenTexts writes the golden steps' texts as JSON lines, in the order of the steps.
func goldenTexts(t testing.TB) string {
	t.Helper()
	var meta struct{ Steps [][][3]string }
	goldens.Load(t, "steps/texts").Meta(t, &meta)
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	n := 0
	for _, step := range meta.Steps {
		for _, row := range step {
			// 0 to 3 negatives, a label, scores of all documents, a teacher's embedding.
			line := map[string]any{"query": row[0], "positive": row[1], "negative": row[2], "label": float64(n%3) - 0.5, "binary": n * 7 % 5 % 2}
			list, scores := []string{}, []float64{float64(n%7) / 4}
			for k := range (n + n/4) % 4 {
				list, scores = append(list, step[(n+k+1)%len(step)][2-k%2]), append(scores, -float64((n+k)%5)/8)
			}
			line["weight"] = float64(n%5) / 2 // of the first 13 rows, ranks' sums differ
			line["list"], line["scores"], line["teacher"] = list, scores, []float64{1, float64(n) / 8, -float64(n%5) / 4}
			line["both"] = slices.Concat(scores[:1], []float64{0.25}, scores[1:])
			enc.Encode(line)
			n++
		}
	}
	path := filepath.Join(t.TempDir(), "texts.jsonl")
	if err := os.WriteFile(path, buf.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Ten training steps against sentence-transformers, through the whole graph.
func TestGoldenSteps(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		name      string
		negatives bool
		loss      loss.InfoNCE
		size      stages.Size
		budget    int64
	}{
		{"mnrl", false, loss.InfoNCE{}, stages.Size{}, -1},
		{"mnrl_symmetric", false, loss.InfoNCE{Directions: []loss.Direction{loss.QueryToDoc, loss.DocToQuery}, PerDirection: true}, stages.Size{Rows: 10}, -1},
		{"mnrl_hard_negatives", true, loss.InfoNCE{TileRows: 5, TileCols: 7}, stages.Size{Tokens: 200}, -1},
		{"mnrl_all_directions", true, loss.InfoNCE{Directions: []loss.Direction{loss.QueryToDoc, loss.QueryToQuery, loss.DocToQuery, loss.DocToDoc}}, stages.Size{}, -1},
		{"cached_mnrl", true, loss.InfoNCE{}, stages.Size{Rows: 5}, 0},
	} {
		for _, dtype := range []gpustage.DType{gpustage.F64, gpustage.F32} {
			t.Run(fmt.Sprint(v.name, "/", dtype), func(t *testing.T) {
				g := goldens.Load(t, "steps/"+v.name)
				var device gpustage.Device
				if dtype == gpustage.F64 {
					harness.Thorough(t)
					device = ref.New()
				}
				got := goldenRun{device: device, dtype: dtype, negatives: v.negatives, loss: v.loss, size: v.size, budget: v.budget}.run(t)
				// The peer's own f32 is within 5e-7 of its f64 losses and within 1.1e-6 of its norms.
				limit := 1e-5
				if dtype == gpustage.F64 {
					limit = 1e-9
				}
				for i, want := range g.F64(t, "loss_f64") {
					s := got.steps[i]
					if e := math.Abs(s.Loss-want) / want; !(e <= limit) {
						t.Errorf("step %d: loss %v, want %v (relative error %.3g)", i, s.Loss, want, e)
					}
					if norm := g.F64(t, "grad_norm_f64")[i]; !(math.Abs(s.GradNorm-norm) <= 3*limit*norm) {
						t.Errorf("step %d: gradient norm %v, want %v", i, s.GradNorm, norm)
					}
					if lr := g.F64(t, "lr_f64")[i]; !(math.Abs(s.LR-lr) <= 1e-15) {
						t.Errorf("step %d: learning rate %v, want %v", i, s.LR, lr)
					}
				}
				if len(got.steps) != 10 {
					t.Errorf("%d steps", len(got.steps))
				}
				if v.name != "mnrl" {
					return
				}
				// Losses hardly see the optimizer; the final weights do.
				first := goldens.Load(t, "bert/minilm-tiny/model")
				for _, p := range got.model.Layout.Params {
					want, was := g.F64(t, "final/"+p.Name), first.F64(t, p.Name)
					vs := read64(t, got.stream, got.model.Layout.View(got.model.Params, p))
					moved, off := 0.0, 0.0
					for i := range want {
						moved += (want[i] - was[i]) * (want[i] - was[i])
						off += (vs[i] - want[i]) * (vs[i] - want[i])
					}
					if keyBias(p.Name) { // Adam turned the peer's rounding noise into steps; ours has none
						if !(off <= moved*1.0001) {
							t.Errorf("%s moved away from the peer's", p.Name)
						}
						continue
					}
					if e := math.Sqrt(off / moved); !(e <= 5e-4) {
						t.Errorf("%s: %.3g of its movement off", p.Name, e)
					}
				}
			})
		}
	}
}

func keyBias(name string) bool { return len(name) > 8 && name[len(name)-8:] == "key.bias" }
