"""Two training steps of small models in the real Megatron core (NVIDIA/Megatron-LM, PyPI megatron-core), over
gloo processes on a CPU, in double: golden/megatron/NAME, described in golden/README.md.

    VENV/bin/pip install --no-deps megatron-core==0.16.1      # next to torch, numpy, safetensors, absl-py
    VENV/bin/python golden/make_megatron.py [NAME...]

Nothing is imported from assay. Weights and batches come from `draw`, a counter-based rule: element i of a tensor
depends on seed, name and i alone.
"""
import json
import os
import pathlib
import pickle
import socket
import subprocess
import sys
import tempfile

GOLDEN = pathlib.Path(__file__).resolve().parent
FOLDER = GOLDEN / "megatron"
VERSION = "0.16.1"

DENSE = {"num_layers": 2, "hidden_size": 16, "ffn_hidden_size": 24, "num_attention_heads": 4, "num_query_groups": 2,
         "kv_channels": 4, "vocab_size": 44, "max_position_embeddings": 32, "normalization": "RMSNorm",
         "layernorm_epsilon": 1e-5, "gated_linear_unit": True, "activation_func": "silu",
         "position_embedding_type": "rope", "rotary_base": 10000, "rotary_percent": 1.0, "add_bias_linear": False,
         "add_qkv_bias": False, "qk_layernorm": False, "untie_embeddings_and_output_weights": True,
         "attention_dropout": 0.0, "hidden_dropout": 0.0, "init_method_std": 0.02,
         "calculate_per_token_loss": True}
MOE = dict(DENSE, num_moe_experts=4, moe_router_topk=2, moe_ffn_hidden_size=8, moe_router_score_function="softmax",
           moe_router_pre_softmax=False, moe_router_load_balancing_type="none", moe_aux_loss_coeff=0.0,
           moe_token_dispatcher_type="alltoall", moe_layer_freq=1)
SIGMOID = dict(MOE, moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True,
               moe_router_bias_update_rate=0.02, moe_router_topk_scaling_factor=1.5)

LATENT = dict(multi_latent_attention=True, num_query_groups=4, qk_layernorm=True, q_lora_rank=6, kv_lora_rank=5, qk_head_dim=3,
              qk_pos_emb_head_dim=4, v_head_dim=5, rope_type="rope")
MLA = dict(DENSE, **LATENT)

