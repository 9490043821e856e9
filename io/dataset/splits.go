package dataset

import (
	"context"
	"path"
	"slices"
	"strings"
)

// Splits says what a URL that names a dataset as a whole, or a folder of it, stands for, where datasets have splits and the URL names none.
type Splits int

const (
	Train   Splits = iota // the split train
	HeldOut               // what to measure with: the split test, else validation (or dev), else the only one there is
	All                   // all there are
)

type noteKey struct{}

// WithNote has note called with what a user should know of URLs that are read with a context, such as the split that a dataset was found to have.
func WithNote(ctx context.Context, note func(message string)) context.Context {
	return context.WithValue(ctx, noteKey{}, note)
}

// Note is a context's function, nil if it has none: for those of [RegisterScheme].
func Note(ctx context.Context) func(message string) {
	note, _ := ctx.Value(noteKey{}).(func(string))
	return note
}

type readingKey struct{}

// WithReading has tell called now and then, on the goroutine that reads, while the texts of a retrieval task are read or tokenized with a context: what is
// done, and with how many texts it has been.
func WithReading(ctx context.Context, tell func(what string, texts int)) context.Context {
	return context.WithValue(ctx, readingKey{}, tell)
}

// Reading is a context's function, which does nothing if it has none.
func Reading(ctx context.Context) func(what string, texts int) {
	if tell, _ := ctx.Value(readingKey{}).(func(string, int)); tell != nil {
		return tell
	}
	return func(string, int) {}
}

type progressKey struct{}

// WithProgress has tell called now and then, on the goroutine that reads, while files of URLs that are read with a context arrive on this machine: which one
// does, and how many bytes of all that were asked for together are here.
func WithProgress(ctx context.Context, tell func(file string, done, total int64)) context.Context {
	return context.WithValue(ctx, progressKey{}, tell)
}

// Progress is a context's function, nil if it has none: for those of [RegisterScheme].
func Progress(ctx context.Context) func(file string, done, total int64) {
	tell, _ := ctx.Value(progressKey{}).(func(string, int64, int64))
	return tell
}

// NoData tells whether a file is what its name is well known for: a licence, or what a library has written about data. README.md and config.json are such.
func NoData(name string) bool {
	base := strings.ToLower(path.Base(name))
	return slices.Contains([]string{"readme.md", "config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", ".gitattributes", ".gitignore"}, base) ||
		ending(base) != ".parquet" && (base == "license" || base == "licence" || strings.HasPrefix(base, "license.") || strings.HasPrefix(base, "licence."))
}

// KnownData tells whether a file is data by its name.
func KnownData(name string) bool {
	ext := ending(name)
	return slices.Contains(extensions, ext) && (ext != ".parquet" || isParquet(name)) && !NoData(name)
}
