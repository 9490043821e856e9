package dataset

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"contraflow/io/spelling"
)

// NanoBEIR is a collection of 13 retrieval tasks of BEIR's, of about 50 queries and 5,000 documents each, in one dataset of the hub: its configurations
// corpus, queries, qrels, and bm25 with the documents that BM25 finds, have a split for each task. There are others in its layout, of other languages. Tasks are
// read as sentence-transformers' evaluators do (its NanoBEIREvaluator, CrossEncoderNanoBEIREvaluator and so on), whose figures are to be the same.

// NanoBEIR is the dataset of the English ones.
const NanoBEIR = "sentence-transformers/NanoBEIR-en"

const nanoPrefix = "Nano"

// nanoTasks are the splits, without the prefix, in sentence-transformers' order.
var nanoTasks = []string{"ClimateFEVER", "DBPedia", "FEVER", "FiQA2018", "HotpotQA", "MSMARCO", "NFCorpus", "NQ", "QuoraRetrieval", "SCIDOCS", "ArguAna", "SciFact", "Touche2020"}

// NanoTasks are the names of NanoBEIR's tasks, such as NanoMSMARCO. Those for a reranker lack the two of arguments, ArguAna and Touche2020, as
// CrossEncoderNanoBEIREvaluator has it where nobody names them.
func NanoTasks(reranker bool) (names []string) {
	for _, t := range nanoTasks {
		if !reranker || t != "ArguAna" && t != "Touche2020" {
			names = append(names, nanoPrefix+t)
		}
	}
	return names
}

// NanoTask is the name of a task that may be called otherwise: msmarco, as sentence-transformers has it, is NanoMSMARCO.
func NanoTask(name string) (string, error) {
	bare := func(name string) string {
		return strings.TrimPrefix(strings.ToLower(name), strings.ToLower(nanoPrefix))
	}
	var known []string
	for _, t := range nanoTasks {
		if bare(name) == bare(t) {
			return nanoPrefix + t, nil
		}
		known = append(known, bare(t))
	}
	but := "; it has"
	if near := spelling.Nearest(bare(name), known); near != "" {
		but = fmt.Sprintf("; did you mean %s? It has", near)
	}
	return "", fmt.Errorf("NanoBEIR has no task %q%s %s", name, but, strings.Join(known, ", "))
}

// nanoFolder tells whether a dataset of tasks is a folder on this machine, as the hub's client or git brings it here, and no id.
func nanoFolder(id string) bool {
	info, err := os.Stat(id)
	return err == nil && info.IsDir()
}

// CheckNano tells whether id is that of a dataset on the hub, or a folder.
func CheckNano(id string) error {
	if nanoFolder(id) {
		return nil
	}
	if owner, name, ok := strings.Cut(id, "/"); !ok || owner == "" || name == "" || strings.ContainsAny(id, "?\\") || strings.Count(id, "/") > 1 {
		return fmt.Errorf("%q is no id of a dataset on the Hugging Face hub, nor a folder: want one in NanoBEIR's layout, such as %s", id, NanoBEIR)
	}
	return nil
}

// NanoPath is where a dataset of tasks is: the folder, or the URL of an id.
func NanoPath(id string) string {
	if nanoFolder(id) {
		return id
	}
	return "hf://datasets/" + id
}

// nanoURL is a configuration of a task: in a folder the files that have both names, as the hub has them of all such datasets.
func nanoURL(id, config, task string) string {
	if nanoFolder(id) {
		return globIn(filepath.Join(id, config), task+"-*")
	}
	return fmt.Sprintf("%s?config=%s&split=%s", NanoPath(id), config, task)
}

