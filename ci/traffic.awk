# What kernels move beside gpu/ops/traffic.json (ci/engine_races.sh).
#   awk [-v same=1] -f ci/field.awk -f ci/traffic.awk TABLE FOUND       same: the table was made by this g++
# read, written: 32-byte sectors; least_read, least_written: the bytes that have to be touched.

function complain(text) {
    print "traffic: " text
    bad++
}

function share(line, what) {
    least = field(line, "least_" what)
    return least > 0 ? sprintf("%.2f", field(line, what) / least) : "-"
}

/"kernel": / {
    key = field($0, "model") ": " field($0, "kernel")
    sub(/,$/, "")
    if (FILENAME == ARGV[1] ? key in wanted : key in found)
        complain(FILENAME ": twice: " key)
    if (FILENAME == ARGV[1])
        wanted[key] = $0
    else {
        found[key] = $0
        order[++n] = key
    }
}

END {
    printf "%-56s %8s %12s %9s %12s %9s\n", "kernel", "launches", "read", "of least", "written", "of least"
    for (i = 1; i <= n; i++) {
        line = found[order[i]]
        printf "%-56s %8d %12d %9s %12d %9s\n", order[i], field(line, "launches"), field(line, "read"), share(line, "read"),
            field(line, "written"), share(line, "written")
    }
    for (i = 1; i <= n; i++) {
        key = order[i]
        line = found[key]
        if (!(key in wanted)) {
            complain(key ": not in the table; write it with ci/engine_races.sh --update")
            continue
        }
        if (same && line != wanted[key])
            complain(key ": differs from the table, which has " wanted[key] ", found " line)
        # another compiler may make two accesses of one; it launches as often
        if (!same && field(line, "launches") != field(wanted[key], "launches"))
            complain(key ": expected " field(wanted[key], "launches") " launches, found " field(line, "launches"))
        for (w = 1; w <= 2 && !same; w++) {
            what = w == 1 ? "read" : "written"
            if (field(line, what) * field(wanted[key], "launches") > 1.1 * field(wanted[key], what) * field(line, "launches"))
                complain(key ": expected " field(wanted[key], what) " bytes " what " of " field(wanted[key], "least_" what) " at least in " \
                    field(wanted[key], "launches") " launches, found " field(line, what) " in " field(line, "launches"))
        }
    }
    for (key in wanted) {
        m++
        if (!(key in found))
            complain(key ": in the table and not in the run")
    }
    if (m == 0)
        complain("the table is empty")
    printf "traffic: %d kernels, %d in the table, %d complaints\n", n, m, bad
    exit bad > 0
}
