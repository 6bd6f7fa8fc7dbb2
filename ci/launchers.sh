#!/usr/bin/env bash
# The same layout under the launchers of a cluster, in the simulator: bit for bit what `assay step --layout` writes, and a rank
# that is killed is named, ends the job and leaves nothing behind.  docs/LAUNCH.md has a transcript.
#
#   ci/launchers.sh [--build DIR] [openmpi] [torchrun] [slurm] [hosts]      (default: all four)
#
# openmpi: mpirun (openmpi-bin).  torchrun: TORCHRUN=path (PyTorch).  slurm: munged, slurmctld and two slurmd of its own (slurm-wlm,
# munge; root), srun, an array job with --shard and `report merge`.  hosts: the three of them once more over two network
# namespaces that see each other and nothing else (root).  What a part needs and does not find is named; exit code 2 then.
# Everything lies in one temporary folder: keys, configurations, sockets, logs.  Nothing of the machine's own configuration is
# read or written, all traffic is on the loopback or between the two namespaces, every process that is started here is
# stopped here, by its number.
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/.." || exit 2
build=build/release
if [[ ${1:-} == --build ]]; then
    [[ -n ${2:-} ]] || { echo "launchers: --build: expected a folder, found nothing" >&2; exit 2; }
    build=$2
    shift 2
