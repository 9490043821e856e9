package recipe

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"contraflow/io/spelling"
)

// The decoder fills a struct from a tree, strictly: what it doesn't know is an error with the line, the full key, and what
// was probably meant. It collects errors, so that one run shows all of them.

// custom is a type that accepts more than one form.
type custom interface {
	decode(d *decoder, path string, n *node)
}

type decoder struct {
	strange bool // not a Recipe: what is known of a recipe's keys says nothing here
	errs    []error
	failed  []string // full keys
	meant   []string // those that an unknown key stands for, probably
}

var indices = regexp.MustCompile(`\[\d+\]`)

func (d *decoder) fail(at, path, format string, args ...any) {
	d.failed = append(d.failed, path)
	if path != "" {
		path += ": "
	}
	d.errs = append(d.errs, fmt.Errorf("%s: %s%s", at, path, fmt.Sprintf(format, args...)))
}

func (d *decoder) value(path string, n *node, v reflect.Value) {
	if c, ok := v.Addr().Interface().(custom); ok {
		c.decode(d, path, n)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(path, n, v.Elem())
	case reflect.Struct:
		d.structure(path, n, v)
	case reflect.Slice:
		d.slice(path, n, v)
	default:
		d.scalar(path, n, v)
	}
}

func (d *decoder) scalar(path string, n *node, v reflect.Value) {
	if n.kind == mapping && v.Kind() == reflect.String {
		quoted := path + `: "query: "`
		if strings.HasPrefix(n.at, "--set ") {
			quoted = `--set '` + path + `="query: "'` // the shell takes the outer ones
		}
		d.fail(n.at, path, "want a text, got a mapping: one with a colon before a space, or at its end, wants quotes, as in %s", quoted)
		return
	}
	if n.kind != scalar {
		d.fail(n.at, path, "want %s, got %v%s", typeName(v.Kind()), n.kind, d.asIn("; as in", path))
		return
	}
	text := n.text
	var err error
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		var b bool
		b, err = strconv.ParseBool(text)
		v.SetBool(b)
	case reflect.Int:
		var i int64
		i, err = strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
		v.SetInt(i)
	case reflect.Uint64:
		var i uint64
		i, err = strconv.ParseUint(text, 10, 64)
		v.SetUint(i)
	case reflect.Float64:
		var f float64
		f, err = strconv.ParseFloat(text, 64)
		v.SetFloat(f)
		if err == nil && f-f != 0 { // nor would recipe.yaml, as it is written, be read again
			d.fail(n.at, path, "is %v, want a finite number%s", f, d.asIn("; as in", path))
			return
		}
	default:
		panic("recipe: no decoder for " + v.Type().String())
	}
	if err != nil || n.quoted && v.Kind() != reflect.String {
		d.fail(n.at, path, "want %s, got %q%s", typeName(v.Kind()), text, d.asIn("; as in", path))
	}
}

func typeName(k reflect.Kind) string {
	switch k {
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Uint64:
		return "a whole number of at least 0"
	case reflect.Float64:
		return "a number"
	case reflect.String:
		return "a text"
	}
	return k.String()
}

func (d *decoder) slice(path string, n *node, v reflect.Value) {
	if n.kind != list {
		n = &node{at: n.at, kind: list, list: []*node{n}} // one element needs no brackets
	}
	out := reflect.MakeSlice(v.Type(), len(n.list), len(n.list))
	for i, e := range n.list {
		if e.kind == null {
			d.fail(e.at, fmt.Sprintf("%s[%d]", path, i), "has no value")
			continue
		}
		d.value(fmt.Sprintf("%s[%d]", path, i), e, out.Index(i))
	}
	v.Set(out)
}

// structure fills a struct. A key without a value (null, or nothing, as where all that it had is commented out) is as if it were not there: the
// struct keeps its default, and the tree loses the key, so that checks of what the recipe says don't find it.
func (d *decoder) structure(path string, n *node, v reflect.Value) {
	if n.kind != mapping {
		d.fail(n.at, path, "want a mapping with the keys %s, got %s", strings.Join(fieldNames(v.Type()), ", "), describe(n))
		return
	}
	seen := map[string]string{}
	defer func() {
		n.keys = slices.DeleteFunc(n.keys, func(e entry) bool { return e.value.kind == null })
	}()
	for _, e := range n.keys {
		full := join(path, e.key)
		if at, ok := seen[e.key]; ok {
			d.fail(e.at, full, "is given twice (first in %s)", at)
			continue
		}
		seen[e.key] = e.at
		if f, tag, ok := field(v, e.key); ok && e.value.kind == null {
			continue
		} else if ok {
			d.value(full, e.value, f)
			if tag.Get("path") != "" {
				d.home(e.value.at, full, f)
			}
			continue
		}
		d.unknown(e.at, path, e.key, v.Type())
	}
}

// structureOr fills a struct, or where a path stands in its place, that one field of it.
func (d *decoder) structureOr(field *string, path string, n *node, v reflect.Value) {
	if n.kind != scalar {
		d.structure(path, n, v)
		return
	}
	*field = n.text
	d.home(n.at, path, reflect.ValueOf(field).Elem())
}

