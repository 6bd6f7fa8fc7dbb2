# Writes one source file with its mutants as switches: awk -v source=PATH -f plant.awk MUTANT-FILES... >OUT
# Every text behind `--- is` must stand exactly once in the file.  Of a text with @( )@ only what stands between them is changed.
# What is changed and ends in `;` is a statement, any other text an expression.  Several mutants may change the same text, but
# texts may not overlap otherwise.
function fail(what) { print "plant: " what > "/dev/stderr"; failed = 1; exit 1 }
function read_all(path,    line, all) {
    while ((getline line < path) > 0) all = all line "\n"
    close(path)
    if (all == "") fail(path ": not there or empty")
    return all
}
function name_of(path) { sub(/.*\//, "", path); sub(/\.mutant$/, "", path); return path }
function whole() { if (part != "") fail(mutant ": a text without `--- end` behind it") }
function keep_edit(    at, i, open, close_) {
    sub(/\n$/, "", is); sub(/\n$/, "", becomes)
    if (is == "") fail(mutant ": nothing behind `--- is`")
    open = index(is, "@("); close_ = open > 0 ? open + index(substr(is, open + 1), ")@") : 0
    if (open > 0 && close_ == open) fail(mutant ": @( and )@ belong together")
    if (open > 0) is = substr(is, 1, open - 1) substr(is, open + 2, close_ - open - 2) substr(is, close_ + 2)
    at = index(text, is)
    if (at == 0) fail(mutant ": " path " does not hold this text any more; the mutant must follow the source:\n" is)
    if (index(substr(text, at + 1), is) > 0) fail(mutant ": " path " holds this text more than once:\n" is)
    if (open > 0) { at += open - 1; is = substr(is, open, close_ - open - 2) }
    for (i = 1; i <= n; i++)
        if (start[i] == at && old[i] == is) { fresh[i, ++count[i]] = becomes; who[i, count[i]] = mutant; return }
        else if (at < start[i] + length(old[i]) && start[i] < at + length(is)) fail(mutant ": its text overlaps that of " who[i, 1] " in " path)
    start[++n] = at; old[n] = is; count[n] = 1; fresh[n, 1] = becomes; who[n, 1] = mutant
}
function planted(i,    out, k) {
    if (old[i] ~ /;[ \t]*$/) {
        out = "{ "
        for (k = 1; k <= count[i]; k++) out = out "if (assay_mutant(\"" who[i, k] "\")) { " fresh[i, k] " } else "
        return out "{ " old[i] " } }"
    }
    out = old[i]
    for (k = count[i]; k >= 1; k--) out = "(assay_mutant(\"" who[i, k] "\") ? (" fresh[i, k] ") : (" out "))"
    return out
}
BEGIN { text = read_all(source); n = 0 }
FNR == 1 { whole(); mutant = name_of(FILENAME); part = ""; here = 0 }
/^in / && part == "" { here = $2 == path; next }
/^--- is$/ { part = "is"; is = ""; next }
/^--- becomes$/ { part = "becomes"; becomes = ""; next }
/^--- end$/ { if (part != "becomes") fail(mutant ": `--- end` without `--- becomes`"); if (here) keep_edit(); part = ""; next }
part == "is" { is = is $0 "\n" }
part == "becomes" { becomes = becomes $0 "\n" }
END {
    if (failed) exit 1
    whole()
    # from the end, so that the places before stay where they are
    for (;;) {
        last = 0
        for (i = 1; i <= n; i++) if (!done[i] && (last == 0 || start[i] > start[last])) last = i
        if (last == 0) break
        done[last] = 1
        text = substr(text, 1, start[last] - 1) planted(last) substr(text, start[last] + length(old[last]))
    }
    printf "#line 1 \"%s\"\n%s", path, text
}
