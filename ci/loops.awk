# Instructions of the loops of compiled kernels, from their SASS.
#
#   nvcc -std=c++17 -O3 -DNDEBUG -DASSAY_SIM=0 -I. -arch=sm_90 -cubin -o NAME.cubin gpu/ops/NAME.cu      (*_sm90.cu: sm_90a)
#   cuobjdump -sass NAME.cubin | awk [-v kernel=REGEX] [-v pass=REGEX] -f ci/plain.awk -f ci/loops.awk
#
# A line for each loop that has something to pass by and no smaller such loop inside, and one ("whole") for a kernel without such a
# loop: the instructions of the shortest way round that passes by all of it, in the order of addresses.  To pass by: what `pass` (a
# regular expression of names) says; without it matrix instructions; in a kernel without any, accesses of 128 bits to global memory;
# without these, all of its accesses.  What runs in rare cases alone (masks, tails, infinities) is in "all", the instructions of the
# loop, and mostly not in "way".  A loop inside a way counts once, a subroutine not at all.
#
#   way = matrix + ldsm + shared + global + mufu + fp + other;  flops: of the matrix instructions, of a warp (HMMA) or of a
#   warpgroup (HGMMA);  passed, left: what was to be passed by, and what lies on no way through the rest.

function hex(text,    i, value) {
    for (i = 1; i <= length(text); i++)
        value = value * 16 + index("0123456789abcdef", substr(text, i, 1)) - 1
    return value
}

# Kinds of instructions, by name.
function kind_of(name) {
    if (name ~ /^(HMMA|HGMMA)/)
        return "matrix"
    if (name ~ /^LDSM/)
        return "ldsm"
    if (name ~ /^(LDS|STS|STSM|LDGSTS)/)
        return "shared"
    if (name ~ /^(LDG|STG|LD|ST|RED|REDG|ATOM|ATOMG|UTMALDG|UTMASTG)(\.|$)/)
        return "global"
    if (name ~ /^MUFU/)
        return "mufu"
    if (name ~ /^(FFMA|FADD|FMUL|FMNMX|FSEL|FSETP|HFMA2|HADD2|HMUL2|DFMA|DADD|DMUL)/)
        return "fp"
    return "other"
}

# Floating-point operations of a matrix instruction.
function flops_of(name,    part, size) {
    if (name ~ /^HMMA\.16816/)
        return 2 * 16 * 8 * 16
    split(name, part, ".")
    split(part[2], size, "x")
    return 2 * size[1] * size[2] * size[3]
}

function add_edge(from, to) {
    if (to >= 1 && to <= n)
        edge[from, ++edges[from]] = to
}

# The shortest way from `from` to `to` inside the loop, without passing its head; its places go to way[].  0: there is none.
function go(from, to, head,    i, k, next_one, first, last, at, queue, parent) {
    first = last = 1
    queue[1] = from
    parent[from] = from
    while (first <= last) {
        at = queue[first++]
        for (k = 1; k <= edges[at]; k++) {
            next_one = edge[at, k]
            if (next_one == to) {
                for (i = at; i != from; i = parent[i])
                    way[++ways] = i
                way[++ways] = to
                return 1
            }
            if (next_one != head && (next_one in inside) && !(next_one in parent)) {
                parent[next_one] = at
                queue[++last] = next_one
            }
        }
    }
    return 0
}

# inside[]: what can reach `tail` without passing `head`.
function loop_of(head, tail,    first, last, at, k, queue) {
    inside[head] = 1
    if (tail in inside)
        return
    inside[tail] = 1
    first = last = 1
    queue[1] = tail
    while (first <= last) {
        at = queue[first++]
        for (k = 1; k <= into[at]; k++)
            if (!(before[at, k] in inside)) {
                inside[before[at, k]] = 1
                queue[++last] = before[at, k]
            }
    }
}

function is_anchor(i) {
    return name[i] ~ anchor
}

# Walks from `head` by the anchors back to `head` (or to the end, `stop`) and prints what it met.
function report(head, stop,    i, at, left, passed, count, flops, all, text) {
    ways = 0
    at = head
    if (is_anchor(head))
        passed++
    for (i = 1; i <= n; i++) {
        if (!(i in inside))
            continue
        all++
        if (i == head || !is_anchor(i))
            continue
        if (go(at, i, head)) {
            at = i
            passed++
        } else
            left++
    }
    if (!passed)
        return 0
    if (!go(at, stop, head))
        left = left " (no way back)"
    if (stop != head)
        way[++ways] = head
    for (i = 1; i <= ways; i++) {
        count[kind[way[i]]]++
        if (kind[way[i]] == "matrix")
            flops += flops_of(name[way[i]])
    }
    text = sprintf("%s %s way %d matrix %d ldsm %d shared %d global %d mufu %d fp %d other %d flops %d passed %d left %d all %d", title,
        stop == head ? "loop " address[head] : "whole", ways, count["matrix"], count["ldsm"], count["shared"], count["global"],
        count["mufu"], count["fp"], count["other"], flops, passed, left, all)
    print text
    return 1
}

