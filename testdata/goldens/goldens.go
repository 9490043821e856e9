// Package goldens gives tests the truths kept under testdata/golden: arrays that torch, transformers and
// sentence-transformers computed, most of them in float64. It is for tests only.
//
// A golden "topic/name" is the file testdata/golden/topic/name.safetensors with arrays by name, and name.json with the
// rest: made_by (the script beside it that made it), versions, seed, about, and what is said below. The weights of a model
// folder load in the same way ("bert/minilm-tiny/model") and have no JSON.
//
//	g := goldens.Load(t, "loss/mnrl")
//	var meta struct{ Cases []struct{ Name, X string; Scale, Loss float64 } }
//	g.Meta(t, &meta)
//	x := g.F64(t, meta.Cases[0].X)       // row-major
//	shape := g.Shape(t, meta.Cases[0].X) // [2+N B E]
//
// All inputs are exact in float32. Letters: T packed tokens, B rows, C hidden size, H heads, E embedding size, V
// vocabulary, L layers, N columns of negatives. Rows of unequal lengths are packed back to back, with "lengths" saying how
// many tokens each has. Where nothing else is said, arrays are float64; F64 and F32 read both kinds of floats.
//
// # ops
//
// Each has meta.cases[].name, and arrays NAME/... unless said otherwise.
//
//   - ops/layer_norm: x, dy, y, dx [T, C]; gamma, beta, dgamma, dbeta [C]; mean, rstd [T]; cases: T, C, eps.
//     "constant_row" and "one_feature" have rows of variance 0 (rstd = eps^-1/2; dx and dgamma of "one_feature" are 0 but for
//     rounding); "large_mean" has a mean of 1000, where float32 itself is off by about 1e-4.
//   - ops/activations: x, dy [63] shared; gelu, gelu_tanh, relu, silu, tanh: NAME/y, NAME/dx [63].
//   - ops/attention: q, ctx, dctx, dq [T, heads*head_dim]; k, v, dk, dv [T, kv_heads*head_dim]; lse [heads, T], the
//     log-sum-exp of the scaled scores; cases: lengths, heads, kv_heads, head_dim, scale, causal, window. Query head h reads
//     key-value head h / (heads/kv_heads). Query i sees key j when (not causal or j <= i) and (window is 0 or
//     |i-j| <= window). The scores of "large_scores" are about 144: float32 itself is off by about 3e-6 there.
//   - ops/rows: normalize and normalize_floor (|x| < 1e-12: dx = dy * 1e12): x, dy, y, dx [B, E], norm [B];
//     pool/x [T, 7] and pool/dy [B, 7] shared, pool_mean, pool_cls, pool_last: y [B, 7], dx [T, 7]; cases: lengths.
//   - ops/embedding (no NAME/): ids, positions, types int64 [T]; words [V, C], places [P, C], kinds [2, C];
//     dy, y [T, C]; dwords, dplaces, dkinds.
//   - ops/adamw: p0 [13], g [5, 13], p, m, v [5, 13] after each step; cases: lr (one per step), beta1, beta2, eps, weight_decay.
//     Column 0's gradient is always 0, column 1's is about 1e-9 (eps decides there), column 2's about 1e4.
//   - ops/sgd: the same without m, v being the momentum buffer, absent without momentum; cases: lr, momentum, weight_decay.
//   - ops/clip: g0 [3, 5], g1 [7], g2 [1, 2] shared, NAME/g0 .. g2 what is left of factor * g; cases: max_norm, factor, norm
//     (before), coefficient. As torch does it: coefficient = min(1, max_norm / (norm + 1e-6)).
//   - ops/schedules: NAME [21], the learning-rate multiplier of the step that follows 0, 1, .. 20 completed ones; cases:
//     schedule (linear, cosine, constant), warmup (0, 5, 20), total (20).
//
// # bert
//
// bert/minilm-tiny, bert/gelu-new, bert/relu-one-head and bert/odd-sizes are model folders (testdata/golden/bert/NAME/,
// weights: Load "bert/NAME/model", float32, the names of transformers' BertModel) with a golden of the same name beside them. The
// folders: minilm-tiny and odd-sizes as sentence-transformers 6 writes them (minilm-tiny with an unused pooler, a Normalize
// module and prompts; odd-sizes pools the last token), relu-one-head as versions 2 to 5 did (vocab.txt, no tokenizer.json,
// type_vocab_size 1), gelu-new as transformers does (nothing on pooling, which means mean).
//
//   - ids int64 [T], lengths int64 [B], B = 7 rows of 1 to 40 tokens; token types are 0, dropout is 0.
//   - hidden [T, C]: the last hidden state; hidden_0 .. hidden_{L-1} float32 [T, C]: what enters each layer (hidden_0 is the
//     output of the embeddings' LayerNorm).
//   - OUTPUT/embedding [B, C] for each of meta.outputs: mean, cls, last, and each with _normalized.
//   - OUTPUT/grad/PARAMETER: the gradient of sum(embedding * r), r [B, C], with the parameter's shape: float64 for
//     meta.outputs[0], float32 for the others. The pooler has none.
//   - encode/ids int64, encode/lengths int64 [8], encode/embedding [8, C]: SentenceTransformer(folder).encode(meta.texts)
//     in float64, texts cut to meta.max_seq_length tokens; encode_query/...: the same with prompt_name="query" (minilm-tiny).
//   - meta: hidden_act, layers, heads, layer_norm_eps, pooling (mean, cls, lasttoken), normalize, prompts: of the folder.
//
// The gradient of attention.self.key.bias is analytically 0 (softmax does not see a constant): here it is about 1e-16, and
// in float32 it is noise of about 1e-8 of the model's largest gradient entry, from torch as well. Everywhere else torch's float32
// gradients are within 2e-6 of these, measured as max |difference| / max |value| of the tensor.
//
// # families
//
// families/NAME is a model folder of each family but BERT (config.json and weights, bfloat16 or float16, names as transformers
// saves them), with a golden of the same name beside it. Inputs as in bert, without dropout.
//
//   - ids, lengths, r; hidden [T, C], after a final norm if there is one; embedding [B, C]: pooled as meta.pooling says and normalized.
//   - grad/PARAMETER float32, in the shapes of the file; signs/PARAMETER float64 [3]: the sums of the same gradient in float64 with
//     element i times 1 or -1, the parity of the bits of (i + 1 + 7919*k) * 2654435761 mod 2^32 for k = 0, 1, 2.
//   - VARIANT/hidden float32, VARIANT/embedding, VARIANT/signs/PARAMETER: the same weights under the configuration meta.variants[VARIANT].
//   - roberta: padded/ids, lengths, hidden: a text with padding tokens in it, none of them masked. mpnet: buckets int64 [601], of
//     distances (key - query) from -300 to 300. t5: buckets/N/REACH int64 [801], of N buckets for distances from -400 to 400.
//     deberta-v2: rows/B/M int64 [1201], make_log_bucket_position of distances (query - key) from -600 to 600,
//     for position_buckets B and max_relative_positions M.
//   - families/rope: NAME and NAME/long (longrope) [R/2]: frequencies of rotary positions; cases: name, dim, factor, config.
//
// # lora
//
// lora/NAME is an adapter as PEFT saves it (adapter_config.json, adapter_model.safetensors in float32) for the model folder meta.base, with
// a golden of the same name beside it: ids, lengths, r; embedding [B, C], pooled as meta.pooling says and normalized; base/embedding
// without the adapter; grad/PARAMETER of sum(embedding * r) for everything that trains, PARAMETER without PEFT's prefixes.
// lora/qwen3-tiny is a model folder with the vocabulary of bert/minilm-tiny.
//
//   - lora/steps: the first gradient of contrastive training (scale 20, queries, positives and negatives of steps/texts in order, 8 rows per
//     batch), of RUN (bert-full, bert-qv, qwen3-qo, qwen3-last-o) over N = 1 or 3 batches: RUN/N/loss, RUN/N/grad/PARAMETER
//     float32; RUN/start/PARAMETER: the values that an adapter begins with.
//
// # loss
//
// Embeddings are [2+N, B, E]: queries, positives, then the columns of negatives; gradients have that shape too. Candidate
// documents are numbered column*B + row, positives first. directions is a list of query_to_doc, query_to_query,
// doc_to_query, doc_to_doc; partition_mode is joint or per_direction.
//
//   - loss/mnrl, by sentence-transformers' MultipleNegativesRankingLoss: array NAME is the gradient with respect to array x,
//     "KEY/unit" (unit length up to float32's rounding) or "KEY/raw"; cases: name, x, B, E, negatives, similarity, scale,
//     directions, partition_mode, loss. With similarity "dot" the gradient is with respect to the vectors as they are, with
//     "cos" it goes through their normalization.
//   - loss/masked: sum w_i l_i / sum w_i over scale * dot products. Arrays of each data KEY: KEY/x; KEY/weights [B];
//     KEY/text_ids int64 [2+N, B], equal where texts are equal; KEY/excluded_qd int32 [B, (1+N)*B], _qq [B, B], _dq [B, B], _dd
//     [B, (1+N)*B], 1 where masking leaves a candidate out of row i's softmax. Array NAME is the gradient, NAME/rows [B] are
//     the l_i. cases: name, data (KEY), B, E, negatives, scale, directions, partition_mode, weighted (else w = 1), masked
//     (else only query i itself in query_to_query and row i's own documents in doc_to_doc are left out), loss.
//
// What masking leaves out of row i (q, p: its texts; never its own positive pair): of documents, those whose text is p or q,
// and positives of rows whose query is q; of queries, those that are q or p, or whose positive is p.
//
// Rows that are nearly solved have tiny gradients, which float32 has only to the precision of the scores: measured as
// max |difference| / (scale / B), torch's own float32 is within 1e-5 of every gradient of loss/mnrl, and within 2e-6 for unit
// vectors and B >= 7; its losses are within 2e-6 of max(1, loss).
//
// # steps
//
// Ten training steps of bert/minilm-tiny by sentence-transformers, batches of 16.
//
//   - steps/texts: meta.steps [10][16][3] texts (query, positive, negative); ids int32, lengths int32 [10, 3, 16]: the
//     tokens of each step's queries, then positives, then negatives. No text occurs twice.
//   - steps/mnrl, mnrl_symmetric (columns 0 and 1), mnrl_hard_negatives, mnrl_all_directions, cached_mnrl (all three
//     columns): loss_f64, loss_f32, grad_norm_f64, grad_norm_f32 (before clipping), lr_f64, all [10];
//     grad/PARAMETER float32: the gradient of the first step, before clipping, computed in float64 (not in cached_mnrl: it is
//     mnrl_hard_negatives'). In mnrl also final/PARAMETER and final_f32/PARAMETER, float32: the weights after the tenth step
//     of the float64 and the float32 run. meta: columns, options (directions, partition_mode, mini_batch_size), scale,
//     optimizer (everything), decayed (the parameters with weight decay).
//
// The float32 runs agree with the float64 ones to 5e-7 (losses) and 1e-6 (norms). Final weights agree to 5e-5 of each tensor's
// movement, |difference| / |final - initial|, key biases excepted: Adam turns their noise into steps. A missing or misplaced
// weight decay shows there only (1e-2 to 2e-2), as does an eps of 1e-7 (1e-3); it moves the losses by 5e-6.
package goldens

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"testing"
)

