// Package mix makes one model of several that have the same architecture: a mean of their parameters.
//
//	err := mix.Write(ctx, "mixed", []mix.Model{{Path: "runs/x/model", Weight: 0.5}, {Path: "BAAI-bge-small-en-v1.5", Weight: 0.5}}, mix.Options{})
//
// Fine-tuning makes a model better at what it is tuned for and worse at what it could before. The mean of the tuned model and the one that it began with
// keeps much of both (LM-Cocktail, arXiv 2311.13534; WiSE-FT, arXiv 2109.01903), and that of several runs, or of a run's checkpoints, is often better than each of
// them (model soups, arXiv 2203.05482). Of each parameter p of models i with weights w
//
//	[Linear]  p = sum_i w_i p_i
//	[SLERP]   p = sin((1-t)θ)/sin(θ) p_0 + sin(tθ)/sin(θ) p_1,  t = w_1,  cos(θ) = p_0·p_1 / (|p_0| |p_1|)
//
// where a tensor counts as one vector, as in FlagEmbedding's LM_Cocktail (mix_models) and mergekit (linear, slerp). SLERP, spherical linear interpolation, keeps the
// length between the two that a mean shortens.
//
// Sums are made in double precision and rounded to float32, and from there to bf16 or f16 where that is written. Tensors go from file to file piece by piece: that the models
// are large needs no memory.
package mix

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/io/spelling"
	"contraflow/stages/embedder"
)

// Model is one of those that are mixed.
type Model struct {
	// Path is a model's folder, or that of a run's checkpoint (runs/x/checkpoints/step-00000500), which has the parameters alone: the rest is then that of
	// the run's model, runs/x/model.
	Path   string
	Name   string // what errors and the model card call it, such as its id on the hub; "": Path
	Weight float64
}

func (m Model) name() string {
	if m.Name != "" {
		return m.Name
	}
	return m.Path
}

// Method is how parameters become one.
type Method string

const (
	Linear Method = "linear" // the mean, of any number of models
	SLERP  Method = "slerp"  // spherical linear interpolation, of two
)

// Options of Write. The zero value is a linear mean, written as the first model's tensors are.
type Options struct {
	Method    Method                  // "": Linear
	Precision string                  // of what is written: one of [embedder.Precisions]; "": of each tensor that which it has in the first model
	Weighed   string                  // how the weights were found, a sentence of Markdown for the model card; "": they were given
	Progress  func(done, total int64) // is told how many elements are written; nil: nobody is
	Note      func(message string)    // is told what else the user should know: that the models have different prompts, or parts that the mixed one does not get; nil: nobody is
}

// tolerance is how far the sum of weights may be from 1: LM-Cocktail's. Three of 0.333 are meant as thirds.
const tolerance = 1e-3

// Check finds what is wrong with models and options before any file is opened.
func Check(models []Model, o Options) error {
	if len(models) < 2 {
		return fmt.Errorf("%d models, want at least 2 to mix", len(models))
	}
	if _, ok := embedder.Precisions[o.Precision]; !ok {
		return embedder.Round(nil, o.Precision)
	}
	sum := 0.0
	for _, m := range models {
		if m.Weight-m.Weight != 0 {
			return fmt.Errorf("the weight of %s is %v, want a finite number", m.name(), m.Weight)
		}
		sum += m.Weight
	}
	if math.Abs(sum-1) > tolerance*(1+1e-9) {
		return fmt.Errorf("the weights sum to %.6g, want 1%s", sum, scaled(models, sum))
	}
	switch o.Method {
	case "", Linear:
	case SLERP:
		if len(models) != 2 {
			return fmt.Errorf("slerp is of 2 models, and there are %d; linear takes any number", len(models))
		}
		for _, m := range models {
			if m.Weight < 0 {
				return fmt.Errorf("slerp goes from one model to the other: the weight of %s is %v, want 0 to 1", m.name(), m.Weight)
			}
		}
	default:
		return fmt.Errorf("method %q is not linear or slerp", o.Method)
	}
	return nil
}

// scaled are weights that sum to 1 in the ratio of those that don't.
func scaled(models []Model, sum float64) string {
	if sum <= 0 {
		return ""
	}
	var list []string
	for _, m := range models {
		list = append(list, fmt.Sprintf("%.4g", m.Weight/sum))
	}
	return fmt.Sprintf("; in the same ratio they are %s", strings.Join(list, ","))
}

