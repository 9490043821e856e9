package recipe

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"slices"

	"contraflow/io/dataset"
)

// Texts are files of texts with ids, by which rows name them.
type Texts struct {
	Path []string `yaml:"path" path:"~"`
	ID   string   `yaml:"id,omitempty"`   // column; "": id or _id
	Text string   `yaml:"text,omitempty"` // column or template; "": text, with title before it where there is one
}

// decode takes a path, or several, in the mapping's place.
func (t *Texts) decode(d *decoder, path string, n *node) {
	v := reflect.ValueOf(t).Elem()
	if n.kind == mapping {
		d.structure(path, n, v)
		return
	}
	d.slice(path, n, v.Field(0))
	d.home(n.at, path, v.Field(0))
}

// anywhere is t without where its files are; nil stays nil.
func (t *Texts) anywhere() *Texts {
	if t == nil {
		return nil
	}
	return &Texts{ID: t.ID, Text: t.Text}
}

// texts are those that rows name by ids, by their keys.
func (s Source) texts() iter.Seq2[string, *Texts] {
	return func(yield func(string, *Texts) bool) {
		if s.Queries != nil && !yield("queries", s.Queries) {
			return
		}
		if s.Corpus != nil {
			yield("corpus", s.Corpus)
		}
	}
}

// paths are those of all files.
func (s Source) paths() []string {
	all := slices.Clone(s.Path)
	for _, t := range s.texts() {
		all = append(all, t.Path...)
	}
	return all
}

// judgements fills in the columns of a source of which nothing is said but where queries and corpus are: BEIR's judgements. Their relevance is known by
// its name when the files are read.
func (s *Source) judgements() {
	if s.Queries != nil && s.Corpus != nil && s.Query == "" && s.Positive == "" && s.Documents == "" {
		s.Query, s.Positive = "query-id", "corpus-id"
	}
}

// sharedTexts are texts that one rank reads.
type sharedTexts struct {
	done  chan struct{}
	texts *dataset.Texts
	err   error
}

// openTexts opens what the rows of the source at a key name by ids, for files.
func (x *Run) openTexts(ctx context.Context, key string, s Source, files *dataset.Source) (err error) {
	open := func(name string, t *Texts) (texts *dataset.Texts) {
		if t == nil || err != nil {
			return nil
		}
		if texts, err = x.texts(ctx, key+"."+name, *t); errors.Is(err, dataset.ErrBadRow) {
			err = fmt.Errorf("%w; no row of it is left out: it has to be put right, or taken out", err)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		return texts
	}
	files.Queries, files.Corpus = open("queries", s.Queries), open("corpus", s.Corpus)
	return err
}

// texts are those of the files at a key, which one rank reads.
func (x *Run) texts(ctx context.Context, key string, t Texts) (*dataset.Texts, error) {
	return x.shared.open(ctx, x.ranks.Rank() == 0, t, func() (*dataset.Texts, error) {
		texts, err := dataset.OpenTexts(x.noting(ctx, key), dataset.TextSource{Paths: t.Path, ID: t.ID, Text: t.Text}, x.obs.Texts)
		if err == nil {
			for _, n := range texts.Notes() {
				x.obs.note("%s: %s", key, n)
			}
		}
		return texts, err
	})
}

// open opens texts where nobody has: the first rank does.
func (s *shared) open(ctx context.Context, first bool, t Texts, read func() (*dataset.Texts, error)) (*dataset.Texts, error) {
	key := fmt.Sprintf("%q", t)
	s.mu.Lock()
	texts, there := s.texts[key]
	if !there {
		texts = &sharedTexts{done: make(chan struct{})}
		s.texts[key] = texts
	}
	s.mu.Unlock()
	if first || s.ranks == 1 {
		select {
		case <-texts.done: // of another source
		default:
			texts.texts, texts.err = read()
			close(texts.done)
		}
	}
	select {
	case <-texts.done:
		return texts.texts, texts.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// close gives back the texts, when no rank reads rows any more.
func (s *shared) close() {
	for _, t := range s.texts {
		select {
		case <-t.done:
			if t.texts != nil {
				t.texts.Close()
			}
		default:
		}
	}
}
