# What a run executed of the engine, against the list in docs/DETECTION.md.
#
#   gcov -t -b -c -m ... | awk [-v missing=1] -f ci/coverage.awk docs/DETECTION.md -
#
# Reads gcov's text of every object, with headers and templates once for each place that has them: counts of a line are
# added up.  Three things must be executed, or be listed with a reason:
#   lines      of gpu/*, gpu/parallel/* and gpu/ops/*
#   instances  of kernel and launcher templates in gpu/ops/*: launch_k1<float, 8>
#   branches   of gpu/ops/*, both sides, but not those of a statement that begins with an error macro (the side that fails;
#              UNJUDGED below), and not the edges of C++ exceptions, which nothing here throws.
# The list is the blocks of docs/DETECTION.md that begin with ```unexecuted (lines, instances) and ```untaken (branches).
# Their rows:
#   FILE: FUNCTION() — REASON                    no line of the function is executed
#   FILE: FUNCTION() `TEXT` `TEXT` — REASON      in it, the lines (instances) that contain one of the texts
#   FILE: `TEXT` — REASON                        lines that contain the text, in any function
# FILE may hold *.  Fails when something is neither executed nor listed, and when a row, or a text of it, matches nothing
# that is not executed: a row that became wrong must go.  But a REASON that begins with "chance: " is of what another
# order of processes executes, so that its row may match nothing.  missing=1 prints rows for what is not listed.

BEGIN {
    UNJUDGED = "(^|[^A-Za-z0-9_])(ASSAY_TRY|ASSAY_TRY_GOTO|ASSAY_CHECK|ASSAY_CHECK_GOTO|CUDA_TRY|CUBLAS_TRY|NCCL_TRY|GPU_LAUNCHED)\\("
    DASH = " \342\200\224 "
    TEXT = 48 # characters of a line that missing=1 prints
}

function complain(text) {
    print "coverage: " text
    bad++
}

# --- the list -----------------------------------------------------------------------------------------------------------
function pattern(file) {
    gsub(/\./, "[.]", file)
    gsub(/\*/, ".*", file)
    return "^" file "$"
}

function add_row(kind, file, name, text) {
    rows++
    row_kind[rows] = kind
    row_file[rows] = pattern(file)
    row_function[rows] = name
    row_text[rows] = text
    row_line[rows] = FNR
    row_shown[rows] = file ": " (name != "" ? name "() " : "") (text != "" ? "`" text "`" : "")
    row_used[rows] = by_chance
}

