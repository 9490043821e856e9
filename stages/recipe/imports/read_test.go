package imports_test

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	"contraflow/stages/recipe/imports"
)

// A script is not a mapping: what makes one of it is said, in place of a parser's error.
func TestPython(t *testing.T) {
	for text, name := range map[string]string{
		"x = 1\n": "train.py", "{\"cells\": []}": "train.ipynb", "import torch\n": "train", "# a\n\nfrom sentence_transformers import SentenceTransformer\nx = {": "-",
		"#!/usr/bin/env python\n\"\"\"\nTrains: all\n\"\"\"\nfrom a.b import (\n c)": "-",
	} {
		if _, err := imports.ReadMapping(name, []byte(text)); err == nil || !strings.HasPrefix(err.Error(), name+" is a Python script") || !strings.Contains(err.Error(), `json.dump(args.to_dict() | {"arguments": type(args).__name__}, open("args.json", "w"))`) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{"from: x\nimport: y", "# import x\nmodel: m"} {
		if s, err := imports.ReadMapping("args.yaml", []byte(text)); err != nil {
			t.Errorf("%q: %v %v", text, s, err)
		}
	}
}

func TestReadCommand(t *testing.T) {
	s, n, err := imports.ReadCommand(`accelerate launch --num-processes=3 run.py --train_data d --a "x \"y\" $z" --b='q' --c -1 2 --d --e-f ''`)
	want := imports.Settings{"train_data": "d", "a": `x "y" $z`, "b": "q", "c": []any{"-1", "2"}, "d": true, "e_f": ""}
	if err != nil || n != 3 || !maps.EqualFunc(s, want, func(a, b any) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
		t.Errorf("%v %d %v", s, n, err)
	}
}

// A script of somebody's own is no program of FlagEmbedding, unless it has its options: what is imported of it is said.
func TestOwnProgram(t *testing.T) {
	for command, want := range map[string]string{
		"python train.py --lr 3": "train.py is no program of FlagEmbedding", "torchrun --nproc_per_node gpu a/b.py --epochs 3": "a/b.py is no program of FlagEmbedding", "--lr 3": "no command line of FlagEmbedding: it has neither",
		"python train.py --model_name_or_path m": "", "python train.py --train_data d": "", "--model_name_or_path m": "", "python FlagEmbedding/finetune/embedder/run.py --lr 3": "", "python -m FlagEmbedding.x --lr 3": "",
	} {
		s, _, err := imports.ReadCommand(command)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", command, s, err)
		}
		if strings.HasPrefix(command, "python") && err != nil && !strings.Contains(err.Error(), "args.to_dict()") {
			t.Errorf("%s: %v", command, err)
		}
	}
}

// Processes are those of all machines.
func TestProcesses(t *testing.T) {
	const program = " -m FlagEmbedding.finetune.embedder.encoder_only.base --model_name_or_path m --train_data d.jsonl --per_device_train_batch_size 4"
	for launcher, want := range map[string]int{ // 0: can't be told
		"torchrun --nnodes 2 --nproc_per_node 8": 16, "torchrun --nproc-per-node=8 --nnodes=3": 24, "torchrun --nnodes=2": 2, "python -m torch.distributed.run --nnodes 2 --nproc_per_node 4": 8,
		"deepspeed --num_gpus 4 --num_nodes 2": 8, "deepspeed --num_gpus=4": 4, "accelerate launch --num_machines 2 --num_processes 16": 16, "python": 1, "torchrun": 1,
		"torchrun --nnodes 1:4 --nproc_per_node 8": 0, "torchrun --nproc_per_node gpu --nnodes 2": 0, "deepspeed": 0, "deepspeed --num_nodes 2": 0, "accelerate launch --mixed_precision bf16": 0,
		"mpirun -np 4 -H a:2,b:2 python": 4, "mpirun --allow-run-as-root -n 4 -x A=1 python3": 4, "/usr/bin/mpiexec -n4 python": 4, "mpirun -N 4 python": 0, "mpirun -np all python": 0,
		"srun -N 2 --ntasks-per-node=4 python": 8, "srun --ntasks 6 python": 6, "srun -n6 -N3 python": 6, "srun --nodes=3 python": 3, "srun python": 0, "srun -n $TASKS python": 0,
		"#SBATCH --nodes=2 # of eight\n#SBATCH --ntasks-per-node 4\nsrun python": 8, "#SBATCH --ntasks=8\nsrun --ntasks=2 python": 2, "#SBATCH -n 8\nsrun --ntasks-per-node=3 -N2 python": 6,
		"#SBATCH --nodes=2\nsrun torchrun --nnodes 2 --nproc_per_node 4": 8, "mpirun -np 2 accelerate launch --num_processes 6": 6, "srun -N 2 python -m torch.distributed.run --nnodes 2 --nproc_per_node 4": 8,
		"#SBATCH --nodes=2\npython": 1, "srun -n 4 bash -c 'python \"$@\"' x": 4,
	} {
		s, n, err := imports.ReadCommand(launcher + program)
		if n != want || errors.Is(err, imports.ErrProcesses) != (want == 0) || s["per_device_train_batch_size"] != "4" {
			t.Errorf("%s: %d, %v, want %d", launcher, n, err, want)
		}
		if want == 0 {
			continue
		}
		if r, res := convert(t, imports.FlagEmbedding, s, n); r.Batch.GlobalSize != 4*want {
			t.Errorf("%s:\n%s", launcher, res.Recipe)
		}
	}
}