// Write mixes models and writes the folder of the mixed one, as a whole or not at all. A model in dir is replaced, unless it is one of those that are mixed.
//
// Weights sum to 1, within 0.001: they are then divided by their sum. Of [Linear] one may be negative, which takes a model away from the others. A model of weight 0 is
// checked and adds nothing: with a weight of 1 for a model the numbers are that model's, bit for bit if they are written in the type that it has.
//
// The models must be of one architecture, with the same shapes, modules, heads, pooling and tokenizer; an error names what differs. One that says nothing of
// pooling or scores, as base models do, is read as what the first is: with its pooling, or if it is a language model as a reranker by the same tokens'
// logits, or a sparse encoder. A LoRA adapter is an error: it is merged first. The files beside the weights are the first model's. Tensors that no embedding or score depends on
// (a pooler's, another task's head) are mixed where all models have them in one shape, and otherwise left out, with a note; whole numbers are the first model's.
// A number that is not finite, in a model or because the precision can't hold it, is an error that names the tensor.
func Write(ctx context.Context, dir string, models []Model, o Options) (err error) {
	if err := Check(models, o); err != nil {
		return err
	}
	if o.Note == nil {
		o.Note = func(string) {}
	}
	if o.Progress == nil {
		o.Progress = func(int64, int64) {}
	}
	j, err := prepare(ctx, dir, models, o)
	defer func() { err = errors.Join(err, closeAll(j.sources)) }()
	if err != nil {
		return err
	}
	sum := 0.0
	for _, m := range models {
		sum += m.Weight
	}
	var parts []hfmodel.MixedPart
	for _, m := range models {
		j.weights = append(j.weights, m.Weight/sum)
		parts = append(parts, hfmodel.MixedPart{Name: m.name(), Weight: m.Weight / sum})
	}
	how := "The parameters of this model are the weighted mean of those of these models:"
	if o.Method == SLERP {
		how = "The parameters of this model are interpolated spherically (SLERP, tensor by tensor) between those of these two:"
	}
	if o.Weighed != "" {
		how = strings.TrimSuffix(how, ":") + ". " + o.Weighed
	}
	folder := j.sources[0].folder
	return folder.Rewrite(dir, j.tensors, folder.MixedCard(dir, how, parts), j.write)
}

// Compare tells why Write would refuse models, options or a folder to write, as far as that shows before the models' numbers are read. Weights may be equal ones where the
// right ones are yet to be found.
func Compare(dir string, models []Model, o Options) error {
	if err := Check(models, o); err != nil {
		return err
	}
	o.Note = func(string) {}
	j, err := prepare(context.Background(), dir, models, o)
	return errors.Join(err, closeAll(j.sources))
}

// prepare opens models and finds what is written of them. What is open is to be closed after an error too.
func prepare(ctx context.Context, dir string, models []Model, o Options) (j job, err error) {
	j = job{ctx: ctx, method: o.Method, progress: o.Progress}
	if err := hfmodel.Replaceable(dir); err != nil {
		return j, err
	}
	if j.sources, err = openAll(models, o.Note); err != nil {
		return j, err
	}
	for _, s := range j.sources {
		for _, used := range s.folders() {
			if same, err := embedder.Overlap(dir, used); err != nil {
				return j, err
			} else if same {
				return j, fmt.Errorf("%s would replace %s, which is being mixed: choose another folder", dir, used)
			}
		}
	}
	return j, j.plan(o)
}

// openAll opens models that can be mixed. What is open is to be closed after an error too.
func openAll(models []Model, note func(string)) (sources []*source, err error) {
	for i, m := range models {
		var first *source
		if i > 0 {
			first = sources[0]
		}
		s, err := open(m, first)
		if err != nil {
			return sources, err
		}
		sources = append(sources, s)
	}
	for i, s := range sources {
		if i == 0 {
			continue
		}
		if err := sources[0].fits(s, note); err != nil {
			return sources, err
		}
	}
	return sources, nil
}

