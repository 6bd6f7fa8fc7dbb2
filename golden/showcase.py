"""The real Megatron core in two layouts each, traced: what docs/SHOWCASE.md judges.

    VENV/bin/python golden/showcase.py DIR [NAME...]      # DIR/NAME/LAYOUT: one trace; names: PAIRS
    VENV/bin/python golden/showcase.py --judge ASSAY DIR  # assay diff on every pair of DIR
    VENV/bin/python golden/showcase.py --record           # golden/showcase: the same in single precision, for the tests

One step, gloo processes on a CPU, in double; weights and batches by the rule of golden/make_megatron.py."""
import contextlib
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import time

import make_megatron as mm

HERE = pathlib.Path(__file__).resolve().parent
ROWS, SEQ, MICROBATCHES = 2, 8, 2

SMALL = {"hidden_size": 8, "ffn_hidden_size": 8, "num_attention_heads": 2, "num_query_groups": 2, "kv_channels": 4, "vocab_size": 12,
         "num_layers": 2}
DENSE = dict(mm.DENSE, **SMALL)
MOE = dict(mm.MOE, **SMALL, moe_ffn_hidden_size=4)
MLA = dict(DENSE, num_attention_heads=4, num_query_groups=4, multi_latent_attention=True, q_lora_rank=6, kv_lora_rank=4, qk_head_dim=4, qk_pos_emb_head_dim=4, v_head_dim=4,
           kv_channels=8, qk_layernorm=True, rope_type="rope")


def balanced(kind, **more):
    return dict(MOE, moe_router_load_balancing_type=kind, moe_aux_loss_coeff=0.1, **more)


def honest(text):
    return [(t, None) for t in text.split()]


PE = ("gradient of decoder.layers.{last}.self_attention.k_pos_emb (backward", "parts of a sum", "not summed over tp")
# name: (configuration, [(layout, the defect or None: an honest run, words of the sentence...)]), each beside layout 1
PAIRS = {
    "dense": (DENSE, honest("tp2 tp2,sp dp2 pp2 cp2 tp2,sp,dp2")),
    "qk_norm": (dict(DENSE, qk_layernorm=True), honest("tp2")),
    "means": (dict(DENSE, calculate_per_token_loss=False), honest("dp2 tp2,sp") + [
        ("cp2", "mean of means", "gradient of loss (backward", "each rank divides by its own count")]),
    "moe": (MOE, honest("ep2 tp2,sp,ep2,etp1") + [
        ("tp2,sp,etp1", "experts not reduced", "linear_fc1.weight, after every reduction", "not summed over edp")]),
    "aux": (balanced("aux_loss"), honest("ep2") + [
        ("tp2,sp,etp2", "local tokens", "router.aux_loss (forward", "0.5 times the expected one = 1/tp."),
        ("cp2", "local tokens", "router.aux_loss (forward", "0.5 times the expected one = 1/cp."),
        ("tp2,sp,cp2,etp2", "local tokens", "router.aux_loss (forward", "0.25 times the expected one = 1/tp*cp.")]),
    "aux_means": (balanced("aux_loss", calculate_per_token_loss=False), honest("tp2,sp,etp2 cp2")),
    "seq_aux": (balanced("seq_aux_loss"), honest("dp2") + [
        ("tp2,sp,etp2", "local tokens", "router.seq_aux_loss (forward", "0.5 times the expected one = 1/tp.")]),
    "z": (dict(MOE, moe_z_loss_coeff=0.05), [
        ("dp2", "z-loss of one rank logged", "logged.z_loss", "the mean of which belongs there: not averaged over dp"),
        ("tp2,sp,etp2", "local tokens", "router.z_loss (forward", "0.5 times the expected one = 1/tp.")]),
    "global_aux": (balanced("global_aux_loss"), honest("pp2") + [
        ("dp2", "divided by dp twice", "router.global_aux_loss (forward", "0.5 times the expected one = 1/dp.")]),
    "mla": (MLA, honest("dp2 pp2") + [("tp2", "k_pe not summed", *PE), ("tp2,sp", "k_pe not summed", *PE)]),
    "mla_k_pe": (dict(MLA, fix=["k_pe"]), honest("tp2,sp") + [
        ("tp2", "q_layernorm summed", "gradient of decoder.layers.0.self_attention.q_layernorm.weight, after every reduction",
         "2 times the expected one = tp.")]),
    "mla_fixed": (dict(MLA, fix=["k_pe", "q_layernorm"]), honest("tp2")),
}
# The part of them that the tests hold (golden/showcase): one layer, one microbatch where a rank needs no more.
RECORDED = {"dense": ["tp2,sp"], "means": ["cp2", "tp2,sp"], "moe": ["tp2,sp,ep2,etp1", "tp2,sp,etp1"], "aux": ["tp2,sp,etp2"], "z": ["dp2"],
            "global_aux": ["dp2"], "mla": ["tp2"], "mla_k_pe": ["tp2"], "mla_fixed": ["tp2"]}
