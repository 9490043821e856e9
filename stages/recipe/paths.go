package recipe

import (
	"path/filepath"
	"reflect"

	"contraflow/io/dataset"
)

// eachPath changes all paths that a recipe names, in v, which must be settable, and shares nothing with what it was copied from then.
func eachPath(v reflect.Value, path bool, change func(string) string) {
	switch v.Kind() {
	case reflect.String:
		if path {
			v.SetString(change(v.String()))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			own := reflect.New(v.Type().Elem())
			own.Elem().Set(v.Elem())
			v.Set(own)
			eachPath(own.Elem(), path, change)
		}
	case reflect.Slice:
		if v.IsNil() {
			return
		}
		own := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(own, v)
		v.Set(own)
		for i := range own.Len() {
			eachPath(own.Index(i), path, change)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.CanSet() {
				eachPath(f, v.Type().Field(i).Tag.Get("path") != "", change)
			}
		}
	}
}

// RunFrom is the folder from which a recipe, read from file, finds something that it names and that the working folder lacks, from which its paths
// count: the nearest one of those around the file; and what the file is called from there. Both are "" if there is none.
func (r Recipe) RunFrom(file string) (dir, name string) {
	var missing []string
	r.Save.Dir = ""
	eachPath(reflect.ValueOf(&r).Elem(), false, func(path string) string {
		if path != "" && path != "-" && !filepath.IsAbs(path) && !dataset.Remote(path) && dataset.Missing(path) != nil {
			missing = append(missing, path)
		}
		return path
	})
	dir, err := filepath.Abs(file)
	if err != nil {
		return "", ""
	}
	for dir != filepath.Dir(dir) {
		dir, name = filepath.Dir(dir), filepath.Join(filepath.Base(dir), name)
		for _, path := range missing {
			if dataset.Missing(filepath.Join(dir, path)) == nil {
				return dir, name
			}
		}
	}
	return "", ""
}
