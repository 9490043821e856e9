package recipe

import (
	"errors"
	"fmt"

	"contraflow/gpustage"
)

// checkPooling refuses the first token's vector where no token sees a later one: that vector knows nothing of the text behind it. Most tokenizers and
// prompts begin all texts alike, and then all embeddings are the same and their loss teaches nothing.
func (x *Run) checkPooling() error {
	c := x.model.Config
	if x.reranker != nil || x.vectors != nil || !c.MLMHead.None() || !c.Causal || x.model.Head.Pooling != gpustage.CLSPooling {
		return nil
	}
	return fmt.Errorf("model.pooling: cls is the first token's vector, and in %s (%s, a causal model) no token sees a later one: it would know nothing of the text behind its first token; want last, or mean", x.folder.Dir, c.Family)
}

// ends tells whether the recipe has texts end in the tokenizer's EOS token.
func (x *Run) ends() bool { return x.Recipe.Model.EOS != nil && *x.Recipe.Model.EOS }

// endTexts puts the EOS token behind texts, if the recipe wants it.
func (x *Run) endTexts() error {
	if !x.ends() {
		return nil
	}
	if x.folder.Static() {
		return errors.New("model.eos: static embeddings read texts without special tokens")
	}
	tok, err := x.tok.Ending()
	if err != nil {
		return fmt.Errorf("model.eos: %s: %w", x.folder.TokenizerDir, err)
	}
	x.tok = tok
	return nil
}

// noteEnd tells of a causal model whose embeddings are those of texts' last tokens, whatever these are.
func (x *Run) noteEnd() {
	m := x.Recipe.Model
	if m.Kind != "embedder" || m.EOS != nil || x.model.Head.Pooling != gpustage.LastPooling || x.tok.Ends() || x.tok.EOS() == "" {
		return
	}
	x.obs.note("%s puts nothing behind texts, so that pooling: last takes the vector of whatever a text ends with; with model.eos: true all end in %s, as most models of this kind were trained (false: as they are)", x.folder.TokenizerDir, x.tok.EOS())
}

// saveTokenizer writes the tokenizer's files as the saved model has them: the folder's, but for what stands behind texts.
func (x *Run) saveTokenizer(dir string) error {
	if err := x.folder.CopyTokenizer(dir); err != nil {
		return err
	}
	return x.tok.Save(dir)
}
