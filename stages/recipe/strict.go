package recipe

import (
	"errors"
	"reflect"
)

// Strict decodes a YAML file into a struct with yaml tags as recipes are decoded: an unknown key, a key given twice or a value of another type
// is an error with its line and what was probably meant, and all of them are reported at once. --set arguments ("a.b=c") come on top. into
// points to the struct with its defaults; check reports more mistakes, by their full keys, and may ask which keys were said.
func Strict(path string, sets []string, into any, check func(report func(key, text string), said func(key string) bool)) error {
	root, err := readTree(path)
	if err != nil {
		return err
	}
	for _, s := range sets {
		if err := root.set(s); err != nil {
			return err
		}
	}
	c := checker{d: &decoder{strange: true}, root: root}
	c.d.value("", root, reflect.ValueOf(into).Elem())
	check(func(key, text string) { c.fail(key, "%s", text) }, func(key string) bool { return c.find(key) != nil })
	return errors.Join(c.d.errs...)
}