DENSE_LAYOUTS = ["1", "tp2", "tp2,sp", "dp2", "dp2,zero1", "pp2", "tp2,pp2", "cp2"]
MLA_LAYOUTS = ["1", "dp2", "dp2,zero1", "pp2"]
MOE_LAYOUTS = ["1", "dp2", "ep2", "dp4,ep2", "tp2,sp,etp2", "tp2,sp,ep2,etp1", "pp2", "cp2"]
CONFIGS = {
    "dense": (dict(DENSE, num_layers=4), DENSE_LAYOUTS + ["pp2,vpp2"]),
    "qk_norm": (dict(DENSE, qk_layernorm=True, untie_embeddings_and_output_weights=False), DENSE_LAYOUTS),
    "bias": (dict(DENSE, add_bias_linear=True), DENSE_LAYOUTS),
    "qkv_bias": (dict(DENSE, add_qkv_bias=True, num_query_groups=4, kv_channels=6,
                      untie_embeddings_and_output_weights=False), DENSE_LAYOUTS),
    "dense_means": (dict(DENSE, calculate_per_token_loss=False), DENSE_LAYOUTS),
    "softmax_post": (dict(MOE, moe_token_dispatcher_type="allgather"), MOE_LAYOUTS + ["tp2,sp,etp1"]),
    "softmax_pre": (dict(MOE, moe_router_pre_softmax=True, moe_router_topk=3), MOE_LAYOUTS),
    "sigmoid": (SIGMOID, MOE_LAYOUTS),
    "groups": (dict(SIGMOID, num_moe_experts=8, moe_router_num_groups=4, moe_router_group_topk=2,
                    moe_router_topk=4, moe_token_dispatcher_type="allgather"), MOE_LAYOUTS),
    "aux": (dict(MOE, moe_router_load_balancing_type="aux_loss", moe_aux_loss_coeff=0.1), MOE_LAYOUTS),
    "aux_sigmoid": (dict(SIGMOID, moe_router_load_balancing_type="aux_loss", moe_aux_loss_coeff=0.1,
                         moe_z_loss_coeff=0.02), MOE_LAYOUTS),
    "aux_means": (dict(MOE, moe_router_load_balancing_type="aux_loss", moe_aux_loss_coeff=0.1,
                       moe_z_loss_coeff=0.02, calculate_per_token_loss=False), MOE_LAYOUTS),
    "z": (dict(MOE, moe_z_loss_coeff=0.05), MOE_LAYOUTS),
    "seq_aux": (dict(MOE, moe_router_load_balancing_type="seq_aux_loss", moe_aux_loss_coeff=0.1), MOE_LAYOUTS),
    "global_aux": (dict(MOE, moe_router_load_balancing_type="global_aux_loss", moe_aux_loss_coeff=0.1),
                   MOE_LAYOUTS),
    "many_aux": (dict(MOE, moe_router_load_balancing_type=["aux_loss", "seq_aux_loss", "global_aux_loss"],
                      moe_aux_loss_coeff=[0.1, 0.05, 0.2], moe_z_loss_coeff=0.02,
                      calculate_per_token_loss=False), MOE_LAYOUTS),
    "capacity_probs": (dict(MOE, moe_expert_capacity_factor=0.75, moe_token_drop_policy="probs"), MOE_LAYOUTS),
    "capacity_position": (dict(MOE, moe_expert_capacity_factor=1.0, moe_token_drop_policy="position",
                               moe_pad_expert_input_to_capacity=True), MOE_LAYOUTS),
    "shared": (dict(MOE, moe_shared_expert_intermediate_size=6, moe_layer_freq=[0, 1], moe_router_pre_softmax=True,
                    moe_token_dispatcher_type="allgather"), MOE_LAYOUTS),
    "shared_gate": (dict(MOE, moe_shared_expert_intermediate_size=6, moe_shared_expert_gate=True,
                         qk_layernorm=True), MOE_LAYOUTS),
    # no tp: there the core forgets parts of sums (docs/SHOWCASE.md, `mla`); no cp: the plain attention has the keys of its rank
    "mla": (MLA, MLA_LAYOUTS),
    "mla_whole_q": (dict(MLA, q_lora_rank=None, untie_embeddings_and_output_weights=False), MLA_LAYOUTS),
    "mla_experts": (dict(SIGMOID, num_moe_experts=8, moe_router_num_groups=4, moe_router_group_topk=2, moe_router_topk=4,
                         moe_shared_expert_intermediate_size=6, moe_layer_freq=[0, 1], **LATENT), MLA_LAYOUTS + ["ep2"]),
}
# the core's own rotation of latent attention: positions beyond the original 4, both factors not 1
CONFIGS["mla_yarn"] = (dict(MLA, rope_type="yarn", rotary_base=100, rotary_scaling_factor=4.0, original_max_position_embeddings=4,
                            beta_fast=1.0, beta_slow=0.25, mscale=0.7, mscale_all_dim=0.9), MLA_LAYOUTS)
for _c, _ in list(CONFIGS.values())[-4:]:
    del _c["kv_channels"]  # of the usual attention
STEPS, MICROBATCHES, ROWS, SEQ = 2, 4, 2, 8
TRAINING = {"lr": 0.01, "min_lr": 0.01, "weight_decay": 0.1, "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8,
            "clip_grad": 1.0}
NOISE = 1e-11  # a layout whose tensors differ by more, relative to the largest of the tensor, has a file of its own


# --- the rule of weights and batches ------------------------------------------------------------------------------

def mix(x):
    """splitmix64's finalizer: one step of a counter-based generator."""
    x = (x + 0x9E3779B97F4A7C15) & (2**64 - 1)
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return x ^ (x >> 31)


