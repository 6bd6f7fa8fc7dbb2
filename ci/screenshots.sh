#!/usr/bin/env bash
# Pictures of docs/images: pages of a planted fault and of a green run, a layout; light, dark, and as wide as a phone.  Needs
# chromium (apt-get install chromium); run by hand, and look at them.
#   ci/screenshots.sh [BUILD] [OUT]        default build/dev docs/images
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/dev} out=${2:-docs/images}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"

shot() { # NAME URL WIDTH HEIGHT light|dark
    local dark=()
    [[ $5 == dark ]] && dark=(--blink-settings=preferredColorScheme=0)
    # In a frame: a window that starts at a link's target is drawn empty.
    printf '<body style="margin:0"><iframe src="%s" style="border:0;width:100%%;height:100vh"></iframe>' "$2" >"$work/frame.html"
    timeout 120 chromium --headless --no-sandbox --disable-gpu --hide-scrollbars "${dark[@]}" --window-size="$3,$4" \
        --screenshot="$work/$1.png" "file://$work/frame.html" >/dev/null 2>&1
    if command -v pngquant >/dev/null; then
        pngquant --force --output "$work/$1.png" 64 "$work/$1.png"
    fi
    cp "$work/$1.png" "$out/$1.png"
    printf '%8d  %s\n' "$(stat -c %s "$out/$1.png")" "$out/$1.png"
}

assay() { "$build/bin/assay" "$@" >"$work/log" 2>&1 || true; }
assay run --case qwen3_moe --layout tp2,sp,ep2,dp2 --precision bf16 --fault missing_ep_chunk --quiet --report "$work/red"
assay run --case llama --case qwen3_moe --quiet --report "$work/green"
for fault in plan_norm_eps inadmissible_expert checkpoint_element; do
    assay selftest --only "$fault" --report "$work/$fault"
done
"$build/bin/assay" layout --layout tp2,sp,pp2,ep2,dp2,zero1 --model golden/models/qwen3_moe --seq-length 64 --svg "$work/layout.svg" >/dev/null
cp "$work/layout.svg" "$out/layout.svg"
shot failure-light "file://$work/red/index.html" 1100 1150 light
shot failure-dark "file://$work/red/index.html" 1100 1150 dark
shot failure-phone "file://$work/red/index.html" 500 1500 light
shot plan-light "file://$work/plan_norm_eps/index.html" 1000 640 light
shot checkpoint-dark "file://$work/checkpoint_element/index.html" 1000 790 dark
shot routing-phone "file://$work/inadmissible_expert/index.html" 500 590 light
shot whole-dark "file://$work/green/index.html#heat-checks" 1100 860 dark
shot heat-light "file://$work/green/index.html#heat" 1100 720 light
shot curves-dark "file://$work/green/index.html#curves" 1100 760 dark
shot layout "file://$work/layout.svg" 590 215 light
