package recipe

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"

	"contraflow/io/hfmodel"
)

// A model's card is read where the run's files are not, and it may be published: of full paths it has the last part, in the recipe too. The recipe as it ran
// is save.dir's recipe.yaml.

// shortPath is a path as the card has it: of a full one its last part.
func shortPath(path string) string {
	if name := filepath.Base(path); filepath.IsAbs(path) && !strings.ContainsAny(name, "*?[") {
		return name
	}
	return shortTask(path)
}

// shortTask is shortPath with the folder's name before it, for many tasks' files are called queries.jsonl.
func shortTask(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Join(filepath.Base(filepath.Dir(path)), filepath.Base(path))
	}
	return path
}

// shortNames are those of several.
func shortNames(paths []string) string {
	var names []string
	for _, path := range paths {
		names = append(names, shortPath(path))
	}
	return strings.Join(names, ", ")
}

// card is what a model card says of the run.
func (x *Run) card() (hfmodel.Card, error) {
	var sources []hfmodel.Dataset
	for i, src := range x.Recipe.Data.Train {
		columns := []string{src.Query}
		if src.Positive != "" {
			columns = append(columns, src.Positive)
		}
		if src.Documents != "" {
			columns = append(columns, src.Documents)
		}
		sources = append(sources, hfmodel.Dataset{Name: shortNames(src.paths()), Columns: append(columns, src.Negatives...), Rows: x.data[i].Rows()})
	}
	r := x.Recipe
	eachPath(reflect.ValueOf(&r).Elem(), false, shortPath)
	text, err := r.YAML()
	if err != nil {
		return hfmodel.Card{}, err
	}
	c := hfmodel.Card{BaseModel: shortPath(x.base()), Recipe: string(text), TrainingData: sources}
	own := x.own.mark()
	if own.Loss != "" {
		c.Summary = fmt.Sprintf("Its loss was a program's own, `%s`, in the place of the recipe's.", own.Loss)
	}
	if own.Row {
		c.Summary = strings.TrimSpace(c.Summary + " A program changed its rows before they were read.")
	}
	if x.measured != nil {
		c.Metrics = x.measured.results
	}
	return c, nil
}