def fnv(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001B3) & (2**64 - 1)
    return h


def draw(seed, name, count, below):
    """Integers in [0, below): element i is mix(mix(seed + hash of the name) + i) mod below."""
    start = mix((seed + fnv(name)) & (2**64 - 1))
    return [mix((start + i) & (2**64 - 1)) % below for i in range(count)]


def weight_of(seed, name, shape):
    """Multiples of 1/128 (norms: 0.75 to 1.25), of 1/256 (biases), of 1/256 (weights): exact in bf16."""
    import torch

    count = 1
    for n in shape:
        count *= n
    if name.endswith("layernorm.weight"):
        values = [1.0 + (k - 32) / 128 for k in draw(seed, name, count, 65)]
    elif name.endswith("expert_bias"):
        values = [(k - 16) / 256 for k in draw(seed, name, count, 33)]
    else:
        values = [(k - 127) / 256 for k in draw(seed, name, count, 255)]
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


def batch_of(seed, vocab):
    """Megatron-LM's batch: labels already shifted; a mask with very uneven numbers of targets, one row with none."""
    import torch

    shape = (STEPS, MICROBATCHES, ROWS, SEQ)
    count = STEPS * MICROBATCHES * ROWS
    text = torch.tensor(draw(seed, "tokens", count * (SEQ + 1), vocab)).reshape(count, SEQ + 1)
    mask = torch.tensor(draw(seed, "mask", count * SEQ, 8)).reshape(count, SEQ)
    rate = torch.tensor(draw(seed, "rate", count, 8)).reshape(count, 1)
    mask = (mask >= rate).to(torch.float64)
    mask[3] = 0.0
    position = torch.arange(SEQ).expand(count, SEQ)
    return {"tokens": text[:, :-1].reshape(shape), "labels": text[:, 1:].reshape(shape),
            "loss_mask": mask.reshape(shape), "position_ids": position.reshape(shape)}


# --- one rank -----------------------------------------------------------------------------------------------------

def layout_of(text):
    """"tp2,sp,ep2,etp1" -> {"tp": 2, "sp": 1, ...}; etp is Megatron-LM's default, tp, unless it is named."""
    out = {k: 1 for k in ("tp", "pp", "dp", "cp", "ep", "vpp")}
    out.update(sp=0, zero1=0)
    for word in text.split(","):
        key = word.rstrip("0123456789")
        if text != "1":
            if word == "zero1":
                out["zero1"] = 1
            else:
                out[key] = int(word[len(key):] or 1)
    out.setdefault("etp", out["tp"])
    if out["ep"] * out["etp"] > out["tp"] * out["cp"] * out["dp"]:
        out["dp"] = out["ep"] * out["etp"] // (out["tp"] * out["cp"])
    out["world"] = out["tp"] * out["pp"] * out["dp"] * out["cp"]
    return out


def build_config(c, layout):
    import torch
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    ours = {"vocab_size", "max_position_embeddings", "position_embedding_type", "untie_embeddings_and_output_weights",
            "activation_func"}
    latent, moe = c.get("multi_latent_attention", False), "num_moe_experts" in c
    if not latent:  # there they are words of the configuration
        ours |= {"rotary_base", "rotary_percent"}
    return (MLATransformerConfig if latent else TransformerConfig)(
        **{k: v for k, v in c.items() if k not in ours},
        activation_func=torch.nn.functional.silu, tensor_model_parallel_size=layout["tp"],
        pipeline_model_parallel_size=layout["pp"], context_parallel_size=layout["cp"],
        virtual_pipeline_model_parallel_size=layout["vpp"] if layout["vpp"] > 1 else None,
        expert_model_parallel_size=layout["ep"], expert_tensor_parallel_size=layout["etp"] if moe else None,
        sequence_parallel=bool(layout["sp"]), params_dtype=torch.float32, pipeline_dtype=torch.float32,
        bias_activation_fusion=False, bias_dropout_fusion=False,
        masked_softmax_fusion=False, gradient_accumulation_fusion=False, apply_rope_fusion=False,
        batch_p2p_comm=False, overlap_p2p_comm=False, deallocate_pipeline_outputs=False)


