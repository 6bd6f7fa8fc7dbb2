#!/usr/bin/env bash
# What a GPU has shown (parity/evidence/*.json), of all slices of ci/gpu.sh, and how old it is, relative to the engine (gpu/): a line for
# each file.  It judges nothing.
#   ci/evidence.sh [--self-test | --take PACK]
# --take writes parity/evidence/DEVICE.json from the pack of ci/gpu.sh: commit, programs, every slice's exit code and seconds, what was timed
# (median seconds of a step, tokens a second, the share of the measured peak), and of every certificate the SHA-256.  A rehearsal is no
# evidence and is refused.
set -euo pipefail
self=$(readlink -f "$0")

# shown FILE: "5 of 6 slices passed (not sanitizer-synccheck), of 24; 0 certificates"
shown() {
    local bad
    bad=$(sed -nE 's/^ *"([^"]+)": \{"exit": [1-9][0-9]*,.*/\1/p' "$1" | paste -sd' ')
    echo "$(grep -c '"exit": 0[,}]' "$1") of $(grep -c '"exit": ' "$1") slices passed${bad:+ (not $bad)}, of $("$(dirname "$self")/gpu.sh" --list | wc -l); $(grep -cE '^ *"[^"]*certificates/' "$1") certificates"
}

report() {
    local file commit since last has
    compgen -G 'parity/evidence/*.json' >/dev/null || {
        echo "evidence: none in parity/evidence: nothing of gpu/ has been seen on a device"
        return
    }
    for file in parity/evidence/*.json; do
        commit=$(git log -1 --format=%H -- "$file")
        has=$(shown "$file")
        if [[ -z $commit ]]; then
            echo "evidence: $file: $has; not committed: its age is not known"
            continue
        fi
        since=$(git rev-list --count "$commit..HEAD" -- gpu)
        last=$(($(git log -1 --format=%ct -- gpu) - $(git log -1 --format=%ct "$commit")))
        if ((since == 0)); then
            echo "evidence: $file: $has; gpu/ has not changed since"
        else
            echo "evidence: $file: $has; $since commit(s) to gpu/ since, the last $((last / 86400)) day(s) after it"
        fi
    done
}

field() { sed -nE "s/^ *\"$1\": \"?([^\",]*)\"?,?\$/\1/p" "$2" | head -n 1; }

# number KEY FILE: the first number of that key, of an object its median.
number() { awk -v key="\"$1\":" 'index($0, key) {on = 1; sub(".*" key, "")} on && match($0, /(median": |^ *)[0-9.eE+-]+/) {
    t = substr($0, RSTART, RLENGTH); sub(/.*: /, "", t); printf "%s", t + 0; exit}' "$2"; }

# take PACK
take() {
    local pack=$1 device file name mark comma
    room=$(mktemp -d) # seen by the trap
    trap 'rm -rf "$room"' EXIT
    tar -xzf "$pack" -C "$room" || { echo "evidence: $pack: cannot be unpacked" >&2; return 2; }
    [[ -f $room/summary.txt && -f $room/slices/doctor/engine.json ]] || { echo "evidence: $pack: not a pack of ci/gpu.sh" >&2; return 2; }
    if ! grep -q 'rehearsal false' "$room/summary.txt" || [[ $(field simulated "$room/slices/doctor/engine.json") != false ]]; then
        echo "evidence: $pack: a rehearsal is no evidence" >&2
        return 2
    fi
    device=$(field device "$room/slices/doctor/engine.json" | tr '[:upper:]' '[:lower:]' | tr -cs '[:alnum:]\n' '-' | sed 's/^-*//; s/-*$//')
    [[ -n $device ]] || { echo "evidence: $pack: it does not name its device" >&2; return 2; }
    mkdir -p parity/evidence
    file=parity/evidence/$device.json
    {
        sed -nE '1s/^commit ([^,]*), programs ([^,]*),.*/{"commit": "\1", "programs": "\2",/p' "$room/summary.txt"
        printf '"device": "%s",\n"slices": {' "$(field device "$room/slices/doctor/engine.json")"
        comma=''
        for mark in "$room"/marks/*; do
            printf '%s\n  "%s": %s' "$comma" "${mark##*/}" "$(sed -E 's/^exit=([0-9]+) seconds=([0-9]+) .* at=(.*)$/{"exit": \1, "seconds": \2, "at": "\3"}/' "$mark")"
            comma=,
        done
        printf '},\n"rates": {'
        comma=''
        for name in "$room"/slices/rates/*/bench.json "$room"/slices/rates/*/torch-*.json; do
            [[ -f $name ]] || continue
            mark=$(number model_flops_utilization "$name")
            printf '%s\n  "%s": {"program": "%s", "s_per_step": %s, "tokens_per_s": %s%s}' "$comma" "$(sed 's,/bench.json$,,; s/\.json$//' <<<"${name#"$room"/slices/rates/}")" \
                "$(field program "$name")" "$(number s_per_step "$name")" "$(number tokens_per_s "$name")" "${mark:+, \"utilization\": $mark}"
            comma=,
        done
        printf '},\n"certificates": {'
        comma=''
        for name in "$room"/slices/certify-*/certificates/*.json; do
            [[ -f $name ]] || continue
            printf '%s\n  "%s": "%s"' "$comma" "${name#"$room"/slices/}" "$(sha256sum "$name" | cut -d' ' -f1)"
            comma=,
        done
        printf '}}\n'
    } >"$file.tmp" && mv "$file.tmp" "$file"
    echo "evidence: $file: $(grep -c '"exit": 0' "$file") of $(grep -c '"exit"' "$file") slices passed, $(grep -c 'certificates/' "$file") certificates"
}

# A tree of its own, in which each line has to be said.
self_test() {
    local says
    room=$(mktemp -d) # seen by the trap
    trap 'rm -rf "$room"' EXIT
    cd "$room"
    git init -q . && git config user.name test && git config user.email test@example.org
    commit() { GIT_AUTHOR_DATE="$1T00:00:00Z" GIT_COMMITTER_DATE="$1T00:00:00Z" git commit -qam "$1"; }
    expect() {
        says=$("$self" --here)
        [[ $says == *"$1"* ]] || { echo "evidence: expected '$1', found '$says'" >&2; exit 1; }
    }
    mkdir -p gpu parity
    echo 1 >gpu/a.c
    git add -A && commit 2026-01-01
    expect "none in parity/evidence"
    mkdir parity/evidence
    echo '{}' >parity/evidence/h100.json
    expect "h100.json: 0 of 0 slices passed, of $("$(dirname "$self")/gpu.sh" --list | wc -l); 0 certificates; not committed"
    git add -A && commit 2026-01-02
    expect "gpu/ has not changed since"
    echo 1 >README && git add -A && commit 2026-01-03
    expect "gpu/ has not changed since"
    echo 2 >gpu/a.c && commit 2026-01-04
    echo 3 >gpu/a.c && commit 2026-01-12
    expect "2 commit(s) to gpu/ since, the last 10 day(s) after it"
    # a pack, and what is none
    mkdir -p pack/marks pack/slices/doctor pack/slices/certify-1/certificates pack/slices/rates/large
    printf '{\n  "program": "assay 1",\n  "s_per_step": {\n    "min": 1,\n    "median": 0.25\n  },\n  "tokens_per_s": 16384,\n  "model_flops_utilization": 0.5\n}\n' >pack/slices/rates/large/bench.json
    printf '{\n  "device": "NVIDIA H200",\n  "simulated": false\n}\n' >pack/slices/doctor/engine.json
    echo "commit 0123, programs 4567, rehearsal false" >pack/summary.txt
    echo "exit=0 seconds=3 build=4567 rehearsal=false at=2026-01-01T00:00:00Z" >pack/marks/doctor
    echo "exit=1 seconds=400 build=4567 rehearsal=false at=2026-01-01T00:00:00Z" >pack/marks/certify-1
    echo '{}' >pack/slices/certify-1/certificates/add-add-gpu.json
    tar -czf good.tar.gz -C pack .
    sed -i 's/rehearsal false/rehearsal true/' pack/summary.txt && tar -czf rehearsal.tar.gz -C pack .
    sed -i 's/rehearsal true/rehearsal false/' pack/summary.txt
    sed -i 's/false/true/' pack/slices/doctor/engine.json && tar -czf simulated.tar.gz -C pack .
    says=$("$self" --here --take good.tar.gz)
    [[ $says == *"nvidia-h200.json: 1 of 2 slices passed, 1 certificates"* ]] || { echo "evidence: found '$says'" >&2; exit 1; }
    grep -q '"certify-1": {"exit": 1, "seconds": 400, "at": "2026-01-01T00:00:00Z"}' parity/evidence/nvidia-h200.json || { echo "evidence: a slice is not there" >&2; exit 1; }
    grep -q '"large": {"program": "assay 1", "s_per_step": 0.25, "tokens_per_s": 16384, "utilization": 0.5}' parity/evidence/nvidia-h200.json || { echo "evidence: what was timed is not there" >&2; cat parity/evidence/nvidia-h200.json >&2; exit 1; }
    expect "nvidia-h200.json: 1 of 2 slices passed (not certify-1), of $("$(dirname "$self")/gpu.sh" --list | wc -l); 1 certificates; not committed"
    for pack in rehearsal simulated; do
        if says=$("$self" --here --take "$pack.tar.gz" 2>&1) || [[ $says != *"is no evidence"* ]]; then
            echo "evidence: $pack: expected a refusal, found '$says'" >&2
            exit 1
        fi
    done
    echo "evidence: 6 lines said as they should be, a pack taken, two refused"
}

case ${1:-} in
'') cd "$(dirname "$self")/.." && report ;;
--here) if [[ ${2:-} == --take ]]; then take "$3"; else report; fi ;;
--take) [[ -n ${2:-} ]] || { echo "evidence: --take needs the pack" >&2; exit 2; }; pack=$(readlink -f "$2") && cd "$(dirname "$self")/.." && take "$pack" ;;
--self-test) self_test ;;
*) echo "evidence: expected nothing, --take PACK or --self-test, found '$1'" >&2; exit 2 ;;
esac