// What a script has beside its command is none of its options' values.
func TestReadScript(t *testing.T) {
	const command = "-m FlagEmbedding.finetune.embedder.encoder_only.base --model_name_or_path m --train_data a.jsonl"
	for script, want := range map[string]imports.Settings{
		"python " + command + " \\\n --output_dir out\necho done\n":                                                             {"output_dir": "out"},
		"python " + command + " b.jsonl > train.log 2>&1\nwait":                                                                 {"train_data": []any{"a.jsonl", "b.jsonl"}},
		"cd x && torchrun " + command + " --output_dir out 2>&1 | tee log":                                                      {"output_dir": "out"},
		"cd FlagEmbedding; python make.py --size 3\r\n\ntorchrun " + command + " b &>>log & wait":                               {"train_data": []any{"a.jsonl", "b"}},
		"torchrun " + command + " --seed 7>log":                                                                                 {"seed": true}, // 7 is a file there
		"torchrun " + command + " '>' 2\\>a '&' \"|\" x#y < in >| out 2> >(tee -a log) || exit 1":                               {"train_data": []any{"a.jsonl", ">", "2>a", "&", "|", "x#y"}},
		"torchrun " + command + " # the end of a line \\\n --seed 3\n--output_dir out\nwait":                                    {"seed": "3", "output_dir": "out"}, // no command begins with --
		"cat <<EOF >ds.json; cat <<-'X'\nit's\n--seed 3\nEOF\n\t)`\n\tX\npython " + command + " --seed 4 <<<\"'\"\ncat << E\nE": {"seed": "4"},
		"python " + command + " <<\"EOF\" \r\n--seed 3\r\nEOF\r\n--seed 4":                                                      {"seed": "4"},
		"cat <<E\npython -m FlagEmbedding.x --seed 3\nE\npython " + command + "\ncat <<E\n'\nE":                                 {},
		"echo a\n--train_data a.jsonl --seed 3; wait":                                                                           {"module": nil, "model_name_or_path": nil, "seed": "3"},
	} {
		all := imports.Settings{"module": "FlagEmbedding.finetune.embedder.encoder_only.base", "model_name_or_path": "m", "train_data": "a.jsonl"}
		maps.Copy(all, want)
		maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
		if s, _, err := imports.ReadCommand(script); err != nil || !reflect.DeepEqual(s, all) {
			t.Errorf("%q: %v %v", script, s, err)
		}
	}
}

// A script in the shape of FlagEmbedding's examples: options in variables, of several lines, and the command in one more.
const evalScript = `export WANDB_MODE=disabled
files="\
    ./pairs \
    ./sts/a.jsonl "
# a few
epochs=3
gpus=4
lr=1e-4
if [ -z "$MODELS" ]; then
    export MODELS="$HOME/models"
fi
if [ -z "$gpus" ]; then gpus=1; else lr=3e-5; fi
[ -n "$WIDE" ] && gpus=16
small=${SMALL:-2}
model_args="\
    --model_name_or_path my/model \
    --cache_dir $MODELS \
"
data_args="\
    --train_data $files \
    --query_instruction_for_retrieval 'Find what answers this: ' \
    --query_instruction_format '{}{}' \
"
training_args="--output_dir ./out_${epochs}x --learning_rate $lr --num_train_epochs $epochs
    --fp16 --per_device_train_batch_size $small \
"
training_args+=" --seed 7"
cmd="torchrun --nproc_per_node $gpus \
    -m FlagEmbedding.finetune.embedder.encoder_only.base \
    $model_args \
    $data_args \
    $training_args \
"
echo $cmd
eval $cmd
`

