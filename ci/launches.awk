# Kernels as sources launch them, NAME or NAME<ARGUMENTS>: the first argument of every GPU_LAUNCH and GPU_LAUNCH_NO_BARRIER, without spaces
# and without the parentheses around it.
#   cat gpu/ops/*.cu gpu/ops/*.cuh | awk -f ci/launches.awk

{ text = text $0 " " }

END {
    while (match(text, /GPU_LAUNCH(_NO_BARRIER)?\(/) > 0) {
        text = substr(text, RSTART + RLENGTH)
        depth = 0
        kernel = ""
        for (i = 1; i <= length(text); i++) {
            c = substr(text, i, 1)
            depth += (c == "(") - (c == ")")
            if (depth < 0 || (c == "," && depth == 0))
                break
            if (c !~ /[()[:space:]]/)
                kernel = kernel c
        }
        print kernel
    }
}
