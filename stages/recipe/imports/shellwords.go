package imports

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// expansion is what a word becomes: several words, where a variable in it that is not quoted has several, or none.
type expansion struct {
	words   []string
	word    strings.Builder
	in      bool // within a word
	whole   bool // there is one word, as in an assignment
	within  int  // of ${name:-default}s, whose words are words, too
	foreign bool // what a command prints is part of it
}

func (x *expansion) add(s string) {
	x.word.WriteString(s)
	x.in = true
}

func (x *expansion) end() {
	if x.in {
		x.words = append(x.words, x.word.String())
	}
	x.word.Reset()
	x.in = false
}

// value adds what a variable has.
func (x *expansion) value(s string, quoted bool) {
	if quoted || x.whole {
		x.add(s)
		return
	}
	for _, c := range s {
		if c == ' ' || c == '\t' || c == '\n' {
			x.end()
			continue
		}
		x.word.WriteRune(c)
		x.in = true
	}
}

// words expands words.
func (sh *shell) words(all []*syntax.Word) ([]string, error) {
	var x expansion
	for _, w := range all {
		each, split := []*syntax.Word{w}, syntax.Word{Parts: slices.Clone(w.Parts)}
		if syntax.SplitBraces(&split) && alternatives(&split) <= mostWords { // a/{b,c}
			if each = expand.Braces(&split); len(each) > 1 {
				if err := sh.count(len(each) * (len(sh.source(w)) + wordBytes)); err != nil {
					return nil, err
				}
			}
		}
		for _, w := range each {
			if err := sh.expand(&x, w.Parts, false); err != nil {
				return nil, err
			}
			x.end()
		}
	}
	return x.words, nil
}

// alternatives is how many words braces make of one, or more than mostWords.
func alternatives(w *syntax.Word) int {
	n := 1
	for _, p := range w.Parts {
		if b, ok := p.(*syntax.BraceExp); ok {
			sum := 0
			for _, e := range b.Elems {
				sum = min(sum+alternatives(e), mostWords+1)
			}
			if b.Sequence {
				sum = steps(b)
			}
			n = min(n*sum, mostWords+1)
		}
	}
	return n
}

// steps is how many words {1..4} is, at most, or more than mostWords.
func steps(b *syntax.BraceExp) int {
	from, err := strconv.Atoi(b.Elems[0].Lit())
	to, another := strconv.Atoi(b.Elems[1].Lit())
	n := max(from-to, to-from)
	switch {
	case errors.Is(err, strconv.ErrSyntax) && errors.Is(another, strconv.ErrSyntax): // letters
		return 1 << 8
	case err != nil || another != nil || max(from, to) > math.MaxInt32 || min(from, to) < math.MinInt32: // or n may have no place in an int
		return mostWords + 1
	}
	return n + 1
}

// whole expands a word that stays one, or nothing, where quoted within double quotes.
func (sh *shell) whole(w *syntax.Word, quoted bool) (value string, foreign bool, err error) {
	if w == nil {
		return "", false, nil
	}
	x := expansion{whole: true}
	err = sh.expand(&x, w.Parts, quoted)
	x.end()
	return strings.Join(x.words, " "), x.foreign, err
}

// expand adds parts of a word. What can't be told is itself.
func (sh *shell) expand(x *expansion, parts []syntax.WordPart, quoted bool) (err error) {
	for _, p := range parts {
		switch p := p.(type) {
		case *syntax.Lit:
			x.literal(p.Value, quoted)
		case *syntax.SglQuoted:
			value := p.Value
			if p.Dollar {
				value, err = expand.Literal(nil, &syntax.Word{Parts: []syntax.WordPart{p}})
			} else if quoted { // as in "${a:-'b'}"
				value = sh.source(p)
			}
			x.add(value)
		case *syntax.DblQuoted:
			if len(p.Parts) != 1 || !ofArray(p.Parts[0]) { // which may have no words
				x.in = true
			}
			err = sh.expand(x, p.Parts, true)
		case *syntax.ParamExp:
			err = sh.parameter(x, p, quoted)
		case *syntax.ArithmExp:
			value, ok := sh.number(p)
			x.foreign = x.foreign || !ok
			x.add(value)
		case *syntax.CmdSubst:
			x.foreign = true
			x.add(sh.source(p))
		default:
			x.add(sh.source(p))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// number computes $((8 * NAME)), or gives it as it stands where it can't be told.
func (sh *shell) number(p *syntax.ArithmExp) (value string, ok bool) {
	source := sh.source(p)
	for _, name := range anyName.FindAllString(source, -1) {
		if !integer.MatchString(sh.vars[name]) {
			return source, false
		}
	}
	if assigned.MatchString(source) {
		return source, false
	}
	n, err := expand.Arithm(&expand.Config{Env: expand.FuncEnviron(func(name string) string { return sh.vars[name] })}, p.X)
	if err != nil {
		return source, false
	}
	return strconv.Itoa(n), true
}

var (
	integer  = regexp.MustCompile(`^-?[1-9]\d{0,8}$|^0$`)
	assigned = regexp.MustCompile(`[^=!<>]=[^=]|\+\+|--|[<>]{2}=`)
)

func ofArray(p syntax.WordPart) bool {
	of, ok := p.(*syntax.ParamExp)
	return ok && (of.Index != nil || of.Param != nil && of.Param.Value == "@")
}

// literal adds text in which backslashes quote what follows them.
func (x *expansion) literal(s string, quoted bool) {
	splits := x.within > 0 && !quoted && !x.whole
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s) && (!quoted || strings.ContainsRune("\"\\$`\n", rune(s[i+1]))):
			if i++; s[i] == '\n' {
				continue
			}
		case splits && strings.ContainsRune(" \t\n", rune(s[i])):
			x.end()
			continue
		}
		x.word.WriteByte(s[i])
		x.in = true
	}
}