fi
bin=$(readlink -f "$build")/bin
parts=("$@")
((${#parts[@]})) || parts=(openmpi torchrun slurm hosts)
for program in assay assay-sim; do
    [[ -x $bin/$program ]] || { echo "launchers: $bin/$program is missing: ci/build.sh release" >&2; exit 2; }
done
torchrun=${TORCHRUN:-$(command -v torchrun || true)}

tmp=$(mktemp -d "${TMPDIR:-/tmp}/assay-launchers-XXXXXX")
chmod 755 "$tmp"
daemons=() namespaces=() failed=0 missing=0 passed=0
cleanup() {
    local pid name
    for pid in "${daemons[@]}"; do kill "$pid" 2>/dev/null; done
    for pid in "${daemons[@]}"; do wait "$pid" 2>/dev/null; done
    for name in "${namespaces[@]}"; do ip netns del "$name"; done
    if ((failed)); then echo "launchers: logs are in $tmp"; else rm -rf --one-file-system "$tmp"; fi
}
trap cleanup EXIT
trap 'exit 2' INT TERM

pass() { echo "pass $*"; passed=$((passed + 1)); }
fail() { echo "FAIL $*"; failed=$((failed + 1)); }
lacks() { echo "skip $*"; missing=$((missing + 1)); }

layout=tp2,sp,ep2,dp2
model=$PWD/golden/models/qwen3_moe
step=(step --layout "$layout" --model "$model" --batch "$model/train_batch.safetensors" --lr 1e-3)
limit=(timeout --kill-after=5 120)

# What every launcher is held to.
"${limit[@]}" "$bin/assay" "${step[@]}" --engine sim --out "$tmp/wanted" >"$tmp/wanted.log" 2>&1 ||
    { cat "$tmp/wanted.log"; exit 2; }

# Kills the engine of rank 1 in its first second, as a machine that fails would.
cat >"$tmp/dies" <<'END'
#!/bin/sh
rank=${OMPI_COMM_WORLD_RANK:-${RANK:-$SLURM_PROCID}}
[ "$rank" = 1 ] || exec "$@"
"$@" &
pid=$!
sleep 0.1
kill -KILL $pid
wait $pid
exit $?
END
chmod 755 "$tmp/dies"

left_over() { # engine processes of this run
    ps -eo pid=,args= | awk -v out="$tmp/" 'index($0, out) && /assay-sim step/ && !/awk/'
}

# runs NAME LAUNCHER...: the launcher with the engine behind it, whole and with a rank that dies; RANK1 is how the launcher writes it
runs() {
    local name=$1 rank1=$2 started=$SECONDS code left
    shift 2
    if "${limit[@]}" "$@" "$bin/assay-sim" "${step[@]}" --out "$tmp/$name.out" >"$tmp/$name.log" 2>&1 && cmp -s "$tmp/wanted" "$tmp/$name.out"; then
        pass "$name: $layout, the same bytes as assay step"
    else
        fail "$name: $tmp/$name.log"
    fi
    "${limit[@]}" "$@" "$tmp/dies" "$bin/assay-sim" "${step[@]}" --out "$tmp/$name.dead" >"$tmp/$name.dead.log" 2>&1
    code=$?
    sleep 1
    left=$(left_over)
    if ((code == 0 || code == 124 || code == 137 && SECONDS - started > 100)); then
        fail "$name: a dead rank: code $code after $((SECONDS - started)) s"
    elif [[ -e $tmp/$name.dead ]]; then
        fail "$name: a dead rank: a result was written all the same"
    elif [[ -n $left ]]; then
        fail "$name: a dead rank: these stayed behind: $left"
    elif ! grep -qE 'rank 1 whose process is dead|rank 1 .*is dead' "$tmp/$name.dead.log" || ! grep -qE "$rank1" "$tmp/$name.dead.log"; then
        fail "$name: a dead rank: not named by the engine and the launcher: $tmp/$name.dead.log"
    else
        pass "$name: rank 1 killed: named by the others and by the launcher, code $code, nothing left"
    fi
}

# --- Slurm -------------------------------------------------------------------------------------------------------------

# slurm_up DIR ADDRESS-0 ADDRESS-1 IN-0 IN-1: a cluster of two nodes; IN: words before the daemons of a node
slurm_up() {
    local dir=$1 a=$2 b=$3 in0=$4 in1=$5 host i
    host=$(hostname -s)
    mkdir -p "$dir"/{state,run,spool}
    dd if=/dev/urandom of="$dir/munge.key" bs=128 count=1 status=none
    chmod 600 "$dir/munge.key"
    cat >"$dir/slurm.conf" <<END
ClusterName=assay
SlurmctldHost=localhost($a)
SlurmctldPort=26817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/run/munge.socket
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd.%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=2
NodeName=assay0 NodeHostname=$host NodeAddr=$a Port=26818 CPUs=8 State=UNKNOWN
NodeName=assay1 NodeHostname=$host NodeAddr=$b Port=26819 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=assay0,assay1 Default=YES MaxTime=10 State=UP
END
    munged --force --foreground --key-file="$dir/munge.key" --socket="$dir/run/munge.socket" --pid-file="$dir/run/munged.pid" \
        --seed-file="$dir/run/munged.seed" >"$dir/munged.log" 2>&1 &
    daemons+=($!)
    for ((i = 0; i < 50; i++)); do [[ -S $dir/run/munge.socket ]] && break; sleep 0.1; done
    export SLURM_CONF=$dir/slurm.conf
    $in0 slurmctld -D -f "$SLURM_CONF" >"$dir/slurmctld.out" 2>&1 & daemons+=($!)
    $in0 slurmd -D -N assay0 -f "$SLURM_CONF" >"$dir/slurmd0.out" 2>&1 & daemons+=($!)
    $in1 slurmd -D -N assay1 -f "$SLURM_CONF" >"$dir/slurmd1.out" 2>&1 & daemons+=($!)
    for ((i = 0; i < 100; i++)); do
        [[ $($in0 sinfo --noheader --states=idle --format=%D 2>/dev/null) == 2 ]] && return 0
        sleep 0.2
    done
    fail "slurm: two idle nodes did not come up: $dir/*.log"
    return 1
}
slurm_down() {
    local pid
    for pid in "${daemons[@]}"; do kill "$pid" 2>/dev/null; done
    for pid in "${daemons[@]}"; do wait "$pid" 2>/dev/null; done
    daemons=()
    unset SLURM_CONF
}
have_slurm() {
    local program
    for program in munged slurmctld slurmd srun sbatch sinfo; do
        command -v "$program" >/dev/null || { lacks "$1: $program is missing (apt install slurm-wlm munge)"; return 1; }
    done
    ((EUID == 0)) || { lacks "$1: slurmd needs root"; return 1; }
}

array_job() {
    cat >"$tmp/array" <<END
#!/bin/sh
exec "$bin/assay" run --engine sim --case operations --case export --jobs 1 --shard "\$SLURM_ARRAY_TASK_ID/\$SLURM_ARRAY_TASK_COUNT" --report "$tmp/part\$SLURM_ARRAY_TASK_ID"
END
    if "${limit[@]}" sbatch --wait --array=1-3 --ntasks=1 --chdir="$tmp" --output="$tmp/array-%a.log" "$tmp/array" >"$tmp/array.log" 2>&1 &&
        "$bin/assay" report merge "$tmp"/part1 "$tmp"/part2 "$tmp"/part3 --report "$tmp/whole" >"$tmp/merge.log" 2>&1; then
        pass "slurm: an array of 3 shards of assay run, merged: $(tail -1 "$tmp/merge.log")"
    else
        fail "slurm: an array of 3 shards: $tmp/array-*.log, $tmp/merge.log"
    fi
}

part_slurm() {
    have_slurm slurm || return
    if slurm_up "$tmp/slurm" 127.0.0.1 127.0.0.1 "" ""; then
        runs slurm "task 1: Exited" srun -N 2 --ntasks-per-node 2 --kill-on-bad-exit=1
        array_job
    fi
    slurm_down
}

# --- Open MPI, torchrun --------------------------------------------------------------------------------------------

root_flag=()
((EUID == 0)) && root_flag=(--allow-run-as-root)
part_openmpi() {
    command -v mpirun >/dev/null || { lacks "openmpi: mpirun is missing (apt install openmpi-bin)"; return; }
    runs openmpi '\[\[[0-9]+,1\],1\]' mpirun "${root_flag[@]}" --oversubscribe -n 4
}
part_torchrun() {
    [[ -x $torchrun ]] || { lacks "torchrun: missing (PyTorch; TORCHRUN=path names it)"; return; }
    runs torchrun 'rank +: 1 \(local_rank: 1\)' "$torchrun" --no-python --nproc-per-node 4
}

# --- two hosts -----------------------------------------------------------------------------------------------------

# Both nodes of torchrun, each in its namespace; the exit code of the first that fails.
write_two_nodes() {
    cat >"$tmp/two-nodes" <<END
#!/usr/bin/env bash
node() {
    exec nsenter --net="/run/netns/\$1" env GLOO_SOCKET_IFNAME=veth0 "$torchrun" --no-python --nnodes 2 --node-rank "\$2" --nproc-per-node 2 \\
        --rdzv-backend static --master-addr 10.213.0.1 --master-port 29513 "\${@:3}"
}
(node "$1" 0 "\$@") & first=\$!
(node "$2" 1 "\$@") & second=\$!
code=0
wait \$first || code=\$?
wait \$second || code=\$?
exit \$code
END
    # Open MPI's way to another host, without ssh.
    cat >"$tmp/agent" <<END
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
shift
exec nsenter --net="/run/netns/$2" sh -c "\$*"
END
    # The engine on either host.
    cat >"$tmp/meet" <<END
#!/bin/sh
exec nsenter --net="/run/netns/$1" "\$@"
END
    chmod 755 "$tmp/two-nodes" "$tmp/agent" "$tmp/meet"
}

part_hosts() {
    local a=assay-$$-0 b=assay-$$-1
    local in0="nsenter --net=/run/netns/$a"
    ((EUID == 0)) || { lacks "hosts: network namespaces need root"; return; }
    command -v ip >/dev/null || { lacks "hosts: ip is missing (apt install iproute2)"; return; }
    if ! ip netns add "$a" 2>"$tmp/netns.log"; then
        lacks "hosts: network namespaces are not permitted here: $(head -1 "$tmp/netns.log")"
        return
    fi
    namespaces+=("$a")
    ip netns add "$b" && namespaces+=("$b")
    if ! { ip -n "$a" link add veth0 type veth peer name veth0 netns "$b" && ip -n "$a" addr add 10.213.0.1/30 dev veth0 &&
        ip -n "$b" addr add 10.213.0.2/30 dev veth0 && ip -n "$a" link set lo up && ip -n "$b" link set lo up &&
        ip -n "$a" link set veth0 up && ip -n "$b" link set veth0 up; } 2>"$tmp/netns.log"; then
        lacks "hosts: no link between two namespaces: $(head -1 "$tmp/netns.log")"
        return
    fi
    write_two_nodes "$a" "$b"
    if command -v mpirun >/dev/null; then
        runs hosts-openmpi '\[\[[0-9]+,1\],1\]' $in0 mpirun "${root_flag[@]}" --host 10.213.0.1:2,10.213.0.2:2 \
            --mca plm_rsh_agent "$tmp/agent" --mca oob_tcp_if_include veth0 -x MASTER_ADDR=10.213.0.1 -n 4 "$tmp/meet"
    else
        lacks "hosts: mpirun is missing (apt install openmpi-bin)"
    fi
    if [[ -x $torchrun ]]; then
        runs hosts-torchrun 'rank +: 1 \(local_rank: 1\)' "$tmp/two-nodes" "$tmp/meet"
    else
        lacks "hosts: torchrun is missing (PyTorch; TORCHRUN=path names it)"
    fi
    if have_slurm hosts; then
        slurm_up "$tmp/slurm-hosts" 10.213.0.1 10.213.0.2 "$in0" "nsenter --net=/run/netns/$b" &&
            runs hosts-slurm "task 1: Exited" $in0 srun -N 2 --ntasks-per-node 2 --kill-on-bad-exit=1 "$tmp/meet"
        slurm_down
    fi
}

for part in "${parts[@]}"; do
    case $part in
    openmpi | torchrun | slurm | hosts) "part_$part" ;;
    *) echo "launchers: $part: expected openmpi, torchrun, slurm or hosts" >&2; exit 2 ;;
    esac
done
echo "$passed passed, $failed failed, $missing skipped"
((failed)) && exit 1
((missing)) && exit 2
exit 0