func closeAll(sources []*source) error {
	var errs []error
	for _, s := range sources {
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}

// job is what is written.
type job struct {
	ctx         context.Context
	method      Method
	sources     []*source
	weights     []float64
	tensors     []safetensors.Tensor // of the mixed model, without data
	done, total int64
	since       int // elements that were read since the files' memory was given back
	progress    func(done, total int64)
}

// plan lists the mixed model's tensors, with the type that each is written in.
func (j *job) plan(o Options) error {
	first := j.sources[0]
	for _, t := range first.stored {
		out := safetensors.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape}
		if whole(t.DType) {
			j.tensors = append(j.tensors, out)
			continue
		}
		lacks, how := (*source)(nil), ""
		for _, s := range j.sources {
			v, err := s.find(first, t.Name)
			switch other := err == nil && !slices.Equal(v.tensor.Shape, t.Shape); {
			case errors.Is(err, safetensors.ErrNoTensor) && first.needed[t.Name] == "":
				lacks, how = s, fmt.Sprintf("is not in %s", s.name)
			case err != nil:
				return err
			case other && first.needed[t.Name] == "":
				lacks, how = s, fmt.Sprintf("has shape %v in %s and %v in %s", t.Shape, first.name, v.tensor.Shape, s.name)
			case other:
				return fmt.Errorf("tensor %q has shape %v in %s and %v in %s: models of one architecture and vocabulary can be mixed", t.Name, t.Shape, first.name, v.tensor.Shape, s.name)
			default: // a type that is not read is to be found before anything is computed
				if err := v.read(0, make([]float32, min(1, v.tensor.Len()))); err != nil {
					return fmt.Errorf("%s: %w", s.name, err)
				}
			}
		}
		if lacks != nil && first.models(t.Name) {
			return fmt.Errorf("%s %s, and config.json of %s says that it is a %s, which has it: give %s first", t.Name, how, first.name, first.folder.Architecture(), lacks.name)
		}
		if lacks != nil {
			o.Note(fmt.Sprintf("%s %s: it is left out, as nothing here depends on it", t.Name, how))
			continue
		}
		if o.Precision != "" {
			out.DType = embedder.Precisions[o.Precision]
		}
		if !slices.Contains(written, out.DType) {
			return fmt.Errorf("tensor %q has the type %s in %s, in which no model is written: give a precision, f32, bf16 or f16", t.Name, t.DType, first.name)
		}
		j.tensors = append(j.tensors, out)
	}
	for _, t := range j.tensors {
		j.total += int64(t.Len())
	}
	for _, s := range j.sources[1:] {
		if rest := s.rest(first); len(rest) > 0 {
			note := fmt.Sprintf("%s of %s is not in %s", rest[0], s.name, first.name)
			if more := len(rest) - 1; more > 0 {
				note += fmt.Sprintf(", nor %s %s of its tensors", spelling.Form(more, "is", "are"), spelling.Count(more, "other", "others"))
			}
			o.Note(note + ": left out, as nothing here depends on that")
		}
	}
	return nil
}

// written are the types of floats that models are written in.
var written = []safetensors.DType{safetensors.F32, safetensors.BF16, safetensors.F16}

// whole tells that a type is no float's: positions that a model counts, say.
func whole(d safetensors.DType) bool {
	switch d {
	case safetensors.Bool, safetensors.U8, safetensors.I8, safetensors.U16, safetensors.I16, safetensors.U32, safetensors.I32, safetensors.U64, safetensors.I64:
		return true
	}
	return false
}

// chunk is how many elements are in memory at once, of each model. Its parts are a few MB: about what a processor's last cache holds. Tests change it.
var chunk = 1 << 18

// mapped is how many elements of files may stay in memory once they are read.
const mapped = 1 << 22

