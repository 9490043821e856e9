#!/usr/bin/env bash
# gpu.sh [--build | --table] [--processor] [--dir DIR] [--results FILE.tar.gz] [--limit SECONDS] [PART ...]: what can only be shown on a
# machine with an NVIDIA GPU (sm_80 or later), in one command. Nothing here changes the GPU's settings. Each part is a row of gpustage/cuda/README.md's
# table, and what matters most comes first. PART|SECONDS that it may take, kernels compiled, of an H200 or by a guess|ROW:
PARTS='tests|100|conformance suite, goldens of every family and training steps, f32 and bf16
ranks|30|metamorphic test, gradients and trainings, two ranks and more on one GPU
speed-minilm|165|cached step of 16,384 pairs against sentence-transformers, MiniLM-L6: speed, memory
speed-bert|300|cached step of 16,384 pairs against sentence-transformers, BERT-base: speed, memory
gemm|60|BERT-base step against a large bf16 product
kernels|75|attention in a step and at 2,048 tokens; each kernel above 3 % of the step
overlap|60|hidden communication, two ranks on one GPU
sizes|90|sub-batches of 32,768 and 65,536 tokens beside the default ones, MiniLM-L6 and BERT-base
graphs|150|steps with CUDA graphs against without, MiniLM-L6 and BERT-base
fusions|200|parts of a step fused with products, and `train.precision: tf32`, each beside a step without
choices|110|tiles of the loss, attention by warpgroups or by warps, and embeddings as one kernel or several, beside each other
variants|75|products with sums by cuBLASLt, attention without warpgroups, training steps without CUDA graphs, equal bits
large|240|operations at the sizes of training: 16,448 tokens, a vocabulary of 250,002, vectors of 200 million
nccl|60|several GPUs over NCCL
sanitizer|240|compute-sanitizer, memcheck and racecheck'
#
# DIR (.cache/gpu, with --processor .cache/gpu-processor) gets programs.tar.gz, what is in it (the programs, the rows to train on), and
# results: for each part its lines, their logs and its figures. A part that runs again begins anew, the others stay. --table runs nothing
# and prints what is there, the rows of gpustage/cuda/README.md as well, which every call does at its end.
#
# A machine with a GPU may have neither Go nor a network: gpu.sh --build makes programs.tar.gz elsewhere, and the repository with it is all
# that has to be carried over. The file has kernels compiled for Hopper (sm_90) by NVRTC 13.0, which a machine with PyTorch for CUDA 13.0 has as well.
# Where the GPU or NVRTC is another one, they are compiled before the first part, in 10 to 20 s, and stay in DIR (in the user's cache, if the
# file is not of --build and so has none); the line that begins with "kernels" says which it was. Python (CONTRAFLOW_PYTHON, or python3) needs
# PyTorch, sentence-transformers and pyarrow for what is measured; NVRTC and cuBLASLt are taken from CONTRAFLOW_NVRTC and CONTRAFLOW_CUBLASLT, and
# NCCL from CONTRAFLOW_NCCL, or from beside Python's PyTorch.
#
# A machine may also end a call after some time, and keep nothing of it but a few files: --results puts DIR/results into an archive, when a
# line begins and ends and every 20 s. --limit (with --results 540 s, else none) is the call's: parts that may take longer than what is left
# are not begun, and a program that does, or takes longer than its row or twice as long as its part may, is ended; one in Go says then where it was.
# Archives of several calls, all unpacked in DIR, are one table. Of DIR only programs.tar.gz has to be carried over.
#
# --processor runs the tests without a GPU, with a driver that runs the kernels on the processor (gpustage/cuda/testdata/driver.cpp): what the
# device asks of CUDA and in what order is tested so, and nothing that is measured.
set -uo pipefail
cd "$(dirname "$0")/../.."
root=$PWD kit=$PWD/.cache/cuda-kit nvrtc=13.0.88 dir='' limit='' only='' archive='' build='' processor='' print=''
die() { echo "gpu.sh: $*" >&2; exit 2; }
names=$(cut -d '|' -f 1 <<<"$PARTS" | xargs)
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=yes ;;
	--table) print=yes ;;
	--processor) processor=yes ;;
	--dir) dir=${2:?--dir wants a folder}; shift ;;
	--results) archive=${2:?--results wants a file}; shift ;;
	--limit) limit=${2:?--limit wants seconds}; shift ;;
	-h | --help) sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "$0"; exit 0 ;;
	*) [[ " $names " == *" $1 "* ]] || die "$1 is none of --build, --table, --processor, --dir DIR, --results FILE.tar.gz, --limit SECONDS, ${names// /, }"; only="$only $1" ;;
	esac
	shift
