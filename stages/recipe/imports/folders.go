package imports

import (
	"os"
	"path"
	"strings"

	"contraflow/io/dataset"
)

// file is what a dataset's file, folder or name is called here, of rows to train on or of held-out ones. sentence-transformers' may be on the Hugging Face hub. FlagEmbedding takes a folder's .json and .jsonl files, and no others: what of them is
// there, in a folder that is.
func (r *recipe) file(file string, heldOut bool) []string {
	if r.from != FlagEmbedding && dataset.HubName(file) {
		url := "hf://datasets/" + file
		if heldOut {
			r.assume("%s is not here, and is taken for a dataset's name on the Hugging Face hub: of %s eval.loss takes its split test, else validation, else the only one that it has, of its default configuration. Others: %[2]s?config=NAME&split=NAME", file, url)
			return []string{url}
		}
		r.assume("%s is not here, and is taken for a dataset's name on the Hugging Face hub: %s is its split train, of its default configuration. Others: %[2]s?config=NAME&split=NAME", file, url)
		return []string{url}
	}
	if r.from != FlagEmbedding {
		return []string{file}
	}
	name := strings.TrimSuffix(file, "/")
	entries, err := os.ReadDir(name)
	if _, there := os.Stat(name); err != nil && (there == nil || path.Ext(file) != "" || file == "DATA") {
		return []string{file}
	}
	if same, _ := r.yes("same_dataset_within_batch"); same {
		r.assume("%s is one dataset; there each file is one, as it is here where import finds the folder and small_threshold merges none", file)
	}
	if err == nil {
		name = dataset.InGlob(name)
	}
	var kinds []string
	for _, kind := range []string{".jsonl", ".json"} {
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), kind) {
				kinds = append(kinds, name+"/*"+kind)
				break
			}
		}
	}
	switch {
	case kinds != nil:
		return kinds
	case err == nil:
		r.assume("%s has no .json and no .jsonl files, which are what FlagEmbedding takes of a folder: the recipe names them, and training will find none", file)
	case left.FindString(file) == "": // which variables tells of
		r.assume("%s is not there, seen from the folder that import runs in: it is taken for a folder, with all of its .json and .jsonl files", file)
	}
	return []string{name + "/*.json*"}
}

// alone tells whether the name of a file or folder asks for no negatives but a row's own, as AbsEmbedderSameDatasetTrainDataset reads it.
func (r *recipe) alone(v any) bool {
	file, _ := v.(string)
	if r.reranks() || !strings.HasSuffix(strings.TrimSuffix(strings.TrimSuffix(file, ".jsonl"), ".json"), "no_in_batch_neg") {
		return false
	}
	kd, _ := r.yes("knowledge_distillation")
	if n, ok := r.whole("train_group_size"); r.unified() || kd || ok && n < 2 {
		r.without("train_data", "%s: its name asks for no negatives but a row's own, which has a counterpart with negatives, neither M3's parts nor a teacher; here other rows' documents are negatives as well", file)
		return false
	}
	return true
}

// filesApart has a folder's files, each of which is a dataset with same_dataset_within_batch, unless small_threshold merges some.
func (r *recipe) filesApart(v any) (files []any) {
	file, _ := v.(string)
	if r.reranks() {
		return []any{v}
	}
	name := strings.TrimSuffix(file, "/")
	small, _ := r.whole("small_threshold")
	entries, _ := os.ReadDir(name)
	for _, e := range entries {
		if ext := path.Ext(e.Name()); small == 0 && (ext == ".json" || ext == ".jsonl") {
			files = append(files, dataset.InGlob(name+"/"+e.Name()))
		}
	}
	if files == nil {
		return []any{v}
	}
	return files
}
