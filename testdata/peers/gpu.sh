#!/usr/bin/env bash
# gpu.sh [--build] [--processor] [--dir DIR] [--limit SECONDS] [--results FILE] [tests|variants|sanitizer|speed-minilm|speed-bert|graphs|products|choices|overlap|profile ...]: what can only be shown on a
# machine with an NVIDIA GPU (sm_80 or later), in one command. Each result is printed when it is there, all of them in a table at the end and
# in DIR/table.txt; whatever has not run stands there as such. Nothing here changes the GPU's settings.
#
# DIR (.cache/gpu, with --processor .cache/gpu-processor) gets programs.tar.gz, what is in it (the programs, the rows to train on), and a log of each line in DIR/logs. --results puts
# the table, logs and figures into an archive, FILE.tar.gz, anew after each line: what was measured is there when somebody ends the script. What is there already is used: for
# a machine with a GPU but without Go or a network, gpu.sh --build makes programs.tar.gz elsewhere, and the repository with it is all that has to
# be carried over. Python (CONTRAFLOW_PYTHON, or python3) needs sentence-transformers and pyarrow for speed; NVRTC and cuBLASLt are taken from
# CONTRAFLOW_NVRTC and CONTRAFLOW_CUBLASLT, and NCCL from CONTRAFLOW_NCCL, or from beside Python's PyTorch. --limit ends a program that takes longer (3,600 s).
#
# --processor runs the tests without a GPU, with a driver that runs the kernels on the processor (gpustage/cuda/testdata/driver.cpp): what the
# device asks of CUDA and in what order is tested so, and nothing that is measured.
set -uo pipefail
cd "$(dirname "$0")/../.."
root=$PWD dir= kit=$PWD/.cache/cuda-kit limit=3600 only= results=
die() { echo "gpu.sh: $*" >&2; exit 2; }
build= processor=
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=yes ;;
	--dir) dir=${2:?--dir wants a folder}; shift ;;
	--limit) limit=${2:?--limit wants seconds}; shift ;;
	--results) results=$(realpath "${2:?--results wants a file}"); shift ;;
	tests | variants | sanitizer | speed-minilm | speed-bert | graphs | products | choices | overlap | profile) only="$only $1" ;;
	--processor) processor=yes ;;
	-h | --help) sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 0 ;;
	*) die "$1 is none of --build, --processor, --dir DIR, --limit SECONDS, --results FILE, tests, variants, sanitizer, speed-minilm, speed-bert, graphs, products, choices, overlap, profile" ;;
	esac
	shift
done
[ -z "$processor" ] || only=${only:-tests}
only=${only:-tests variants sanitizer speed-minilm speed-bert graphs products choices overlap profile}
dir=${dir:-.cache/gpu${processor:+-processor}}
mkdir -p "$dir" || exit 2
dir=$(cd "$dir" && pwd)

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
		tar -C "$work" -czf "$dir/programs.tar.gz" .
	)
	[ $? = 0 ] || die "building failed; see above, and $dir/log"
	rm -r "$work"
}
if [ -n "$build" ]; then
	make_programs
	echo "$dir/programs.tar.gz: $(($(stat -c %s "$dir/programs.tar.gz") >> 20)) MiB"
	exit 0
fi
if [ -z "$processor" ] && [ ! -e /proc/driver/nvidia/version ] && [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
	die "this machine has no NVIDIA driver, so nothing here can run; contraflow doctor says what is missing"
fi
[ -z "$processor" ] || make_programs # of the files as they are
if [ ! -e "$dir/contraflow" ] || [ "$dir/programs.tar.gz" -nt "$dir/contraflow" ]; then # the archive is a little younger than what is in it
	[ -e "$dir/programs.tar.gz" ] || make_programs
	rm -rf "$dir"/{contraflow,*.test,*.so*,start,rows.parquet}
	tar -C "$dir" -xzf "$dir/programs.tar.gz" || exit 2
fi
[ ! -e "$kit/env" ] || [ ! -d "$kit/venv" ] || source "$kit/env"
python=${CONTRAFLOW_PYTHON:-python3}
command -v "$python" >/dev/null || die "no $python; CONTRAFLOW_PYTHON names one with sentence-transformers"
library() { # VARIABLE FILE: finds a library beside Python's PyTorch
	[ -n "${!1:-}" ] || export "$1=$("$python" -c "import glob, sys; print(next((f for p in sys.path for f in sorted(glob.glob(p + '/nvidia/**/$2', recursive=True), reverse=True)), ''))")"
	[ -n "${!1}" ] || unset "$1" # the system's loader may know it
}
library CONTRAFLOW_NVRTC 'libnvrtc.so.1[23]'
library CONTRAFLOW_CUBLASLT 'libcublasLt.so.1[23]'
library CONTRAFLOW_NCCL libnccl.so.2
export CI=true CONTRAFLOW_CUDA=try PYTHONUNBUFFERED=1
gpus=$(ls /proc/driver/nvidia/gpus 2>/dev/null | wc -l)
if [ -n "$processor" ]; then
	export LD_LIBRARY_PATH=$dir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} CONTRAFLOW_CUBLASLT=$dir/libcublasLt.so.13 CONTRAFLOW_NCCL=$dir/libtestnccl.so CONTRAFLOW_DRIVER_GPUS=2
	gpus=2
