#!/usr/bin/env bash
# How old what a GPU has shown (parity/evidence/*.json) is, relative to the engine (gpu/): a line for each file.  It judges nothing.
#   ci/evidence.sh [--self-test]
set -euo pipefail
self=$(readlink -f "$0")

report() {
    local file commit since last
    compgen -G 'parity/evidence/*.json' >/dev/null || {
        echo "evidence: none in parity/evidence: nothing of gpu/ has been seen on a device"
        return
    }
    for file in parity/evidence/*.json; do
        commit=$(git log -1 --format=%H -- "$file")
        if [[ -z $commit ]]; then
            echo "evidence: $file: not committed: its age is not known"
            continue
        fi
        since=$(git rev-list --count "$commit..HEAD" -- gpu)
        last=$(($(git log -1 --format=%ct -- gpu) - $(git log -1 --format=%ct "$commit")))
        if ((since == 0)); then
            echo "evidence: $file: gpu/ has not changed since"
        else
            echo "evidence: $file: $since commit(s) to gpu/ since, the last $((last / 86400)) day(s) after it"
        fi
    done
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
    expect "h100.json: not committed"
    git add -A && commit 2026-01-02
    expect "gpu/ has not changed since"
    echo 1 >README && git add -A && commit 2026-01-03
    expect "gpu/ has not changed since"
    echo 2 >gpu/a.c && commit 2026-01-04
    echo 3 >gpu/a.c && commit 2026-01-12
    expect "2 commit(s) to gpu/ since, the last 10 day(s) after it"
    echo "evidence: 5 lines said as they should be"
}

case ${1:-} in
'') cd "$(dirname "$self")/.." && report ;;
--here) report ;;
--self-test) self_test ;;
*) echo "evidence: expected nothing or --self-test, found '$1'" >&2; exit 2 ;;
esac
