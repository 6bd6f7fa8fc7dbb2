#!/usr/bin/env bash
# Runs the commands of examples/ci as they stand, so that they cannot rot: the matrix of a small case in two parts and its join,
# three times, and each must find a fault.  Commands that install packages or build are not run; those must stand in this list.
#   ci/workflows.sh [EXAMPLES]     assay is in the path
set -euo pipefail
cd "$(dirname "$0")/.."
examples=$(cd "${1:-examples}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"

# Commands of one job, a line each: `- run: X`, `- run: |` and the lines below it, or the items of `script:`.
commands() { # FILE JOB
    awk -v job="$2" '
        {indent = match($0, /[^ ]/) - 1}
        $0 ~ /^ *#/ || NF == 0 {next}
        # GitHub: jobs stand two blanks deep, GitLab: none.
        (indent == 0 || indent == 2) && /:$/ {name = $1; sub(/:$/, "", name); if (name != "script") here = name == job}
        !here {next}
        block >= 0 && indent > block {sub(/^ */, ""); print; next}
        {block = -1}
        /^ *- run: \|$/ {block = indent; next}
        /^ *- run: / {sub(/^ *- run: /, ""); print; next}
        /^ *script:$/ {list = indent; scripts = 1; next}
        scripts && indent > list && /^ *- / {sub(/^ *- /, ""); print; next}
        {scripts = 0}
        BEGIN {block = -1}' "$1"
}
elsewhere='^(apt-get update && apt-get install -y \./package/\*\.deb|ci/setup\.sh --minimal|ci/build\.sh release assay assay-sim assay_manual|cpack --config build/release/CPackConfig\.cmake -B package)$'

# job FILE JOB: runs those that are not done elsewhere, in the folder of the run.
job() {
    local lines
    lines=$(commands "$1" "$2")
    [[ -n $lines ]] || { echo "workflows: $1: job $2 has no commands" >&2; exit 1; }
    lines=$(grep -vE "$elsewhere" <<<"$lines" || true)
    [[ -z $lines ]] || (cd "$work/run" && bash -euo pipefail -c "$lines")
}
fresh() {
    rm -rf "$work/run"
    mkdir "$work/run"
    ln -s "$examples" "$work/run/examples"
}
github() {
    local part
    fresh
    job "$examples/ci/github.yml" build
    for part in 1 2; do
        commands "$examples/ci/github.yml" part | sed "s/\${{ matrix.part }}/$part/g" >"$work/part.txt"
        grep -q "shard $part/2" "$work/part.txt"
        (cd "$work/run" && CASES=examples/parity/case.json bash -euo pipefail -c "$(grep -vE "$elsewhere" "$work/part.txt")")
    done
    GITHUB_STEP_SUMMARY=$work/run/summary.md job "$examples/ci/github.yml" report
}
gitlab() {
    local part
    fresh
    job "$examples/ci/gitlab.yml" build
    for part in 1 2; do
        CASES=examples/parity/case.json CI_NODE_INDEX=$part CI_NODE_TOTAL=2 job "$examples/ci/gitlab.yml" part
    done
    job "$examples/ci/gitlab.yml" report
}
# In the place of Slurm: an array is its tasks one after the other, a dependency is done.
cat >"$work/bin/sbatch" <<'STUB'
#!/usr/bin/env bash
set -euo pipefail
n=0
while [[ $1 == --* ]]; do
    [[ $1 != --array=1-* ]] || n=${1#--array=1-}
    [[ $1 != --dependency=* || $1 == --dependency=afterany:42 ]]
    shift
done
if ((n == 0)); then exec "$@"; fi
for ((i = 1; i <= n; i++)); do
    SLURM_ARRAY_TASK_ID=$i SLURM_ARRAY_TASK_COUNT=$n "$@" >&2
done
echo 42
STUB
chmod +x "$work/bin/sbatch"
slurm() {
    fresh
    (cd "$work/run" && PATH=$work/bin:$PATH "$examples/ci/slurm.sh" submit)
}
for file in github gitlab slurm; do
    $file >"$work/$file.txt" 2>&1 || { cat "$work/$file.txt" >&2; echo "workflows: $file failed" >&2; exit 1; }
    totals=$(tail -1 "$work/$file.txt")
    summary=$(find "$work/run" -maxdepth 1 -name '*.md' -size +0)
    [[ $totals =~ ^[1-9][0-9]*\ passed,\ 0\ failed,\ 0\ skipped$ && -n $summary ]] || { echo "workflows: $file: $totals" >&2; exit 1; }
    echo "workflows: $file: $totals"
done

# One way to build: the image, both services and README say the same.
image=$(sed -nE '/^FROM .* AS build/,/^FROM [^ ]+$/s/^RUN //p' Dockerfile)
for file in github gitlab; do
    [[ $image == "$(commands "$examples/ci/$file.yml" build)" ]] || { echo "workflows: $file.yml builds otherwise than Dockerfile" >&2; exit 1; }
done
packaging=$(tail -1 <<<"$image") start=$(sed -nE 's/^# +(docker build .*)/\1/p' Dockerfile)
for text in "$packaging" "$start"; do
    if [[ -z $text ]] || ! grep -qF "$text" README.md; then
        echo "workflows: README.md lacks: $text" >&2
        exit 1
    fi
done

# A wrong engine, and a part that is missing: the join says so.
cat >"$work/bin/assay" <<STUB
#!/usr/bin/env bash
[[ \$1 != run ]] || set -- "\$@" --fault skip:decoder.layers.1.mlp.residual
exec "$(command -v assay)" "\$@"
STUB
chmod +x "$work/bin/assay"
code=0
(PATH=$work/bin:$PATH github) >"$work/wrong.txt" 2>&1 || code=$?
((code == 1)) || { cat "$work/wrong.txt" >&2; echo "workflows: a wrong engine: expected exit code 1, found $code" >&2; exit 1; }
rm -rf "$work/run/part2"
code=0
(job "$examples/ci/gitlab.yml" report) >"$work/missing.txt" 2>&1 || code=$?
[[ $code == 2 && $(<"$work/missing.txt") == *'missing 2/2'* ]] || { cat "$work/missing.txt" >&2; echo "workflows: a missing part: expected exit code 2, found $code" >&2; exit 1; }
echo "workflows: a wrong engine and a missing part are found"