fi

: >"$dir/table.txt"
rm -rf "$dir/logs"
mkdir "$dir/logs" || exit 2
lines=0 log=
next_log() { # FOR: the log of what comes
	lines=$((lines + 1))
	log=$dir/logs/$(printf '%02d-%s' $lines "${1//[^a-zA-Z0-9]/-}")
}
result() { # NAME WORDS
	printf '%-50s %s\n' "$1" "$2" | tee -a "$dir/table.txt"
	[ -z "$results" ] || (cd "$dir" && shopt -s nullglob && tar -czf "$results.new" table.txt logs *.json && mv "$results.new" "$results")
}
row() { # NAME COMMAND...
	local name=$1 start=$SECONDS
	shift
	echo "== $name"
	next_log "$name"
	if "$@" >"$log" 2>&1; then
		result "$name" "passed, $((SECONDS - start)) s"
	else
		tail -40 "$log"
		result "$name" "FAILED after $((SECONDS - start)) s: $log"
	fi
}
contraflow() { # the program has given back what it had on its GPU, as far as there is a driver that tells
	in_folder . "$dir/contraflow" "$@" && ! grep -q 'a context is given back that has' "$log"
}
ranks() { # N COMMAND...: that many processes, as torchrun would start them
	local n=$1 port=$((20000 + RANDOM % 12000)) all=() failed=0
	shift
	for ((r = 0; r < n; r++)); do
		RANK=$r LOCAL_RANK=$r WORLD_SIZE=$n LOCAL_WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$@" &
		all+=($!)
	done
	for r in "${all[@]}"; do wait "$r" || failed=1; done
	return $failed
}
in_folder() { (cd "$root/$1" && shift && exec timeout --foreground -k 10 "$limit" "$@"); } # in the foreground: who ends this script ends it too

in_folder . "$dir/contraflow" doctor --seconds 0
for part in $only; do
	case $part in
	tests)
		row "conformance suite, f32 and bf16" in_folder gpustage/cuda "$dir/cuda.test" -test.run Conformance ${processor:+-test.short}
		export CONTRAFLOW_TEST_DEVICE=cuda
		row "goldens of every family, f32 and bf16" in_folder stages/transformer "$dir/transformer.test" -test.run 'Families$|BF16Error|TestStatic$'
		row "golden training steps" in_folder stages "$dir/stages.test" -test.run "GoldenSteps${processor:+/^mnrl\$}"
		row "metamorphic, several ranks on one GPU" in_folder stages "$dir/stages.test" -test.run TestReplicasMetamorphic
		unset CONTRAFLOW_TEST_DEVICE
		rm -rf "$dir"/run*
		cat >"$dir/recipe.yaml" <<END