# What is mended changes no number of layout 1.
BASE = {"mla_k_pe": "mla", "mla_fixed": "mla"}


def verdicts(recorded=False):
    """[(name, layout, the defect or None, words of the sentence)]"""
    out = []
    for name, (c, layouts) in PAIRS.items():
        last = 0 if recorded else c["num_layers"] - 1
        out += [(name, text, wrong, [w.format(last=last) for w in words]) for text, wrong, *words in layouts
                if not recorded or text in RECORDED.get(name, ())]
    return out


def judge(assay, root, *names, recorded=False):
    """`assay diff` on every pair: the table, and whether every sentence is the one that belongs there."""
    good, shown, alarms = True, [], 0
    rows = [r for r in verdicts(recorded) if not names or r[0] in names]
    for name, text, wrong, words in rows:
        start = time.monotonic()
        r = subprocess.run([assay, "diff", folder_of(root, BASE.get(name, name), "1"), folder_of(root, name, text), "--noise", "auto"],
                           capture_output=True, text=True, check=False)
        seconds, sentence = time.monotonic() - start, (r.stdout.strip().splitlines() or [r.stderr.strip()])[-1]
        right = r.returncode == (1 if wrong else 0) and all(w in sentence for w in words)
        good = good and right
        shown.append(f"{name:11} {text:16} {wrong or 'honest':26} {'ok ' if right else 'NOT'} {seconds:5.2f} s  {sentence}")
        alarms += not wrong and not right
    defects = sum(bool(r[2]) for r in rows)
    print("\n".join(shown))
    print(f"{defects} pairs with a defect, {len(rows) - defects} honest ones: {alarms} false alarms; "
          f"{'every sentence is the expected one' if good else 'NOT ALL AS EXPECTED'}")
    return good


def batch_of(name, seed, vocab, microbatches, sequence):
    """Without the mask's uneven counts where they are not the point; one microbatch twice where a running mean would hide the factor."""
    import torch

    mm.STEPS, mm.MICROBATCHES, mm.ROWS, mm.SEQ = 1, MICROBATCHES, ROWS, sequence
    batch = {k: v[:, :microbatches] for k, v in mm.batch_of(seed, vocab).items()}
    mm.MICROBATCHES = microbatches
    if name != "means":
        batch["loss_mask"] = torch.ones_like(batch["loss_mask"])
    else:  # every row has targets, more of them in its first half
        batch["loss_mask"] = torch.ones_like(batch["loss_mask"])
        batch["loss_mask"][..., sequence // 4:sequence // 2] = 0.0
    if name == "global_aux":
        batch = {k: v[:, :1].expand_as(v).contiguous() for k, v in batch.items()}
    return batch


def build(c, layout):
    """(config, chunks) of this rank."""
    config = mm.build_config(c, layout)
    return config, mm.build_chunks(c, config, layout)


@contextlib.contextmanager
def fixed(what):
    """Megatron-LM with a defect mended: what comes to light behind it, and in the end nothing."""
    from megatron.core.distributed import finalize_model_grads as file
    from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region
    from megatron.core.transformer import multi_latent_attention as mla

    rotate, reduce = mla.apply_rotary_pos_emb, sys.modules[file.__module__]._allreduce_non_tensor_model_parallel_grads

    def summed(t, *args, **kwargs):  # the key's positional part has one head: its gradient is the sum over tp
        return rotate(copy_to_tensor_model_parallel_region(t) if t.shape[2] == 1 else t, *args, **kwargs)

    def without(model, config, *args, **kwargs):  # what is whole on every rank is not summed
        config.qk_layernorm, kept = False, config.qk_layernorm
        reduce(model, config, *args, **kwargs)
        config.qk_layernorm = kept

    try:
        if "k_pe" in what:
            mla.apply_rotary_pos_emb = summed
        if "q_layernorm" in what:
            sys.modules[file.__module__]._allreduce_non_tensor_model_parallel_grads = without
        yield
    finally:
        mla.apply_rotary_pos_emb = rotate
        sys.modules[file.__module__]._allreduce_non_tensor_model_parallel_grads = reduce


def run(folder, name, layout, single):
    """One traced step of this rank."""
    import assay_trace.megatron
    import torch
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer.moe import moe_utils

    data_parallel = any(mm.layout_of(t)["dp"] > 1 for n, t, _, _ in verdicts(single) if n == name)
    in_step, sequence = MICROBATCHES if data_parallel or not single else 1, SEQ // 2 if single else SEQ
    c, seed = dict(PAIRS[name][0], **({"num_layers": 1} if single else {})), 1 + list(PAIRS).index(name)
    seed = 1 + list(PAIRS).index("mla") if name.startswith("mla") else seed
    with fixed(c.pop("fix", [])):
        config, chunks = build(c, layout)
        mm.load_weights(chunks, config, {k: mm.weight_of(seed, k, s) for k, s in mm.shapes_of(c).items()})
        n = in_step // layout["dp"]
        trace = assay_trace.megatron.attach(chunks, folder, microbatches=n, single=single,
                                            operations=not single, exclude=["*word_embeddings", "*embedding_dropout"] if single else [],
                                            megatron_core=mm.VERSION)
        wrapped = [DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), x) for x in chunks]
        config.finalize_model_grads_func = trace.finalizing(finalize_model_grads)
        moe_utils.get_moe_layer_wise_logging_tracker().clear()
        batch = batch_of(name, seed, c["vocab_size"], in_step, sequence)
        for x in wrapped:
            x.zero_grad_buffer()
        with trace.step():
            get_forward_backward_func()(
                forward_step_func=mm.forward_step, data_iterator=mm.microbatches(batch, 0, layout), model=wrapped[0],
                num_microbatches=n, seq_length=sequence, micro_batch_size=ROWS, forward_only=False)
            if config.num_moe_experts:
                for loss, value in mm.logged_losses(config).items():
                    trace.scalar(f"logged.{loss}", value / n)
        trace.close()
    torch.distributed.barrier()


