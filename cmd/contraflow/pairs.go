package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"contraflow/io/atomicfile"
	"contraflow/io/dataset"
	"contraflow/io/spelling"
)

// pairFlags say which rows of queries and documents a command reads, and what an embedding model reads before them.
type pairFlags struct {
	input                       []string
	query, positive             string
	documents                   string // in the place of positive
	output                      string
	queryPrompt, documentPrompt string
	bad                         badRows
}

// The flags of all commands that read texts are worded alike.
const (
	filesFlag  = "the `FILES` to read: parquet, JSON lines or an array, CSV or TSV, a glob of them, or hf://datasets/org/name, of which it is the split train but for ?split=NAME (may be repeated)"
	columnFlag = "the column `NAME` with the %s, or a template such as \"{title} {text}\""
	promptFlag = "a `TEXT` to put before each %s (default: the model's prompt for %s; \"\" is none)"
)

// add adds them. positive goes on about --positive, of says what prompts are of.
func (f *pairFlags) add(cmd *cobra.Command, positive, of string) {
	fl := cmd.Flags()
	fl.StringArrayVar(&f.input, "input", nil, filesFlag)
	fl.StringVar(&f.query, "query", "query", fmt.Sprintf(columnFlag, "queries"))
	fl.StringVar(&f.positive, "positive", "positive", fmt.Sprintf(columnFlag, "positives")+"; "+positive)
	fl.StringVar(&f.output, "output", "", "the parquet `FILE` to write")
	fl.StringVar(&f.queryPrompt, "query-prompt", "", of+fmt.Sprintf(promptFlag, "query", "queries"))
	fl.StringVar(&f.documentPrompt, "document-prompt", "", of+fmt.Sprintf(promptFlag, "document", "documents"))
	f.bad.add(cmd, "")
	require(cmd, "input")
	require(cmd, "output")
}

// positives is the column of positives, if rows have one.
func (f *pairFlags) positives() string {
	if f.documents != "" {
		return ""
	}
	return f.positive
}

// checkDocuments refuses flags of columns that --documents is in the place of.
func (f *pairFlags) checkDocuments(cmd *cobra.Command, flags ...string) error {
	for _, flag := range flags {
		if f.documents != "" && cmd.Flags().Changed(flag) {
			return usageError{fmt.Errorf("--%s is among --documents, which names a column with all of a row's", flag)}
		}
	}
	return nil
}

// badRows are the rows that can't be used, and what is done about them.
type badRows struct {
	onError string // stop or skip
	instead string // what is written in place of a row; "": nothing
	of      string // the flag of the files that they are in; "": --input
	rows    int
	first   []error // a few
}

// add adds --on-error; more goes on about what skip does.
func (b *badRows) add(cmd *cobra.Command, more string) {
	oneOf(cmd, &b.onError, "on-error", "stop", "at rows that can't be used: stop, or skip, which leaves them out"+more, "stop", "skip")
}

func (b *badRows) skips() bool { return b.onError == "skip" }

// beside refuses an output that is no parquet, that is one of the inputs but for the one parquet file that may be both, where no row is left out, for it
// would be lost, or that is another's file. written is what a file gets in place.
func (b *badRows) beside(output string, input []string, written string) error {
	if b.skips() {
		if err := separate("--output", output, input...); err != nil {
			return fmt.Errorf("%w; without --on-error skip, which leaves out rows, one parquet file gets %s in place", err, written)
		}
	}
	return ofFlag("--output", dataset.CheckBeside(output, input...))
}

// open opens a table, of whose rows those that can't be used are left to leave.
func (b *badRows) open(ctx context.Context, input []string) (*dataset.Table, error) {
	if b.skips() {
		return dataset.OpenTableWithBad(ctx, input)
	}
	t, err := dataset.OpenTable(ctx, input) // which finds lines that are no JSON before anything is computed
	return t, b.stopped(err)
}

// checkTexts finds texts that can't be used before anything is computed, unless they are left out.
func (b *badRows) checkTexts(ctx context.Context, t *dataset.Table, columns ...string) error {
	if b.skips() {
		return nil
	}
	return b.stopped(t.CheckTexts(ctx, columns...))
}

// in counts a chunk's rows that can't be used, and returns their places and the ids of the others.
func (b *badRows) in(c *dataset.Chunk) (out []int, ids []int64, err error) {
	for i := range c.Rows {
		if bad := c.Bad[i]; bad == nil {
			ids = append(ids, c.First+int64(i))
		} else if err := b.leave(bad); err != nil {
			return nil, nil, err
		} else {
			out = append(out, i)
		}
	}
	return out, ids, nil
}

