package recipe

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"contraflow/io/spelling"
)

// node is a YAML value that remembers where it stands: in a line of the file, or in a --set argument.
type node struct {
	at     string // "recipe.yaml:12" or "--set batch.global_size=x"
	kind   kind
	text   string // of a scalar
	quoted bool
	list   []*node
	keys   []entry // of a map, in order
}

type entry struct {
	key   string
	at    string
	value *node
}

type kind int8

const (
	null kind = iota
	scalar
	list
	mapping
)

func (k kind) String() string { return [...]string{"nothing", "a value", "a list", "a mapping"}[k] }

// readTree parses a recipe file.
func readTree(path string) (*node, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("recipe: %w", err)
	}
	return parseTree(path, data)
}

func parseTree(name string, data []byte) (*node, error) {
	data, err := spelling.UTF8(name, data)
	if err != nil {
		return nil, err
	}
	f, err := parser.ParseBytes(data, 0)
	if err != nil {
		line, what := syntax(err)
		if line > 0 {
			name = fmt.Sprintf("%s:%d", name, line)
		}
		return nil, fmt.Errorf("%s: %s", name, what)
	}
	root := &node{at: name, kind: mapping}
	if len(f.Docs) > 1 {
		return nil, fmt.Errorf("%s: %d YAML documents, want one", name, len(f.Docs))
	}
	if len(f.Docs) == 0 || f.Docs[0].Body == nil {
		return root, nil
	}
	n, err := convert(func(line int) string { return fmt.Sprintf("%s:%d", name, line) }, f.Docs[0].Body)
	if err != nil {
		return nil, err
	}
	if n.kind == null {
		return root, nil
	}
	return n, nil
}

// syntax is the line and the message of the YAML library's error, without the excerpt that it appends, and its colours.
func syntax(err error) (line int, what string) {
	var at yaml.Error
	if errors.As(err, &at) && at.GetToken() != nil {
		return at.GetToken().Position.Line, at.GetMessage()
	}
	what, _, _ = strings.Cut(err.Error(), "\n")
	return 0, what
}

func convert(at func(line int) string, n ast.Node) (*node, error) {
	out := &node{at: at(n.GetToken().Position.Line)}
	switch v := n.(type) {
	case *ast.NullNode:
	case *ast.StringNode:
		out.kind, out.text = scalar, v.Value
		tk := strings.TrimSpace(v.GetToken().Origin)
		out.quoted = strings.HasPrefix(tk, `"`) || strings.HasPrefix(tk, "'")
	case *ast.LiteralNode:
		out.kind, out.text, out.quoted = scalar, v.Value.Value, true
	case *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		out.kind, out.text = scalar, n.GetToken().Value
	case *ast.SequenceNode:
		out.kind = list
		for _, x := range v.Values {
			c, err := convert(at, x)
			if err != nil {
				return nil, err
			}
			out.list = append(out.list, c)
		}
	case *ast.MappingNode:
		out.kind = mapping
		for _, x := range v.Values {
			if err := out.addEntry(at, x); err != nil {
				return nil, err
			}
		}
	case *ast.MappingValueNode:
		out.kind = mapping
		if err := out.addEntry(at, v); err != nil {
			return nil, err
		}
	case *ast.AliasNode:
		return nil, fmt.Errorf("%s: aliases are not used in recipes: a text that begins with * wants quotes, as in path: \"*.parquet\"", out.at)
	default:
		what := strings.ToLower(n.Type().String())
		return nil, fmt.Errorf("%s: %ss are not used in recipes", out.at, what)
	}
	return out, nil
}

func (n *node) addEntry(at func(int) string, v *ast.MappingValueNode) error {
	tk := v.Key.GetToken()
	value, err := convert(at, v.Value)
	if err != nil {
		return err
	}
	if value.kind == mapping || value.kind == list {
		value.at = at(tk.Position.Line)
	}
	n.keys = append(n.keys, entry{key: tk.Value, at: at(tk.Position.Line), value: value})
	return nil
}

// set applies one --set argument, "a.b=c": c is YAML, but for a text that begins with *, which would be an alias and is a glob. Elements of lists are addressed by number, "data.train.0.path=x" or, as
// errors have it, "data.train[0].path=x"; the number of an only one may be left out, as its brackets may.
func (n *node) set(arg string) error {
	path, text, ok := strings.Cut(arg, "=")
	at := "--set " + arg
	if !ok || path == "" {
		return fmt.Errorf("%s: want KEY=VALUE, as in --set train.max_steps=8", at)
	}
	if strings.TrimSpace(text) == "" { // an empty variable of a shell, most likely
		return fmt.Errorf("%s: no value; %s=null takes back what the recipe says, and %s='\"\"' is an empty text", at, path, path)
	}
	value, err := setValue(at, text)
	if err != nil {
		return err
	}
	path = indices.ReplaceAllStringFunc(path, func(i string) string { return "." + i[1:len(i)-1] })
	whole := path
	for {
		key, rest, more := strings.Cut(path, ".")
		if _, err := strconv.Atoi(key); err != nil && n.kind == list && len(n.list) == 1 {
			n = n.list[0]
		}
		if n.kind == scalar {
			above := strings.TrimSuffix(whole, "."+path)
			return fmt.Errorf("%s: %s is %s (%s), a value, which has no key %q; --set '%s={%s: ...}' makes it a mapping, of all that it is to say", at, above, n.text, n.at, key, above, key)
		}
		slot, err := n.slot(key, at)
		if err != nil {
			return err
		}
		if more && *slot != nil && (*slot).kind == mapping && (rest == "0" || strings.HasPrefix(rest, "0.")) { // an element without brackets
			_, rest, more = strings.Cut(rest, ".")
		}
		if !more {
			*slot = value
			return nil
		}
		if *slot == nil || (*slot).kind == null {
			*slot = &node{at: at, kind: mapping}
		}
		n, path = *slot, rest
	}
}

// setValue is what stands after the = of a --set argument.
func setValue(at, text string) (*node, error) {
	if glob := strings.TrimSpace(text); strings.HasPrefix(glob, "*") {
		return &node{at: at, kind: scalar, text: glob}, nil
	}
	f, err := parser.ParseBytes([]byte(text), 0)
	if err != nil {
		_, what := syntax(err)
		return nil, fmt.Errorf("%s: %s", at, what)
	}
	if len(f.Docs) == 0 || f.Docs[0].Body == nil {
		return &node{at: at, kind: null}, nil
	}
	return convert(func(int) string { return at }, f.Docs[0].Body)
}

// slot finds or makes the place of a key.
func (n *node) slot(key, at string) (**node, error) {
	switch n.kind {
	case mapping:
		for i := range n.keys {
			if n.keys[i].key == key {
				return &n.keys[i].value, nil
			}
		}
		n.keys = append(n.keys, entry{key: key, at: at})
		return &n.keys[len(n.keys)-1].value, nil
	case list:
		if i, err := strconv.Atoi(key); err == nil && i >= 0 && i < len(n.list) {
			return &n.list[i], nil
		}
		return nil, fmt.Errorf("%s: %q is not an element of a list of %d: they are counted from 0", at, key, len(n.list))
	}
	return nil, fmt.Errorf("%s: %s is %v, it has no key %q", at, n.at, n.kind, key) // a null in a list
}