done
if [ -n "$archive" ]; then
	mkdir -p "$(dirname "$archive")" && archive=$(realpath "$archive") || exit 2
	limit=${limit:-540}
fi
[ -z "$processor" ] || only=${only:-tests ranks nccl}
dir=${dir:-.cache/gpu${processor:+-processor}}
mkdir -p "$dir/results" || exit 2
dir=$(cd "$dir" && pwd)
results=$dir/results

# make_programs makes programs.tar.gz.
make_programs() {
	command -v go >/dev/null || die "no go here, and $dir has no programs.tar.gz: gpu.sh --build makes it on a machine that has Go"
	mkdir -p "$kit" && gpustage/cuda/toolkit.sh "$kit" >"$kit/env" || exit 2
	local work
	work=$(mktemp -d)
	( # not in a condition, where -e would do nothing
		set -e
		source "$kit/env"
		small=(-trimpath -ldflags '-s -w')
		[ -z "$processor" ] || small=() # what else has been compiled will do
		go build "${small[@]}" -tags cuda -o "$work/contraflow" ./cmd/contraflow
		for p in gpustage/cuda stages stages/transformer; do go test -c -vet=off "${small[@]}" -tags cuda -o "$work/$(basename $p).test" ./$p; done
		if [ -n "$processor" ]; then
			go run ./gpustage/cuda/onhost/driver "$work"
			cc -shared -fPIC -O2 -pthread -o "$work/libtestnccl.so" collective/nccl/testlib/testnccl.c
		fi
		"$work/contraflow" quickstart --out "$work/quickstart" --set train.max_steps=1 >"$dir/log"
		mv "$work/quickstart/train.parquet" "$work/rows.parquet"
		mv "$work/quickstart/start" "$work/start"
		rm -r "$work/quickstart"
		{ git describe --always --dirty || echo "of no commit"; } >"$work/commit"
		if [ -n "$build" ]; then # the compiler of that machine, not of this one's headers
			export CONTRAFLOW_NVRTC=$kit/nvrtc-$nvrtc/nvidia/cu13/lib/libnvrtc.so.13
			[ -e "$CONTRAFLOW_NVRTC" ] || "$kit/venv/bin/pip" install --quiet --no-deps --target "$kit/nvrtc-$nvrtc" "nvidia-cuda-nvrtc==$nvrtc"
			CONTRAFLOW_KERNELS=$work/kernels go run "${small[@]}" -tags cuda ./gpustage/cuda/ahead sm_90 >/dev/null # and nothing of this machine's cache
		elif [ -n "$processor" ]; then # what has been compiled will do; else this machine compiles for itself
			kernels=$(go run "${small[@]}" -tags cuda ./gpustage/cuda/ahead sm_90)
			mkdir "$work/kernels"
			cp -r "$kernels" "$work/kernels"
		fi
		tar -C "$work" -czf "$dir/programs.tar.gz" .
		rm -rf "$dir/kernels" # of other sources
	)
	[ $? = 0 ] || die "building failed; see above, and $dir/log"
	rm -r "$work"
}

