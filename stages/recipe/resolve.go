package recipe

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
)

// Resolve is what [Parse] does to a recipe that it reads, for one that a program has made or changed: it finds mistakes, and fills in what other keys
// decide. A resolved recipe stays as it is. Open and OnRanks do so themselves. Begin with [Default], or with a recipe that was parsed: of a loss,
// LoRA and the like in a Go literal every option is said, the zero ones too.
func (r Recipe) Resolve() (Recipe, error) {
	r = r.withLosses(func(l *Loss, dataset bool) {
		l.of(r.Model.Kind, l.dataset || dataset && l.GatherAcrossDevices == r.Loss.GatherAcrossDevices) // which the recipe's loss says for all
	})
	root, err := nodeOf(reflect.ValueOf(r))
	if err != nil {
		return r, err
	}
	resolved, err := resolve(root, nil, r.Save.unsaved)
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, e := range all.Unwrap() { // of no line
			errs = append(errs, errors.New(strings.TrimPrefix(e.Error(), ": ")))
		}
		return r, errors.Join(errs...)
	}
	return resolved, err
}

// nodeOf is the tree that a value would be read from. It takes no way through YAML's text, which does not hold every string.
func nodeOf(v reflect.Value) (*node, error) {
	if m, ok := v.Interface().(interface{ MarshalYAML() (any, error) }); ok && v.Kind() != reflect.Pointer {
		plain, err := m.MarshalYAML()
		if err != nil {
			return nil, err
		}
		if s, ok := plain.(yaml.MapSlice); ok {
			n := &node{kind: mapping}
			for _, item := range s {
				if err := n.add(fmt.Sprint(item.Key), reflect.ValueOf(item.Value)); err != nil {
					return nil, err
				}
			}
			return n, nil
		}
		return nodeOf(reflect.ValueOf(plain))
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return nodeOf(v.Elem())
	case reflect.Struct:
		n := &node{kind: mapping}
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if key := name(f); key == "" || strings.Contains(f.Tag.Get("yaml"), "omitempty") && empty(v.Field(i)) {
				continue
			} else if err := n.add(key, v.Field(i)); err != nil {
				return nil, err
			}
		}
		return n, nil
	case reflect.Map:
		n := &node{kind: mapping}
		for _, key := range v.MapKeys() {
			if err := n.add(key.String(), v.MapIndex(key)); err != nil {
				return nil, err
			}
		}
		return n, nil
	case reflect.Slice:
		n := &node{kind: list}
		for i := range v.Len() {
			e, err := nodeOf(v.Index(i))
			if err != nil {
				return nil, err
			}
			n.list = append(n.list, e)
		}
		return n, nil
	case reflect.String:
		return &node{kind: scalar, text: v.String()}, nil
	case reflect.Bool:
		return &node{kind: scalar, text: strconv.FormatBool(v.Bool())}, nil
	case reflect.Int, reflect.Int64:
		return &node{kind: scalar, text: strconv.FormatInt(v.Int(), 10)}, nil
	case reflect.Uint64:
		return &node{kind: scalar, text: strconv.FormatUint(v.Uint(), 10)}, nil
	case reflect.Float64:
		return &node{kind: scalar, text: strconv.FormatFloat(v.Float(), 'g', -1, 64)}, nil
	}
	return nil, fmt.Errorf("recipe: a %v has no form in a recipe", v.Type())
}

// add is a key of a mapping. What is nil has none.
func (n *node) add(key string, v reflect.Value) error {
	if (v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice || v.Kind() == reflect.Interface) && v.IsNil() {
		return nil
	}
	x, err := nodeOf(v)
	if err == nil {
		n.keys = append(n.keys, entry{key: key, value: x})
	}
	return err
}

// empty tells what omitempty leaves out.
func empty(v reflect.Value) bool {
	return v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0
}
