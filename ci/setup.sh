#!/usr/bin/env bash
# Installs what a fresh Debian machine lacks to build, run and test assay.  Idempotent; asks apt only when something is missing.
# CUDA, cuBLASLt and NCCL are not installed: where nvcc is present assay-gpu is built, elsewhere everything else is.
set -euo pipefail

packages=(build-essential cmake ninja-build pkg-config git ca-certificates
          libopenblas-dev libjansson-dev libsodium-dev libutf8proc-dev libxxhash-dev libboost-context-dev libcriterion-dev
          libxml2-utils # xmllint: junit.xml against its schema
          mandoc file)  # the manual page; dependencies of the Debian package
# clang builds the second opinion of ci/build.sh, clang-format and clang-tidy guard the style; --minimal
# leaves them out.
if [[ "${1:-}" != "--minimal" ]]; then
    packages+=(clang clang-format clang-tidy libomp-dev libclang-rt-14-dev)
fi

missing=()
for p in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
done
if ((${#missing[@]} == 0)); then
    echo "setup: everything is installed"
    exit 0
fi
echo "setup: installing ${missing[*]}"
sudo=()
if ((EUID != 0)); then
    command -v sudo >/dev/null || { echo "setup: not root and no sudo: install ${missing[*]} by hand" >&2; exit 2; }
    sudo=(sudo)
fi
"${sudo[@]}" apt-get update -q
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