def build_chunks(c, config, layout):
    from megatron.core import parallel_state as ps
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec

    chunks = []
    for v in range(layout["vpp"]):
        stage = v if layout["vpp"] > 1 else None
        if config.num_moe_experts:
            spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm",
                                              qk_l2_norm=False, vp_stage=stage)
        else:
            spec = get_gpt_layer_local_spec(multi_latent_attention=config.multi_latent_attention,
                                            qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
        chunks.append(GPTModel(
            config, spec, c["vocab_size"], c["max_position_embeddings"],
            pre_process=ps.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
            post_process=ps.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
            parallel_output=True, position_embedding_type="rope", rotary_percent=c["rotary_percent"],
            rotary_base=c["rotary_base"], vp_stage=stage,
            share_embeddings_and_output_weights=not c["untie_embeddings_and_output_weights"]))
    return chunks


def global_name(chunk, name, config):
    """Layer and expert numbers of the whole model."""
    from megatron.core import parallel_state as ps

    words = name.removeprefix("module.").split(".")
    if words[:2] == ["decoder", "layers"]:
        words[2] = str(chunk.decoder.layers[int(words[2])].layer_number - 1)
    if "local_experts" in words:
        at = words.index("local_experts") + 1
        each = config.num_moe_experts // ps.get_expert_model_parallel_world_size()
        words[at] = str(int(words[at]) + each * ps.get_expert_model_parallel_rank())
    return ".".join(words)


def cut_of(name, p, config):
    """(dimension, blocks, size, rank) of a parameter's piece, or None where every rank holds it whole."""
    from megatron.core import parallel_state as ps

    if not getattr(p, "tensor_model_parallel", False):
        return None
    size, rank = ps.get_tensor_model_parallel_world_size(), ps.get_tensor_model_parallel_rank()
    if "local_experts" in name:
        size, rank = ps.get_expert_tensor_parallel_world_size(), ps.get_expert_tensor_parallel_rank()
    blocks = 2 if "linear_fc1" in name else 1  # [gate; up], each cut by itself
    return (p.partition_dim, blocks, size, rank) if size > 1 else None


def take(whole, cut):
    import torch

    if cut is None:
        return whole
    dim, blocks, size, rank = cut
    return torch.cat([b.chunk(size, dim)[rank] for b in whole.chunk(blocks, dim)], dim)


def assemble(pieces):
    """Whole tensors from the pieces of all ranks, and the worst difference of two copies of one."""
    import torch

    whole, worst = {}, 0.0
    by_name = {}
    for rank in pieces:
        for name, cut, t in rank:
            by_name.setdefault(name, []).append((cut, t))
    for name, list_ in by_name.items():
        places = {}
        for cut, t in list_:
            at = cut[3] if cut else 0
            if at in places:
                worst = max(worst, float((places[at] - t).abs().max()))
            else:
                places[at] = t
        cut = list_[0][0]
        if cut is None:
            whole[name] = places[0]
            continue
        dim, blocks, size, _ = cut
        parts = [places[r].chunk(blocks, dim) for r in range(size)]
        whole[name] = torch.cat([parts[r][b] for b in range(blocks) for r in range(size)], dim)
    return whole, worst


def local_pieces(chunks, config, what):
    """[(global name, cut, tensor)] of this rank; a tied copy on the last stage counts as the embedding."""
    import torch

    out = []
    for chunk in chunks:
        m = chunk.module if hasattr(chunk, "ddp_config") else chunk
        for name, p in m.named_parameters():
            g = global_name(m, name, config)
            if g == "output_layer.weight" and m.share_embeddings_and_output_weights:
                g = "embedding.word_embeddings.weight"
            t = {"weight": p.data, "grad": getattr(p, "main_grad", None)}[what]
            out.append((g, cut_of(name, p, config), t.detach().clone()))
        if what == "weight":
            for name, b in m.named_buffers():
                if name.endswith("expert_bias") and b is not None:
                    out.append((global_name(m, name, config), None, b.detach().clone()))
    return out


def gather(x):
    import torch

    out = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(out, x)
    return out


def load_weights(chunks, config, weights):
    for chunk in chunks:
        tensors = list(chunk.named_parameters()) + [b for b in chunk.named_buffers() if b[0].endswith("expert_bias")]
        for name, p in tensors:
            g = global_name(chunk, name, config)
            if g == "output_layer.weight" and chunk.share_embeddings_and_output_weights:
                g = "embedding.word_embeddings.weight"
            p.data.copy_(take(weights[g], cut_of(name, p, config)))


def microbatches(batch, step, layout):
    """Megatron's data iterator of this rank: its share of the step's microbatches, its part of the sequence."""
    from megatron.core import parallel_state as ps
    from megatron.core.utils import get_batch_on_this_cp_rank

    n = MICROBATCHES // layout["dp"]
    for m in range(ps.get_data_parallel_rank() * n, (ps.get_data_parallel_rank() + 1) * n):
        yield get_batch_on_this_cp_rank({k: v[step, m].contiguous() for k, v in batch.items()})


def forward_step(iterator, model):
    import torch

    b = next(iterator)
    out = model(b["tokens"], b["position_ids"], None, labels=b["labels"])

    def loss(output):
        total = (output.reshape(-1) * b["loss_mask"].reshape(-1)).sum()
        count = b["loss_mask"].sum().to(torch.int)
        return total, count, torch.stack([total.detach(), count.to(torch.float64)])

    return out, loss


def logged_losses(config):
    """{name: per layer value} as Megatron-LM logs them: loss / coefficient, mean over microbatches."""
    from megatron.core.transformer.moe import moe_utils

    tracker = moe_utils.get_moe_layer_wise_logging_tracker()
    names = gather(sorted(tracker))
    for name in sorted({n for rank in names for n in rank}):
        if name not in tracker:  # a stage without the layer
            import torch
            tracker[name] = {"values": torch.zeros(config.num_layers), "reduce_group": None, "avg_group": None}
    moe_utils.reduce_aux_losses_tracker_across_ranks(sorted(tracker))
    return {k: v["values"].detach().clone() for k, v in sorted(tracker.items())}


def train(c, layout, weights, batch):
    """Everything that one layout gives, assembled on every rank."""
    import torch
    from megatron.core import parallel_state as ps
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer, get_standard_config_overrides
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer.moe import moe_utils

    config = build_config(c, layout)
    chunks = build_chunks(c, config, layout)
    load_weights(chunks, config, weights)
    ddp = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=bool(layout["zero1"]),
                                        overlap_grad_reduce=False)
    chunks = [DistributedDataParallel(config, ddp, chunk) for chunk in chunks]
    config.finalize_model_grads_func = finalize_model_grads
    oc = OptimizerConfig(optimizer="adam", use_distributed_optimizer=bool(layout["zero1"]),
                         log_num_zeros_in_grad=True, params_dtype=torch.float32,
                         **{k: v for k, v in TRAINING.items()})
    optimizer = get_megatron_optimizer(oc, chunks, get_standard_config_overrides(oc), use_gloo_process_groups=False)
    schedule = OptimizerParamScheduler(
        optimizer, init_lr=TRAINING["lr"], max_lr=TRAINING["lr"], min_lr=TRAINING["lr"], lr_warmup_steps=0,
        lr_decay_steps=STEPS, lr_decay_style="constant", start_wd=TRAINING["weight_decay"],
        end_wd=TRAINING["weight_decay"], wd_incr_steps=STEPS, wd_incr_style="constant")
    config.grad_scale_func = optimizer.scale_loss
    out = {"loss": [], "grad_norm": [], "zeros": [], "replicas": 0.0}
    moe_utils.get_moe_layer_wise_logging_tracker().clear()
    for step in range(STEPS):
        moe_utils.clear_aux_losses_tracker()
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        iterators = [microbatches(batch, step, layout) for _ in chunks]
        losses = get_forward_backward_func()(
            forward_step_func=forward_step, data_iterator=iterators if len(chunks) > 1 else iterators[0],
            model=chunks if len(chunks) > 1 else chunks[0], num_microbatches=MICROBATCHES // layout["dp"],
            seq_length=SEQ, micro_batch_size=ROWS, forward_only=False)
        if step == 0 and not layout["zero1"]:
            out["grad"], out["replicas"] = assemble(gather(local_pieces(chunks, config, "grad")))
        ok, norm, zeros = optimizer.step()
        assert ok
        schedule.step(1)
        moe_utils_losses = logged_losses(config)
        out.setdefault("aux", []).append({k: v / (MICROBATCHES // layout["dp"]) for k, v in moe_utils_losses.items()})
        total = torch.stack(losses).sum(0) if losses else torch.zeros(2)
        if ps.get_tensor_model_parallel_rank() != 0:
            total = torch.zeros(2)
        torch.distributed.all_reduce(total)
        out["loss"].append(float(total[0] / total[1]))
        out["grad_norm"].append(float(norm))
        out["zeros"].append(int(zeros))
    out["weight"], _ = assemble(gather(local_pieces(chunks, config, "weight")))
    return out


def worker(text, path, jobs):
    """A rank of layout `text`: runs its jobs {name: config}, rank 0 writes {name: result}."""
    sys.path.insert(0, str(GOLDEN))
    import logging
    import warnings

    import megatron_cpu
    import torch

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    mode = megatron_cpu.install()
    layout = layout_of(text)
    torch.distributed.init_process_group("gloo")
    from megatron.core import parallel_state as ps
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    megatron_cpu.install_modules(layout["cp"] > 1, any(c.get("multi_latent_attention") for c, _, _ in jobs.values()))
    ps.initialize_model_parallel(
        tensor_model_parallel_size=layout["tp"], pipeline_model_parallel_size=layout["pp"],
        virtual_pipeline_model_parallel_size=layout["vpp"] if layout["vpp"] > 1 else None,
        context_parallel_size=layout["cp"], expert_model_parallel_size=layout["ep"],
        expert_tensor_parallel_size=layout["etp"], create_gloo_process_groups=False)
    model_parallel_cuda_manual_seed(1)
    results = {}
    for name, (c, weights, batch) in jobs.items():
        try:
            results[name] = train(c, layout, weights, batch)
        except (AssertionError, ValueError) as e:
            import traceback
            traceback.print_exc()
            results[name] = {"refused": f"{type(e).__name__}: {e}"}
    if torch.distributed.get_rank() == 0:
        with open(path, "wb") as f:
            pickle.dump(results, f)
    torch.distributed.barrier()
    mode.__exit__(None, None, None)


# --- all layouts --------------------------------------------------------------------------------------------------

def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_layout(text, jobs):
    """Fresh processes for each layout: gloo groups are never freed."""
    layout = layout_of(text)
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/jobs", "wb") as f:
            pickle.dump(jobs, f)
        port = free_port()
        ranks = []
        for rank in range(layout["world"]):
            env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(layout["world"]),
                       MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
            ranks.append(subprocess.Popen([sys.executable, __file__, "--worker", text, folder], env=env))
        if any([r.wait() for r in ranks]):
            raise SystemExit(f"{text}: a rank failed")
        with open(f"{folder}/result", "rb") as f:
            return pickle.load(f)


def shapes_of(c):
    """{name: shape} of the whole model: Megatron-LM's names."""
    h, d, v = c["hidden_size"], c.get("kv_channels"), c["vocab_size"]
    heads, groups = c["num_attention_heads"], c["num_query_groups"]
    bias, qkv_bias = c["add_bias_linear"], c["add_bias_linear"] or c["add_qkv_bias"]
    freq = c.get("moe_layer_freq", 1)
    out = {"embedding.word_embeddings.weight": (v, h), "decoder.final_layernorm.weight": (h,)}
    if c["untie_embeddings_and_output_weights"]:
        out["output_layer.weight"] = (v, h)

    def mlp(prefix, f):
        out[f"{prefix}.linear_fc1.weight"], out[f"{prefix}.linear_fc2.weight"] = (2 * f, h), (h, f)
        if bias:
            out[f"{prefix}.linear_fc1.bias"], out[f"{prefix}.linear_fc2.bias"] = (2 * f,), (h,)

    def latent(p):
        q, kv = c["q_lora_rank"], c["kv_lora_rank"]
        nope, pe, wide = c["qk_head_dim"], c["qk_pos_emb_head_dim"], c["v_head_dim"]
        if q is None:
            out[f"{p}.linear_q_proj.weight"] = (heads * (nope + pe), h)
        else:
            out.update({f"{p}.linear_q_down_proj.weight": (q, h), f"{p}.linear_q_up_proj.weight": (heads * (nope + pe), q),
                        f"{p}.q_layernorm.weight": (q,)})
        out.update({f"{p}.linear_kv_down_proj.weight": (kv + pe, h), f"{p}.linear_kv_up_proj.weight": (heads * (nope + wide), kv),
                    f"{p}.linear_proj.weight": (h, heads * wide), f"{p}.kv_layernorm.weight": (kv,)})

    for n in range(c["num_layers"]):
        p = f"decoder.layers.{n}"
        out[f"{p}.input_layernorm.weight"] = out[f"{p}.pre_mlp_layernorm.weight"] = (h,)
        if c.get("multi_latent_attention"):
            latent(f"{p}.self_attention")
        else:
            out[f"{p}.self_attention.linear_qkv.weight"] = ((heads + 2 * groups) * d, h)
            out[f"{p}.self_attention.linear_proj.weight"] = (h, heads * d)
            if qkv_bias:
                out[f"{p}.self_attention.linear_qkv.bias"] = ((heads + 2 * groups) * d,)
            if bias:
                out[f"{p}.self_attention.linear_proj.bias"] = (h,)
            if c["qk_layernorm"]:
                out[f"{p}.self_attention.q_layernorm.weight"] = out[f"{p}.self_attention.k_layernorm.weight"] = (d,)
        if "num_moe_experts" not in c or not (freq[n] if isinstance(freq, list) else n % freq == 0):
            mlp(f"{p}.mlp", c["ffn_hidden_size"])
            continue
        out[f"{p}.mlp.router.weight"] = (c["num_moe_experts"], h)
        if c.get("moe_router_enable_expert_bias"):
            out[f"{p}.mlp.router.expert_bias"] = (c["num_moe_experts"],)
        for e in range(c["num_moe_experts"]):
            mlp(f"{p}.mlp.experts.local_experts.{e}", c["moe_ffn_hidden_size"])
        if c.get("moe_shared_expert_intermediate_size"):
            mlp(f"{p}.mlp.shared_experts", c["moe_shared_expert_intermediate_size"])
            if c.get("moe_shared_expert_gate"):
                out[f"{p}.mlp.shared_experts.gate_weight"] = (1, h)
    return out


def difference(a, b):
    """Worst element of a - b relative to the largest of b."""
    worst = float((a - b).abs().max())
    return worst / max(float(b.abs().max()), 1e-300) if worst > 0 else 0.0


def flat(result):
    """{name: tensor} of a result as a golden file holds it."""
    import torch

    out = {f"{kind}.{k}": v for kind in ("grad", "weight") for k, v in result.get(kind, {}).items()}
    for key in ("loss", "grad_norm"):
        out[key] = torch.tensor(result[key], dtype=torch.float64)
    out["zeros"] = torch.tensor(result["zeros"])
    for name in result["aux"][0]:
        out[name] = torch.stack([a[name] for a in result["aux"]]).to(torch.float64)
    return out


def write(name, c, seed, weights, batch, results):
    """One golden for all layouts that agree, and what differs for each that does not."""
    import torch
    from files import save_json, save_safetensors

    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*"):
        old.unlink()
    save_json(folder / "config.json", dict(c, model_type="megatron"))
    save_safetensors(folder / "model.safetensors",
                     {k: v if k.endswith("expert_bias") else v.to(torch.bfloat16) for k, v in weights.items()})
    save_safetensors(folder / "batch.safetensors", dict(batch, loss_mask=batch["loss_mask"].to(torch.int64)))
    whole = flat(results["1"])
    save_safetensors(folder / "golden.safetensors", whole)
    layouts, written = {}, {}
    for text, result in results.items():
        if "refused" in result:
            layouts[text] = result
            continue
        mine = flat(result)
        differ = {k: difference(v, whole[k]) if k != "zeros" else float((v - whole[k]).abs().max())
                  for k, v in mine.items()}
        worst = {kind: max([v for k, v in differ.items() if k.split(".")[0] == kind], default=None)
                 for kind in ("loss", "grad_norm", "zeros", "grad", "weight")}
        worst["losses of layers"] = max([v for k, v in differ.items() if k.endswith("_loss") or k.endswith("z_loss")],
                                        default=None)
        layouts[text] = {"worst": worst, "replicas": result["replicas"]}
        own = {k: v for k, v in mine.items() if differ[k] > NOISE}
        if not own:
            continue
        same = [f for f, theirs in written.items()
                if theirs.keys() == own.keys() and all(difference(own[k], theirs[k]) <= NOISE for k in own)]
        file = same[0] if same else f"golden.{text.replace(',', '_')}.safetensors"
        layouts[text]["file"] = file
        if not same:
            written[file] = own
            save_safetensors(folder / file, own)
    save_json(folder / "layouts.json", layouts)
    return layouts


def main(names):
    sys.path.insert(0, str(GOLDEN))
    import torch
    from files import save_json, update_manifest

    chosen = {n: CONFIGS[n] for n in (names or CONFIGS)}
    jobs = {}
    for name, (c, _) in chosen.items():
        seed = 1 + list(CONFIGS).index(name)
        weights = {k: weight_of(seed, k, s) for k, s in shapes_of(c).items()}
        jobs[name] = (c, weights, batch_of(seed, c["vocab_size"]))
    results = {name: {} for name in chosen}
    texts = list(dict.fromkeys(t for _, layouts in chosen.values() for t in layouts))
    for text in texts:
        mine = {n: jobs[n] for n, (_, layouts) in chosen.items() if text in layouts}
        for name, result in run_layout(text, mine).items():
            results[name][text] = result
        print(f"{text}: {len(mine)} configurations", flush=True)
    for name, (c, _) in chosen.items():
        layouts = write(name, c, 1 + list(CONFIGS).index(name), *jobs[name][1:], results[name])
        for text, l in layouts.items():
            print(f"{name:18} {text:16}", l.get("refused") or " ".join(
                f"{k} {v:.1e}" for k, v in l["worst"].items() if v is not None), l.get("file", ""), flush=True)
    save_json(FOLDER / "options.json", TRAINING)
    update_manifest("megatron", "python golden/make_megatron.py",
                    {n: 1 + i for i, n in enumerate(CONFIGS)}, "megatron")
    manifest_version()


def manifest_version():
    """The pinned version of the core, next to that of torch."""
    from importlib.metadata import version
    from files import MANIFEST, save_json

    assert version("megatron-core") == VERSION, f"expected megatron-core {VERSION}"
    manifest = json.loads(MANIFEST.read_text())
    manifest["megatron"].pop("transformers", None)
    manifest["megatron"]["megatron_core"] = VERSION
    save_json(MANIFEST, manifest)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        with open(f"{sys.argv[3]}/jobs", "rb") as f:
            worker(sys.argv[2], f"{sys.argv[3]}/result", pickle.load(f))
    else:
        main(sys.argv[1:])