def worker(path):
    """A rank of one layout: all jobs of it, one after the other."""
    import logging
    import warnings

    import assay_trace.megatron  # noqa: F401  before float32 means float64
    import megatron_cpu
    import torch

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    with open(path, "rb") as f:
        text, jobs, single = pickle.load(f)
    mode = megatron_cpu.install()
    layout = mm.layout_of(text)
    torch.distributed.init_process_group("gloo")
    from megatron.core import parallel_state as ps
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    from megatron.core.models import backends

    usual = backends.LocalSpecProvider.core_attention
    ps.initialize_model_parallel(
        tensor_model_parallel_size=layout["tp"], pipeline_model_parallel_size=layout["pp"], context_parallel_size=layout["cp"],
        expert_model_parallel_size=layout["ep"], expert_tensor_parallel_size=layout["etp"], create_gloo_process_groups=False)
    model_parallel_cuda_manual_seed(1)
    for name, folder in jobs:
        backends.LocalSpecProvider.core_attention = usual
        megatron_cpu.install_modules(layout["cp"] > 1, "multi_latent_attention" in PAIRS[name][0])
        run(folder, name, layout, single)
    mode.__exit__(None, None, None)


def spawn(text, jobs, single):
    """Fresh processes for each layout: gloo groups are never freed."""
    layout = mm.layout_of(text)
    with tempfile.TemporaryDirectory() as temporary:
        path = os.path.join(temporary, "jobs")
        with open(path, "wb") as f:
            pickle.dump((text, jobs, single), f)
        port, ranks = mm.free_port(), []
        for i in range(layout["world"]):
            env = dict(os.environ, RANK=str(i), LOCAL_RANK=str(i), WORLD_SIZE=str(layout["world"]), MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=str(port), OMP_NUM_THREADS="1")
            ranks.append(subprocess.Popen([sys.executable, __file__, "--worker", path], env=env))
        if any([r.wait() for r in ranks]):
            raise SystemExit(f"{text}: a rank failed")


def folder_of(root, name, text):
    return str(pathlib.Path(root) / name / text.replace(",", "_"))


def trace_all(root, names, single=False):
    by_layout = {}
    for name in names or (RECORDED if single else PAIRS):
        for text in ["1"] + [t for n, t, _, _ in verdicts(single) if n == name]:
            job = (BASE.get(name, name) if text == "1" else name, text)
            if job not in by_layout.setdefault(text, []):
                by_layout[text].append(job)
    for text, jobs in by_layout.items():
        spawn(text, [(n, folder_of(root, n, t)) for n, t in jobs], single)
        print(f"{text}: {' '.join(n for n, _ in jobs)}", flush=True)


def record(names):
    import json

    from files import MANIFEST, save_json, update_manifest

    trace_all(HERE / "showcase", names, single=True)
    save_json(HERE / "showcase" / "rows.json", [{"name": n, "base": BASE.get(n, n), "layout": t.replace(",", "_"), "defect": w, "sentence": words}
                                                for n, t, w, words in verdicts(recorded=True)])
    update_manifest("showcase", "python golden/showcase.py --record", {n: 1 + i for i, n in enumerate(PAIRS)}, "showcase")
    manifest = json.loads(MANIFEST.read_text())
    manifest["showcase"].pop("transformers", None)
    manifest["showcase"]["megatron_core"] = mm.VERSION
    save_json(MANIFEST, manifest)


def main(arguments):
    if arguments[:1] == ["--worker"]:
        worker(arguments[1])
    elif arguments[:1] == ["--judge"]:
        return 0 if judge(*arguments[1:]) else 1
    elif arguments[:1] == ["--record"]:
        record(arguments[1:])
    else:
        trace_all(arguments[0], arguments[1:])
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.exit(main(sys.argv[1:]))