func describe(n *node) string {
	if n.kind == scalar {
		return fmt.Sprintf("%q", n.text)
	}
	return n.kind.String()
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func field(v reflect.Value, key string) (reflect.Value, reflect.StructTag, bool) {
	for i := range v.NumField() {
		if f := v.Type().Field(i); key != "" && name(f) == key {
			return v.Field(i), f.Tag, true
		}
	}
	return reflect.Value{}, "", false
}

// home puts the user's folder for a leading ~ in a path, or in each of several. A shell does so on a command line; in a file nobody else does.
func (d *decoder) home(at, path string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Slice:
		for i := range v.Len() {
			d.home(at, fmt.Sprintf("%s[%d]", path, i), v.Index(i))
		}
	case reflect.String:
		if s := v.String(); s == "~" || strings.HasPrefix(s, "~/") {
			dir, err := os.UserHomeDir()
			if err != nil {
				d.fail(at, path, "%s: %v", s, err)
				return
			}
			v.SetString(filepath.Join(dir, s[1:]))
		}
	}
}

// name is a field's key; "": it has none.
func name(f reflect.StructField) string {
	n, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return strings.TrimPrefix(n, "-")
}

func fieldNames(t reflect.Type) []string {
	var names []string
	for field := range t.Fields() {
		if n := name(field); n != "" {
			names = append(names, n)
		}
	}
	return names
}

// unknown says what an unknown key probably means: another framework's name for one of ours, the same key in another
// section, or the nearest key of this one.
func (d *decoder) unknown(at, path, key string, t reflect.Type) {
	hint := ""
	near := spelling.Nearest(key, fieldNames(t))
	if d.strange && near != "" {
		hint = fmt.Sprintf("; did you mean %s?", join(path, near))
	} else if d.strange {
		hint = fmt.Sprintf("; the keys are %s", strings.Join(fieldNames(t), ", "))
	} else if ours, ok := foreign[key]; ok {
		if column, of := strings.CutPrefix(ours, "data.train[]."); of && !strings.HasPrefix(path, "data.train") {
			for _, f := range fieldNames(t) { // what is measured has columns as well
				if f == column || f+"s" == column {
					ours = join(path, f)
				}
			}
		}
		hint = fmt.Sprintf("; here it is %s%s", ours, d.asIn("; as in", ours))
	} else if near != "" {
		d.meant = append(d.meant, join(path, near))
		hint = fmt.Sprintf("; did you mean %s?%s", join(path, near), d.asIn(" As in", join(path, near)))
	} else if places := elsewhere(key); len(places) > 0 {
		hint = fmt.Sprintf("; did you mean %s?%s", strings.Join(places, " or "), d.asIn(" As in", places[0]))
	} else {
		hint = fmt.Sprintf("; the keys are %s", strings.Join(fieldNames(t), ", "))
	}
	d.fail(at, join(path, key), "unknown key%s", hint)
}

// asIn shows how a recipe's key is written.
func (d *decoder) asIn(before, key string) string {
	if e := example(key); e != "" && !d.strange {
		return before + " " + e
	}
	return ""
}

// elsewhere lists the full keys whose last part is key.
func elsewhere(key string) []string {
	var out []string
	for _, k := range Keys() {
		if k == key || strings.HasSuffix(k, "."+key) {
			out = append(out, k)
		}
	}
	return out
}

// Ours is what a recipe calls what other programs, or people, call by a name: a key, or some; "" where nothing is known.
func Ours(name string) string {
	name = strings.ReplaceAll(name, "-", "_")
	if ours := foreign[name]; ours != "" && !strings.HasPrefix(ours, "contraflow ") { // which is a command
		return ours
	}
	keys, depth := elsewhere(name), func(key string) int { return strings.Count(key, ".") }
	slices.SortStableFunc(keys, func(a, b string) int { return depth(a) - depth(b) })
	return strings.Join(slices.DeleteFunc(keys, func(k string) bool { return depth(k) > depth(keys[0]) }), " or ") // what lies deeper is of something particular
}

// Keys lists every key of a recipe in full.
func Keys() []string {
	var out []string
	var walk func(path string, t reflect.Type)
	walk = func(path string, t reflect.Type) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			return
		}
		for field := range t.Fields() {
			if name(field) == "" {
				continue // of a type with a form of its own
			}
			full := join(path, name(field))
			out = append(out, full)
			if field.Type != reflect.TypeFor[*Loss]() { // has the keys of loss
				walk(full, field.Type)
			}
		}
	}
	walk("", reflect.TypeFor[Recipe]())
	return out
}

// oneOf checks a word against a list.
func (d *decoder) oneOf(path string, n *node, words ...string) bool {
	for _, w := range words {
		if n.kind == scalar && n.text == w {
			return true
		}
	}
	sorted := append([]string(nil), words...)
	sort.Strings(sorted)
	hint := ""
	if n.kind == scalar {
		if near := spelling.Nearest(n.text, words); near != "" {
			hint = fmt.Sprintf("; did you mean %s?", near)
		}
	}
	d.fail(n.at, path, "is %s, want one of %s%s", describe(n), strings.Join(sorted, ", "), hint)
	return false
}