func TestEvalScript(t *testing.T) {
	want := imports.Settings{"module": "FlagEmbedding.finetune.embedder.encoder_only.base", "model_name_or_path": "my/model", "cache_dir": "$HOME/models", "train_data": []any{"./pairs", "./sts/a.jsonl"},
		"query_instruction_for_retrieval": "Find what answers this: ", "query_instruction_format": "{}{}", "output_dir": "./out_3x", "learning_rate": "3e-5", "num_train_epochs": "3", "fp16": true,
		"per_device_train_batch_size": "2", "seed": "7"}
	for name, script := range map[string]string{
		"as it is": evalScript, "with carriage returns": strings.ReplaceAll(evalScript, "\n", "\r\n"), "bash -c": strings.Replace(evalScript, "eval $cmd", `bash -c "$cmd"`, 1),
		"in a function": strings.Replace(evalScript, "eval $cmd", "go() { eval $cmd; }\ngo", 1), "with a log": strings.Replace(evalScript, "eval $cmd", "eval $cmd 2>&1 | tee $LOG", 1),
	} {
		s, devices, err := imports.ReadCommand(strings.Replace(script, "--fp16 --per", "--fp16 \\\n --per", 1))
		if err == nil && name == "bash -c" { // where lines end as they stand
			delete(s, "fp16")
			s["fp16"] = true
		}
		if err != nil || devices != 4 || !reflect.DeepEqual(s, want) {
			t.Errorf("%s: %v, %d of %v", name, err, devices, s)
			continue
		}
		if r, res := convert(t, imports.FlagEmbedding, s, devices); r.Batch.GlobalSize != 8 || strings.Contains(res.Recipe, "HOME") {
			t.Errorf("%s", res.Recipe)
		}
	}
}

// What a script's text doesn't tell is named.
func TestVariablesLeft(t *testing.T) {
	const echo = `import the line that echo "$cmd" in place of eval $cmd prints`
	for change, want := range map[string]string{ // of which line, to what
		"epochs=3\n->":                                                        "",
		"gpus=4->gpus=$(nvidia-smi -L | wc -l)":                               "$gpus can't be expanded (it is an array, or what a command prints is part of it)",
		"gpus=4->":                                                            "",
		"gpus=4->for gpus in 1 2; do :; done":                                 "$gpus can't be expanded (a loop sets it)",
		`model_args="->other_args="`:                                          `"$model_args" stands where a --name should, and $model_args can't be expanded (nothing in the script sets it)`,
		`cmd="torch->com="torch`:                                              `no command line of FlagEmbedding: "$cmd" stands where one should, and $cmd can't be expanded (nothing in the script sets it)`,
		"eval $cmd->eval $(cat command.txt)":                                  `no command line of FlagEmbedding: "$(cat command.txt)" stands where one should, and $(cat command.txt) is known only when the script runs`,
		`lr=1e-4->lr=1e-4; if [ -f x ]; then gpus=8; fi`:                      "$gpus can't be expanded (it is set under a condition that the script's text does not decide)",
		`eval $cmd->cmd='eval $cmd'; eval $cmd`:                               "eval within eval has no end",
		"epochs=3->epochs=" + strings.Repeat("${a:-", 2e4):                    "more than 1000 brackets",
		"epochs=3->epochs=33;" + strings.Repeat("epochs=$epochs$epochs;", 40): "more than 4 MB",
	} {
		was, is, _ := strings.Cut(change, "->")
		_, _, err := imports.ReadCommand(strings.Replace(evalScript, was, is, 1))
		if err == nil != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(want, "expand") && !strings.Contains(err.Error(), echo)) {
			t.Errorf("%.90q: %v", change, err)
		}
	}
	s, _, err := imports.ReadCommand(strings.Replace(evalScript, "./pairs", "$DATA/pairs", 1))
	if err != nil {
		t.Fatal(err)
	}
	s["output_dir"] = "runs/${DATA##*/}"
	if _, res := convert(t, imports.FlagEmbedding, s, 1); !strings.Contains(res.Recipe, "# assumed: train_data has $DATA in it, as it stands: ") || !strings.Contains(res.Recipe, "output_dir has ${DATA##*/} in it, as") {
		t.Errorf("%s", res.Recipe)
	}
	// Behind an option that changes nothing others may be.
	s, _, err = imports.ReadCommand("python -m FlagEmbedding.x --model_name_or_path m --overwrite_output_dir $MORE --ddp_backend nccl $REST --run_name $RUN")
	if err != nil {
		t.Fatal(err)
	}
	_, res := convert(t, imports.FlagEmbedding, s, 1)
	if !strings.Contains(res.Recipe, "overwrite_output_dir has $MORE in it") || !strings.Contains(res.Recipe, "ddp_backend has $REST in it") || strings.Contains(res.Recipe, "RUN") {
		t.Errorf("%s", res.Recipe)
	}
}

