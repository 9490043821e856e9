package tokenize

// template is a post-processor: what the ids of one text, or of a pair, are put into.
type template struct {
	single, pair []templatePiece
}

// templatePiece is special tokens, or a text's ids.
type templatePiece struct {
	ids      []int32 // special tokens; nil for a text
	sequence int     // which text: 0 or 1
	typeID   int32
}

func countSpecials(pieces []templatePiece) int {
	n := 0
	for _, p := range pieces {
		n += len(p.ids)
	}
	return n
}

// bertTemplate is [CLS] A [SEP] and [CLS] A [SEP] B [SEP], with type 1 from B on.
func bertTemplate(cls, sep int32) template {
	c, s := templatePiece{ids: []int32{cls}}, templatePiece{ids: []int32{sep}}
	return template{
		single: []templatePiece{c, {}, s},
		pair:   []templatePiece{c, {}, s, {sequence: 1, typeID: 1}, {ids: []int32{sep}, typeID: 1}},
	}
}

// robertaTemplate is <s> A </s> and <s> A </s> </s> B </s>, all of type 0.
func robertaTemplate(cls, sep int32) template {
	c, s := templatePiece{ids: []int32{cls}}, templatePiece{ids: []int32{sep}}
	return template{single: []templatePiece{c, {}, s}, pair: []templatePiece{c, {}, s, s, {sequence: 1}, s}}
}

// Bare is a tokenizer without special tokens around texts and pairs, as queries that are weights of tokens are read. It saves the files of
// the one that it is made of.
func (t *Tokenizer) Bare() *Tokenizer {
	bare := *t
	bare.setTemplate(bareTemplate())
	bare.hash = hashFiles([]byte(t.hash), []byte("bare"))
	return &bare
}

// bareTemplate adds nothing.
func bareTemplate() template {
	return template{single: []templatePiece{{}}, pair: []templatePiece{{}, {sequence: 1, typeID: 1}}}
}
