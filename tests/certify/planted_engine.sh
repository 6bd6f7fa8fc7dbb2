#!/usr/bin/env bash
# assay-sim with a fault: what the trials of `assay certify --engine` have to see (tests/parity/test_certify_engine.c, test_certify_campaign.c).
#   ENGINE=assay-sim PLANT=FAULT planted_engine.sh VERB OPTION...
set -uo pipefail
out='' illegal='' request='' place=0 arguments=()
for word in "$@"; do
    case $word in
    --out=*) out=${word#--out=} ;;
    --illegal=*) illegal=${word#--illegal=} ;;
    --request=*) request=${word##*/} ;;
    --place=*) place=${word#--place=} ;;
    esac
    arguments+=("$word")
done

answer() { "$ENGINE" "${arguments[@]}"; }
say() { # say STATUS MESSAGE: entry 5 gets another answer, and what comes behind a fault is not there
    sed -i "/\"entry\":5,/s/.*/{\"entry\":5,\"status\":\"$1\",\"message\":\"$2\"}/" "$out"
    [[ $1 == OK || $1 == INVALID_ARGUMENT ]] || sed -i '/"entry":5,/q' "$out"
}

if [[ -n $illegal && ! -e $out.once ]]; then
    answer || exit
    touch "$out.once" # the list goes on behind a crash; the fault is planted once
    case $PLANT in
    accepts) say OK '' ;;
    speechless) say INVALID_ARGUMENT 'no' ;;
    repeats) # every entry gets the answer of the first
        first=$(grep -m1 '"entry":0,' "$out")
        awk -v first="$first" '/"status"/ { print first; next } { print }' "$out" >"$out.new" && mv "$out.new" "$out"
        ;;
    writes) say INTERNAL 'rmsnorm_fwd wrote y although it refused the call' ;;
    crashes | hangs)
        sed -i '/"entry":5}/q' "$out"
        [[ $PLANT == hangs ]] && exec sleep 60
        kill -SEGV $$
        ;;
    esac
    exit 0
fi
# A device of before: it says that k1 takes nothing there, and k1 does not run.
if [[ $PLANT == older && ${arguments[0]} == doctor ]]; then
    answer | sed -e 's/"compute_capability": "9.0"/"compute_capability": "8.0"/' \
        -e '/"op": "add_rmsnorm_fwd"/,/"op": "rmsnorm_bwd/{/"name": "k1"/,/by_library/s/"least_capability": 80/"least_capability": 90/}'
    exit
fi
# What the engine says of its rungs: an operation less, k1 and k2 that are for F32 alone, k1 that is a library's.
if [[ ${arguments[*]} == 'doctor --ops' ]]; then
    case $PLANT in
    unlisted) answer | sed 's/"op": "rmsnorm_fwd"/"op": "another"/' ;;
    narrow_and_says_so) answer | sed '/"op": "rmsnorm_fwd"/,/"op": "add_/s/"name": "k[12]"/&, "act": "F32"/' ;;
    library) answer | sed '/"op": "rmsnorm_fwd"/,/"op": "add_/{/"name": "k1"/,/by_library/s/"by_library": false/"by_library": true/}' ;;
    *) answer ;;
    esac
    exit
fi
lowest_rung() { # in place of the variant that was asked for
    local word kept=()
    for word in "${arguments[@]}"; do [[ $word == --variant=* ]] || kept+=("$word"); done
    arguments=("${kept[@]}" --variant=k0)
}
# Another variant has other bits: what an engine would say whose results depend on the rest of the batch, on addresses, on the order
# of threads.
case $PLANT in
batch) [[ $request != rows.* ]] || lowest_rung ;;
address) [[ $place != 1 ]] || lowest_rung ;;
order) [[ -z ${ASSAY_SIM_ORDER:-} ]] || lowest_rung ;;
eps | odd) # a wrong number: the norm has another eps than the request says, or has it at odd addresses alone
    [[ $PLANT == eps || $place == 2 ]] && for word in "${!arguments[@]}"; do
        [[ ${arguments[word]} != --request=* ]] || {
            planted=$(mktemp -d)
            cp -r "${arguments[word]#--request=}/." "$planted"
            sed -i -E 's/"eps":[-0-9.e]+/"eps":0.5/' "$planted"/*.jsonl
            arguments[word]=--request=$planted
        }
    done
    ;;
few) # answers calls of one operation alone
    for word in "${!arguments[@]}"; do
        [[ ${arguments[word]} != --request=* || ${arguments[0]} != ops ]] || {
            planted=$(mktemp -d)
            cp -r "${arguments[word]#--request=}/." "$planted"
            calls=$(grep -c '"op":"add"' "$planted"/rank-00000.jsonl)
            sed -i -E "/\"op\":\"/{/\"op\":\"add\"/!d}; /\"type\":\"end\"/s/\"ops\":[0-9]+/\"ops\":$calls/" "$planted"/*.jsonl
            arguments[word]=--request=$planted
        }
    done
    ;;
narrow*) [[ $request != *.BF16 ]] || lowest_rung ;; # bf16 never runs the rungs above
lowest | older) [[ -z $request ]] || lowest_rung ;; # it has no other rungs than it says
dies) [[ -z $request ]] || exit 7 ;;
falters) # the first run in bf16 answers and ends badly
    [[ $request != *.BF16 || -e ${out%/*}/once ]] || {
        touch "${out%/*}/once"
        answer
        exit 7
    }
    ;;
esac
answer || exit
# The records of other data than the first are answered under another operation's name.
if [[ $PLANT == relabels && -e $out/index.json && $request == request.* ]]; then
    sed -i -E '/"op":"sumsq","instance":"(exact|local.zero_mean)\./s/"op":"sumsq"/"op":"sum"/' "$out"/*.jsonl
fi
# Halves of other records than were asked for.
if [[ $PLANT == exchanged && -e $out/index.json && $request == rows.* ]]; then
    sed -i -E 's/"op":"rmsnorm_fwd","instance":"exact\./"op":"rmsnorm_fwd","instance":"other./' "$out"/*.jsonl
fi
# Under another name the engine says that it stores intermediate results, which would widen its own bounds.
if [[ $PLANT == renamed && -e $out/index.json ]]; then
    sed -i 's/"engine": *"sim"/"engine":"mine"/' "$out/index.json"
    sed -i 's/"arith":{/"arith":{"rounding":["scores"],/' "$out"/*.jsonl
fi