// Conditions and defaults are a shell's.
func TestDefaultsOfVariables(t *testing.T) {
	for script, want := range map[string]string{
		"X=":  "-empty",
		"X=a": "a-a",
		"":    "none-none",
		"if [ 1 ]; then X=a; elif [ 1 ]; then X=b; else X=c; fi":   "a-a",
		"if [ '' ]; then X=a; elif [ 1 ]; then X=b; else X=c; fi":  "b-b",
		"if [ '' ]; then X=a; elif [ '' ]; then X=b; else X=c; fi": "c-c",
		"true || X=a":          "none-none",
		"false || X=a":         "a-a",
		"false && X=a":         "none-none",
		": ${X:=a}":            "a-a",
		"X=; : ${X=a}":         "-empty",
		"X=b; Y=${X:+c}; X=$Y": "c-c",
		"Y=${X:+c}; X=$Y":      "-empty",
		"X=; X=${X+d}":         "d-d",
	} {
		s, _, err := imports.ReadCommand(script + "\nX2=${X:-empty}; Z=${X-none}; if [ -z \"${X+is}\" ]; then X2=none; fi\npython -m FlagEmbedding.x --model_name_or_path \"$Z-$X2\"")
		if err != nil || s["model_name_or_path"] != want {
			t.Errorf("%s: %v, %v, want %s", script, err, s["model_name_or_path"], want)
		}
	}
	s, _, err := imports.ReadCommand("python -m FlagEmbedding.x --model_name_or_path m --max_grad_norm -1.5 --query_instruction_for_retrieval -- --passage_instruction_for_retrieval '- x'")
	if err != nil || s["max_grad_norm"] != "-1.5" || s["query_instruction_for_retrieval"] != "--" || s["passage_instruction_for_retrieval"] != "- x" {
		t.Errorf("%v, %v", s, err)
	}
}

// Arrays have options, too: elements are words as they stand, on any number of lines.
func TestArrays(t *testing.T) {
	const script = `WHERE=a/b
ARGS=(
  --model_name_or_path m # the model
  --train_data "x y.jsonl" '(z).jsonl'
)
MORE=(--learning_rate 1e-5 --output_dir ${WHERE:?name it})
declare -a NONE=()
ARGS+=("${MORE[@]}")
if [ -n "$UNSET" ]; then ARGS+=(--seed 3); fi
torchrun --nproc_per_node 2 -m FlagEmbedding.finetune.embedder.encoder_only.base "${ARGS[@]}" ${NONE[*]} --bf16
`
	want := imports.Settings{"module": "FlagEmbedding.finetune.embedder.encoder_only.base", "model_name_or_path": "m", "train_data": []any{"x y.jsonl", "(z).jsonl"}, "learning_rate": "1e-5", "output_dir": "a/b", "bf16": true}
	if s, n, err := imports.ReadCommand(script); err != nil || n != 2 || !reflect.DeepEqual(s, want) {
		t.Errorf("%v, %d of %v", err, n, s)
	}
	for change, want := range map[string]string{
		"[ -n->[ -f":                      `"${ARGS[@]}" stands among the options, and $ARGS can't be expanded (it is set under a condition that the script's text does not decide)`,
		"MORE=(->ls && MORE=(":            `"${MORE[@]}" stands among the options, and $MORE can't be expanded (it is set under a condition`,
		"declare -a NONE=()->read NONE":   `"${NONE[*]}" stands among the options, and $NONE can't be expanded (it is read when the script runs)`,
		"declare -a NONE=()->NONE=text":   `"${NONE[*]}" stands among the options`,
		"declare -a NONE=()->unset MORE":  "$MORE can't be expanded (nothing in the script sets it)",
		"--bf16->\"$@\"":                  `"$@" stands among the options: write what the script is called with in its place`,
		"--bf16->$*":                      `"$*" stands among the options`,
		"WHERE=a/b->WHERE=a; unset WHERE": "",
		"NONE=()->NONE=(\"${NONE[@]}\")":  "$NONE can't be expanded (it is an array",
		"NONE=()->NONE=(" + strings.Repeat("x", 999) + "); " + strings.Repeat(`NONE=("${NONE[@]}" "${NONE[@]}"); `, 20): "more than 4 MB",
	} {
		was, is, _ := strings.Cut(change, "->")
		if s, _, err := imports.ReadCommand(strings.Replace(script, was, is, 1)); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || err == nil && s["output_dir"] != "${WHERE:?name it}" {
			t.Errorf("%.60s: %v, %v", change, err, s["output_dir"])
		}
	}
}