model: {path: "$dir/start", max_length: {query: 16, document: 32}}
data: {train: [{path: "$dir/rows.parquet", query: comment, positive: body}]}
batch: {global_size: 16, sub_batch: {tokens: 256}}
train: {device: cuda, max_steps: 3}
save: {dir: "$dir/run", every: 2}
END
		verify=(verify-grads -c "$dir/recipe.yaml" --rows 6 --sub-batch 5) train=(train -c "$dir/recipe.yaml" --log human)
		row "gradients verified, alone and on 4 ranks" contraflow "${verify[@]}" --accumulate 1 --replicas 2 --shards 2
		row "training in bf16" contraflow "${train[@]}" --set train.precision=bf16
		row "its last step again, resumed" contraflow "${train[@]}" --set train.precision=bf16 --set train.max_steps=5 --resume
		! grep -q 'no checkpoint yet' "$log" || result "its last step again, resumed" "FAILED: it began anew"
		row "training of LoRA, cached, 2 x 2 ranks" contraflow "${train[@]}" --out "$dir/run2" --set model.lora.rank=8 \
			--set model.activation_checkpointing=true --set batch.cache=always --set mesh.replicate=2 --set mesh.shard=2
		streamed=(--set mesh.replicate=1 --set mesh.shard=2 --set mesh.parameters=streamed)
		row "training with streamed parameters, 2 ranks" contraflow "${train[@]}" --out "$dir/run3" "${streamed[@]}"
		if [ "$gpus" -gt 1 ]; then
			row "gradients verified, 2 GPUs over NCCL" ranks 2 contraflow "${verify[@]}" --accumulate 1 --replicas 2
			row "training on 2 GPUs over NCCL" ranks 2 contraflow "${train[@]}" --out "$dir/run4" "${streamed[@]}"
		else
			result "gradients and training, 2 GPUs over NCCL" "not run: this machine has one GPU"
		fi
		;;
	variants)
		row "conformance suite, with the library's sums" in_folder gpustage/cuda env CONTRAFLOW_CUDA_SUMS=on "$dir/cuda.test" -test.run Conformance
		export CONTRAFLOW_TEST_DEVICE=cuda
		row "golden training steps, without CUDA graphs" in_folder stages env CONTRAFLOW_CUDA_GRAPHS=off "$dir/stages.test" -test.run GoldenSteps
		row "metamorphic, one rank; equal bits" in_folder stages "$dir/stages.test" -test.run 'TestMetamorphic|TestBitEqual$'
		unset CONTRAFLOW_TEST_DEVICE
		;;
	sanitizer)
		for tool in memcheck racecheck; do
			options=(--tool $tool)
			[ $tool != memcheck ] || options+=(--report-api-errors no) # the suite asks for more memory than there is
			if command -v compute-sanitizer >/dev/null; then
				row "compute-sanitizer $tool" in_folder gpustage/cuda compute-sanitizer "${options[@]}" --error-exitcode 1 "$dir/cuda.test" -test.short -test.run Conformance
			else
				result "compute-sanitizer $tool" "not run: compute-sanitizer is not in PATH"
			fi
		done
		;;
	speed-* | graphs | products | overlap)
		name="gpu.py, $part" options=(--only "${part#speed-}" --parts peer)
		[[ $part == speed-* ]] || options=(--only bert --parts "$part")
		[ "$part" != graphs ] || options=(--parts graphs)
		if "$python" -c 'import sentence_transformers, pyarrow' 2>/dev/null; then
			echo "== $name"
			next_log "$name"
			in_folder . "$python" testdata/peers/gpu.py "$dir/contraflow" --data "$dir/rows.parquet" "${options[@]}" --json "$dir/$part.json" 2>&1 | tee "$log"
			case ${PIPESTATUS[0]} in
			0) result "$name" "every bar holds: $dir/$part.json" ;;
			*) result "$name" "FAILED, or a bar is broken: see above" ;;
			esac
		else
			result "$name" "not run: $python has no sentence_transformers or no pyarrow"
		fi
		;;
	choices) # what is one way or the other, printed beside each other
		export CONTRAFLOW_TEST_DEVICE=cuda
		row "tiles of the loss" in_folder stages "$dir/stages.test" -test.run '^$' -test.bench 'LossTiles$'
		grep '^Benchmark' "$log"
		row "embeddings as one kernel or several" in_folder stages/transformer "$dir/transformer.test" -test.run '^$' -test.bench 'Embed$'
		grep '^Benchmark' "$log"
		unset CONTRAFLOW_TEST_DEVICE
		;;
	profile)
		if command -v ncu >/dev/null; then
			echo "== ncu"
			next_log ncu
			in_folder . "$python" testdata/peers/gpu_kernels.py "$dir/contraflow" --data "$dir/rows.parquet" 2>&1 | tee "$log"
			case ${PIPESTATUS[0]} in
			0) result "kernels by ncu" "see above" ;;
			*) result "kernels by ncu" "FAILED, or a bar is broken: see above" ;;
			esac
		else
			result "kernels by ncu" "not run: ncu is not in PATH"
		fi
		;;
	esac
done
echo
cat "$dir/table.txt"
! grep -q FAILED "$dir/table.txt"