// leave returns nil for a row that is left out, and counts it; else the error.
func (b *badRows) leave(err error) error {
	const few = 10
	if !b.skips() || !errors.Is(err, dataset.ErrBadRow) {
		return b.stopped(err)
	}
	if b.rows++; len(b.first) < few {
		b.first = append(b.first, err)
	}
	return nil
}

// stopped is the error that ends a command: of a row that can't be used it says that it could be left out.
func (b *badRows) stopped(err error) error {
	switch {
	case !errors.Is(err, dataset.ErrBadRow):
		return err
	case b.instead != "":
		return fmt.Errorf("%w; --on-error skip writes %s for rows that can't be used", err, b.instead)
	}
	return fmt.Errorf("%w; --on-error skip leaves out rows that can't be used", err)
}

// none is the error where no row is left.
func (b *badRows) none() error {
	return fmt.Errorf("none of %s can be used; the first: %w", spelling.Count(b.rows, "row", "rows"), b.first[0])
}

// all is the error where no row of a table is left.
func (b *badRows) all(t *dataset.Table) error {
	if b.rows == 0 || int64(b.rows) < t.Rows() {
		return nil
	}
	return b.none()
}

// say tells which rows were left out, also with --quiet: nothing is left out without a word.
func (b *badRows) say(u *ui) {
	if b.rows == 0 {
		return
	}
	u = u.loud()
	u.printf("%s of %s can't be used and %s %s (--on-error skip); the first: %v\n", spelling.Count(b.rows, "row", "rows"), cmp.Or(b.of, "--input"), spelling.Form(b.rows, "is", "are"), cmp.Or(b.instead, "left out"), b.first[0])
	for _, err := range b.first[1:] {
		u.printf("  %v\n", err)
	}
	if more := b.rows - len(b.first); more > 0 {
		u.printf("  and %d more\n", more)
	}
}

// asParquet refuses an output of another name: what is written is parquet, and what reads it goes by the name.
func asParquet(output string) error { return ofFlag("--output", dataset.CheckOutput(output)) }

// noFolder refuses an output, which a flag names, that is a folder.
func noFolder(flag, output, name string) error {
	return ofFlag(flag, dataset.CheckNoFolder(output, name))
}

// ofFlag makes what is wrong with a file, which a flag names, a mistake in the command line.
func ofFlag(flag string, err error) error {
	if err == nil {
		return nil
	}
	return usageError{fmt.Errorf("%s %w", flag, err)}
}

// sameKind refuses an output, which a flag names, where a file of another kind is already: the same command may be given twice, and no other file is
// lost by a mistaken name. is tells by a file's first kilobyte whether it is of the kind; an empty one is of any.
func sameKind(flag, output, kind string, is func(head string) bool) error {
	f, err := os.Open(output)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() { // a device keeps nothing
		return err
	}
	head, err := io.ReadAll(io.LimitReader(f, 1024))
	if err != nil || len(head) == 0 || is(string(head)) {
		return err
	}
	return usageError{fmt.Errorf("%s %s is a file already, and no %s: give another name, or remove it", flag, output, kind)}
}

// isPage tells that a file's beginning is that of a page for browsers.
func isPage(head string) bool {
	head = strings.ToLower(strings.TrimSpace(head))
	return strings.HasPrefix(head, "<!doctype html") || strings.HasPrefix(head, "<html")
}

// isArray tells that a file's beginning is that of an array as NumPy saves one.
func isArray(head string) bool { return strings.HasPrefix(head, "\x93NUMPY") }

// isRanking tells that a file's first line is one of a ranking, as TREC's programs have them: query, Q0, document, rank, score and a name.
func isRanking(head string) bool {
	first, _, _ := strings.Cut(head, "\n")
	fields := strings.Fields(first)
	return len(fields) >= 6 && slices.Contains(fields, "Q0") // ids may have spaces
}

// isDrawing tells of each format of graph that a file's beginning is that of one.
var isDrawing = map[string]func(head string) bool{
	"dot":     func(head string) bool { return strings.HasPrefix(head, "digraph") },
	"mermaid": func(head string) bool { return strings.HasPrefix(head, "flowchart") },
	"svg":     func(head string) bool { return strings.HasPrefix(head, "<svg") || strings.HasPrefix(head, "<?xml") },
}

// writeText replaces a file by a text.
func writeText(file, text string) error {
	return atomicfile.Rewrite(file, func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	})
}

// separate finds an output, which a flag names, that is one of the files that are read: it would take their place.
func separate(flag, output string, inputs ...string) error {
	return ofFlag(flag, dataset.CheckApart(output, inputs...))
}

// inPlace is what the help of commands says that write beside a table's columns.
const inPlace = "One parquet file may be --input and --output: it gets the columns in place, when all is written.\n" + ownAlone

// ownAlone is what it says of any output.
const ownAlone = "Another file that is there is replaced if contraflow has written it, and else an error."
