package prep

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"contraflow/io/atomicfile"
	"contraflow/io/dataset"
	"contraflow/io/spelling"
)

const beirFolder = "beir"

// BEIRStats are what a retrieval task holds.
type BEIRStats struct {
	Queries      int `json:"queries"`
	Documents    int `json:"documents"`
	DevDocuments int `json:"dev_documents"` // of these, the first ones
	Judgements   int `json:"judgements"`
}

func (s *BEIRStats) String() string {
	return fmt.Sprintf("%s of the development part, %s of all rows (the first %d %s that part's), %s", spelling.Count(s.Queries, "query", "queries"), spelling.Count(s.Documents, "document", "documents"),
		s.DevDocuments, spelling.Form(s.DevDocuments, "is", "are"), spelling.Count(s.Judgements, "judgement", "judgements"))
}

// writeBEIR writes the dev part, the first dev of the written rows, as a retrieval task: each distinct query, and that its positives are relevant to
// it. The corpus is each distinct document of all rows: among dev's alone, which are few, any model finds the right one. Dev's documents come first,
// so that the corpus may be cut behind them. Ids are the first half of the texts' hashes.
func writeBEIR(ctx context.Context, r *Rules, tmp string, dev int64) (*BEIRStats, error) {
	names := r.Config.columnNames()
	d, err := dataset.Open(ctx, dataset.Source{Paths: []string{filepath.Join(tmp, "dev-*.parquet"), filepath.Join(tmp, "train-*.parquet")}, InOrder: true,
		Query: names[0], Positive: names[1], Negatives: names[2:], Raw: true})
	if err != nil {
		return nil, err
	}
	defer d.Close()
	dir := filepath.Join(tmp, beirFolder)
	if err := os.MkdirAll(filepath.Join(dir, "qrels"), 0o777); err != nil {
		return nil, err
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
		return nil, err
	}
	corpus, err := open("corpus.jsonl")
	if err != nil {
		return nil, err
	}
	qrels, err := open("qrels/test.tsv")
	if err != nil {
		return nil, err
	}
	fmt.Fprintln(qrels, "query-id\tcorpus-id\tscore")
	const idFormat = "%016x"
	add := func(w *bufio.Writer, seen map[uint64]bool, text string) (id uint64) {
		if id = dataset.HashText(text).Hi; seen[id] {
			return id
		}
		seen[id] = true
		js, _ := json.Marshal(struct { // strings always can be
			ID   string `json:"_id"`
			Text string `json:"text"`
		}{fmt.Sprintf(idFormat, id), text})
		w.Write(append(js, '\n'))
		return id
	}
	s := &BEIRStats{}
	seenQueries, seenDocuments, judged := map[uint64]bool{}, map[uint64]bool{}, map[[2]uint64]bool{}
	scan := d.NewScanner()
	defer scan.Close()
	var b dataset.Block
	for k := range d.Blocks() {
		if err := scan.Read(ctx, k, &b); err != nil {
			return nil, err
		}
		for row := range b.Rows {
			ofDev, query := b.First+int64(row) < dev, uint64(0)
			if ofDev {
				query = add(queries, seenQueries, b.Texts(nil, row, 0)[0])
			}
			for column := 1; column < len(names); column++ {
				for _, text := range b.Texts(nil, row, column) {
					pair := [2]uint64{query, add(corpus, seenDocuments, text)}
					if ofDev {
						s.DevDocuments = len(seenDocuments)
					}
					if ofDev && column == 1 && !judged[pair] {
						judged[pair] = true
						fmt.Fprintf(qrels, idFormat+"\t"+idFormat+"\t1\n", pair[0], pair[1])
					}
				}
			}
		}
	}
	for i, w := range []*bufio.Writer{queries, corpus, qrels} {
		if err := w.Flush(); err != nil {
			return nil, err
		}
		if err := files[i].Sync(); err != nil {
			return nil, err
		}
	}
	for _, d := range []string{filepath.Join(dir, "qrels"), dir} { // the names too: they are in place before the output is marked as complete
		if err := atomicfile.SyncDir(d); err != nil {
			return nil, err
		}
	}
	s.Queries, s.Documents, s.Judgements = len(seenQueries), len(seenDocuments), len(judged)
	return s, nil
}
