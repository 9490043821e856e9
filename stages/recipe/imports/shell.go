package imports

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// shell reads a script of bash as far as its text says what it does: which commands it has, with which words. It starts nothing and knows no
// environment.
//
// A variable is expanded if the script sets it to a text: name=value, name="..." of several lines, ${name:-default}, to the words of an array,
// name=(...), whose use is "${name[@]}", and
//
//	if [ -z "$NAME" ]; then NAME=default; fi
//
// where one that the script hasn't set counts as empty. One that has a command's output, that is set where it can't be told whether that
// happens, or that isn't set at all stands as it is, $NAME, and whyNot says why.
type shell struct {
	variables
	commands  [][]string
	functions []*function
	locals    []local // of the functions that are read, those of callers first
	frame     int     // where those of the innermost begin
	inside    bool    // a function
	text      string  // that is read
	done      tri     // whether what is read is done: it may be under a condition
	goes      tri     // whether the function goes on: it may have returned
	last      tri     // whether the command before succeeded
	tests     bool    // what is expanded is within [ ] or [[ ]]
	evals     int     // within each other
	calls     int     // of functions so far
	expanded  int     // bytes of variables so far
}

type variables struct {
	vars     map[string]string
	arrays   map[string][]string // "@" is what a function is called with
	why      map[string]string   // of those that are set, to what can't be told
	gone     map[string]bool     // that are unset, whatever the environment has
	odd      map[string]string   // of those that are not what they are set to: why
	exported map[string]bool     // true: surely; false: it may be
}

// tri is no, maybe or yes: their minimum is "and", their maximum "or".
type tri int8

const (
	no    tri = -1
	maybe tri = 0
	yes   tri = 1
)

// A script may double a variable with each line or words with each brace, eval itself, and be nested deeper than its parser can go.
const (
	mostExpanded = 4 << 20
	deepestEval  = 8
	longest      = 1 << 20
	deepest      = 1000
	mostWords    = 1000
	wordBytes    = 16 // besides its text
	mostCalls    = 1000
)

func newShell() *shell {
	return &shell{variables: variables{map[string]string{}, map[string][]string{}, map[string]string{}, map[string]bool{}, map[string]string{}, map[string]bool{}}, done: yes, goes: yes, last: yes}
}

// run reads a script, or what eval is given.
func (sh *shell) run(text string) error {
	if sh.evals > deepestEval {
		return errors.New("eval within eval has no end")
	}
	text = strings.ReplaceAll(text, "\r\n", "\n")
	if err := nested(text); err != nil {
		return err
	}
	f, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	var wrong syntax.ParseError
	if errors.As(err, &wrong) {
		return fmt.Errorf("line %d, character %d: %s", wrong.Pos.Line(), wrong.Pos.Col(), wrong.Text)
	} else if err != nil {
		return err
	}
	was := sh.text
	sh.text = text
	sh.evals++
	err = sh.list(f.Stmts)
	sh.evals--
	sh.text = was
	return err
}

// nested refuses what goes deeper than a script that somebody has written.
func nested(text string) error {
	if len(text) > longest {
		return fmt.Errorf("the script has more than %d MB of text", longest>>20)
	}
	deep := 0
	for _, c := range text {
		switch c {
		case '(', '{', '[':
			deep++
		case ')', '}', ']':
			deep = max(0, deep-1)
		}
		if deep > deepest {
			return fmt.Errorf("more than %d brackets are open within each other", deepest)
		}
	}
	return nil
}

// list reads statements in their order.
func (sh *shell) list(all []*syntax.Stmt) error {
	for _, s := range all {
		if sh.done == no {
			return nil
		}
		if err := sh.statement(s); err != nil {
			return err
		}
	}
	return nil
}

// under reads what is done only if a condition holds.
func (sh *shell) under(holds tri, all ...*syntax.Stmt) error {
	was := sh.done
	sh.done = min(was, holds)
	err := sh.list(all)
	sh.done = min(was, sh.goes)
	return err
}

// apart reads what has a shell of its own: none of its variables is set behind it, and none of its functions there.
func (sh *shell) apart(read func() error) error {
	was, locals, done, goes, functions := sh.variables, slices.Clone(sh.locals), sh.done, sh.goes, len(sh.functions)
	sh.variables = was.clone()
	err := read()
	sh.variables, sh.locals, sh.done, sh.goes = was, locals, done, goes
	for _, f := range sh.functions[functions:] {
		f.gone = true
	}
	return err
}

func (sh *shell) statement(s *syntax.Stmt) (err error) {
	if s.Background {
		err = sh.apart(func() error { return sh.command(s.Cmd) })
		sh.last = yes
	} else {
		err = sh.command(s.Cmd)
	}
	if s.Negated {
		sh.last = -sh.last
	}
	return err
}

