# A kernel's name as it is written, from the compiler's: without its type and its operands (ci/kernels.awk, ci/loops.awk).
function plain(name,    command, text) {
    command = "c++filt '" name "'"
    command | getline text
    close(command)
    sub(/^void /, "", text)
    sub(/>\(.*/, ">", text)
    sub(/\(.*/, "", text)
    return text
}