// Golden is one golden in memory. It does not change, so that parallel tests may share it.
type Golden struct {
	name   string
	meta   []byte // absent for the weights of a model folder
	arrays map[string]array
}

type array struct {
	DType   string `json:"dtype"`
	Shape   []int  `json:"shape"`
	Offsets [2]int `json:"data_offsets"`
	raw     []byte
}

// Load reads the golden "topic/name".
func Load(t testing.TB, name string) *Golden {
	t.Helper()
	path := Path(t, name)
	data, err := os.ReadFile(path + ".safetensors")
	if err != nil {
		t.Fatalf("golden %s: %v", name, err)
	}
	arrays, err := parse(data)
	if err != nil {
		t.Fatalf("golden %s: %s.safetensors: %v", name, path, err)
	}
	meta, err := os.ReadFile(path + ".json")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("golden %s: %v", name, err)
	}
	return &Golden{name: name, meta: meta, arrays: arrays}
}

// Path is the path of a file or folder under testdata/golden: Path(t, "bert/minilm-tiny") is a model folder.
func Path(t testing.TB, name string) string {
	t.Helper()
	if _, source, _, ok := runtime.Caller(0); ok {
		dir := filepath.Join(filepath.Dir(filepath.Dir(source)), "golden")
		if _, err := os.Stat(dir); err == nil {
			return filepath.Join(dir, filepath.FromSlash(name))
		}
	}
	// Built with -trimpath. Tests run in their package's folder, which lies somewhere beside testdata.
	start, err := os.Getwd()
	if err != nil {
		t.Fatalf("golden %s: %v", name, err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		golden := filepath.Join(dir, "testdata", "golden")
		if _, err := os.Stat(golden); err == nil {
			return filepath.Join(golden, filepath.FromSlash(name))
		}
		if dir == filepath.Dir(dir) {
			t.Fatalf("golden %s: no testdata/golden above %s", name, start)
		}
	}
}

// Meta decodes the golden's JSON into v.
func (g *Golden) Meta(t testing.TB, v any) {
	t.Helper()
	if g.meta == nil {
		t.Fatalf("golden %s has no JSON", g.name)
	}
	if err := json.Unmarshal(g.meta, v); err != nil {
		t.Fatalf("golden %s.json: %v", g.name, err)
	}
}

// Has says whether there is an array of that name.
func (g *Golden) Has(name string) bool { _, ok := g.arrays[name]; return ok }

// Names lists the arrays whose names begin with prefix, sorted.
func (g *Golden) Names(prefix string) []string {
	var names []string
	for name := range g.arrays {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	return names
}

// Shape is an array's shape.
func (g *Golden) Shape(t testing.TB, name string) []int {
	t.Helper()
	return append([]int(nil), g.array(t, name, "F64", "F32", "F16", "BF16", "I64", "I32").Shape...)
}

// F64 gives an array of floats, row-major. What is stored in a smaller type is widened.
func (g *Golden) F64(t testing.TB, name string) []float64 {
	t.Helper()
	a := g.array(t, name, "F64", "F32", "F16", "BF16")
	switch a.DType {
	case "F32":
		return decode(a.raw, 4, func(b []byte) float64 { return float64(math.Float32frombits(binary.LittleEndian.Uint32(b))) })
	case "BF16":
		return decode(a.raw, 2, func(b []byte) float64 {
			return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16))
		})
	case "F16":
		return decode(a.raw, 2, func(b []byte) float64 { return half(binary.LittleEndian.Uint16(b)) })
	}
	return decode(a.raw, 8, func(b []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b)) })
}

