package hfmodel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"contraflow/io/internal/plainfile"
)

// object is a JSON object that keeps its keys' order and the values nobody asked for, so that a file can be read,
// changed in one place and written again.
type object struct {
	keys   []string
	values map[string]json.RawMessage
}

func newObject() *object { return &object{values: map[string]json.RawMessage{}} }

func readObject(file string) (*object, error) {
	data, err := plainfile.Read(file)
	if err != nil {
		return nil, err
	}
	o, err := parseObject(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return o, nil
}

func parseObject(data []byte) (*object, error) {
	var check map[string]json.RawMessage
	if err := unmarshal(data, &check); err != nil {
		return nil, err
	}
	if check == nil {
		return nil, errors.New("null instead of an object")
	}
	// It is valid: the walk for the keys' order can't fail. Of a key that occurs twice the last value counts, as in
	// Python.
	o := &object{values: check}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.Token()
	for dec.More() {
		key, _ := dec.Token()
		if k := key.(string); !slices.Contains(o.keys, k) {
			o.keys = append(o.keys, k)
		}
		var skipped json.RawMessage
		dec.Decode(&skipped)
	}
	return o, nil
}

func (o *object) len() int { return len(o.keys) }

func (o *object) clone() *object {
	c := newObject()
	if o != nil {
		c.keys = slices.Clone(o.keys)
		maps.Copy(c.values, o.values)
	}
	return c
}

// getAll gets several values, in the order of their keys: of several that are wrong it is the first that an error is about.
func (o *object) getAll(into map[string]any) error {
	for _, key := range sortedKeys(into) {
		if _, err := o.get(key, into[key]); err != nil {
			return err
		}
	}
	return nil
}

// get decodes a value into v and reports whether there is one that isn't null.
func (o *object) get(key string, v any) (bool, error) {
	raw, ok := o.values[key]
	if !ok || string(raw) == "null" {
		return false, nil
	}
	if err := json.Unmarshal(raw, v); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			return false, fmt.Errorf("%s: got %s, want %s", key, short(raw), want(wrong))
		}
		return false, fmt.Errorf("%s: %w", key, err)
	}
	return true, nil
}

// set adds or replaces a value, which must be one that JSON can hold.
func (o *object) set(key string, v any) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // a mistake in this package: callers pass strings, numbers, booleans and maps of them
	}
	if _, ok := o.values[key]; !ok {
		o.keys = append(o.keys, key)
	}
	o.values[key] = bytes.TrimSpace(b.Bytes())
}

func (o *object) remove(key string) {
	delete(o.values, key)
	o.keys = slices.DeleteFunc(o.keys, func(k string) bool { return k == key })
}

// bytes is the object indented by two spaces, as Python's libraries write it.
func (o *object) bytes() []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, key := range o.keys {
		if i > 0 {
			b.WriteByte(',')
		}
		name, _ := json.Marshal(key)
		b.Write(name)
		b.WriteByte(':')
		b.Write(o.values[key])
	}
	b.WriteByte('}')
	var out bytes.Buffer
	json.Indent(&out, b.Bytes(), "", "  ") // made of valid pieces
	out.WriteByte('\n')
	return out.Bytes()
}

// unmarshal is json.Unmarshal with the line in its errors.
func unmarshal(data []byte, v any) error {
	err := json.Unmarshal(data, v)
	var syntax *json.SyntaxError
	var wrong *json.UnmarshalTypeError
	switch {
	case bytes.HasPrefix(data, []byte("\ufeff")):
		return errors.New("it begins with a byte order mark, which JSON has none of, for Python too: save it as UTF-8 without one")
	case errors.As(err, &syntax):
		return fmt.Errorf("line %d: not valid JSON: %w", line(data, syntax.Offset), err)
	case errors.As(err, &wrong):
		return fmt.Errorf("line %d: got a JSON %s, want %s", line(data, wrong.Offset), wrong.Value, want(wrong))
	}
	return err
}

// want names in JSON's terms what a value should have been.
func want(wrong *json.UnmarshalTypeError) string {
	name := wrong.Type.String()
	switch wrong.Type.Kind() {
	case reflect.Map, reflect.Struct:
		name = "an object"
	case reflect.Slice:
		name = "a list"
	case reflect.String:
		name = "a string"
	case reflect.Bool:
		name = "true or false"
	case reflect.Int:
		name = "a whole number"
	case reflect.Float64:
		name = "a number"
	}
	if wrong.Field != "" {
		name += fmt.Sprintf(" at %q", wrong.Field)
	}
	return name
}

func line(data []byte, offset int64) int {
	return 1 + bytes.Count(data[:min(int(offset), len(data))], []byte("\n"))
}

func short(raw []byte) string {
	if len(raw) > 40 {
		return string(raw[:40]) + "..."
	}
	return string(raw)
}
