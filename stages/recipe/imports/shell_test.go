package imports_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"contraflow/stages/recipe/imports"
)

// What a script's options are is what bash starts the program with.
func TestBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	const program = "python -m FlagEmbedding.finetune.embedder.encoder_only.base --model_name_or_path m "
	for _, script := range []string{
		"a=(--train_data x # one :)\n --lr 0.3)\n" + program + `"${a[@]}"`,
		"a=(--train_data 'x).jsonl' --lr \"a)\\\"\" \\)x)\n" + program + `"${a[@]}"`,
		"a=(--train_data x)\n" + program + `${a[@]+"${a[@]}"} ${b[@]+"${b[@]}"} --lr 3`,
		program + `--train_data ${D:-"x y"} --a ${E:-p q} --b "${F:-r s}"`,
		program + `--a "${A:='s t'}" --b ${B:='u v'} --c "$A"`,
		program + `--a $'one\n\'two\'\t"\\' --b $"three" --c "$'4'" --d $'\x41\u00e9'`,
		"cat <<EOF > /dev/null\n\tEOF\n don't\nEOF\n" + program + "--lr 3",
		"cat <<-EOF > /dev/null\n don't\n\tEOF\n" + program + "--lr 3",
		"L=1\n(L=2; M=3)\n" + program + `--lr $L ${M:+--m 1}`,
		"(cd / && " + program + "--output_dir out)",
		"N=3; M=$((N * (2 + 4) / 4 - (N >= 3)))\n" + program + `--a $M --b "x$((-N % 2))$(($N ** 2))"`,
		"D=d\n" + program + `--train_data $D/{a,b{,1}}.jsonl '{x,y}' {1} E={p,q}`,
		"(cd /; f() { " + program + "--lr 3; }; (f)) > /dev/stdout",
		"((1 << 3))\n" + program + "--lr 3",
		"(true) && L=1\n(false) && L=2\n" + program + "--lr ${L:-2}",
		"L=1\nf() { " + program + "--lr $L; }\nL=2\nf",
		"L=1\nf() { local L=2 M; M=3; true; }\nf\n" + program + "--lr $L ${M:+--m 1}",
		"L=1\nf() { L=2; }\nif [ 1 = 2 ]; then f; fi\n" + program + "--lr $L",
		"f() { " + program + `"$@" --lr $2 --n "${3:-4}" $3 ${1+--one} "x$*"; }` + "\ng() { L=3 f --bf16 5; }\ng 8",
		"f() { L=1; return; L=2; }\nL=0\nf\n" + program + "--lr $L --seed ${1:-4}",
		"f() { set -e; local n=$1 l=$2; shift 2; " + program + `--lr $l "$@" --a $1; shift; M=$1; }` + "\nf a 3 --bf16 x",
		"L=1\nL=2 eval '" + program + "--lr $L'; L=3 eval :",
		"f() { M=$L; }\nL=1\nL=2 f\n" + program + "--m $M",
		"L=1; { L=2; } & M=3 &\nwait\n" + program + "--lr $L ${M:+--m 1}",
		"N=4 M=(5); export K=6; declare -x J=7; L=3 bash -ec '" + program + "--lr $1 --l $L --n ${N-none} ${M-none} --k $K$J $*' x 3 --bf16",
		"N=1\neval 'g() { M=$((1 + 1)); }'\ng\n" + program + "--m $M --n $N",
		"M=4; f() { local M; " + program + `--m "x$M" "$@"; }` + "\nf",
		"bash -c 'L=2'\n" + program + "--lr ${L:-1}",
		"L=1\nunset -f L\n" + program + "--lr $L",
		"if [ -n $U ]; then L=1; fi; [ $U != a ] 2> /dev/null && L=2\n! [ $U = a ] 2> /dev/null && M=3\n" + program + "--lr $L --m $M",
		"test -n ] && L=1; [[ -n \"]]\" ]] && M=2; test && L=3\n" + program + "--lr $L --m $M",
		"[[ -z $U ]] && L=1; [[ $U == '' ]] && M=2\n" + program + "--lr $L --m $M",
		"I='a b\u3000c'\n" + program + "--q $I",
		"N=3\n((N > 2))\n" + program + "--lr $N",
		program + "--train_data d{0..3}.jsonl {c..a} {04..01..2}",
		"L=1 M=1 N=1\nf() { declare L=2; typeset M=2; declare -g N=2; local -r K=3; }\nf\n" + program + "--lr $L --m $M --n $N ${K:+--k 1}",
		"L=1\ng() { L=2; }\nf() { g; local L=3; local L=4; }\nf\n" + program + "--lr $L",
		"A=1\nexport A=2 B=$A C=($A)\nf() { local A=5 D=$A; " + program + `--d "$D" --b $B --c ${C[@]}; }` + "\nf",
		"A=1 N=D\nexport \"A=a b\" B+=2\ndeclare $N=3 \"E=4\" -x\nexport $N 'A+=c'\n" + program + `--a "$A" --b $B --d $D --e $E`,
		"f() { L=1; }\n(f() { L=2; }; f)\nbash -c 'f() { L=3; }; f'\nf\n" + program + "--lr $L",
		"f() { L=1; }\nif [ 1 = 2 ]; then f() { L=2; }; fi\nf\n" + program + "--lr $L",
		"f() { M=1; }\nf\nunset -f f\nf() { N=2; }\nf\n" + program + "--m $M --n $N",
		program + `--a "${U:-$'b\tc'}"`,
		"L=1; export M=2\nenv L=3 M=4 bash -c '" + program + "--lr ${L-5} --m $M'",
		"f() { set -eo pipefail +x; " + program + `"$@"; }` + "\nf --lr 3",
		"set -- 3\nf() { " + program + "--lr $1; }\nf 4",
		"IFS=,\nA=(a,b c)\n" + program + `--lr "${A[@]}"`,
		"f() { local IFS=,; }\nX='a b'\nf\n" + program + "--lr $X",
		"A=1 C=2\nf() { local A+=3 B=4; local B+=5; local C; local C; D=${C-none}; " + program + `--a $A --b $B --c $D; }` + "\nf",
		"f() { local -r A=$1; B=$A; }\nf 3\nf 4\n" + program + "--lr $B",
		"export A=1\nenv -u A B=2 bash -c '" + program + "--lr ${A:-3} --b $B'\nenv --unset=B A=4 true",
		"B=1 A=2\nA=3 env A=4 bash -c '" + program + "--lr $A'",
		"f() { A=1; }\nf=2\nunset f\nf\n" + program + "--a $A ${f:+--f 1}",
		"f() { A=1; }\nunset f\nf 2> /dev/null\n" + program + "--lr ${A:-3}",
		"A=1\nlocal A=2 2> /dev/null\n" + program + "--lr $A",
		"A=3\nf() { (local A=1); A=2; }\nf\n" + program + "--lr $A",
		"(export A)\nA=2\nbash -c '" + program + "--lr ${A:-3}'",
		"f() { local -x A=1; }\nf\nA=2\nbash -c '" + program + "--lr ${A:-3}'",
		"export A=2\ndeclare +x A\nbash -c '" + program + "--lr ${A:-3}'",
		"export A=1\nunset A\nA=2\nbash -c '" + program + "--lr ${A:-3}'",
		"export A=1\nexport -n A\nbash -c '" + program + "--lr ${A:-3}'\n",
		"export A=1\nexport -n A\n" + program + "--lr $A",
		"A=1\nf() { local A=2; g; }\ng() { local A=3; unset A; B=${A:-4}; }\nf\n" + program + "--a $A --b $B",
	} {
		command := exec.Command(bash, "-c", "python() { printf '%q ' python \"$@\"; }; export -f python\n"+script)
		ran, err := command.Output()
		if err != nil {
			t.Fatalf("%s: %v", script, err)
		}
		want, _, err := imports.ReadCommand(string(ran))
		if err != nil {
			t.Fatalf("%s: %v", ran, err)
		}
		if s, _, err := imports.ReadCommand(script); err != nil || !reflect.DeepEqual(s, want) {
			t.Errorf("%s\ngives %v, %v, want %v", script, s, err, want)
		}
	}
}

