# Which kernels ran (ci/engine_races.sh).
#   awk -f ci/races.awk KERNELS RAN LISTED
# KERNELS, RAN: a name a line.  LISTED: lines "NAME: REASON" for kernels that do not run; # begins a comment.

function complain(text) {
    print "races: " text
    bad++
}

FILENAME == ARGV[1] { kernel[$1] = 1; next }
FILENAME == ARGV[2] { ran[$1] = 1; next }
/^#/ || /^[ \t]*$/ { next }
{
    name = $0
    sub(/:.*/, "", name)
    if (name in reason)
        complain(name ": listed twice")
    reason[name] = $0
    sub(/^[^:]*:?[ \t]*/, "", reason[name])
    listed++
}

END {
    for (name in kernel) {
        all++
        if (name in ran)
            did++
        else if (!(name in reason))
            complain(name ": has not run, and ci/engine_races.txt does not say why")
    }
    for (name in ran)
        if (!(name in kernel))
            complain(name ": has run, and is not among the kernels of gpu/ops")
    for (name in reason) {
        if (!(name in kernel))
            complain(name ": listed, and no kernel of gpu/ops")
        if (name in ran)
            complain(name ": has run, and ci/engine_races.txt lists it")
        if (reason[name] == "")
            complain(name ": listed without a reason")
    }
    if (all == 0)
        complain("no kernels in gpu/ops")
    if (did == 0)
        complain("no kernel has run")
    printf "races: %d of %d kernels have run, %d are listed, %d complaints\n", did, all, listed, bad
    exit bad > 0
}
