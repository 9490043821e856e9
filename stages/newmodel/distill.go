package newmodel

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"gonum.org/v1/gonum/mat"

	"contraflow/gpustage"
	"contraflow/io/hfmodel"
	"contraflow/io/safetensors"
	"contraflow/stages/embedder"
	"contraflow/stages/transformer"
	"contraflow/tokenize"
)

// Distill writes static embeddings of what an encoder in a folder knows of its tokens: no texts are needed, and no training. It is model2vec's
// way (Tulkens and van Dongen, 2024): a token's vector is the embedding of a text of that token alone, not normalized; the vectors lose their
// mean, which all texts would share, and are turned to their principal components, of which the first s.Hidden stay (0: as many as there
// are); and a frequent token counts for less, by a/(a+p) with a = 1e-4 (Arora, Liang and Ma, ICLR 2017), where p is the token's probability by
// Zipf's law: vocabularies are in the order of frequency. Markers, such as [UNK], <pad> and [unused7], say nothing, and are zero.
//
// name is the encoder's, for the model card. progress, if not nil, is told how many tokens have been embedded.
func Distill(ctx context.Context, dir string, s Spec, folder, name string, d gpustage.Device, progress func(done, total int)) error {
	s.Static = true
	if s.Hidden < 0 {
		return fmt.Errorf("embeddings of %d dimensions", s.Hidden)
	}
	t, err := embedder.LoadTrainable(folder, d)
	if err != nil {
		return err
	}
	defer t.Close()
	if !t.Model.Config.MLMHead.None() {
		return fmt.Errorf("%s is a sparse encoder, whose features are tokens: there is no dense embedding of a token to begin with", folder)
	}
	t.Model.Head.Normalize = false // how long an embedding is says how much its token counts
	stream, err := d.OpenStream()
	if err != nil {
		return err
	}
	defer stream.Close()
	switch size := t.Model.EmbeddingSize(); {
	case s.Hidden == 0:
		s.Hidden = size
	case s.Hidden > size:
		return fmt.Errorf("%s: its embeddings have %d dimensions, and the new ones can't have %d", folder, size, s.Hidden)
	}
	if err := s.defaults(); err != nil {
		return err
	}
	tokens := ordinary(t.Tokenizer)
	if len(tokens) < 2 {
		return fmt.Errorf("%s: its vocabulary has nothing but markers", folder)
	}
	x, err := embed(ctx, stream, t, tokens, progress)
	if err != nil {
		return err
	}
	y, err := principal(stream, x, len(tokens), s.Hidden)
	if err != nil {
		return fmt.Errorf("%s: %w", folder, err)
	}
	table := make([]float32, t.Tokenizer.VocabSize()*s.Hidden)
	for i, w := range rarities(len(tokens)) {
		row := table[int(tokens[i])*s.Hidden:][:s.Hidden]
		for j, v := range y[i*s.Hidden:][:s.Hidden] {
			row[j] = float32(w * float64(v))
		}
	}
	config, m, err := s.model(t.Tokenizer, gpustage.Dry{Like: d})
	if err != nil {
		return err
	}
	out, err := embedder.Tensor(m.Layout.Params[0], table)
	if err != nil {
		return err
	}
	return s.save(ctx, dir, config, []safetensors.Tensor{out}, t.Tokenizer, hfmodel.Card{BaseModel: name, Summary: "Static embeddings of what the base model says of each token alone."})
}

// distillPart is how many texts are embedded between reports. A test sets it.
var distillPart = 8192

// embed gives the embeddings [len(tokens), E] of texts of one token each, with the special tokens around it that any text has.
func embed(ctx context.Context, s gpustage.Stream, t *embedder.Trainable, tokens []int32, progress func(done, total int)) (_ []float32, err error) {
	before, after, err := surroundings(t.Tokenizer)
	if err != nil {
		return nil, err
	}
	engine := embedder.Engine{Model: t.Model, Stream: s}
	defer func() { err = errors.Join(err, engine.Close()) }()
	e := engine.Size()
	out := make([]float32, len(tokens)*e)
	for at := 0; at < len(tokens); at += distillPart {
		some := tokens[at:min(at+distillPart, len(tokens))]
		texts := make([][]int32, len(some))
		for i, id := range some {
			texts[i] = slices.Concat(before, []int32{id}, after)
		}
		if err := engine.Embed(ctx, texts, func(i int, vec []float32) { copy(out[(at+i)*e:][:e], vec) }); err != nil {
			return nil, err
		}
		if progress != nil {
			progress(at+len(some), len(tokens))
		}
	}
	return out, transformer.CheckFinite("embeddings of single tokens", out)
}

