# Figures of compiled kernels, and their comparison with gpu/ops/kernels.json (ci/kernels.sh).
#
#   awk -v arch=90 -v file=NAME.cu -f ci/field.awk -f ci/kernels.awk NAME.ptx NAME.log    prints a line for each kernel, as the table has them
#   awk -v check=1 [-v same=1] -f ci/field.awk -f ci/kernels.awk TABLE FOUND              compares; same: the table was made by this nvcc
#
# From PTX, statically (a loop's body once): matrix instructions, loads and stores of 128 bits that are not of shared or local memory,
# asynchronous copies (cp.async, tensor copies).  From ptxas -v: registers, spilled bytes, stack, static shared memory, barriers.
# warps: of a multiprocessor, as its 65536 registers allow, of 64.

function complain(text) {
    print "kernels: " text
    bad++
}

# --- comparing ----------------------------------------------------------------------------------------------------------
check && /"kernel": / {
    key = "sm_" field($0, "arch") " " field($0, "file") " " field($0, "kernel")
    if (FILENAME == ARGV[1] ? key in wanted : key in found)
        complain(FILENAME ": twice: " key)
    if (FILENAME == ARGV[1]) {
        wanted[key] = $0
        order[++n] = key
    } else
        found[key] = $0
    next
}
check { next }

# --- PTX ------------------------------------------------------------------------------------------------------------------
/^\.visible \.entry / || /^\.entry / {
    name = $0
    sub(/^.*\.entry /, "", name)
    sub(/\(.*/, "", name)
    entry[++entries] = name
    inside = 1
    next
}
/begin inline asm/ { asm = 1 }
/end inline asm/ { asm = 0 }
inside && !asm && /^}/ { inside = 0 }
inside && /(^|[ \t])(wg)?mma\.[a-z_]*/ { if ($0 ~ /mma\.(sync|mma_async)/) matrix[name]++ }
inside && /(^|[ \t])(ld|st)\./ && !/\.(shared|local|param)/ && /\.(v4\.[a-z]32|v2\.[a-z]64)/ {
    if ($0 ~ /(^|[ \t])ld\./)
        load[name]++
    else
        store[name]++
}
inside && /cp\.async/ && !/(commit|wait)/ && (/cp\.async\.bulk/ || !/mbarrier/) { async[name]++ }

# --- ptxas ----------------------------------------------------------------------------------------------------------------
/Compiling entry function/ {
    name = $0
    sub(/^[^']*'/, "", name)
    sub(/'.*/, "", name)
}
/Function properties for / { properties = $NF }
/bytes stack frame/ && properties == name { stack[name] = $1; spill[name] = $5 + $9 }
/ptxas info *: Used / {
    match($0, /Used [0-9]+ registers/)
    registers[name] = substr($0, RSTART + 5) + 0
    barriers[name] = match($0, /used [0-9]+ barriers/) ? substr($0, RSTART + 5) + 0 : 0
    shared[name] = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART) + 0 : 0
}

function lost(key, name, what,    before, now) {
    before = field(wanted[key], name)
    now = field(found[key], name)
    if (now + 0 < before + 0)
        complain(key ": expected " before " " what ", found " now)
}

END {
    if (!check) {
        for (i = 1; i <= entries; i++) {
            name = entry[i]
            if (!(name in registers)) {
                print "kernels: ptxas says nothing of " name > "/dev/stderr"
                exit 1
            }
            warps = registers[name] > 0 ? int(65536 / (32 * 8 * int((registers[name] + 7) / 8))) : 64
            if (warps > 64)
                warps = 64
            printf "{\"kernel\": \"%s\", \"arch\": %d, \"file\": \"%s\", \"registers\": %d, \"warps\": %d, \"spill\": %d, \"stack\": %d, \"shared\": %d, \"barriers\": %d, \"matrix\": %d, \"load128\": %d, \"store128\": %d, \"async\": %d}\n", \
                   plain(name), arch, file, registers[name], warps, spill[name], stack[name], shared[name], \
                   barriers[name], matrix[name], load[name], store[name], async[name]
        }
        exit
    }
    for (i = 1; i <= n; i++) {
        key = order[i]
        if (!(key in found)) {
            complain(key ": in the table and not in the build (ci/kernels.sh --update)")
            continue
        }
        if (field(found[key], "spill") + 0 > field(wanted[key], "spill") + 0)
            complain(key ": " field(found[key], "spill") " bytes are spilled, expected " field(wanted[key], "spill") \
                     " (" field(found[key], "registers") " registers)")
        lost(key, "matrix", "matrix instructions")
        lost(key, "load128", "loads of 128 bits")
        lost(key, "store128", "stores of 128 bits")
        lost(key, "async", "asynchronous copies")
        # setmaxnreg hands out what the launch got: with less it waits for ever, which no simulator sees
        if (key ~ /attention_(fwd|dq|dkdv)_k3</)
            lost(key, "registers", "registers, which setmaxnreg shares out")
        if (same && found[key] != wanted[key])
            complain(key ": differs from the table (ci/kernels.sh --update):\n  table " wanted[key] "\n  found " found[key])
    }
    for (key in found)
        if (!(key in wanted))
            complain(key ": not in the table (ci/kernels.sh --update)")
    if (n == 0)
        complain("the table is empty")
    printf "kernels: %d in the table, %d complaints\n", n, bad
    exit bad > 0
}