// LoadNanoRetrieval reads a task of NanoBEIR, by a name that [NanoTask] gives, from a dataset on the hub in its layout, or a folder that has its files. Queries and documents have ids and texts,
// and no titles; those whose text is empty are not there. All documents that are judged are as relevant.
func LoadNanoRetrieval(ctx context.Context, id, task string) (*Retrieval, error) {
	r := &Retrieval{Ascending: true}
	queryAt, docAt := map[string]int{}, map[string]int{}
	read := func(config string, at map[string]int, ids, texts *[]string) error {
		return nanoTexts(ctx, nanoURL(id, config, task), func(key, text string) {
			if text == "" {
				r.LeftOut++
				return
			}
			at[key] = len(*ids)
			*ids, *texts = append(*ids, key), append(*texts, text)
		})
	}
	if err := read("queries", queryAt, &r.QueryIDs, &r.Queries); err != nil {
		return nil, err
	}
	if err := read("corpus", docAt, &r.DocIDs, &r.Docs); err != nil {
		return nil, err
	}
	seen := map[[2]string]bool{}
	url := nanoURL(id, "qrels", task)
	err := nanoDocuments(ctx, url, "corpus-id", func(query string, docs []string) error {
		for _, doc := range docs {
			q, okQuery := queryAt[query]
			d, okDoc := docAt[doc]
			pair := [2]string{query, doc}
			switch {
			case !okQuery:
				r.Unknown++
			case seen[pair]:
				r.Repeated++
			case okDoc:
				r.Judgements = append(r.Judgements, Judgement{q, d, 1})
			default:
				r.Missed = append(r.Missed, MissedJudgement{q, doc, 1})
			}
			seen[pair] = true
		}
		return nil
	})
	if err == nil && len(r.Judgements) == 0 {
		err = fail(ErrMissingColumn, "%s: none of its judgements is about a query and a document that exist", url)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// LoadNanoCandidates reads likewise what of a task a reranker has to rank: the first top documents that BM25 has found for each query, and the relevant ones that are
// not among these; with foundAlone the latter have been missed, as in [CandidateColumns].
func LoadNanoCandidates(ctx context.Context, id, task string, top int, foundAlone bool) (*Candidates, error) {
	texts := func(config string) (map[string]string, error) {
		all := map[string]string{}
		return all, nanoTexts(ctx, nanoURL(id, config, task), func(key, text string) { all[key] = text })
	}
	queries, err := texts("queries")
	if err != nil {
		return nil, err
	}
	docs, err := texts("corpus")
	if err != nil {
		return nil, err
	}
	textsOf := func(url string, names []string) (out []string, err error) {
		for _, name := range names {
			text, ok := docs[name]
			if !ok {
				return nil, fail(ErrMissingColumn, "%s: document %q is not in %s", url, name, nanoURL(id, "corpus", task))
			}
			out = append(out, text)
		}
		return out, nil
	}
	positives, judged := map[string][]string{}, nanoURL(id, "qrels", task)
	err = nanoDocuments(ctx, judged, "corpus-id", func(query string, docs []string) error {
		for _, d := range docs {
			if !slices.Contains(positives[query], d) {
				positives[query] = append(positives[query], d)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	type ranking struct {
		query string
		docs  []string
	}
	var all []ranking
	url := nanoURL(id, "bm25", task)
	err = nanoDocuments(ctx, url, "corpus-ids", func(query string, docs []string) error {
		all = append(all, ranking{query, docs[:min(top, len(docs))]})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("what BM25 finds, which a reranker ranks anew: %w", err)
	}
	c := &Candidates{}
	for _, r := range all {
		text, ok := queries[r.query]
		if !ok {
			return nil, fail(ErrMissingColumn, "%s: query %q is not in %s", url, r.query, nanoURL(id, "queries", task))
		}
		relevant, err := textsOf(judged, positives[r.query])
		if err != nil {
			return nil, err
		}
		found, err := textsOf(url, r.docs)
		if err != nil {
			return nil, err
		}
		c.add(text, relevant, found, true, foundAlone)
	}
	if note := Note(ctx); note != nil {
		c.noteLeftOut(url, int64(len(all)), note)
	}
	return c, nil
}

// nanoTexts yields ids and texts.
func nanoTexts(ctx context.Context, url string, row func(id, text string)) error {
	t, err := OpenTableOf(ctx, []string{url}, HeldOut)
	if err != nil {
		return measured(err)
	}
	defer t.Close()
	ids := textsByID{map[string]int{}, func(id, text string, _ bool, _ Location) error {
		row(id, text)
		return nil
	}, Reading(ctx)}
	return measured(t.cells(ctx, [][]string{{"_id"}, {"text"}}, func(n int64, c []cell) error {
		for i, column := range []string{"_id", "text"} {
			if c[i].null {
				return &RowError{Row: n, Location: t.Locate(n), Column: column, Reason: "null"}
			}
		}
		return ids.add("_id", c[0].text, c[1].text, n, t.Locate(n))
	}))
}

// nanoDocuments yields a query's id and those of documents: a row has a list of them, or one.
func nanoDocuments(ctx context.Context, url, column string, row func(query string, docs []string) error) error {
	_, err := rawRows(ctx, Source{Paths: []string{url}, Query: "query-id", Positive: column}, func(r Row) error {
		return row(r.Column(nil, 0)[0], r.Column(nil, 1))
	})
	return err
}