func (sh *shell) command(c syntax.Command) (err error) {
	switch c := c.(type) {
	case *syntax.CallExpr:
		err = sh.call(c)
	case *syntax.DeclClause:
		err = sh.declare(c)
	case *syntax.BinaryCmd:
		err = sh.both(c)
	case *syntax.Block:
		err = sh.list(c.Stmts)
	case *syntax.FuncDecl:
		sh.functions = append(sh.functions, &function{name: c.Name.Value, body: c.Body, text: sh.text, sure: sh.done == yes})
		sh.last = yes
	case *syntax.Subshell:
		err = sh.apart(func() error { return sh.list(c.Stmts) })
	case *syntax.TimeClause:
		if c.Stmt != nil {
			err = sh.statement(c.Stmt)
		}
	case *syntax.IfClause:
		err = sh.branches(c)
	case *syntax.WhileClause:
		err = sh.under(maybe, slices.Concat(c.Cond, c.Do)...)
		sh.last = maybe
	case *syntax.ForClause:
		if of, ok := c.Loop.(*syntax.WordIter); ok {
			sh.unknown(of.Name.Value, "a loop sets it")
		} else {
			sh.changed(c.Loop)
		}
		err = sh.under(maybe, c.Do...)
		sh.last = maybe
	case *syntax.CaseClause:
		for _, item := range c.Items {
			if err = sh.under(maybe, item.Stmts...); err != nil {
				return err
			}
		}
		sh.last = maybe
	case *syntax.TestClause:
		sh.tests = true
		sh.last, err = sh.truth(c.X)
		sh.tests = false
	case *syntax.ArithmCmd, *syntax.LetClause:
		sh.changed(c)
		sh.last = maybe
	default: // redirections alone, coproc
		sh.last = maybe
	}
	return err
}

// both reads a && b, a || b and a | b.
func (sh *shell) both(c *syntax.BinaryCmd) error {
	if c.Op != syntax.AndStmt && c.Op != syntax.OrStmt {
		side := func(s *syntax.Stmt) error { return sh.apart(func() error { return sh.statement(s) }) }
		return errors.Join(side(c.X), side(c.Y))
	}
	if err := sh.statement(c.X); err != nil {
		return err
	}
	first := sh.last
	if c.Op == syntax.AndStmt {
		err := sh.under(first, c.Y)
		sh.last = min(first, sh.last)
		return err
	}
	err := sh.under(-first, c.Y)
	sh.last = max(first, sh.last)
	return err
}

// branches reads an if and what is behind it: elif is an if in its else.
func (sh *shell) branches(c *syntax.IfClause) error {
	none := yes // of the branches before is taken
	for ; c != nil; c = c.Else {
		if err := sh.under(none, c.Cond...); err != nil {
			return err
		}
		holds := sh.last
		if len(c.Cond) == 0 { // else
			holds = yes
		}
		if err := sh.under(min(none, holds), c.Then...); err != nil {
			return err
		}
		none = min(none, -holds)
	}
	sh.last = maybe
	return nil
}

func (sh *shell) assignAll(all []*syntax.Assign) (foreign bool, err error) {
	for _, a := range all {
		printed, err := sh.assign(a)
		if err != nil {
			return false, err
		}
		foreign = foreign || printed
	}
	return foreign, nil
}

// assign sets a variable. Where a command prints a part of it, whether that command succeeds is not told.
func (sh *shell) assign(a *syntax.Assign) (foreign bool, err error) {
	set, foreign, err := sh.assignment(a)
	if err == nil {
		set()
	}
	return foreign, err
}

// assignment reads what a variable is set to, and gives what sets it.
func (sh *shell) assignment(a *syntax.Assign) (set func(), foreign bool, err error) {
	if a.Naked { // a name alone
		return func() {}, false, nil
	}
	name := a.Name.Value
	switch {
	case a.Index != nil:
		return func() { sh.unknown(name, "one of its elements is set") }, false, nil
	case a.Array != nil:
		set, err := sh.assignArray(name, a)
		return set, false, err
	}
	value, foreign, err := sh.whole(a.Value, false)
	return func() { sh.put(name, value, a.Append, foreign) }, foreign, err
}

// put sets a variable, or adds to it.
func (sh *shell) put(name, value string, more, foreign bool) {
	if more {
		if delete(sh.arrays, name); sh.why[name] != "" { // what is added to an array so is added to its first word
			return
		}
		value = sh.vars[name] + value
	}
	sh.set(name, value, foreign)
}

func (sh *shell) set(name, value string, foreign bool) {
	switch was, set := sh.vars[name]; {
	case sh.odd[name] != "":
		sh.unknown(name, sh.odd[name])
	case foreign:
		sh.unknown(name, arrayOrPrinted)
	case sh.done == yes:
		sh.vars[name] = value
		delete(sh.arrays, name)
		delete(sh.why, name)
		delete(sh.gone, name)
	case sh.arrays[name] != nil || sh.why[name] == "" && (!set || was != value):
		sh.unknown(name, undecided)
	}
}