// F32 gives an array of floats, row-major. What is stored as float64 is rounded; for inputs that changes nothing.
func (g *Golden) F32(t testing.TB, name string) []float32 {
	t.Helper()
	wide := g.F64(t, name)
	out := make([]float32, len(wide))
	for i, v := range wide {
		out[i] = float32(v)
	}
	return out
}

// Ints gives an array of int32 or int64.
func (g *Golden) Ints(t testing.TB, name string) []int {
	t.Helper()
	a := g.array(t, name, "I64", "I32")
	if a.DType == "I32" {
		return decode(a.raw, 4, func(b []byte) int { return int(int32(binary.LittleEndian.Uint32(b))) })
	}
	return decode(a.raw, 8, func(b []byte) int { return int(int64(binary.LittleEndian.Uint64(b))) })
}

func (g *Golden) array(t testing.TB, name string, dtypes ...string) array {
	t.Helper()
	a, ok := g.arrays[name]
	if !ok {
		t.Fatalf("golden %s has no array %q", g.name, name)
	}
	for _, d := range dtypes {
		if a.DType == d {
			return a
		}
	}
	t.Fatalf("golden %s: %q is %s, asked for as %s", g.name, name, a.DType, strings.Join(dtypes, " or "))
	return a
}

// half widens IEEE 754's binary16.
func half(bits uint16) float64 {
	sign, exponent, fraction := 1-2*float64(bits>>15), int(bits>>10&31), float64(bits&1023)
	if exponent == 0 {
		return sign * math.Ldexp(fraction, -24)
	}
	return sign * math.Ldexp(1024+fraction, exponent-25)
}