// surroundings are the special tokens before and after a text.
func surroundings(tok *tokenize.Tokenizer) (before, after []int32, err error) {
	const text = "a"
	bare, all := tok.Bare().Encode(text, 0), tok.Encode(text, 0)
	for i := 0; len(bare) > 0 && i+len(bare) <= len(all); i++ {
		if slices.Equal(all[i:i+len(bare)], bare) {
			return all[:i], all[i+len(bare):], nil
		}
	}
	return nil, nil, fmt.Errorf("the tokenizer makes tokens %v of %q, which are not among %v, those with special tokens", bare, text, all)
}

// ordinary are the tokens that are no markers: [CLS], <s>, <0x0A>, [unused7] and the like.
func ordinary(tok *tokenize.Tokenizer) (ids []int32) {
	for id := range int32(tok.VocabSize()) {
		t := tok.Token(id)
		if n := len(t); n == 0 || n > 2 && (t[0] == '[' && t[n-1] == ']' || t[0] == '<' && t[n-1] == '>') {
			continue
		}
		ids = append(ids, id)
	}
	return ids
}

// principal turns rows [n, C], whose mean it takes away, to their first so many principal components, [n, hidden].
func principal(s gpustage.Stream, x []float32, n, hidden int) ([]float32, error) {
	c := len(x) / n
	sums := make([]float64, c)
	for i, v := range x {
		sums[i%c] += float64(v)
	}
	for i, v := range x {
		x[i] = float32(float64(v) - sums[i%c]/float64(n))
	}
	var rooms [4]gpustage.Tensor
	for i, shape := range [][2]int{{n, c}, {c, c}, {c, hidden}, {n, hidden}} {
		var err error
		if rooms[i], err = gpustage.NewTensor(s.Device(), gpustage.F32, shape[0], shape[1]); err != nil {
			return nil, err
		}
		defer rooms[i].Mem.Free()
	}
	rows, square, turn, out := rooms[0], rooms[1], rooms[2], rooms[3]
	gpustage.Upload(s, rows, x)
	s.MatMul(square, rows, rows, gpustage.MatMul{TransA: true, Alpha: 1 / float64(n)})
	covariance := make([]float32, c*c)
	s.CopyOut(gpustage.Bytes(covariance), square)
	if err := s.Sync(); err != nil {
		return nil, err
	}
	sym := mat.NewSymDense(c, nil)
	for i := range c {
		for j := i; j < c; j++ {
			sym.SetSym(i, j, float64(covariance[i*c+j]))
		}
	}
	var eigen mat.EigenSym
	if !eigen.Factorize(sym, true) {
		return nil, errors.New("the principal components of its tokens' embeddings could not be found")
	}
	var vectors mat.Dense // columns, of ascending eigenvalues
	eigen.VectorsTo(&vectors)
	w := make([]float32, c*hidden)
	for k := range hidden {
		column, largest := c-1-k, 0.0
		for j := range c { // which of the two directions: that in which the largest element is positive
			if v := vectors.At(j, column); max(v, -v) > max(largest, -largest) {
				largest = v
			}
		}
		for j := range c {
			v := vectors.At(j, column)
			if largest < 0 {
				v = -v
			}
			w[j*hidden+k] = float32(v)
		}
	}
	gpustage.Upload(s, turn, w)
	s.MatMul(out, rows, turn, gpustage.MatMul{})
	y := make([]float32, n*hidden)
	s.CopyOut(gpustage.Bytes(y), out)
	return y, s.Sync()
}

// rarities are what n tokens in the order of frequency count for: a/(a+p).
func rarities(n int) []float64 {
	const a = 1e-4
	sum := 0.0
	for i := range n {
		sum += 1 / float64(i+2)
	}
	out := make([]float64, n)
	for i := range out {
		out[i] = a / (a + 1/float64(i+2)/sum)
	}
	return out
}