# A part's folder in results has NN-NAME.line for each of its lines, NN-NAME.log with what its program printed, and figures.
table() { # what is known, for people and for gpustage/cuda/README.md
	local part row
	while IFS='|' read -r part _; do cat "$results/$part"/*.line 2>/dev/null; done <<<"$PARTS" | awk -F '\t' '{printf "%-50s %s\n", $1, $2}'
	printf '\n'
	cat "$results"/*/machine 2>/dev/null | sort -u
	printf '\n| on a GPU | |\n|---|---|\n'
	while IFS='|' read -r part _ row; do printf '| %s | %s |\n' "$row" "$(cell "$part")"; done <<<"$PARTS"
}
cell() { # PART: the words of README.md for it: figures, then what did not pass; with the GPU
	if ! ls "$results/$1"/*.line >/dev/null 2>&1; then
		echo "not yet run"
		return
	fi
	local words
	words=$({ cat "$results/$1/figures" 2>/dev/null; awk -F '\t' '$2 !~ /^passed/ {print $1 ": " $2}' "$results/$1"/*.line; } | awk '{printf "%s%s", (NR > 1 ? "; " : ""), $0}' | tr '|' '/')
	echo "${words:-passed} ($(cut -d , -f 1 "$results/$1/machine"))"
}
if [ -n "$print" ]; then
	table
	exit
fi
if [ -n "$build" ]; then
	make_programs
	echo "$dir/programs.tar.gz: $(($(stat -c %s "$dir/programs.tar.gz") >> 20)) MiB"
	exit
fi

if [ -z "$processor" ] && [ ! -e /proc/driver/nvidia/version ] && [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
	die "this machine has no NVIDIA driver, so nothing here can run; contraflow doctor says what is missing"
fi
[ ! -r /dev/nvidia0 ] || exec 8</dev/nvidia0 # a client that stays: else the driver may shut the GPU down and start it for each program
if [ -n "$processor" ] || [ ! -e "$dir/programs.tar.gz" ]; then # --processor is of the files as they are
	make_programs
fi
rm -rf "$dir"/{contraflow,*.test,*.so*,start,rows.parquet}
tar -C "$dir" -xzf "$dir/programs.tar.gz" || exit 2
[ ! -d "$dir/kernels" ] || export CONTRAFLOW_KERNELS=$dir/kernels # what does not fit is not used, and what is compiled instead is kept there
[ ! -e "$kit/env" ] || [ ! -d "$kit/venv" ] || source "$kit/env"
python=${CONTRAFLOW_PYTHON:-python3}
command -v "$python" >/dev/null || die "no $python; CONTRAFLOW_PYTHON names one with PyTorch"
library() { # VARIABLE FILE: finds a library beside Python's PyTorch
	[ -n "${!1:-}" ] || export "$1=$("$python" -c "import glob, sys; print(next((f for p in sys.path for f in sorted(glob.glob(p + '/nvidia/**/$2', recursive=True), reverse=True)), ''))")"
	[ -n "${!1}" ] || unset "$1" # the system's loader may know it
}
library CONTRAFLOW_NVRTC 'libnvrtc.so.1[23]'
library CONTRAFLOW_CUBLASLT 'libcublasLt.so.1[23]'
library CONTRAFLOW_NCCL libnccl.so.2
export CI=true CONTRAFLOW_CUDA=try PYTHONUNBUFFERED=1 HOME="${HOME:-$dir}"
for d in /usr/local/cuda/bin /opt/nvidia/nsight-compute/*/; do PATH=$PATH:$d; done # ncu and compute-sanitizer, where they are not in PATH
gpus=$(ls /proc/driver/nvidia/gpus 2>/dev/null | wc -l)
gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1)
if [ -n "$processor" ]; then
	export LD_LIBRARY_PATH=$dir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} CONTRAFLOW_CUBLASLT=$dir/libcublasLt.so.13 CONTRAFLOW_NCCL=$dir/libtestnccl.so CONTRAFLOW_DRIVER_GPUS=2
	gpus=2 gpu="the processor as a GPU"
fi
versions=$("$python" -c 'from importlib.metadata import version; print(", ".join(f"{p} {version(p)}" for p in ("torch", "sentence-transformers")))' 2>/dev/null)
machine="${gpu:-a GPU}, contraflow $(cat "$dir/commit")${versions:+, $versions}"

save() { # the archive, whole or as it was
	[ -n "$archive" ] || return 0
	(
		flock 9
		table >"$results/table.txt"
		tar -C "$dir" -czf "$archive.new" results 2>/dev/null
		[ $? -gt 1 ] || mv "$archive.new" "$archive" # 1: a log has grown meanwhile
	) 9>"$dir/lock"
}
if [ -n "$archive" ]; then
	while sleep 20 && kill -0 $$; do save; done >/dev/null 2>&1 &
	saving=$!
	trap 'kill $saving 2>/dev/null; save' EXIT
fi

name='' log='' lines=0 # of the line under way
begin() { # NAME
	name=$1 lines=$((lines + 1))
	log=$results/$part/$(printf %02d $lines)-${name//[^a-zA-Z0-9]/-}.log
	printf '%s\tbegan at %s; no end is known\n' "$name" "$(date +%T)" >"${log%.log}.line"
	echo "== $name"
	save
}
end() { # WORDS
	printf '%s\t%s\n' "$name" "$1" >"${log%.log}.line"
	printf '%-50s %s\n' "$name" "$1"
	save
}
not_run() { # NAME WHY
	begin "$1"
	end "not run: $2"
}
left() { echo $((limit ? limit - SECONDS : 1000000)); } # seconds
planned() { grep "^$part|" <<<"$PARTS" | cut -d '|' -f 2; } # seconds
allowed() { # seconds, for one program, of its row $most: what hangs must not take the call with it
	local seconds=$(left) bound=${most:-$((2 * $(planned)))}
	[ -z "$limit" ] || [ "$seconds" -le "$bound" ] || seconds=$bound
	echo "$seconds"
}
row() { # NAME COMMAND...: a line of the table. What the command prints goes to the log; with show=yes here, too
	local start=$SECONDS code took
	begin "$1"
	shift
	if [ "$(left)" -lt 10 ]; then
		end "not run: the call's $limit s are over"
		return
	fi
	if [ -n "${show:-}" ]; then
		"$@" 2>&1 | tee "$log"
		code=${PIPESTATUS[0]}
	else
		"$@" >"$log" 2>&1
		code=$?
		[ $code = 0 ] || grep -vE '^=== |^ *--- PASS' "$log" | tail -60
	fi
	took="$((SECONDS - start)) s"
	if [ "$code" = 0 ]; then
		end "passed, $took"
	elif [ -n "$limit" ] && { [ "$code" = 124 ] || [ "$code" = 137 ]; }; then
		if [ "$(left)" -gt 5 ]; then
			end "ENDED after $took, more than it may take"
		else
			end "ENDED after $took, as the call's $limit s are over"
		fi
	elif [ "$code" = 3 ] && [ -n "${show:-}" ]; then
		end "BROKEN, $took: a bar does not hold"
	elif [ -n "${refusal:-}" ] && grep -qE "$refusal" "$log"; then
		end "not run: $(grep -oE "$refusal" "$log" | head -1)"
	else
		end "FAILED after $took, exit code $code"
	fi
}
measure() { # NAME SCRIPT OPTION...: a row of figures
	show=yes signal=TERM refusal='ModuleNotFoundError.*|ERR_NVGPUCTRPERM|Failed to initialize the profiler.*' row "$1" in_folder . "$python" "testdata/peers/$2" \
		"$dir/contraflow" --data "$dir/rows.parquet" --figures "$results/$part/figures" "${@:3}"
}
in_folder() { # in the foreground: who ends this script ends it too. At QUIT a program in Go prints what each goroutine is at
	(cd "$root/$1" && shift && exec timeout --foreground -s "${signal:-QUIT}" -k 10 "$(allowed)" "$@")
}
suite() { # FOLDER PROGRAM OPTION...: tests; each one's failures are printed when it ends, not when all have
	in_folder "$@" -test.v
}
again() { # FOLDER PROGRAM: of a row that did not pass, the test that failed first, or was under way, alone and with each launch waited for: an error of
	# the GPU is known at a later call, and all that comes behind it in a process fails
	grep -q passed "${log%.log}.line" && return
	local test=$(grep -oE -- '--- FAIL: [^ ]+' "$log" | cut -d ' ' -f 3 | awk -F / 'NF > n {n = NF; name = $0} END {print name}')
	test=${test:-$(grep -oE '^=== RUN +[^ ]+' "$log" | awk 'END {print $3}')}
	[ -z "$test" ] || CUDA_LAUNCH_BLOCKING=1 CONTRAFLOW_CUDA_GRAPHS=off most=45 row "alone: $test" suite "$1" "$2" \
		-test.run "$(sed 's/[][().*+?^$|{}\\]/\\&/g; s|/|$/^|g; s/.*/^&$/' <<<"$test")"
}
contraflow() { # the program has given back what it had on its GPU, as far as there is a driver that tells
	in_folder . "$dir/contraflow" "$@" && ! grep -q 'a context is given back that has' "$log"
}
resumed() {
	contraflow "$@" && ! grep -q 'no checkpoint yet' "$log"
}
on_gpu() { # FOLDER PROGRAM OPTION...: tests that have a processor otherwise
	CONTRAFLOW_TEST_DEVICE=cuda suite "$@"
}
benchmarks() { # FOLDER PROGRAM NAMES, likewise
	CONTRAFLOW_TEST_DEVICE=cuda in_folder "$1" "$2" -test.run '^$' -test.bench "$3"
}
ranks() { # N COMMAND...: that many processes, as torchrun would start them
	local n=$1 port=$((20000 + RANDOM % 12000)) all=() failed=0
	shift
	for ((r = 0; r < n; r++)); do
		RANK=$r LOCAL_RANK=$r WORLD_SIZE=$n LOCAL_WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$@" &
		all+=($!)
	done
	for r in "${all[@]}"; do wait "$r" || failed=$?; done
	return $failed
}