// What can't be told is an error: a value that is no longer so, or options that are lost.
func TestUntold(t *testing.T) {
	const program = "\npython -m FlagEmbedding.finetune.embedder.encoder_only.base --model_name_or_path=m "
	for script, want := range map[string]string{
		"a=(--lr 3)\na[1]=4" + program + `"${a[@]}"`:                                                   "one of its elements is set",
		"a=(--lr 3 --fp16)\nunset 'a[2]'" + program + `"${a[@]}"`:                                      "one of its elements is unset",
		"a=(--lr 3)\na+=5" + program + `"${a[@]}"`:                                                     "$a can't be expanded",
		"a=(--lr 3)" + program + `"${a[@]:1}"`:                                                         "$a can't be expanded",
		"a=(--lr 3)\nmapfile a < f" + program + `"${a[@]}"`:                                            "it is read when the script runs",
		"N=3\n((N += 2))" + program + "$N":                                                             "it is computed",
		"N=3; M=$((N += 1))" + program + "$M":                                                          "$M can't be expanded (it is an array, or what a command prints",
		"N=3; M=$((N / 0))" + program + "$M":                                                           "$M can't be expanded",
		"N=3; M=$((N * K))" + program + "$M":                                                           "$M can't be expanded",
		"N=3\nlet N=4" + program + "$N":                                                                "it is computed",
		"X=abc\nif [[ $X == a* ]]; then L=1; else L=2; fi" + program + "$L":                            "does not decide",
		"L=1\n[ -d x ] && export L\nbash -c '" + program[1:] + "${L-3}'":                               "$L can't be expanded",
		"L=1\nL=2 export L\nbash -c '" + program[1:] + "${L-3}'":                                       "$L can't be expanded",
		"L=1\nL=2 export L" + program + "$L":                                                           "it is set for one command",
		"false\n((1)) && L=1" + program + "$L":                                                         "does not decide",
		"L=1\nf() { [ -d x ] && return; L=2; }\nf" + program + "$L":                                    "does not decide",
		"a=(--lr 3)\n[ -d x ] && a=--fp16" + program + `"${a[@]}"`:                                     "does not decide",
		"X=$(ls) && L=1" + program + "$L":                                                              "does not decide",
		"X=a\n[[ $X == @(a|b) ]] && L=1" + program + "$L":                                              "does not decide",
		"[ -z '$X' ] && L=1" + program + "$L":                                                          "does not decide",
		"declare -i L=3+4" + program + "$L":                                                            "declare -i changes what it is set to",
		"L=1\ngetopts l: L x" + program + "$L":                                                         "it is read when the script runs",
		"f() { [ -d x ] && return; true; }\nf && L=1" + program + "$L":                                 "does not decide",
		"f() { false; return; }\nL=1; f && L=2" + program + "$L":                                       "does not decide",
		"printf -v L 4" + program + "$L":                                                               "what a command prints",
		"L=$U" + program + "${L:+--lr 3}":                                                              "$L can't be expanded",
		"L=1\nf() { export L; }\nL=2 f" + program + "$L":                                               "it is set for one command",
		"f() { set -- 3;" + program + `"$@"; }` + "\nf --lr 3":                                         `"$@" stands among the options`,
		"f() { [ -d x ] && shift;" + program + `"$@"; }` + "\nf 1 --lr 3":                              `"$@" stands among the options`,
		"f() { shift 3;" + program + `"$@"; }` + "\nf 1 --lr":                                          `"$@" stands among the options`,
		"f() { f; }\nf" + program:                                                                      "the script calls its functions more than 1000 times",
		"f() { set 3;" + program + `"$@"; }` + "\nf --lr 3":                                            `"$@" stands among the options`,
		"set -- 3" + program + "${1:-5}":                                                               "${1:-5} is known only when the script runs",
		"f() { [ -d x ] && shift; [ -n \"$1\" ] && L=1;" + program + "$L; }\nf":                        "does not decide",
		"true; [ $? = 0 ] && L=1" + program + "$L":                                                     "does not decide",
		"X=a\n[[ ${!X} == a ]] && L=1" + program + "$L":                                                "does not decide",
		"if [ ! -d x ]; then f() { L=1; }; else f() { L=2; }; fi\nf" + program + "$L":                  "does not decide",
		"if [ ! -d x ]; then f() {" + program + "--lr 1; }; else f() {" + program + "--lr 2; }; fi\nf": "the script has 2 commands that train",
		"[ -d x ] && f() { L=1; }\nf" + program + "$L":                                                 "does not decide",
		"f() { [ -d x ] && local L; L=2; }\nL=1; f" + program + "$L":                                   "does not decide",
		"readonly L=1\nL=2" + program + "$L":                                                           "it is read-only, and set again",
		"readonly L=1\nunset L" + program + "${L-2}":                                                   "it is read-only, and set again or unset",
		"L=1\nf() { local L=2; declare -g L=3; M=$L; }\nf" + program + "$L":                            "does not decide",
		"declare -u L\nL=a" + program + "$L":                                                           "declare -u changes what it is set to",
		"declare -l A\nA=(B)" + program + `"${A[@]}"`:                                                  `"${A[@]}" stands among the options`,
		"L=1\nf() { local L=2; g; M=$L; }\ng() { unset L; }\nf" + program + "$M":                       "can't be expanded",
		"f() { local L=2; g; }\ng() { unset L; L=3; }\nf" + program + "$L":                             "does not decide",
		"IFS=,\nX=a,b" + program + "$X":                                                                "$X can't be expanded (IFS is set, which changes where it is cut)",
		"A=(a b)\nIFS=," + program + `"${A[*]}"`:                                                       `"${A[*]}" stands among the options`,
		"f() {" + program + "{1..999} {1..999}; }\n" + strings.Repeat("f\n", 999):                      "more than 4 MB",
		" " + program + `--a $'b`:                                                                      "line 2, character 88: reached EOF without closing quote",
		"cat <<E" + program:                                                                            "line 1, character 5: unclosed here-document `E`",
		strings.Repeat("(", 1e6):                                                                       "more than 1000 brackets are open within each other",
		strings.Repeat("# ", 1e6):                                                                      "more than 1 MB",
	} {
		if s, _, err := imports.ReadCommand(script); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngives %v, %v, want %q", script, s, err, want)
		}
	}
	for _, braces := range []string{ // which bash would not live to see the end of
		strings.Repeat("{a,b}", 40), "{1..1000}{1..1000}", "{1..9000000000}", "{-9223372036854775808..9223372036854775807}", "{0..9223372036854775807}", "{1..99999999999999999999}",
	} {
		if s, _, err := imports.ReadCommand(program + "--lr " + braces); err != nil || s["lr"] != braces {
			t.Errorf("%s: %.99v, %v", braces, s, err)
		}
	}
}

