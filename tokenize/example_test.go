package tokenize_test

import (
	"fmt"
	"log"
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

func ExampleTrainWordPiece() {
	texts := []string{"a train trains", "training trains a trainer"}
	tok, err := tokenize.TrainWordPiece(slices.Values(texts), tokenize.TrainOptions{VocabSize: 24, Lowercase: true})
	if err != nil {
		log.Fatal(err)
	}
	for _, id := range tok.Encode("trains trainee", 0) {
		fmt.Print(tok.Token(id), " ")
	}
	// Output: [CLS] train ##s train ##e ##e [SEP]
}
