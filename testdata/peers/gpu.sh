#!/usr/bin/env bash
# gpu.sh [--build] [--dir DIR] [--limit SECONDS] [tests|sanitizer|speed-minilm|speed-bert|graphs|products|choices|overlap|profile ...]: what can only be shown on a
# machine with an NVIDIA GPU (sm_80 or later), in one command. Each result is printed when it is there, all of them in a table at the end and
# in DIR/table.txt; whatever has not run stands there as such. Nothing here changes the GPU's settings.
#
# DIR (.cache/gpu) gets programs.tar.gz, what is in it (the programs, the rows to train on), and the logs. What is there already is used: for
# a machine with a GPU but without Go or a network, gpu.sh --build makes programs.tar.gz elsewhere, and the repository with it is all that has to
# be carried over. Python (CONTRAFLOW_PYTHON, or python3) needs sentence-transformers and pyarrow for speed; NVRTC and cuBLASLt are taken from
# CONTRAFLOW_NVRTC and CONTRAFLOW_CUBLASLT, or from beside Python's PyTorch. --limit ends a program that takes longer (3,600 s).
set -uo pipefail
cd "$(dirname "$0")/../.."
root=$PWD dir=.cache/gpu kit=$PWD/.cache/cuda-kit limit=3600 only=
die() { echo "gpu.sh: $*" >&2; exit 2; }
build=
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=yes ;;
	--dir) dir=${2:?--dir wants a folder}; shift ;;
	--limit) limit=${2:?--limit wants seconds}; shift ;;
	tests | sanitizer | speed-minilm | speed-bert | graphs | products | choices | overlap | profile) only="$only $1" ;;
	-h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
	*) die "$1 is none of --build, --dir DIR, --limit SECONDS, tests, sanitizer, speed-minilm, speed-bert, graphs, products, choices, overlap, profile" ;;
	esac
	shift
done
only=${only:-tests sanitizer speed-minilm speed-bert graphs products choices overlap profile}
mkdir -p "$dir" || exit 2
dir=$(cd "$dir" && pwd)

# make_programs makes programs.tar.gz.
make_programs() {
	command -v go >/dev/null || die "no go here, and $dir has no programs.tar.gz: gpu.sh --build makes it on a machine that has Go"
	mkdir -p "$kit" && gpustage/cuda/toolkit.sh "$kit" >"$kit/env" || exit 2
	local work
	work=$(mktemp -d)
	(
		source "$kit/env"
		set -e
		go build -trimpath -tags cuda -ldflags '-s -w' -o "$work/contraflow" ./cmd/contraflow
		for p in gpustage/cuda stages stages/transformer; do go test -c -trimpath -tags cuda -ldflags '-s -w' -o "$work/$(basename $p).test" ./$p; done
		"$work/contraflow" quickstart --out "$work/quickstart" --set train.max_steps=1 >"$dir/log"
		mv "$work/quickstart/train.parquet" "$work/rows.parquet"
		rm -r "$work/quickstart"
		tar -C "$work" -czf "$dir/programs.tar.gz" .
	) || die "building failed; see above, and $dir/log"
	rm -r "$work"
}
if [ -n "$build" ]; then
	make_programs
	echo "$dir/programs.tar.gz: $(($(stat -c %s "$dir/programs.tar.gz") >> 20)) MiB"
	exit 0
fi
if [ ! -e /proc/driver/nvidia/version ] && [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
	die "this machine has no NVIDIA driver, so nothing here can run; contraflow doctor says what is missing"
fi
if [ ! -e "$dir/contraflow" ] || [ "$dir/programs.tar.gz" -nt "$dir/contraflow" ]; then # which has the time at which it was built
	[ -e "$dir/programs.tar.gz" ] || make_programs
	tar -C "$dir" -xzf "$dir/programs.tar.gz" || exit 2
fi
[ ! -e "$kit/env" ] || [ ! -d "$kit/venv" ] || source "$kit/env"
python=${CONTRAFLOW_PYTHON:-python3}
command -v "$python" >/dev/null || die "no $python; CONTRAFLOW_PYTHON names one with sentence-transformers"
library() { # VARIABLE NAME: finds a library beside Python's PyTorch
	[ -n "${!1:-}" ] || export "$1=$("$python" -c "import glob, sys; print(next((f for p in sys.path for f in sorted(glob.glob(p + '/nvidia/**/$2.so.1[23]', recursive=True), reverse=True)), ''))")"
	[ -n "${!1}" ] || unset "$1" # the system's loader may know it
}
library CONTRAFLOW_NVRTC libnvrtc
library CONTRAFLOW_CUBLASLT libcublasLt
export CI=true CONTRAFLOW_CUDA=try PYTHONUNBUFFERED=1

: >"$dir/table.txt"
result() { # NAME WORDS
	printf '%-50s %s\n' "$1" "$2" | tee -a "$dir/table.txt"
}
row() { # NAME COMMAND...
	local name=$1 start=$SECONDS
	shift
	echo "== $name"
	if "$@" >"$dir/log" 2>&1; then
		result "$name" "passed, $((SECONDS - start)) s"
	else
		tail -40 "$dir/log"
		result "$name" "FAILED after $((SECONDS - start)) s"
	fi
}
in_folder() { (cd "$root/$1" && shift && exec timeout -k 10 "$limit" "$@"); }

"$dir/contraflow" doctor --seconds 0
for part in $only; do
	case $part in
	tests)
		row "conformance suite, f32 and bf16" in_folder gpustage/cuda "$dir/cuda.test" -test.run Conformance
		row "conformance suite, with the library's sums" in_folder gpustage/cuda env CONTRAFLOW_CUDA_SUMS=on "$dir/cuda.test" -test.run Conformance
		export CONTRAFLOW_TEST_DEVICE=cuda
		row "goldens of every family, f32 and bf16" in_folder stages/transformer "$dir/transformer.test" -test.run 'Families$|BF16Error'
		row "golden training steps" in_folder stages "$dir/stages.test" -test.run GoldenSteps
		row "golden training steps, without CUDA graphs" in_folder stages env CONTRAFLOW_CUDA_GRAPHS=off "$dir/stages.test" -test.run GoldenSteps
		row "metamorphic, one rank; equal bits" in_folder stages "$dir/stages.test" -test.run 'TestMetamorphic|TestBitEqual$'
		row "metamorphic, several ranks on one GPU" in_folder stages "$dir/stages.test" -test.run TestReplicasMetamorphic
		unset CONTRAFLOW_TEST_DEVICE
		;;
	sanitizer)
		for tool in memcheck racecheck; do
			if command -v compute-sanitizer >/dev/null; then
				row "compute-sanitizer $tool" in_folder gpustage/cuda compute-sanitizer --tool "$tool" --error-exitcode 1 "$dir/cuda.test" -test.short -test.run Conformance
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
			in_folder . "$python" testdata/peers/gpu.py "$dir/contraflow" --data "$dir/rows.parquet" "${options[@]}" --json "$dir/$part.json"
			case $? in
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
		grep '^Benchmark' "$dir/log"
		row "embeddings as one kernel or several" in_folder stages/transformer "$dir/transformer.test" -test.run '^$' -test.bench 'Embed$'
		grep '^Benchmark' "$dir/log"
		unset CONTRAFLOW_TEST_DEVICE
		;;
	profile)
		if command -v ncu >/dev/null; then
			echo "== ncu"
			in_folder . "$python" testdata/peers/gpu_kernels.py "$dir/contraflow" --data "$dir/rows.parquet"
			case $? in
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
