package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"contraflow/io/hfmodel"
	"contraflow/stages/embedder"
	"contraflow/tokenize"
)

// tokenizerOf is the tokenizer of a model, a folder or a hub id.
func tokenizerOf(cmd *cobra.Command, model string) (*tokenize.Tokenizer, error) {
	dir, err := findModel(cmd, model)
	if err != nil {
		return nil, err
	}
	f, err := hfmodel.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return embedder.LoadTokenizer(f)
}

func newTokenize() *cobra.Command {
	var model string
	var maxLength int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "tokenize --model DIR",
		Short: "Turn lines of standard input into token ids",
		Long:  "tokenize reads a text per line and prints a JSON list of ids per line. With --json a line is a JSON string, so that texts may hold line breaks.",
		Example: `  echo "a text" | contraflow tokenize --model q/model
  contraflow tokenize --model q/model --json < texts.jsonl`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := atLeastOne(cmd, "max-length"); err != nil {
				return err
			}
			tok, err := tokenizerOf(cmd, model)
			if err != nil {
				return err
			}
			_, err = interruptible(cmd, func() (struct{}, error) { return struct{}{}, tokenizeLines(cmd, tok, maxLength, asJSON) })
			return err
		},
	}
	cmd.Flags().StringVar(&model, "model", "", "the folder `DIR` of a model, or a hub id")
	cmd.Flags().IntVar(&maxLength, "max-length", 0, "cut to so many tokens (default: not at all)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "each line of the input is a JSON string")
	require(cmd, "model")
	return cmd
}

// linesAtOnce are tokenized in parallel, if they are there.
const linesAtOnce = 4096

func tokenizeLines(cmd *cobra.Command, tok *tokenize.Tokenizer, maxLength int, asJSON bool) error {
	in := bufio.NewReaderSize(cmd.InOrStdin(), 1<<20)
	out := bufio.NewWriterSize(cmd.OutOrStdout(), 1<<20)
	number := 0
	next := func() (text string, end bool, err error) {
		line, err := in.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return "", false, fmt.Errorf("standard input: %w", err)
		}
		if end = err != nil; end && line == "" {
			return "", end, nil
		}
		number++
		line = strings.TrimSuffix(line, "\n")
		switch {
		case !utf8.ValidString(line):
			return "", end, fmt.Errorf("standard input, line %d: not valid UTF-8", number)
		case !asJSON:
			return strings.TrimSuffix(line, "\r"), end, nil
		}
		var value *string // nil: null
		if err := json.Unmarshal([]byte(line), &value); err != nil {
			return "", end, fmt.Errorf("standard input, line %d: not a JSON string: %w", number, err)
		}
		if value == nil {
			return "", end, fmt.Errorf("standard input, line %d: not a JSON string: null", number)
		}
		return *value, end, nil
	}
	var failed error // of a line: those before it are printed all the same
	for end := false; !end && failed == nil; {
		var texts []string
		for len(texts) < linesAtOnce {
			before := number
			var text string
			if text, end, failed = next(); failed != nil || number == before {
				break
			}
			texts = append(texts, text)
			if end || in.Buffered() == 0 { // whoever types, or waits for an answer, gets it now
				break
			}
		}
		lists, err := tok.EncodeAll(cmd.Context(), texts, maxLength, 0)
		if err != nil {
			return err
		}
		var buf []byte
		for _, ids := range lists {
			buf = append(buf[:0], '[')
			for i, id := range ids {
				if i > 0 {
					buf = append(buf, ", "...)
				}
				buf = strconv.AppendInt(buf, int64(id), 10)
			}
			out.Write(append(buf, "]\n"...))
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
	return failed
}