function read_row(line,    at, head, file, name, found) {
    at = index(line, DASH)
    head = at > 0 ? substr(line, 1, at - 1) : ""
    if (at == 0 || length(line) < at + length(DASH) || !match(head, /^[A-Za-z0-9_\/.*]+: /)) {
        complain(FILENAME ":" FNR ": expected 'FILE: FUNCTION() `TEXT`... - REASON', found: " line)
        return
    }
    file = substr(head, 1, RLENGTH - 2)
    head = substr(head, RLENGTH + 1)
    by_chance = index(line, DASH "chance: ") > 0
    name = ""
    if (match(head, /^[A-Za-z0-9_]+\(\)/)) {
        name = substr(head, 1, RLENGTH - 2)
        head = substr(head, RLENGTH + 1)
    }
    found = 0
    while (match(head, /`[^`]+`/)) {
        add_row(block, file, name, substr(head, RSTART + 1, RLENGTH - 2))
        head = substr(head, RSTART + RLENGTH)
        found++
    }
    if (found == 0 && name == "")
        complain(FILENAME ":" FNR ": neither a function nor a text: " line)
    else if (found == 0)
        add_row(block, file, name, "")
}

FILENAME == ARGV[1] {
    if (/^```/)
        block = $0 == "```unexecuted" ? "line" : $0 == "```untaken" ? "branch" : ""
    else if (block != "" && $0 != "" && $0 !~ /^#/)
        read_row($0)
    list = FILENAME
    next
}

# --- gcov's text --------------------------------------------------------------------------------------------------------
# "        -:    0:Source:gpu/ops/loss.cu"
/^ *-: *0:Source:/ {
    file = $0
    sub(/^ *-: *0:Source:/, "", file)
    wanted = file ~ /^gpu\/((ops|parallel)\/)?[^\/]*$/
    in_ops = file ~ /^gpu\/ops\//
    if (wanted && !(file in known)) {
        known[file] = 1
        order[++files] = file
    }
    number = 0
    next
}
!wanted { next }

# "function void launch_k1<float, 8>(attention const&) called 3 returned 100% blocks executed 90%"
/^function .* called [0-9]+ returned / {
    if (in_ops && match($0, /[A-Za-z_][A-Za-z0-9_]*<[^()]*>\(/)) {
        instance = file SUBSEP substr($0, RSTART, RLENGTH - 1)
        match($0, / called [0-9]+ returned /)
        instances[instance] += substr($0, RSTART + 8) + 0
    }
    next
}

# "branch  1 taken 0 (throw)"
/^branch +[0-9]+ / {
    if (in_ops && number > 0 && $0 !~ /\(throw\)/) {
        sides++
        branches[file, number, sides] += $3 == "taken" ? $4 : 0
        if (sides > most_sides[file, number])
            most_sides[file, number] = sides
    }
    next
}

# "     3*:   17:    if (x)": a star means that an instance or a block of the line was not executed
/^ *([0-9]+\*?|-|#####|=====): *[0-9]+:/ {
    count = $0
    sub(/:.*/, "", count)
    gsub(/[ *]/, "", count)
    rest = substr($0, index($0, ":") + 1)
    number = rest + 0
    sides = 0
    if (number == 0)
        next
    if (!((file, number) in source)) {
        source[file, number] = substr(rest, index(rest, ":") + 1)
        if (number > last[file])
            last[file] = number
    }
    if (count != "-") {
        code[file, number] = 1
        executed[file, number] += count + 0
    }
    next
}

# --- what the source says -----------------------------------------------------------------------------------------------
# Function around each line: by .clang-format its head begins in column 0.
function name_functions(file,    n, line, name) {
    name = ""
    for (n = 1; n <= last[file]; n++) {
        line = source[file, n]
        if (line ~ /^[A-Za-z_]/ && line !~ /=/ && line !~ /;[ \t]*$/) {
            gsub(/__(launch_bounds__|attribute__)\([^()]*(\([^()]*\))*[^()]*\)/, "", line)
            if (match(line, /[A-Za-z_][A-Za-z0-9_]*\(/))
                name = substr(line, RSTART, RLENGTH - 1)
        }
        around[file, n] = name
    }
}

# Lines of statements that begin with an error macro.
function mark_unjudged(file,    n, line, open, i, c) {
    open = 0
    for (n = 1; n <= last[file]; n++) {
        line = source[file, n]
        if (open == 0 && !match(line, UNJUDGED))
            continue
        if (open == 0)
            line = substr(line, RSTART)
        unjudged[file, n] = 1
        for (i = 1; i <= length(line); i++) {
            c = substr(line, i, 1)
            open += c == "(" ? 1 : c == ")" ? -1 : 0
        }
    }
}

# Whether a row covers it; every row that does is used.
function is_listed(kind, file, name, text,    i, hit, found) {
    found = 0
    for (i = 1; i <= rows; i++) {
        if (row_kind[i] != kind || (row_function[i] != "" && row_function[i] != name) || file !~ row_file[i])
            continue
        hit = row_text[i] != "" ? index(text, row_text[i]) > 0 : kind == "line" && !((file, name) in alive)
        row_used[i] += hit
        found += hit
    }
    return found > 0
}

function judge(kind, file, number, name, text, what,    row, piece) {
    total[kind]++
    if (is_listed(kind == "branch" ? "branch" : "line", file, name, text)) {
        listed[kind]++
        return
    }
    unlisted[kind]++
    if (!missing) {
        complain(file ":" number ": " name ": " what " by assay run and not listed in " list ": " text)
        return
    }
    row = (kind == "branch" ? "2" : "1") file ": " name "()"
    sub(/^[ \t]+/, "", text)
    piece = kind == "line" && !((file, name) in alive) ? "" : " `" substr(text, 1, TEXT) "`"
    gsub(/ +`$/, "`", piece)
    if (!(row in shown_row)) {
        shown_row[row] = 1
        rows_to_print[++to_print] = row
    }
    if (piece != "" && index(printed[row], piece) == 0)
        printed[row] = printed[row] piece
    bad++
}

function percent(part, whole) {
    return whole > 0 ? sprintf("%5.1f%%", 100 * part / whole) : "      "
}

function show(name, a, b, c, d) {
    printf "%-34s %6d %6d %s   %8d %6d %s\n", name, a, b, percent(b, a), c, d, percent(d, c)
}

function judge_file(file,    n, i, folder, lines, run, both, taken, shown) {
    name_functions(file)
    mark_unjudged(file)
    lines = run = both = taken = 0
    for (n = 1; n <= last[file]; n++)
        if (executed[file, n] > 0)
            alive[file, around[file, n]] = 1
    for (n = 1; n <= last[file]; n++) {
        if (!((file, n) in code))
            continue
        lines++
        run += executed[file, n] > 0
        if (executed[file, n] == 0)
            judge("line", file, n, around[file, n], source[file, n], "not executed")
        if ((file, n) in unjudged)
            continue
        shown = 0
        for (i = 1; i <= most_sides[file, n]; i++) {
            both++
            taken += branches[file, n, i] > 0
            if (branches[file, n, i] == 0 && executed[file, n] > 0 && !shown++)
                judge("branch", file, n, around[file, n], source[file, n], "a branch is not taken")
        }
    }
    folder = file
    sub(/\/[^\/]*$/, "", folder)
    sum[folder, 1] += lines; sum[folder, 2] += run; sum[folder, 3] += both; sum[folder, 4] += taken
    table[file] = sprintf("%d %d %d %d", lines, run, both, taken)
}

function judge_instances(    key, part, name) {
    for (key in instances) {
        total_instances++
        if (instances[key] > 0)
            continue
        split(key, part, SUBSEP)
        name = part[2]
        sub(/<.*/, "", name)
        missed[++n_missed] = key
    }
    sort(missed, n_missed)
    for (key = 1; key <= n_missed; key++) {
        split(missed[key], part, SUBSEP)
        name = part[2]
        sub(/<.*/, "", name)
        judge("instance", part[1], 0, name, part[2], "an instance is not executed")
    }
}

function sort(a, n,    i, k, x) {
    for (i = 2; i <= n; i++) {
        x = a[i]
        for (k = i - 1; k >= 1 && a[k] > x; k--)
            a[k + 1] = a[k]
        a[k + 1] = x
    }
}

END {
    sort(order, files)
    for (i = 1; i <= files; i++)
        judge_file(order[i])
    judge_instances()
    printf "%-34s %6s %6s %6s   %8s %6s\n", "file", "lines", "run", "", "branches", "taken"
    for (i = 1; i <= files; i++) {
        split(table[order[i]], c, " ")
        show(order[i], c[1], c[2], c[3], c[4])
    }
    n = split("gpu/ops gpu/parallel gpu", folder, " ")
    for (i = 1; i <= n; i++)
        show(folder[i] "/", sum[folder[i], 1], sum[folder[i], 2], sum[folder[i], 3], sum[folder[i], 4])
    sort(rows_to_print, to_print)
    for (i = 1; i <= to_print; i++)
        print (i == 1 || substr(rows_to_print[i], 1, 1) != substr(rows_to_print[i - 1], 1, 1) ? \
               (rows_to_print[i] ~ /^1/ ? "```unexecuted\n" : "```untaken\n") : "") substr(rows_to_print[i], 2) printed[rows_to_print[i]]
    for (i = 1; i <= rows; i++)
        if (!row_used[i])
            complain(list ":" row_line[i] ": " row_shown[i] ": executed now, or gone: remove the row")
    if (files == 0 || rows == 0)
        complain("nothing to judge: " files + 0 " files, " rows + 0 " rows")
    printf "coverage: lines: %d not executed are listed, %d are not; instances of %d: %d listed, %d not; branches: %d lines listed, %d not\n", \
           listed["line"], unlisted["line"], total_instances, listed["instance"], unlisted["instance"], listed["branch"], unlisted["branch"]
    exit bad > 0
}
