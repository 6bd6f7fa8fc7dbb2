# One line for each compiled kernel (ci/kernels.sh): what the compiler made of it, and what it moves.
#   awk -f ci/field.awk -f ci/kernels_table.awk TRAFFIC REASONS FIGURES
# TRAFFIC: gpu/ops/traffic.json; REASONS: ci/engine_races.txt, why a kernel has no row there; FIGURES: lines of gpu/ops/kernels.json.
#
# bytes: 32-byte sectors that a kernel's warps ask for, over the bytes that a launch has to touch, read and written together, all
# instances of a name together; the worst of the steps that were counted, of the small cases where no step has it.  1.00 is the least; no
# cache is taken to hold anything.

function complain(text) {
    print "kernels: " text
    bad++
}

function base(kernel,    name) {
    name = kernel
    sub(/^\(/, "", name)
    sub(/[<)].*/, "", name)
    return name
}

FILENAME == ARGV[1] {
    if (!/"kernel": /)
        next
    rows++
    name = base(field($0, "kernel"))
    model = field($0, "model")
    key = name SUBSEP model
    moved[key] += field($0, "read") + field($0, "written")
    least[key] += field($0, "least_read") + field($0, "least_written")
    models[name] = models[name] " " model
    next
}
FILENAME == ARGV[2] {
    if (/^#/ || /^[ \t]*$/)
        next
    name = $0
    sub(/:.*/, "", name)
    reason[name] = $0
    sub(/^[^:]*:[ \t]*/, "", reason[name])
    next
}
/"kernel": / {
    line[++n] = $0
    compiled[base(field($0, "kernel"))] = 1
}

# Of the models in which a kernel ran the one with the largest ratio, steps before small cases.
function bytes(name,    count, list, i, key, share, worst, at, small) {
    if (!(name in models))
        return (name in reason) ? "- " reason[name] : "?"
    count = split(models[name], list, " ")
    at = ""
    for (small = 0; small < 2 && at == ""; small++)
        for (i = 1; i <= count; i++) {
            key = name SUBSEP list[i]
            if ((list[i] == "small") != small || least[key] == 0)
                continue
            share = moved[key] / least[key]
            if (at == "" || share > worst) {
                worst = share
                at = list[i]
            }
        }
    return at == "" ? "- touches no memory" : sprintf("%.2f %s", worst, at)
}

END {
    printf "%-64s %-26s %2s %9s %5s %5s %6s %8s %6s %7s %8s %5s %s\n", "kernel", "file", "sm", "registers", "warps", "spill", "shared", "barriers", \
        "matrix", "load128", "store128", "async", "bytes / least"
    for (i = 1; i <= n; i++) {
        name = base(field(line[i], "kernel"))
        printf "%-64s %-26s %2d %9d %5d %5d %6d %8d %6d %7d %8d %5d %s\n", field(line[i], "kernel"), field(line[i], "file"), field(line[i], "arch"), \
            field(line[i], "registers"), field(line[i], "warps"), field(line[i], "spill"), field(line[i], "shared"), field(line[i], "barriers"), \
            field(line[i], "matrix"), field(line[i], "load128"), field(line[i], "store128"), field(line[i], "async"), bytes(name)
    }
    for (name in compiled) {
        kernels++
        if (name in models)
            measured++
        else if (!(name in reason))
            complain(name ": no row in gpu/ops/traffic.json (ci/engine_races.sh --update), and ci/engine_races.txt does not say why")
    }
    for (name in models)
        if (!(name in compiled))
            complain(name ": in gpu/ops/traffic.json, and nothing of that name was compiled")
    if (n == 0)
        complain("no compiled kernel")
    if (rows == 0)
        complain("gpu/ops/traffic.json is empty")
    printf "kernels: %d names, what %d move is known, %d complaints\n", kernels, measured, bad
    exit bad > 0
}
