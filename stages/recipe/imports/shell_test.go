package imports_test

import (
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
		program + `--a $'one\n\'two\'\t"\\' --b $"three" --c "$'4'"`,
		"cat <<EOF > /dev/null\n\tEOF\n don't\nEOF\n" + program + "--lr 3",
		"cat <<-EOF > /dev/null\n don't\n\tEOF\n" + program + "--lr 3",
		"L=1\n(L=2; M=3)\n" + program + `--lr $L ${M:+--m 1}`,
		"(cd / && " + program + "--output_dir out)",
		"(cd /; f() { " + program + "--lr 3; }; (f)) > /dev/stdout",
		"((1 << 3))\n" + program + "--lr 3",
		"(true) && L=1\n(false) && L=2\n" + program + "--lr ${L:-2}",
	} {
		command := exec.Command(bash, "-c", "python() { printf '%q ' python \"$@\"; }\n"+script)
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
		"a=(--lr 3)\na[1]=4" + program + `"${a[@]}"`:                        "one of its elements is set",
		"a=(--lr 3 --fp16)\nunset 'a[2]'" + program + `"${a[@]}"`:           "one of its elements is unset",
		"a=(--lr 3)\na+=5" + program + `"${a[@]}"`:                          "$a can't be expanded",
		"a=(--lr 3)" + program + `"${a[@]:1}"`:                              "$a can't be expanded",
		"a=(--lr 3)\nmapfile a < f" + program + `"${a[@]}"`:                 "it is read when the script runs",
		"N=3\n((N += 2))" + program + "$N":                                  "it is computed",
		"N=3\nlet N=4" + program + "$N":                                     "it is computed",
		"X=abc\nif [[ $X == a* ]]; then L=1; else L=2; fi" + program + "$L": "does not decide",
		"false\n((1)) && L=1" + program + "$L":                              "does not decide",
		"" + program + `--a $'\x41'`:                                        `\x in $'...' is not known here`,
		" " + program + `--a $'b`:                                           "$', has no end",
	} {
		if s, _, err := imports.ReadCommand(script); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngives %v, %v, want %q", script, s, err, want)
		}
	}
}
