#!/usr/bin/env bash
# gpu.sh [--build] [--dir DIR] [tests|sanitizer|speed|profile ...]: what can only be shown on a machine with an NVIDIA GPU (sm_80 or
# later), in one command. It ends with a table; whatever has not run stands there as such. Nothing here changes the GPU's settings.
#
# DIR (.cache/gpu) gets the programs, the rows to train on and the logs. What is there already is used: for a machine with a GPU but
# without Go or a network, gpu.sh --build fills DIR elsewhere, and the repository with DIR is all that has to be carried over. Python
# (CONTRAFLOW_PYTHON, or python3) needs sentence-transformers and pyarrow for speed; NVRTC and cuBLASLt are taken from CONTRAFLOW_NVRTC and
# CONTRAFLOW_CUBLASLT, from DIR, or from beside Python's PyTorch.
set -uo pipefail
cd "$(dirname "$0")/../.."
root=$PWD dir=.cache/gpu only=
die() { echo "gpu.sh: $*" >&2; exit 2; }
build=
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=yes ;;
	--dir) dir=${2:?--dir wants a folder}; shift ;;
	tests | sanitizer | speed | profile) only="$only $1" ;;
	-h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
	*) die "$1 is none of --build, --dir DIR, tests, sanitizer, speed, profile" ;;
	esac
	shift
done
only=${only:-tests sanitizer speed profile}
mkdir -p "$dir" || exit 2
dir=$(cd "$dir" && pwd)

# make_programs fills DIR.
make_programs() {
	command -v go >/dev/null || die "no go here, and $dir lacks$missing: fill it with gpu.sh --build on a machine that has Go"
	gpustage/cuda/toolkit.sh "$dir/kit" >"$dir/env" || exit 2
	(
		source "$dir/env"
		set -e
		go build -tags cuda -ldflags '-s -w' -o "$dir/contraflow" ./cmd/contraflow
		for p in gpustage/cuda stages stages/transformer; do go test -c -tags cuda -ldflags '-s -w' -o "$dir/$(basename $p).test" ./$p; done
		"$dir/contraflow" quickstart --out "$dir/quickstart" --set train.max_steps=1 >"$dir/log"
		mv "$dir/quickstart/train.parquet" "$dir/rows.parquet"
		rm -r "$dir/quickstart"
	) || die "building failed; see above, and $dir/log"
}
if [ -n "$build" ]; then
	make_programs
	echo "$dir is filled"
	exit 0
fi
if [ ! -e /proc/driver/nvidia/version ] && [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
	die "this machine has no NVIDIA driver, so nothing here can run; contraflow doctor says what is missing"
fi
missing=
for part in $only; do
	case $part in
	tests) files="cuda.test stages.test transformer.test" ;;
	sanitizer) files=cuda.test ;;
	*) files="contraflow rows.parquet" ;;
	esac
	for f in $files; do [ -e "$dir/$f" ] || missing="$missing $f"; done
done
[ -z "$missing" ] || make_programs
[ ! -e "$dir/env" ] || [ ! -d "$dir/kit/venv" ] || source "$dir/env"
python=${CONTRAFLOW_PYTHON:-python3}
command -v "$python" >/dev/null || die "no $python; CONTRAFLOW_PYTHON names one with sentence-transformers"
library() { # VARIABLE NAME: finds a library beside Python's PyTorch
	[ -n "${!1:-}" ] || export "$1=$("$python" -c "import glob, sys; print(next((f for p in sys.path for f in sorted(glob.glob(p + '/nvidia/**/$2.so.1[23]', recursive=True), reverse=True)), ''))")"
	[ -n "${!1}" ] || unset "$1" # the system's loader may know it
}
library CONTRAFLOW_NVRTC libnvrtc
library CONTRAFLOW_CUBLASLT libcublasLt
export CI=true CONTRAFLOW_CUDA=try

table=()
row() { # NAME COMMAND...
	local name=$1 start=$SECONDS
	shift
	echo "== $name"
	if "$@" >"$dir/log" 2>&1; then
		table+=("$name|passed, $((SECONDS - start)) s")
	else
		table+=("$name|FAILED")
		tail -40 "$dir/log"
	fi
}
in_folder() { (cd "$root/$1" && shift && "$@"); }

[ ! -e "$dir/contraflow" ] || "$dir/contraflow" doctor --seconds 0
for part in $only; do
	case $part in
	tests)
		row "conformance suite, f32 and bf16" in_folder gpustage/cuda "$dir/cuda.test" -test.run Conformance
		export CONTRAFLOW_TEST_DEVICE=cuda
		row "goldens of every family, f32 and bf16" in_folder stages/transformer "$dir/transformer.test" -test.run 'Families$|BF16Error'
		row "golden training steps" in_folder stages "$dir/stages.test" -test.run GoldenSteps
		row "metamorphic, one rank; equal bits" in_folder stages "$dir/stages.test" -test.run 'TestMetamorphic|TestBitEqual$'
		row "metamorphic, several ranks on one GPU" in_folder stages "$dir/stages.test" -test.run TestReplicasMetamorphic
		unset CONTRAFLOW_TEST_DEVICE
		;;
	sanitizer)
		for tool in memcheck racecheck; do
			if command -v compute-sanitizer >/dev/null; then
				row "compute-sanitizer $tool" in_folder gpustage/cuda compute-sanitizer --tool "$tool" --error-exitcode 1 "$dir/cuda.test" -test.run Conformance -test.timeout 60m
			else
				table+=("compute-sanitizer $tool|not run: compute-sanitizer is not in PATH")
			fi
		done
		;;
	speed)
		if "$python" -c 'import sentence_transformers, pyarrow' 2>/dev/null; then
			echo "== beside sentence-transformers"
			"$python" testdata/peers/gpu.py "$dir/contraflow" --data "$dir/rows.parquet" --json "$dir/figures.json"
			case $? in
			0) table+=("beside sentence-transformers|every bar holds: $dir/figures.json") ;;
			*) table+=("beside sentence-transformers|FAILED, or a bar is broken: see above") ;;
			esac
		else
			table+=("beside sentence-transformers|not run: $python has no sentence_transformers or no pyarrow")
		fi
		;;
	profile)
		if command -v ncu >/dev/null; then
			echo "== ncu"
			"$python" testdata/peers/gpu_kernels.py "$dir/contraflow" --data "$dir/rows.parquet"
			case $? in
			0) table+=("kernels by ncu|see above") ;;
			*) table+=("kernels by ncu|FAILED, or a bar is broken: see above") ;;
			esac
		else
			table+=("kernels by ncu|not run: ncu is not in PATH")
		fi
		;;
	esac
done
echo
printf '%s\n' "${table[@]}" | column -t -s '|'
! printf '%s\n' "${table[@]}" | grep -q FAILED