func decode[T any](raw []byte, size int, one func([]byte) T) []T {
	out := make([]T, len(raw)/size)
	for i := range out {
		out[i] = one(raw[i*size:])
	}
	return out
}

// parse reads the safetensors format: eight bytes of header length, a JSON header, then the arrays' bytes.
func parse(data []byte) (map[string]array, error) {
	if len(data) < 8 {
		return nil, fmt.Errorf("%d bytes are no safetensors file", len(data))
	}
	size := binary.LittleEndian.Uint64(data)
	if size > uint64(len(data)-8) {
		return nil, fmt.Errorf("a header of %d bytes in a file of %d", size, len(data))
	}
	header, body := data[8:8+size], data[8+size:]
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(header, &fields); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	delete(fields, "__metadata__")
	sizes := map[string]int{"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2}
	arrays := make(map[string]array, len(fields))
	for name, field := range fields {
		var a array
		if err := json.Unmarshal(field, &a); err != nil {
			return nil, fmt.Errorf("array %q: %w", name, err)
		}
		want, from, to := sizes[a.DType], a.Offsets[0], a.Offsets[1]
		for _, n := range a.Shape {
			want *= n
		}
		if from < 0 || to < from || to > len(body) || to-from != want || sizes[a.DType] == 0 {
			return nil, fmt.Errorf("array %q: %s %v at bytes %d to %d of %d", name, a.DType, a.Shape, from, to, len(body))
		}
		a.raw = body[from:to]
		arrays[name] = a
	}
	return arrays, nil
}
