# What each kernel moved in all processes that wrote to a file of ASSAY_SIM_TRAFFIC, as lines of gpu/ops/traffic.json.
#   awk -v model=NAME -f ci/field.awk -f ci/traffic_sum.awk FILE

BEGIN { n = split("launches read least_read written least_written", names, " ") }

/"kernel": / {
    kernel = field($0, "kernel")
    seen[kernel] = 1
    for (i = 1; i <= n; i++)
        sum[kernel, i] += field($0, names[i])
}

END {
    for (kernel in seen) {
        printf "{\"model\": \"%s\", \"kernel\": \"%s\"", model, kernel
        for (i = 1; i <= n; i++)
            printf ", \"%s\": %.0f", names[i], sum[kernel, i]
        print "}"
    }
}