// write gives a tensor's bytes.
func (j *job) write(w io.Writer, t safetensors.Tensor) error {
	var vs []values
	for i, s := range j.sources {
		if i > 0 && whole(t.DType) {
			break
		}
		v, err := s.find(j.sources[0], t.Name)
		if err != nil {
			return err
		}
		vs = append(vs, v)
	}
	if whole(t.DType) {
		j.count(t.Len())
		_, err := w.Write(vs[0].tensor.Data)
		return err
	}
	factors, err := j.factors(vs)
	if err != nil {
		return err
	}
	n := t.Len()
	sum, v := make([]float64, min(n, chunk)), make([]float32, min(n, chunk))
	for at := 0; at < n; at += chunk {
		sum, v := sum[:min(chunk, n-at)], v[:min(chunk, n-at)]
		begun := false
		for i, f := range factors {
			if f == 0 {
				continue // -0 stays -0
			}
			if err := j.read(vs[i], at, v); err != nil {
				return err
			}
			for k, x := range v {
				if y := f * float64(x); begun {
					sum[k] += float64(y) // rounded: fused, it would be another number on some machines
				} else {
					sum[k] = y
				}
			}
			begun = true
		}
		for k, y := range sum {
			if v[k] = float32(y); v[k]-v[k] != 0 {
				return fmt.Errorf("tensor %q: element %d becomes %g, more than float32 holds", t.Name, at+k, y)
			}
		}
		out, err := safetensors.FromFloat32s(t.Name, []int{len(v)}, v)
		if err == nil {
			out, err = out.As(t.DType)
		}
		if err != nil {
			return fmt.Errorf("from element %d on: %w; bf16 and f32 have a wider range", at, err)
		}
		if _, err := w.Write(out.Data); err != nil {
			return err
		}
		j.count(len(v))
	}
	return nil
}

func (j *job) count(n int) {
	j.done += int64(n)
	j.progress(j.done, j.total)
}

// read reads elements of a parameter of one model, all finite.
func (j *job) read(v values, at int, dst []float32) error {
	if err := context.Cause(j.ctx); err != nil {
		return err
	}
	if err := v.read(at, dst); err != nil {
		return err
	}
	if j.since += len(dst); j.since >= mapped {
		j.since = 0
		for _, s := range j.sources {
			s.folder.Forget()
		}
	}
	for k, x := range dst {
		if x-x != 0 {
			return fmt.Errorf("%s: tensor %q: element %d is %v", v.of, v.name, at+k, x)
		}
	}
	return nil
}

const (
	parallel = 0.9995 // mergekit's: from this cosine on, of either sign, SLERP is the mean
	tiny     = 1e-8   // mergekit's: a vector of no greater length has no direction
)

// factors are what a tensor's values in each model are multiplied with. Of vectors without a direction, and of nearly parallel ones, where sin(θ) is no
// divisor, SLERP is the mean. mergekit does that of parallel ones, and gives the vector that is not 0 beside one that is 0 a right angle to it,
// by which halfway 0.71 of it is left.
func (j *job) factors(vs []values) ([]float64, error) {
	if j.method != SLERP {
		return j.weights, nil
	}
	n := vs[0].tensor.Len()
	a, b := make([]float32, min(n, chunk)), make([]float32, min(n, chunk))
	var aa, bb, ab float64
	for at := 0; at < n; at += chunk {
		a, b := a[:min(chunk, n-at)], b[:min(chunk, n-at)]
		if err := errors.Join(j.read(vs[0], at, a), j.read(vs[1], at, b)); err != nil {
			return nil, err
		}
		for k := range a {
			x, y := float64(a[k]), float64(b[k])
			aa += float64(x * x)
			bb += float64(y * y)
			ab += float64(x * y)
		}
	}
	return slerp(math.Sqrt(aa), math.Sqrt(bb), ab, j.weights), nil
}

// slerp is the factors of two vectors of lengths a and b with the product dot.
func slerp(a, b, dot float64, weights []float64) []float64 {
	if a <= tiny || b <= tiny {
		return weights
	}
	cos := dot / a / b
	if math.Abs(cos) > parallel {
		return weights
	}
	angle := math.Acos(cos)
	return []float64{math.Sin(weights[0]*angle) / math.Sin(angle), math.Sin(weights[1]*angle) / math.Sin(angle)}
}

// values are a tensor of one model.
type values struct {
	of, name string
	tensor   safetensors.Tensor                     // of the folder
	bytes    func(from int, dst []byte) (err error) // of a checkpoint, in the place of the tensor's: float32s in little-endian order; nil of a folder
}

func (v values) read(at int, dst []float32) error {
	if v.bytes == nil {
		t, err := v.tensor.Elements(at, len(dst))
		if err != nil {
			return err
		}
		return t.Float32s(dst)
	}
	raw := make([]byte, 4*len(dst))
	if err := v.bytes(at, raw); err != nil {
		return err
	}
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return nil
}