// parameter adds what ${ } or $name stands for.
func (sh *shell) parameter(x *expansion, p *syntax.ParamExp, quoted bool) error {
	name := ""
	if p.Param != nil && !p.Excl && !p.Length && p.Slice == nil && p.Repl == nil && p.Names == 0 {
		name = p.Param.Value
	}
	args, inFunction := sh.arrays["@"]
	v, set := sh.vars[name]
	empty := sh.gone[name] || sh.tests && sh.why[name] == ""
	switch n, err := strconv.Atoi(name); {
	case inFunction && p.Exp == nil && (name == "@" || name == "*"):
		return sh.all(x, p, args, name, quoted)
	case err == nil && n > 0 && sh.why["@"] == "":
		if empty = inFunction; n <= len(args) {
			v, set = args[n-1], true
		}
	case !identifier.MatchString(name):
		x.add(sh.source(p))
		return nil
	case p.Index != nil:
		return sh.elements(x, p, quoted)
	}
	itself := func() error {
		x.add(sh.source(p))
		return nil
	}
	if !quoted && !x.whole && sh.separated() {
		return itself()
	}
	value := func() error {
		x.value(v, quoted)
		return sh.count(len(v))
	}
	if p.Exp == nil || sh.why[name] != "" {
		if !set && !empty {
			return itself()
		}
		return value()
	}
	switch p.Exp.Op {
	case syntax.AlternateUnsetOrNull, syntax.DefaultUnsetOrNull, syntax.ErrorUnsetOrNull, syntax.AssignUnsetOrNull:
		set = set && v != ""
	}
	switch p.Exp.Op {
	case syntax.AlternateUnset, syntax.AlternateUnsetOrNull:
		if !set {
			return nil
		} else if variable(v) != "" { // which may be empty
			return itself()
		}
	case syntax.DefaultUnset, syntax.DefaultUnsetOrNull:
		if set {
			return value()
		}
	case syntax.AssignUnset, syntax.AssignUnsetOrNull:
		if !set {
			var foreign bool
			var err error
			if v, foreign, err = sh.whole(p.Exp.Word, quoted); err != nil {
				return err
			}
			sh.set(name, v, foreign)
			x.foreign = x.foreign || foreign
		}
		return value()
	case syntax.ErrorUnset, syntax.ErrorUnsetOrNull:
		if set {
			return value()
		}
		return itself() // the script ends there
	default: // a part of it
		return itself()
	}
	if p.Exp.Word == nil {
		return nil
	}
	x.within++
	err := sh.expand(x, p.Exp.Word.Parts, quoted)
	x.within--
	return err
}

// elements adds the words of an array: "${NAME[@]}", or ${NAME[@]+"${NAME[@]}"}, which is nothing where there is no array.
func (sh *shell) elements(x *expansion, p *syntax.ParamExp, quoted bool) error {
	name, index := p.Param.Value, strings.Trim(sh.source(p.Index), `"`)
	words, ok := sh.arrays[name]
	all := index == "@" || index == "*"
	if all && p.Exp != nil && p.Exp.Op == syntax.AlternateUnset && (ok || sh.why[name] == "") {
		if !ok || p.Exp.Word == nil {
			return nil
		}
		return sh.expand(x, p.Exp.Word.Parts, quoted)
	}
	if !all || !ok || p.Exp != nil {
		x.add(sh.source(p))
		return nil
	}
	return sh.all(x, p, words, index, quoted)
}

// separated tells whether words may be cut, and joined, elsewhere than at spaces, tabs and ends of lines.
func (sh *shell) separated() bool {
	v, set := sh.vars["IFS"]
	return sh.why["IFS"] != "" || set && v != " \t\n"
}

// all adds words of an array, by index @ or *.
func (sh *shell) all(x *expansion, p *syntax.ParamExp, words []string, index string, quoted bool) error {
	if (!quoted || index == "*") && sh.separated() {
		x.add(sh.source(p))
		return nil
	}
	if quoted && (index == "*" || x.whole) {
		words = []string{strings.Join(words, " ")}
	}
	for i, w := range words {
		if i > 0 {
			x.end()
		}
		x.value(w, quoted)
	}
	return sh.count(len(strings.Join(words, " ")))
}

func (sh *shell) count(bytes int) error {
	if sh.expanded += bytes; sh.expanded > mostExpanded {
		return fmt.Errorf("the script's variables and braces have more than %d MB of text", mostExpanded>>20)
	}
	return nil
}

var (
	identifier = regexp.MustCompile(`^[A-Za-z_]\w*$`)
	left       = regexp.MustCompile("\\$\\{?([A-Za-z_]\\w*|[0-9@*#?$!-]|\\([^)]*\\)?)|`[^`]*`?")
	leftWhole  = regexp.MustCompile(`\$\{[^}]*\}|` + left.String())
	elements   = regexp.MustCompile(`^\$\{([A-Za-z_]\w*)\[[@*]\]`)
)
