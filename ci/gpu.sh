#!/usr/bin/env bash
# On a machine with a GPU: the default matrix on the real device, kernels under compute-sanitizer, rates.  Expects a build
# (ci/build.sh cuda, or the folder given as the first argument); writes everything below the second argument.
# Exit code: 0 all well, 1 something is wrong, 2 could not run.
set -uo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/cuda}
out=${2:-report-gpu}
mkdir -p "$out"
export NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_ALGO=Ring NCCL_PROTO=Simple NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=4
[[ -x $build/bin/assay-gpu ]] || { echo "gpu: $build/bin/assay-gpu is missing: ci/build.sh cuda" >&2; exit 2; }
"$build/bin/assay-gpu" doctor | tee "$out/doctor.json" || exit 2
nvidia-smi >"$out/nvidia-smi.txt" 2>&1
code=0
"$build/bin/assay" doctor >"$out/doctor.txt" 2>&1
timeout 480 "$build/bin/assay" run --engine gpu --report "$out/run" --jobs 2 >"$out/run.txt" 2>&1 || code=$?
tail -n 60 "$out/run.txt"
if command -v compute-sanitizer >/dev/null && [[ -d $out/run/work/operations ]]; then
    for tool in memcheck racecheck initcheck synccheck; do
        timeout 120 compute-sanitizer --tool "$tool" --error-exitcode 3 "$build/bin/assay-gpu" ops \
            --request="$out/request" --out="$out/answer-$tool" >"$out/$tool.txt" 2>&1 || code=1
        tail -n 1 "$out/$tool.txt"
    done
fi
exit $code
