#!/usr/bin/env bash
# Self-test of ci/gpu.sh, without a GPU: programs that only answer stand where assay and assay-gpu are.  Resume, budget, a slice that
# fails, one that could not run, one that hangs, a library that is missing, packing.  About twenty-five seconds.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
gpu=$PWD/ci/gpu.sh
room=$(mktemp -d /tmp/assay-gpu-test-XXXXXX)
trap 'rm -rf "$room"' EXIT
mkdir -p "$room/build/bin" "$room/stubs" "$room/home" "$room/root" "$room/venv/lib/python3.12/site-packages/nvidia/"{nccl,cu13}/lib
log=$room/log tests=0

# What a stub does is told by files: $room/fail, $room/skip, $room/hang and $room/leak name a word of the command line.
cat >"$room/build/bin/assay" <<STUB
#!/usr/bin/env bash
echo "assay \$*" >>"$room/calls"
[[ \$1 == help ]] && { [[ -e $room/bench ]] && echo "  bench      times"; exit 0; }
[[ \$1 == doctor ]] && exit 0
[[ -e $room/hang && " \$* " == *" \$(cat $room/hang) "* ]] && sleep 60
while ((\$#)); do case \$1 in
    --report) report=\$2 ;;
    --key) key=\$2 ;;
    --json) echo '{}' >\$2 ;;
    --out) certificates=\$2 ;;
    esac; words+=" \$1 "; shift; done
