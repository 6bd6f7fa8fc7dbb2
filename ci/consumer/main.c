/* What a user of the library does: writes a trace of one tensor and a safetensors file, reads both back. */
#include "assay/core/files/tensorfile.h"
#include "assay/core/files/tensorwriter.h"
#include "assay/core/files/trace.h"
#include <stdlib.h>
#include <string.h>

static const int64_t shape[2] = {2, 3};
static const float data[6] = {0.5f, -1.0f, 2.0f, 0.25f, 8.0f, -0.125f};

static assay_status write_trace(const char *dir)
{
    assay_trace_writer *writer;
    json_t *header = json_pack("{s:s, s:s, s:s}", "engine", "consumer", "tier", "cpu", "precision", "fp32");
    assay_trace_tensor t = {
        .name = "decoder.layers.0.mlp.linear_fc1.y", .microbatch = -1, .dtype = ASSAY_F32, .rows_id = -1};
    assay_shard_whole(&t.shard, shape, 2);
    assay_status st = assay_trace_writer_open(&writer, dir, 0, 1, header, false);
    json_decref(header);
    if (st != ASSAY_OK)
        return st;
    ASSAY_TRY_GOTO(assay_trace_write_tensor(writer, &t, data), st, done);
    ASSAY_TRY_GOTO(assay_trace_end_step(writer), st, done);
    ASSAY_TRY_GOTO(assay_trace_writer_close(writer), st, done);
done:
    assay_trace_writer_destroy(writer);
    return st;
}

static assay_status read_trace(const char *dir)
{
    assay_trace *trace;
    ASSAY_TRY(assay_trace_open(&trace, dir, true));
    const assay_trace_tensor *t =
        assay_trace_n_tensors(trace, 0) == 1 ? assay_trace_tensor_at(trace, 0, 0) : NULL;
    const bool equal = t && t->bytes == sizeof data && memcmp(t->data, data, sizeof data) == 0;
    assay_trace_close(trace);
    ASSAY_CHECK(equal, ASSAY_MISMATCH, "%s: the trace does not hold what was written", dir);
    return ASSAY_OK;
}

static assay_status write_tensors(const char *path)
{
    assay_status st = ASSAY_OK;
    assay_tensorwriter *writer;
    ASSAY_TRY(assay_tensorwriter_create(&writer, path));
    ASSAY_TRY_GOTO(assay_tensorwriter_add_ref(writer, "weight", ASSAY_F32, shape, 2, data), st, done);
    ASSAY_TRY_GOTO(assay_tensorwriter_finish(writer), st, done);
done:
    assay_tensorwriter_destroy(writer);
    return st;
}

static assay_status read_tensors(const char *path)
{
    assay_tensorfile *file;
    const assay_tensor_info *info;
    ASSAY_TRY(assay_tensorfile_open(&file, path));
    assay_status st = assay_tensorfile_get(file, "weight", ASSAY_F32, shape, 2, &info);
    const bool equal = st == ASSAY_OK && memcmp(info->data, data, sizeof data) == 0;
    assay_tensorfile_close(file);
    ASSAY_TRY(st);
    ASSAY_CHECK(equal, ASSAY_MISMATCH, "%s: the file does not hold what was written", path);
    return ASSAY_OK;
}

static assay_status run(const char *folder)
{
    char trace[512], tensors[512];
    snprintf(trace, sizeof trace, "%s/trace", folder);
    snprintf(tensors, sizeof tensors, "%s/weight.safetensors", folder);
    ASSAY_TRY(assay_hash_init());
    ASSAY_TRY(write_trace(trace));
    ASSAY_TRY(read_trace(trace));
    ASSAY_TRY(write_tensors(tensors));
    ASSAY_TRY(read_tensors(tensors));
    return ASSAY_OK;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: consumer FOLDER\n");
        return 2;
    }
    if (run(argv[1]) != ASSAY_OK) {
        assay_error_print(stderr, "consumer", 1);
        return 1;
    }
    printf("consumer: trace and safetensors written and read\n");
    return 0;
}
