package tokenize_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"

	"contraflow/tokenize"
)

func ExampleTokenizer_Append() {
	tok, err := tokenize.FromVocab([]string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "train", "##ing", "a", "model"},
		tokenize.VocabOptions{Lowercase: true})
	if err != nil {
		log.Fatal(err)
	}
	ids, truncated := tok.Append(nil, "Training a [MASK] model!", 7)
	for _, id := range ids {
		fmt.Print(tok.Token(id), " ")
	}
	fmt.Println(ids, truncated)
	// Output: [CLS] train ##ing a [MASK] model [SEP] [2 5 6 7 4 8 3] true
}

func ExampleLoadFile() {
	// As byte-level tokenizers have it: "Ġ" stands for a space.
	file := filepath.Join(os.TempDir(), "tokenizer.json")
	err := os.WriteFile(file, []byte(`{
		"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
		"model": {"type": "BPE", "vocab": {"a": 0, "l": 1, "Ġ": 2, "al": 3, "all": 4, "Ġal": 5, "Ġall": 6},
			"merges": [["a", "l"], ["Ġ", "al"], ["al", "l"], ["Ġal", "l"]]}}`), 0o666)
	if err != nil {
		log.Fatal(err)
	}
	defer os.Remove(file)
	tok, err := tokenize.LoadFile(file)
	if err != nil {
		log.Fatal(err)
	}
	for _, id := range tok.Encode("all alla", 0) {
		fmt.Print(tok.Token(id), " ")
	}
	// Output: all Ġall a
}

func ExampleTrainWordPiece() {
	texts := []string{"a train trains", "training trains a trainer"}
	tok, err := tokenize.TrainWordPiece(context.Background(), slices.Values(texts), tokenize.TrainOptions{VocabSize: 24, Lowercase: true})
	if err != nil {
		log.Fatal(err)
	}
	for _, id := range tok.Encode("trains trainee", 0) {
		fmt.Print(tok.Token(id), " ")
	}
	// Output: [CLS] train ##s train ##e ##e [SEP]
}