[[ \$words == *" keygen "* ]] && { echo public >\$key.pub; exit 0; }
[[ \$words == *" certify "* ]] && { mkdir -p "\$certificates"; echo '{"certificate":{}}' >"\$certificates/add-add-gpu.json"; }
[[ -n \${report:-} ]] || report=$room/no-report
mkdir -p "\$report/work/operations/request-fp32-1" "\$report/work/operations/request-bf16-1"
echo '{"verdict":"pass"}' >"\$report/results.jsonl"
[[ -e $room/fail && \$words == *" \$(cat $room/fail) "* ]] && { echo "1 passed, 1 failed, 0 skipped"; exit 1; }
[[ -e $room/skip && \$words == *" \$(cat $room/skip) "* ]] && { echo "1 passed, 0 failed, 1 skipped"; exit 2; }
echo "1 passed, 0 failed, 0 skipped"
STUB
cat >"$room/build/bin/assay-gpu" <<STUB
#!/usr/bin/env bash
[[ -e $room/no-device ]] && { echo "assay-gpu: error: no CUDA device answers" >&2; exit 2; }
echo '{ "device": "stub", "simulated": '\$([[ -e $room/simulated ]] && echo true || echo false)', "devices": 1 }' | sed 's/{/{\n/; s/, /,\n/g'
STUB
cat >"$room/stubs/compute-sanitizer" <<STUB
#!/usr/bin/env bash
[[ -e $room/leak && \$2 == "\$(cat $room/leak)" ]] && exit 9
exit 0
STUB
printf '#!/bin/sh\necho "stub GPU"\n' >"$room/stubs/nvidia-smi"
printf '#!/bin/sh\nexit 0\n' >"$room/stubs/python3"
chmod +x "$room"/build/bin/* "$room"/stubs/*
touch "$room"/venv/lib/python3.12/site-packages/nvidia/{nccl/lib/libnccl.so.2,cu13/lib/libcublasLt.so.13}

run() { # run CODE ARGUMENTS...: the exit code must be CODE
    local wanted=$1 code=0
    shift
    : >"$room/calls"
    env -u LD_LIBRARY_PATH -u OUT PATH="$room/stubs:/usr/bin:/bin" HOME="$room/home" ASSAY_SYSTEM_ROOT="$room/root" \
        VIRTUAL_ENV="$room/${venv-venv}" "$gpu" --build "$room/build" --out "$room/out" "$@" >"$log" 2>&1 || code=$?
    ((code == wanted)) || broken "expected exit $wanted, found $code"
}
broken() { echo "gpu: self-test: $what: $*"; cat "$log"; exit 1; }
says() { grep -qE -- "$1" "$log" || broken "expected \"$1\""; tests=$((tests + 1)); }
silent() { if grep -qE -- "$1" "$log"; then broken "did not expect \"$1\""; fi; tests=$((tests + 1)); }
calls() { local n; n=$(grep -c "$1" "$room/calls"); ((n == $2)) || broken "expected $2 calls of \"$1\", found $n"; tests=$((tests + 1)); }
packed() { tar -tzf "$room/out/gpu-evidence.tar.gz" | grep -cx "./$1" >/dev/null || broken "the pack lacks $1"; tests=$((tests + 1)); }
fresh() { what=$1; rm -rf "$room/out" "$room"/{fail,skip,hang,leak,bench,no-device,simulated}; }

fresh "all is well"; touch "$room/bench"
run 0
says 'library libnccl.so.2: found .*site-packages/nvidia/nccl/lib/libnccl.so.2'
says '24 of 24 slices have passed'
calls 'certify --engine gpu --operation all --variant k3' 1
calls 'probe --engine gpu' 1
packed slices/certify-4/certificates/add-add-gpu.json; packed slices/certify-4/certify.key.pub; packed slices/probe/probe.json
if tar -tzf "$room/out/gpu-evidence.tar.gz" | grep -c 'certify.key$' >/dev/null; then broken "a secret key is in the pack"; fi
calls 'run .*--shard 3/8' 1
calls 'run --engine gpu --collective-timeout 30 --timeout 90' 18
calls 'bench --engine gpu' 5
calls 'bench --engine gpu .*-first ' 1
calls 'bench --engine gpu .*--enable-cuda-graph' 1
packed marks/matrix-8; packed summary.txt; packed libraries.txt; packed slices/exact/log.txt; packed slices/exact/report/results.jsonl
what="a second call"; run 0
says 'exact: done before: pass'
calls 'run --engine' 0
what="--again"; run 0 --again --slice exact
calls 'run --engine' 1
what="other programs"; echo '# changed' >>"$room/build/bin/assay-gpu"; run 2 --slice exact --budget 30
says 'exact: not started: [0-9]+ s are left'
says '[01] of 24 slices have passed'

fresh "side by side"; touch "$room/bench"; echo 2/8 >"$room/fail"
run 1 --beside 5
says '23 of 24 slices have passed'
says 'matrix-2: FAIL'
calls 'report merge' 1
what="--beside nothing"; run 2 --beside 0
says "expected a number of 1 or more, found '0'"

fresh "a library is missing"; venv=empty; run 2; unset venv
says 'library libnccl.so.2: MISSING'
says 'nothing can run'
calls . 0
packed summary.txt

fresh "no device"; touch "$room/no-device"; run 2
says 'no device that can be used'
says 'assay-gpu: error: no CUDA device answers|could not run: .*exit code 2'
calls 'run --engine' 0
fresh "the simulator is no evidence"; touch "$room/simulated"; run 2
says 'is the simulator: nothing that it does is evidence'
run 2 --rehearse --slice exact --slice rates
[[ -f $room/out/gpu-rehearsal.tar.gz ]] || broken "a rehearsal has a name of its own"

fresh "a slice that fails"; echo 2/8 >"$room/fail"; run 1
says 'matrix-2: FAIL'
says 'matrix-3: pass'
says 'rates: could not run'
what="its code is remembered"; rm "$room/fail"; run 1
says 'matrix-2: done before: FAIL'
what="until it runs again"; run 0 --again --slice matrix-2
says 'matrix-2: pass'
what="and then the parts are joined anew"; touch "$room/bench"; run 0 --slice merge
calls 'report merge' 1

fresh "a kernel that is not certified"; echo k1 >"$room/fail"; run 1 --slice certify-1 --slice certify-2
says 'certify-1: pass'
says 'certify-2: FAIL'
fresh "a slice that could not run"; echo dp3 >"$room/skip"; run 2 --slice nccl
says 'nccl: could not run'
calls 'layout tp2' 1
fresh "a sanitizer that finds something"; echo racecheck >"$room/leak"; run 1 --slice sanitizer-memcheck --slice sanitizer-racecheck
says 'sanitizer-memcheck: pass'
says 'sanitizer-racecheck: FAIL'
fresh "no sanitizer"; mv "$room/stubs/compute-sanitizer" "$room/hidden"; run 2 --slice sanitizer-memcheck
says 'could not run: compute-sanitizer is not on PATH'
mv "$room/hidden" "$room/stubs/compute-sanitizer"

fresh "the parts wait for each other"; run 2 --slice merge
says 'merge: not started: matrix-1 has not run'
fresh "the budget is over before a slice"; run 2 --budget 70 --slice exact --slice local
says 'exact: pass'
says 'local: not started: [0-9]+ s are left, about 80 are expected'
silent 'local: (pass|FAIL)'
fresh "the budget is over inside a slice"; echo operations >"$room/hang"
sed 's/^    echo "exact 40 300/    echo "exact 1 300/' ci/gpu.sh >"$room/gpu.sh" && cp ci/gpu_libraries.sh "$room/" && chmod +x "$room/gpu.sh"
mkdir -p "$room/ci" && mv "$room"/gpu*.sh "$room/ci/" && gpu=$room/ci/gpu.sh
run 2 --budget 12 --slice exact
says 'exact: the budget was over after [0-9]+ s: not finished'
[[ ! -e $room/out/marks/exact ]] || broken "a slice that was cut has a mark"
fresh "a slice that hangs"; echo operations >"$room/hang"
sed -i 's/^    echo "exact 1 300/    echo "exact 1 2/' "$room/ci/gpu.sh"
run 1 --slice exact
says 'exact: FAIL: over its limit of 2 s'
gpu=$PWD/ci/gpu.sh

fresh "a fresh machine goes on from the pack"; run 0 --slice exact
cp "$room/out/gpu-evidence.tar.gz" "$room/before.tar.gz"; rm -rf "$room/out"
run 0 --slice exact --resume "$room/before.tar.gz"
says 'exact: done before: pass'
what="arguments"; run 2 --slice exakt; says "no slice is called 'exakt'"
run 2 --budget soon; says "expected seconds, found 'soon'"
echo "gpu: self-test passed ($tests checks)"
