package prep

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"contraflow/io/dataset"
)

const beirFolder = "beir"

// writeBEIR writes the dev part as a retrieval task: each distinct query, each distinct document, and that a query's positives are relevant
// to it. Ids are the first half of the texts' hashes.
func writeBEIR(ctx context.Context, r *Rules, tmp string) (err error) {
	names := r.Config.columnNames()
	d, err := dataset.Open(ctx, dataset.Source{Paths: []string{filepath.Join(tmp, "dev-*.parquet")}, Query: names[0], Positive: names[1], Negatives: names[2:], Raw: true})
	if err != nil {
		return err
	}
	defer d.Close()
	dir := filepath.Join(tmp, beirFolder)
	if err := os.MkdirAll(filepath.Join(dir, "qrels"), 0o777); err != nil {
		return err
	}
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	open := func(name string) (*bufio.Writer, error) {
		f, err := os.Create(filepath.Join(dir, name))
		files = append(files, f)
		return bufio.NewWriter(f), err
	}
	queries, err := open("queries.jsonl")
	if err != nil {
		return err
	}
	corpus, err := open("corpus.jsonl")
	if err != nil {
		return err
	}
	qrels, err := open("qrels/test.tsv")
	if err != nil {
		return err
	}
	fmt.Fprintln(qrels, "query-id\tcorpus-id\tscore")
	seen := map[string]bool{}
	add := func(w *bufio.Writer, kind, text string) (id string) {
		id = dataset.HashText(text).String()[:16]
		if seen[kind+id] {
			return id
		}
		seen[kind+id] = true
		js, _ := json.Marshal(struct { // strings always can be
			ID   string `json:"_id"`
			Text string `json:"text"`
		}{id, text})
		w.Write(append(js, '\n'))
		return id
	}
	scan := d.NewScanner()
	defer scan.Close()
	var b dataset.Block
	for k := range d.Blocks() {
		if err := scan.Read(ctx, k, &b); err != nil {
			return err
		}
		for row := range b.Rows {
			query := add(queries, "q", b.Texts(nil, row, 0)[0])
			for column := 1; column < len(names); column++ {
				for _, text := range b.Texts(nil, row, column) {
					id := add(corpus, "d", text)
					if pair := query + " " + id; column == 1 && !seen[pair] {
						seen[pair] = true
						fmt.Fprintf(qrels, "%s\t%s\t1\n", query, id)
					}
				}
			}
		}
	}
	for i, w := range []*bufio.Writer{queries, corpus, qrels} {
		if err := w.Flush(); err != nil {
			return err
		}
		if err := files[i].Sync(); err != nil {
			return err
		}
	}
	return nil
}
