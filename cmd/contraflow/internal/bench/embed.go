package bench

import (
	"context"
	"errors"
	"time"

	"contraflow/gpustage"
	"contraflow/io/hfmodel"
	"contraflow/stages/embedder"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// EmbeddingOptions choose what is embedded.
type EmbeddingOptions struct {
	Input     *Input
	Device    string // a kind; "": the processor
	MaxLength int    // tokens; 0: what the model says
	Batch     int    // texts a round
	Tokens    int    // of a pass; 0: what the device likes
	BF16      bool
}

// Embedding embeds the documents of the data, so many at a time, in the files' order and again from the start.
type Embedding struct {
	o       EmbeddingOptions
	device  gpustage.Device
	emb     *embedder.Embedder
	tok     *tokenize.Tokenizer
	config  transformer.Config
	work    *Work
	probe   *probe
	texts   []string
	next    int
	vectors []float32
}

// NewEmbedding loads the model and the documents.
func NewEmbedding(ctx context.Context, o EmbeddingOptions) (_ *Embedding, err error) {
	e := &Embedding{o: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.Close())
		}
	}()
	if e.device, e.probe, err = openDevice(o.Device); err != nil {
		return nil, err
	}
	opts := []embedder.Option{embedder.OnDevice(e.device), embedder.MaxLength(o.MaxLength), embedder.PassTokens(o.Tokens)}
	if o.BF16 {
		opts = append(opts, embedder.BF16())
	}
	if e.emb, err = embedder.Load(o.Input.Model, opts...); err != nil {
		return nil, err
	}
	f, err := hfmodel.Open(o.Input.Model)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if e.config, err = transformer.ParseConfig(f.Config); err != nil {
		return nil, err
	}
	if e.work, err = NewWork(e.config); err != nil {
		return nil, err
	}
	if e.tok, err = embedder.LoadTokenizer(f); err != nil {
		return nil, err
	}
	all, err := o.Input.texts(ctx)
	if err != nil {
		return nil, err
	}
	for i := 1; i < len(all); i += 2 {
		e.texts = append(e.texts, all[i])
	}
	e.vectors = make([]float32, o.Batch*e.emb.Size())
	return e, nil
}

// Step embeds the next texts, tokenization included, the probe before and after.
func (e *Embedding) Step(ctx context.Context) (Step, error) {
	texts := make([]string, e.o.Batch)
	for i := range texts {
		texts[i] = e.texts[(e.next+i)%len(e.texts)]
	}
	e.next += e.o.Batch
	ids, err := e.tok.EncodeAll(ctx, texts, e.emb.MaxLength(), 0)
	if err != nil {
		return Step{}, err
	}
	s := Step{Texts: len(texts)}
	lengths := make([]int, len(ids))
	for i := range ids {
		lengths[i] = len(ids[i])
		s.Tokens += lengths[i]
	}
	s.GFLOP = e.work.Forward(lengths) / 1e9
	before := e.probe.gflops(e.o.BF16, probeFor)
	start := time.Now()
	if _, err := e.emb.EmbedInto(ctx, "", texts, e.vectors); err != nil {
		return Step{}, err
	}
	s.Seconds = time.Since(start).Seconds()
	s.PeakGFLOPS = (before + e.probe.gflops(e.o.BF16, probeFor)) / 2
	s.ResidentBytes, s.DeviceBytes = gpustage.HostPeakMemory(), e.device.Info().PeakAllocated
	return s, nil
}

// Report is what `bench step --embed` prints for the given rounds.
func (e *Embedding) Report(steps []Step) (*StepReport, error) {
	r := newStepReport("embed", e.config, e.o.Input, e.device, steps)
	r.Precision, r.Batch = "f32", e.o.Batch
	if e.o.BF16 {
		r.Precision = "bf16"
	}
	var err error
	r.Machine, err = ThisMachine()
	return r, err
}

// Close gives everything back.
func (e *Embedding) Close() error {
	var errs []error
	if e.emb != nil {
		errs = append(errs, e.emb.Close())
	}
	if e.probe != nil {
		e.probe.close()
	}
	if e.device != nil {
		errs = append(errs, e.device.Close())
	}
	return errors.Join(errs...)
}
