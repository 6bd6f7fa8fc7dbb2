#!/usr/bin/env bash
# The image of ./Dockerfile, and one case run in it.  Where a Docker daemon answers it builds the image; elsewhere, as root and with
# debootstrap, the same instructions are followed in two folders: what Docker itself does with them is not shown then.  By hand: not a
# part of ci/test.sh (minutes, a network).
#   ci/container.sh [BASE]     BASE: a Debian 12 made by debootstrap, not to be made again
set -euo pipefail
cd "$(dirname "$0")/.."
run=(run --quiet --case llama --layout 'tp2,sp' --precision bf16)
if command -v docker >/dev/null && docker info >/dev/null 2>&1; then
    docker build -q -t assay-ci .
    docker run --rm assay-ci "${run[@]}" | tail -1
    [[ $(docker run --rm --entrypoint id assay-ci -un) == assay ]]
    echo "container: built and run by Docker"
    exit 0
fi
if ((EUID != 0)) || ! command -v debootstrap >/dev/null; then
    echo "container: SKIPPED: no Docker daemon, and no root or no debootstrap" >&2
    exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
base=${1:-$work/base}
[[ -n ${1:-} ]] || debootstrap --variant=minbase bookworm "$base" >/dev/null

stage='' dir=/ user=root name='' command=()
# words LINE: into `w`; a JSON list as its strings.
words() { read -ra w <<<"$(sed -E 's/^\[|\]$//g; s/"([^"]*)",? ?/\1 /g' <<<"$1")"; }
while read -r instruction rest; do
    case $instruction in
    FROM)
        words "$rest"
        [[ ${w[0]} == debian:12 ]]
        name=${w[2]:-last} stage=$work/$name dir=/ user=root
        cp -a "$base" "$stage"
        cp /etc/resolv.conf "$stage/etc/resolv.conf"
        # What Docker's images have, too: no questions.
        export DEBIAN_FRONTEND=noninteractive
        ;;
    WORKDIR) dir=$rest && mkdir -p "$stage$dir" ;;
    COPY)
        words "$rest"
        if [[ ${w[0]} == --from=* ]]; then
            # shellcheck disable=SC2086 # a pattern
            cp "$work/${w[0]#--from=}"${w[1]} "$stage${w[2]}"
        elif [[ $rest == '. .' ]]; then
            git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x -C "$stage$dir"
        else
            mkdir -p "$stage$dir/${w[1]}" && cp "${w[0]}" "$stage$dir/${w[1]}"
        fi
        ;;
    RUN)
        echo "container: [$name] $rest"
        nice -n 15 chroot "$stage" sh -c "cd $dir && $rest" >"$work/log.txt" 2>&1 || { tail -30 "$work/log.txt" >&2; exit 1; }
        ;;
    USER) user=$rest ;;
    ENTRYPOINT) words "$rest" && command=("${w[@]}") ;;
    CMD | '#' | '#'* | '') ;;
    *) echo "container: Dockerfile: $instruction is not known here" >&2 && exit 1 ;;
    esac
done <Dockerfile
[[ $user == assay && $name == last ]]
# As in a container, /proc is there; it is gone with the process.
inside="mount -t proc proc '$stage/proc' && exec chroot --userspec='$user' '$stage' sh -c 'cd $dir && ${command[*]} ${run[*]}'"
total=$(unshare --mount sh -c "$inside" | tail -1)
echo "container: followed in folders, not by Docker, as user $user: $total"
[[ $total =~ ^[1-9][0-9]*\ passed,\ 0\ failed,\ 0\ skipped$ ]]