verify=(verify-grads -c "$dir/recipe.yaml" --rows 6 --sub-batch 5) train=(train -c "$dir/recipe.yaml" --log human)
streamed=(--set mesh.replicate=1 --set mesh.shard=2 --set mesh.parameters=streamed)
cat >"$dir/recipe.yaml" <<END
model: {path: "$dir/start", max_length: {query: 16, document: 32}}
data: {train: [{path: "$dir/rows.parquet", query: comment, positive: body}]}
batch: {global_size: 16, sub_batch: {tokens: 256}}
train: {device: cuda, max_steps: 3}
save: {dir: "$dir/run", every: 2}
END
echo "$machine"
most=90 in_folder . "$dir/contraflow" doctor --seconds 0 2>&1 | tee "$results/doctor.txt" # compiles kernels, so that no part has to
later=''
for part in ${only:-$names}; do
	if [ "$(left)" -lt "$(planned)" ]; then
		later="$later $part"
		continue
	fi
	lines=0
	rm -rf "${results:?}/$part" "$dir"/run*
	mkdir "$results/$part" || exit 2
	echo "$machine" >"$results/$part/machine"
	case $part in
	tests)
		most=75 row "attention by warpgroups, on Hopper" suite gpustage/cuda "$dir/cuda.test" -test.run 'Conformance/^AttentionBF16$' ${processor:+-test.short}
		groups=${log%.log}.line
		again gpustage/cuda "$dir/cuda.test"
		if ! grep -q passed "$groups"; then # alone it may have
			export CONTRAFLOW_CUDA_WARPGROUPS=off
			echo "what comes next is without them; before another call, export CONTRAFLOW_CUDA_WARPGROUPS=off"
		fi
		most=150 row "conformance suite, f32 and bf16" suite gpustage/cuda "$dir/cuda.test" -test.run Conformance -test.skip Conformance/Large ${processor:+-test.short}
		again gpustage/cuda "$dir/cuda.test"
		most=90 row "goldens of every family, f32 and bf16" on_gpu stages/transformer "$dir/transformer.test" -test.run 'Families$|BF16Error|TestStatic$|TestSparse$'
		most=60 row "golden training steps" on_gpu stages "$dir/stages.test" -test.run "GoldenSteps/${processor:+^mnrl\$}/f32" # f64 is the processor's
		most=45 row "training in bf16" contraflow "${train[@]}" --set train.precision=bf16
		most=45 row "its last step again, resumed" resumed "${train[@]}" --set train.precision=bf16 --set train.max_steps=5 --resume
		;;
	ranks)
		row "metamorphic, several ranks on one GPU" on_gpu stages "$dir/stages.test" -test.run TestReplicasMetamorphic
		row "gradients verified, alone and on 4 ranks" contraflow "${verify[@]}" --accumulate 1 --replicas 2 --shards 2
		row "training of LoRA, cached, 2 x 2 ranks" contraflow "${train[@]}" --set model.lora.rank=8 --set model.activation_checkpointing=true \
			--set batch.cache=always --set mesh.replicate=2 --set mesh.shard=2
		row "training with streamed parameters, 2 ranks" contraflow "${train[@]}" --out "$dir/run2" "${streamed[@]}"
		;;
	speed-*) measure "gpu.py, $part" gpu.py --parts peer --only "${part#speed-}" ;;
	gemm | overlap | sizes | graphs | fusions) measure "gpu.py, $part" gpu.py --parts "$part" ;;
	kernels)
		if command -v ncu >/dev/null; then
			measure "kernels by ncu" gpu_kernels.py --keep "$results/$part"
		else
			not_run "kernels by ncu" "ncu is not in PATH"
		fi
		;;
	choices) # what is one way or the other
		row "tiles of the loss" benchmarks stages "$dir/stages.test" 'LossTiles$|LateTiles$'
		row "attention by warpgroups or by warps" benchmarks stages/transformer "$dir/transformer.test" 'Attention$'
		row "embeddings as one kernel or several" benchmarks stages/transformer "$dir/transformer.test" 'Embed$'
		row "a sparse head's operations" benchmarks stages/transformer "$dir/transformer.test" 'SparseHead$'
		cat "$results/$part"/*.log | grep '^Benchmark' | tr -s '[:blank:]' ' ' | tee "$results/$part/figures"
		;;
	variants)
		CONTRAFLOW_CUDA_SUMS=on row "products with the library's sums" suite gpustage/cuda "$dir/cuda.test" \
			-test.run 'Conformance/^(ProductColumnSum|ProductsBF16|OperandsBF16|Large)$' -test.skip 'Conformance/Large/^[^p]|Conformance/Large/pointwise' # which have no products
		CONTRAFLOW_CUDA_WARPGROUPS=off row "attention without warpgroups" suite gpustage/cuda "$dir/cuda.test" -test.run 'Conformance/^AttentionBF16$'
		CONTRAFLOW_CUDA_GRAPHS=off row "golden training steps, without CUDA graphs" on_gpu stages "$dir/stages.test" -test.run GoldenSteps//f32
		row "metamorphic, one rank; equal bits" on_gpu stages "$dir/stages.test" -test.run 'TestMetamorphic|TestBitEqual$'
		;;
	large) row "operations at the sizes of training" suite gpustage/cuda "$dir/cuda.test" -test.run Conformance/^Large\$ ${processor:+-test.short} ;;
	nccl)
		if [ "$gpus" -gt 1 ]; then
			row "gradients verified, 2 GPUs over NCCL" ranks 2 contraflow "${verify[@]}" --accumulate 1 --replicas 2
			row "training on 2 GPUs over NCCL" ranks 2 contraflow "${train[@]}" "${streamed[@]}"
		else
			not_run "gradients and training, 2 GPUs over NCCL" "this machine has one GPU"
		fi
		;;
	sanitizer) # of our kernels: groups that are of the library's products for the most part are left out, and so are its kernels in the others
		groups='Conformance/^(Large|MatMul|Epilogue|RoundedEpilogue|TF32|Rounded|Forms|FormsOfBothPasses|ProductsBF16|OperandsBF16|Memory|Errors)$'
		for tool in memcheck racecheck; do
			options=(--tool "$tool")
			[ "$tool" != memcheck ] || options+=(--report-api-errors no) # the suite asks for more memory than there is
			if compute-sanitizer --help 2>/dev/null | grep -q -- --kernel-name-exclude; then
				for theirs in nvjet cutlass gemm splitK; do options+=(--kernel-name-exclude "kns=$theirs"); done # cuBLASLt's kernels are not ours to check
			fi
			if command -v compute-sanitizer >/dev/null; then
				signal=TERM refusal='Device not supported.*' row "compute-sanitizer $tool" suite gpustage/cuda compute-sanitizer "${options[@]}" --error-exitcode 1 "$dir/cuda.test" -test.short -test.run Conformance -test.skip "$groups"
			else
				not_run "compute-sanitizer $tool" "it is not in PATH"
			fi
		done
		;;
	esac
done
echo
table
[ -z "$later" ] || printf '\nnot in this call, whose %s s did not suffice:%s\n' "$limit" "$later"
! grep -qE $'\t(FAILED|BROKEN|ENDED)' "$results"/*/*.line 2>/dev/null
