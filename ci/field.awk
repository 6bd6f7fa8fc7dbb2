# A member of a line of JSON that this house wrote: a string or a number; ?: it is not there (ci/kernels.awk, ci/traffic.awk).
function field(line, name,    at, rest) {
    at = index(line, "\"" name "\": ")
    if (at == 0)
        return "?"
    rest = substr(line, at + length(name) + 4)
    if (substr(rest, 1, 1) == "\"") {
        rest = substr(rest, 2)
        return substr(rest, 1, index(rest, "\"") - 1)
    }
    match(rest, /^[0-9]+/)
    return substr(rest, 1, RLENGTH)
}