# inside[] of the loop that begins at `head`; 0: none does.
function collect(head,    k, tails) {
    split("", inside)
    for (k = 1; k <= into[head]; k++)
        if (before[head, k] >= head && rules(head, before[head, k])) {
            loop_of(head, before[head, k])
            tails++
        }
    return tails > 0
}

# What a kernel's loops have to pass by.
function choose(    i, regex) {
    regex = "^(LDG|STG|RED|ATOM)"
    for (i = 1; i <= n; i++)
        if (kind[i] == "matrix")
            return "^(HMMA|HGMMA)"
        else if (name[i] ~ /^(LDG|STG).*\.128/)
            regex = "^(LDG|STG).*[.]128"
    return regex
}

# A kernel is read: its lines.
function finish(    i, k, h, size, anchored, inner, some, to) {
    if (title == "" || title !~ kernel || n == 0)
        return
    for (i = 1; i <= n; i++) {
        if (i < n && !ends[i])
            add_edge(i, i + 1)
        if (target[i] != "" && (target[i] in place))
            add_edge(i, place[target[i]])
    }
    for (i = 1; i <= n; i++)
        for (k = 1; k <= edges[i]; k++) {
            to = edge[i, k]
            before[to, ++into[to]] = i
        }
    anchor = pass != "" ? pass : choose()
    for (h = 1; h <= n; h++)
        if (collect(h))
            for (i in inside) {
                size[h]++
                if (is_anchor(i))
                    anchored[h] = 1
            }
    for (h = 1; h <= n; h++) {
        if (!(h in anchored))
            continue
        collect(h)
        inner = 0
        for (i in inside)
            if ((i in anchored) && size[i] < size[h])
                inner = 1
        if (!inner)
            some += report(h, h)
    }
    if (!some) {
        split("", inside)
        for (i = 1; i <= n; i++)
            inside[i] = 1
        for (i = n; i > 1 && name[i] != "EXIT"; i--)
            ;
        report(1, i)
    }
}

# Whether the kernel's begin has no way to `to` but by `head`.
function rules(head, to,    first, last, at, k, queue, seen) {
    if (head == 1)
        return 1
    first = last = 1
    queue[1] = 1
    seen[1] = 1
    while (first <= last) {
        at = queue[first++]
        if (at == to)
            return 0
        for (k = 1; k <= edges[at]; k++)
            if (edge[at, k] != head && !(edge[at, k] in seen)) {
                seen[edge[at, k]] = 1
                queue[++last] = edge[at, k]
            }
    }
    return 1
}

function forget(    i) {
    n = 0
    split("", name); split("", kind); split("", address); split("", place); split("", target); split("", ends)
    split("", edge); split("", edges); split("", before); split("", into)
}

/Function : / {
    finish()
    forget()
    title = plain($3)
    gsub(/ /, "", title)
    next
}
/^[ \t]*\/\*[0-9a-f]+\*\/ / {
    line = $0
    sub(/^[ \t]*\/\*/, "", line)
    at = line
    sub(/\*\/.*/, "", at)
    sub(/^[0-9a-f]+\*\/[ \t]*/, "", line)
    sub(/;.*/, "", line)
    guard = 0
    if (line ~ /^@/) {
        guard = line !~ /^@PT /
        sub(/^@[^ ]+ +/, "", line)
    }
    split(line, word, " ")
    if (word[1] == "NOP")
        next
    n++
    name[n] = word[1]
    kind[n] = kind_of(word[1])
    address[n] = at
    place[hex(at)] = n
    if (word[1] ~ /^BRA/ && word[1] !~ /DIV/ && match(line, /0x[0-9a-f]+/)) {
        target[n] = hex(substr(line, RSTART + 2, RLENGTH - 2))
        if (line ~ /!?U?P[0-9], *0x/)
            guard = 1
    }
    ends[n] = !guard && (word[1] == "EXIT" || word[1] ~ /^RET/ || (word[1] ~ /^BRA/ && word[1] !~ /DIV/))
}
END { finish() }