// Whatever a script is made of, it gives the options that bash gives, or says that it can't tell.
func TestRandomScripts(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	told := 0
	for seed := range uint64(60) {
		script := randomScript(rand.New(rand.NewPCG(seed, 1)))
		ran, err := exec.Command(bash, "-c", "python() { printf '%q ' python \"$@\"; exit; }\n"+script).Output()
		if err != nil {
			var failed *exec.ExitError
			errors.As(err, &failed)
			t.Fatalf("%s: %v %s", script, err, failed.Stderr)
		}
		want, _, err := imports.ReadCommand(string(ran))
		if err != nil {
			t.Fatalf("%s: %v", ran, err)
		}
		s, _, err := imports.ReadCommand(script)
		if err != nil && (strings.Contains(err.Error(), "can't be expanded") || strings.Contains(err.Error(), "calls its functions")) || strings.Contains(fmt.Sprint(s), "$") {
			continue
		}
		if told++; err != nil || !reflect.DeepEqual(s, want) {
			t.Errorf("seed %d: %s\ngives %v, %v, want %v", seed, script, s, err, want)
		}
	}
	if told < 15 {
		t.Errorf("only %d scripts are told", told)
	}
}

// randomScript sets variables and arrays in all kinds of ways, and then trains with them.
func randomScript(r *rand.Rand) string {
	one := func(options ...string) string { return options[r.IntN(len(options))] }
	name := func() string { return one("A", "B", "C") }
	var word func(deep int) string
	word = func(deep int) string {
		if deep == 0 {
			return one("x", "y1", `"${1:-v}"`, "./z", `\ q`, `'s t'`, `"d \" e"`, `$'t\tu'`, `""`, "z#h", "--lr", "d{p,q}")
		}
		v := one("A", "B", "C", "D")
		return one(word(0), word(deep-1)+word(deep-1), "$"+v, `"$`+v+`"`, "${"+v+"}", `"${`+v+":-"+word(0)+`}"`, "${"+v+":-"+strings.ReplaceAll(word(deep-1), "{", "")+" "+word(0)+"}", "${"+v+"+"+word(deep-1)+"}",
			"${"+v+":+"+word(0)+"}", "${"+v+":="+word(0)+"}", `"p `+"$"+v+` q"`)
	}
	array := func() string { return one("M", "N") }
	var command func(deep int) string
	commands := func(deep int) (out string) {
		out = "true\n" // not a comment alone
		for range 1 + r.IntN(3) {
			if out += command(deep); !strings.HasSuffix(out, "\n") {
				out += one("\n", "; ")
			}
		}
		return out
	}
	command = func(deep int) string {
		a := array()
		simple := one(name()+"="+word(2), name()+"+="+word(1), a+"=("+word(1)+" "+word(2)+" # c\n "+word(0)+")", a+"=()", a+"+=("+word(1)+`)`, a+`=("${`+a+`[@]}" `+word(1)+")",
			one("export ", "declare ", "typeset -g ")+name()+"="+one("x", "$A", `"$B"`, `"${C:-y z}"`)+one("", " "+name()+"=$A", ` "`+name()+`=$B"`, " "+name()), "unset -f f", "unset "+name(), "unset "+a, "eval "+name()+"="+one("1", "'2 '", `"\"3 4\""`), ": "+word(2), "true", "false", "[ -n \""+word(1)+"\" ] && "+name()+"=1",
			"cat <<E > /dev/null\n"+word(0)+" don't ( $A\nE\n", "# "+word(1)+"\n", "test x = "+one("x", "y")+" || "+name()+"=2", "! [[ -z $"+name()+" ]] || "+name()+"=3")
		if deep == 0 {
			return simple
		}
		f := one("f", "g")
		return one(simple, simple, f+"() { "+one("", "", "[ 1 = $A ] || ")+one("true; ", "local D=d; ", "declare D=$A; ", "local "+name()+" "+name()+"=$B; ", "set -- "+word(0)+"; ", "shift; ")+name()+"="+word(1)+"; "+commands(deep-1)+one("", "true && return\n", "[ 1 = $A ] && return\n")+commands(0)+"}; "+one("", name()+"="+word(0)+" ")+f+" "+word(1)+"\n", "if [ "+one("1", "''")+" ]; then "+commands(deep-1)+"elif [[ x == "+one("x", "y")+" ]]; then "+commands(deep-1)+"else "+commands(deep-1)+"fi",
			"( "+commands(deep-1)+")", one("", "env A=8 ", "B=9 ")+"bash -c '"+strings.ReplaceAll(commands(0), "'", `"`)+"' x"+one("", " y")+"\n", "[ 1 = $B ] || f() { "+commands(deep-1)+"}; f", "{ "+commands(deep-1)+"}", "true && ! { "+commands(deep-1)+"}", one(simple, simple, simple, simple, "case $"+name()+" in x) "+commands(deep-1)+";; *) "+commands(deep-1)+";; esac", "for i in 1; do "+commands(deep-1)+"done"),
			commands(deep-1)+"true && "+commands(deep-1)+" false")
	}
	return "A=x B='p q'; C=; M=(--n 1); N=()\n" + commands(2) + commands(2) + commands(1) + "python -m FlagEmbedding.finetune.embedder.encoder_only.base --model_name_or_path m --a " + word(2) + " --b \"${M[@]}\" --c ${N[*]} --d " + word(1) + "\n"
}