func (sh *shell) assignArray(name string, a *syntax.Assign) (set func(), err error) {
	var all []*syntax.Word
	for _, e := range a.Array.Elems {
		if e.Index != nil {
			return func() { sh.unknown(name, "one of its elements is set") }, nil
		}
		all = append(all, e.Value)
	}
	words, err := sh.words(all)
	return func() {
		was, there := sh.arrays[name]
		sh.unknown(name, arrayOrPrinted)
		switch {
		case sh.odd[name] != "":
			sh.unknown(name, sh.odd[name])
		case sh.done != yes || a.Append && !there:
			sh.unknown(name, undecided)
		case a.Append:
			sh.arrays[name] = slices.Concat(was, words)
		default:
			sh.arrays[name] = words
		}
	}, err
}

const (
	undecided      = "it is set under a condition that the script's text does not decide"
	arrayOrPrinted = "it is an array, or what a command prints is part of it"
)

func (sh *shell) unset(name string) {
	if sh.done != yes {
		sh.unknown(name, undecided)
		return
	}
	sh.unknown(name, "")
	delete(sh.why, name)
	sh.gone[name] = true
}

func (sh *shell) unknown(name, why string) {
	delete(sh.vars, name)
	delete(sh.arrays, name)
	delete(sh.gone, name)
	sh.why[name] = why
}

var anyName = regexp.MustCompile(`[A-Za-z_]\w*`)

// changed is what let, (( )) and a loop of numbers do to variables: where one is set, what is named there may have another value then.
func (sh *shell) changed(numbers syntax.Node) {
	source := sh.source(numbers)
	if !assigned.MatchString(source) {
		return
	}
	for _, name := range anyName.FindAllString(source, -1) {
		sh.unknown(name, "it is computed")
	}
}

// source is a part of the script as it stands.
func (sh *shell) source(n syntax.Node) string {
	return sh.text[n.Pos().Offset():n.End().Offset()]
}

// truth is what stands in [[ ]].
func (sh *shell) truth(x syntax.TestExpr) (tri, error) {
	switch x := x.(type) {
	case *syntax.Word:
		w, _, err := sh.whole(x, false)
		return sh.test([]string{w}), err
	case *syntax.ParenTest:
		return sh.truth(x.X)
	case *syntax.UnaryTest:
		if x.Op == syntax.TsNot {
			holds, err := sh.truth(x.X)
			return -holds, err
		}
		if of, ok := x.X.(*syntax.Word); ok {
			w, _, err := sh.whole(of, false)
			return sh.test([]string{x.Op.String(), w}), err
		}
	case *syntax.BinaryTest:
		a, ok := x.X.(*syntax.Word)
		b, also := x.Y.(*syntax.Word)
		if ok && also {
			left, _, err := sh.whole(a, false)
			right, _, another := sh.whole(b, false)
			if strings.ContainsAny(right, "*?[(") { // a pattern, unless it is quoted
				return maybe, errors.Join(err, another)
			}
			return sh.test([]string{left, x.Op.String(), right}), errors.Join(err, another)
		}
		left, err := sh.truth(x.X)
		right, another := sh.truth(x.Y)
		if x.Op == syntax.AndTest {
			return min(left, right), errors.Join(err, another)
		} else if x.Op == syntax.OrTest {
			return max(left, right), errors.Join(err, another)
		}
	}
	return maybe, nil
}

// test is what stands in [ ].
func (sh *shell) test(words []string) tri {
	if len(words) > 1 && words[0] == "!" {
		return -sh.test(words[1:])
	}
	for _, w := range words {
		if variable(w) != "" {
			return maybe
		}
	}
	holds := false
	switch len(words) {
	case 0:
	case 1:
		holds = words[0] != ""
	case 2:
		switch {
		case words[0] == "-z":
			holds = words[1] == ""
		case words[0] == "-n":
			holds = words[1] != ""
		case strings.HasPrefix(words[0], "-"):
			return maybe
		} // or else an error: what stood before = was no word
	case 3:
		switch words[1] {
		case "=", "==":
			holds = words[0] == words[2]
		case "!=":
			holds = words[0] != words[2]
		default:
			return maybe
		}
	default:
		return maybe
	}
	if holds {
		return yes
	}
	return no
}

// variable is the name of the first one that is left in a word, or what else a script would put in, or "".
func variable(w string) string {
	if m := left.FindStringSubmatch(w); m != nil {
		if identifier.MatchString(m[1]) {
			return m[1]
		}
		return leftWhole.FindString(w)
	}
	return ""
}

// whyNot says why a variable is not expanded, and what to do.
func (sh *shell) whyNot(name string) string {
	why := sh.why[name]
	switch {
	case !identifier.MatchString(name):
		return fmt.Sprintf("%s is known only when the script runs: put its value in its place, or import the line that echo \"$cmd\" in place of eval $cmd prints", name)
	case why == "" && sh.separated():
		why = "IFS is set, which changes where it is cut"
	case why == "":
		why = "nothing in the script sets it"
	}
	return fmt.Sprintf("$%s can't be expanded (%s): put its value in its place, or import the line that echo \"$cmd\" in place of eval $cmd prints", name, why)
}