// Of the programs of FlagEmbedding that a script starts, it is the one that trains.
func TestOtherPrograms(t *testing.T) {
	for _, other := range []string{"python -m FlagEmbedding.scripts.hn_mine", "python scripts/hn_mine.py", "python -m FlagEmbedding.baai_general_embedding.finetune.hn_mine", "python -m FlagEmbedding.evaluation.mteb", "python ../add_reranker_score.py"} {
		other += " --model_name_or_path other --input_file a.jsonl\n"
		s, _, err := imports.ReadCommand(other + "python run.py --model_name_or_path m --train_data d\n" + other)
		if err != nil || s["model_name_or_path"] != "m" {
			t.Errorf("%s: %v, %v", other, s, err)
		}
		if s, _, err := imports.ReadCommand(other); err == nil {
			t.Errorf("%s: %v", other, s)
		}
	}
	const run = "python run.py --model_name_or_path m --train_data d"
	for _, script := range []string{"pip install FlagEmbedding\ncd FlagEmbedding && python prepare.py --out d\n" + run, "train() { " + run + "; }\nother() { ls; }\n\"$1\"", run + " || " + run} {
		if s, _, err := imports.ReadCommand(script); err != nil || s["train_data"] != "d" || len(s) != 2 {
			t.Errorf("%s: %v, %v", script, s, err)
		}
	}
	if s, _, err := imports.ReadCommand("if [ -d x ]; then " + run + " --lr 3; else " + run + " --lr 4; fi"); err == nil || !strings.Contains(err.Error(), `the script has 2 commands that train, and a recipe is of one: leave only that one in it (one has "--lr 3" where another has "--lr 4")`) {
		t.Errorf("%v, %v", s, err)
	}
	if s, _, err := imports.ReadCommand("python -m FlagEmbedding.x --model_name_or_path m --output_dir hn_mined"); err != nil || s["output_dir"] != "hn_mined" {
		t.Errorf("%v, %v", s, err)
	}
}

// --no_NAME is NAME: false, as HfArgumentParser has it of what is true by default.
func TestNo(t *testing.T) {
	s, _, err := imports.ReadCommand("python -m FlagEmbedding.finetune.embedder.encoder_only.base --model_name_or_path m --no_normalize_embeddings --no_cuda --no-use-lora --no_x 3")
	if err != nil || s["normalize_embeddings"] != false || s["use_lora"] != false || s["no_cuda"] != true || s["no_x"] != "3" {
		t.Errorf("%v, %v", s, err)
	}
	if _, res := convert(t, imports.FlagEmbedding, s, 1); !strings.Contains(res.Recipe, "normalize: false") || !strings.Contains(res.Recipe, "similarity: dot") {
		t.Error(res.Recipe)
	}
}

// A mapping that says something twice is not read, whatever of it would count.
func TestSaidTwice(t *testing.T) {
	for text, want := range map[string]string{
		`{"model": "m", "seed": 1, "seed": 2}`:              "args.json: a mapping has seed twice: leave one of them",
		`{"train_dataset": {"a": "x", "a": "y"}}`:           "a mapping has a twice",
		`{"train_dataset": [{"path": "x"}, {"path": "y"}]}`: "",
		"model: m\n---\nmodel: n":                           "args.json: has several documents",
		"---\nmodel: m\n":                                   "",
	} {
		if s, err := imports.ReadMapping("args.json", []byte(text)); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", text, s, err)
		}
	}
}

// What an adapter has that a recipe hasn't stays together, and is no setting of the trainer.
func TestAdapterRead(t *testing.T) {
	s, err := imports.ReadMapping("args.json", []byte(`{"model": "m", "adapter": {"bias": "all", "rank_pattern": {"query": 2}}}`))
	if _, together := s["adapter"].(map[string]any); err != nil || !together {
		t.Errorf("%v %v", s, err)
	}
}
