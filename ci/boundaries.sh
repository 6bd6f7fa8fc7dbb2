#!/usr/bin/env bash
# The folder says what may be touched: includes of every folder, and the symbols of the built libraries.
set -uo pipefail
cd "$(dirname "$0")/.."
bad=0
complain() { echo "boundaries: $*"; bad=1; }

# allowed FOLDER-PATTERN REGEX-OF-FORBIDDEN-INCLUDES
forbid() {
    local what=$1 regex=$2
    shift 2
    local files
    mapfile -t files < <(git ls-files --cached --others --exclude-standard -- "$@")
    ((${#files[@]})) || { complain "$what: git lists no file: nothing was looked at"; return 0; }
    grep -nE "^ *# *include *[<\"]($regex)" "${files[@]}" && complain "$what must not include these"
    return 0
}
forbid core 'ref/|gpu/|parity/|cuda|nccl|cublas|cblas|math\.h|tgmath\.h|complex\.h|fenv\.h' 'core/*.c' 'core/*.h'
forbid ref 'gpu/|parity/|cuda|nccl|cublas' 'ref/*.c' 'ref/*.h'
forbid gpu 'ref/|parity/|cblas|openblas' 'gpu/*.c' 'gpu/*.h' 'gpu/*.cu' 'gpu/*.cuh'
forbid gpu/sim 'core/|ref/|parity/|gpu/(ops|gpu|ctx|execute|layer|model|train|comm|parallel)' 'gpu/sim/*'
forbid parity 'gpu/|cuda|nccl|cublas' 'parity/*.c' 'parity/*.h'
# A kernel author includes one header that needs nothing of ours.
forbid parity/assay_kernel.h 'core/|ref/|parity/' 'parity/assay_kernel.h'

# A file of the engine (header and source of one name) includes only what lies below it: no circle.  The kinds of a layer
# share layer.h, the files of the call share call_internal.h, those of the door execute_internal.h, those of context parallelism
# context_internal.h, the kernels of attention attention.cuh.
node() { sed -E 's|\.[^.]*$||; s|^gpu/(attention\|mlp\|moe\|router\|balancing)$|gpu/layer|; s|^gpu/call_[a-z]+$|gpu/call|; s|^gpu/execute_[a-z]+$|gpu/execute|; s|^gpu/parallel/context_[a-z0-9]+$|gpu/parallel/context|; s|^gpu/ops/attention_[a-z]+$|gpu/ops/attention|' <<<"$1"; }
circles=$(git ls-files --cached --others --exclude-standard -- 'gpu/*.c' 'gpu/*.h' 'gpu/*.cu' 'gpu/*.cuh' | grep -v '^gpu/sim/' |
    while read -r file; do
        [[ -f $file ]] || continue
        from=$(node "$file")
        sed -nE 's|^ *# *include *"(gpu/[^"]*)".*|\1|p' "$file" | while read -r header; do
            to=$(node "$header")
            [[ $from == "$to" ]] || echo "$from $to"
        done
    done | tsort 2>&1 >/dev/null | sed 's/^tsort: //')
[[ -z $circles ]] || { echo "$circles"; complain "these files of gpu include each other in a circle"; }

# Two panes: docs/ARCHITECTURE.md says which files both engines have and which one has alone; headers that both have declare
# the same passes and regions.
stems() { git ls-files --cached --others --exclude-standard -- "$1/*" | while read -r f; do [[ -f $f ]] && echo "$f"; done |
    sed -nE "s/^$1\/((parallel\/)?[a-z0-9_]+)\.(c|h|cuh)$/\1/p" | sort -u; }
table() { awk -v head="| $1 |" 'index($0, head) == 1 {on = 1; next} !/^\|/ {on = 0} on' docs/ARCHITECTURE.md |
    cut -d'|' -f2 | grep -oE '`[^`]+`' | tr -d '`' | sort -u; }
same() {
    local differs
    differs=$(diff <(printf '%s\n' "$2") <(printf '%s\n' "$3") | sed -nE 's/^</  found, not named:/p; s/^>/  named, not found:/p')
    [[ -z $differs ]] || { echo "$differs"; complain "$1"; }
}
ref_stems=$(stems ref) gpu_stems=$(stems gpu)
same "docs/ARCHITECTURE.md 'in both'" "$(comm -12 <(echo "$ref_stems") <(echo "$gpu_stems"))" "$(table 'in both')"
same "docs/ARCHITECTURE.md 'in ref alone'" "$(comm -23 <(echo "$ref_stems") <(echo "$gpu_stems"))" "$(table 'in ref alone')"
same "docs/ARCHITECTURE.md 'in gpu alone'" "$(comm -13 <(echo "$ref_stems") <(echo "$gpu_stems"))" "$(table 'in gpu alone')"
passes() { grep -oE "\b$1_[a-z0-9_]+_(fwd|bwd|region|input|output)\(" "$2" | sed -E "s/^$1_//; s/\(//" | sort -u; }
for header in stage.h layer.h parallel/tensor.h parallel/context.h parallel/expert.h; do
    same "$header: passes and regions of gpu (found) and ref (named) differ" "$(passes gpu gpu/$header)" "$(passes ref ref/$header)"
done

# Symbols: what an archive refers to and does not define itself, and what a program holds.  A list is whole before it is searched: with
# `head` at the end of the pipe a long one would end by SIGPIPE, which is not "found".
# shellcheck disable=SC2317 # called by name
undefined() { nm -u "$1" 2>/dev/null | awk 'NF == 2 {print $2}' | sort -u; }
# shellcheck disable=SC2317
defined() { nm "$1" 2>/dev/null | awk '$2 ~ /^[TtDdBb]$/ {print $3}' | sort -u; }
# none KIND FILE REGEX TEXT: no symbol of that kind has the pattern
none() {
    local all found
    all=$("$1" "$2")
    [[ -n $all ]] || { complain "nm says nothing of $2"; return; }
    found=$(grep -E "$3" <<<"$all") || return 0
    head -n 5 <<<"$found"
    complain "$4"
}
lib=build/release
if [[ -f $lib/libassay_core.a ]]; then
    for made in libassay_ref.a libassay_engine_sim.a libassay_parity.a bin/assay-sim bin/assay; do
        [[ -f $lib/$made ]] || complain "$lib/$made is not there: its symbols were not looked at"
    done
    none undefined $lib/libassay_core.a '^(ref_|gpu_|parity_|cblas_|cuda|nccl|cublas)' "core refers to these"
    none undefined $lib/libassay_core.a '^(exp|log|sqrt|pow|sin|cos|tanh|fma|round|floor|ceil)f?$' "core calls libm"
    none undefined $lib/libassay_ref.a '^(gpu_|parity_|cuda|nccl|cublas)' "ref refers to these"
    none undefined $lib/libassay_engine_sim.a '^(ref_|parity_|cblas_)' "gpu refers to these"
    none undefined $lib/libassay_parity.a '^(gpu_|cuda|nccl|cublas)' "parity refers to these"
    none defined $lib/bin/assay-sim '^(ref_|parity_|cblas_)' "assay-sim holds reference code"
    none defined $lib/bin/assay '^gpu_' "assay holds engine code"
else
    echo "boundaries: no build yet, includes only"
fi
((bad == 0)) && echo "boundaries: clean"
exit $bad
