"""Traces of the real Megatron core (megatron-core 0.16.1) on a CPU, in double, over gloo, by the collector of assay_trace:

python golden/trace_megatron.py DIR CONFIGURATION LAYOUT     names: CONFIGS and layouts of golden/make_megatron.py, as `groups tp2,sp`
Then `assay replay DIR`.
"""
import os
import subprocess
import sys
import warnings

import assay_trace.megatron  # before float32 means float64
import make_megatron as mm


def rank(folder, name, text):
    import torch

    import megatron_cpu

    warnings.simplefilter("ignore")
    mode = megatron_cpu.install()
    layout = mm.layout_of(text)
    torch.distributed.init_process_group("gloo")
    from megatron.core import parallel_state as ps
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    megatron_cpu.install_modules(layout["cp"] > 1)
    ps.initialize_model_parallel(
        tensor_model_parallel_size=layout["tp"], pipeline_model_parallel_size=layout["pp"],
        context_parallel_size=layout["cp"], expert_model_parallel_size=layout["ep"],
        expert_tensor_parallel_size=layout["etp"], create_gloo_process_groups=False)
    model_parallel_cuda_manual_seed(1)
    c, seed = mm.CONFIGS[name][0], 1 + list(mm.CONFIGS).index(name)
    config = mm.build_config(c, layout)
    chunks = mm.build_chunks(c, config, layout)
    mm.load_weights(chunks, config, {k: mm.weight_of(seed, k, s) for k, s in mm.shapes_of(c).items()})
    trace = assay_trace.megatron.attach(chunks, folder, layout=text)
    batch = mm.batch_of(seed, c["vocab_size"])
    with trace.step():
        get_forward_backward_func()(
            forward_step_func=mm.forward_step, data_iterator=mm.microbatches(batch, 0, layout), model=chunks[0],
            num_microbatches=mm.MICROBATCHES // layout["dp"], seq_length=mm.SEQ, micro_batch_size=mm.ROWS, forward_only=False)
    trace.close()
    torch.distributed.barrier()
    mode.__exit__(None, None, None)


def main(folder, name, text):
    port, ranks = mm.free_port(), []
    for i in range(mm.layout_of(text)["world"]):
        env = dict(os.environ, RANK=str(i), LOCAL_RANK=str(i), WORLD_SIZE=str(mm.layout_of(text)["world"]), MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(port), OMP_NUM_THREADS="1", ASSAY_RANK="1")
        ranks.append(subprocess.Popen([sys.executable, __file__, folder, name, text], env=env))
    return max(abs(r.wait()) for r in ranks)


if __name__ == "__main__":
    sys.exit((rank if os.environ.get("ASSAY_RANK") else main)(*sys.argv[1:4]))
