"""Small Hugging Face models, ways to run them, and mistakes to plant in them: for golden/trials_trace.py and golden/tests.

A mistake is a function of the model; it changes what the model does and not what its config says."""
import os
import socket
import types

import torch
import transformers

BASE = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=8, use_cache=False, attention_dropout=0.0, pad_token_id=None, bos_token_id=None, eos_token_id=None,
            max_position_embeddings=64)
MOE = dict(num_experts_per_tok=2, moe_intermediate_size=24)
FAMILIES = {
    "llama": ("LlamaConfig", {}), "llama3_rope": ("LlamaConfig", dict(rope_parameters=dict(
        rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16))),
    "llama_yarn": ("LlamaConfig", dict(rope_parameters=dict(
        rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=32))),
    "llama_yarn_mscale": ("LlamaConfig", dict(rope_parameters=dict(
        rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=32, beta_fast=4.5, beta_slow=0.5,
        truncate=False, mscale=0.7, mscale_all_dim=0.9))),
    "llama_8_heads": ("LlamaConfig", dict(num_attention_heads=8, num_key_value_heads=4)),
    "llama_tied": ("LlamaConfig", dict(tie_word_embeddings=True)),
    "mistral": ("MistralConfig", dict(sliding_window=5)), "qwen2": ("Qwen2Config", {}), "qwen3": ("Qwen3Config", {}),
    "gemma": ("GemmaConfig", {}),
    "mixtral": ("MixtralConfig", dict(num_local_experts=8, num_experts_per_tok=2)), "qwen3_moe": ("Qwen3MoeConfig", dict(
        num_experts=8, norm_topk_prob=True, **MOE)), "olmoe": ("OlmoeConfig", dict(num_experts=8, **MOE)),
    "olmoe_clip": ("OlmoeConfig", dict(num_experts=8, clip_qkv=0.7, output_router_logits=True, router_aux_loss_coef=0.02, **MOE)),
    "mixtral_aux": ("MixtralConfig", dict(num_local_experts=8, num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.02)),
    "deepseek_v2": ("DeepseekV2Config", dict(
        num_key_value_heads=4, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=24, first_k_dense_replace=1,
        n_shared_experts=1, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8)),
    "qwen2_moe": ("Qwen2MoeConfig", dict(num_experts=8, shared_expert_intermediate_size=16, **MOE)),
    "deepseek_v3": ("DeepseekV3Config", dict(
        num_key_value_heads=4, n_routed_experts=8, n_group=2, topk_group=2, num_experts_per_tok=4, moe_intermediate_size=24,
        first_k_dense_replace=1, n_shared_experts=1, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8,
        v_head_dim=8, rms_norm_eps=1e-5)),
}


def build(family, dtype=torch.float32, attention="sdpa", experts=None, seed=0):
    kind, more = FAMILIES[family]
    transformers.logging.set_verbosity_error()
    torch.manual_seed(seed)
    config = getattr(transformers, kind)(**{"tie_word_embeddings": False, **BASE, **more})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)
    if experts:
        model.set_experts_implementation(experts)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape) / p.shape[-1] ** 0.5 if p.dim() > 1 else 1 + 0.2 * torch.randn(p.shape))
    return model.train()


# --- ways to run ------------------------------------------------------------------------------------------------

def wrap(model, mode, world=1):
    """(what is called, the model that is traced)"""
    if mode == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif mode in ("fsdp2", "fsdp2_bf16"):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mode == "fsdp2_bf16" else MixedPrecisionPolicy()
        for layer in model.model.layers:
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    elif mode == "tp":
        tensor_parallel(model, world)
    elif mode == "compile":
        model.model.layers[0].self_attn.o_proj = torch.compile(model.model.layers[0].self_attn.o_proj)
    elif mode == "checkpoint":
        model.gradient_checkpointing_enable()
    elif mode == "checkpoint_reentrant":
        model.gradient_checkpointing_enable({"use_reentrant": True})
    elif mode not in ("plain", "autocast"):
        raise ValueError(mode)
    return model


def tensor_parallel(model, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    for layer in model.model.layers:
        plan = {f"self_attn.{x}_proj": ColwiseParallel() for x in "qkv"}
        plan["self_attn.o_proj"] = RowwiseParallel()
        if hasattr(layer.mlp, "gate_proj"):
            plan.update({"mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel()})
        parallelize_module(layer, mesh, plan)


def start_rank(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# --- mistakes ---------------------------------------------------------------------------------------------------

def modeling(model):
    import sys
    return sys.modules[type(model).__module__]


def swap(undo, owner, name, value):
    plain = getattr(owner, name)
    setattr(owner, name, value)
    undo.append(lambda: setattr(owner, name, plain))


def theta(model, undo):
    rope = model.model.rotary_emb
    rope.inv_freq.copy_(5000.0 ** -(torch.arange(0, 8, 2).float() / 8))


def eps(model, undo):
    model.model.layers[1].post_attention_layernorm.variance_epsilon = 1e-2


def residual(model, undo):
    def forward(self, hidden_states, **kwargs):
        hidden_states = self.input_layernorm(hidden_states)  # the residual is taken behind the norm
        hidden_states = hidden_states + self.self_attn(hidden_states=hidden_states, **kwargs)[0]
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))

    model.model.layers[1].forward = types.MethodType(forward, model.model.layers[1])


def gqa(model, undo):
    swap(undo, modeling(model), "repeat_kv", lambda x, n: x.repeat(1, n, 1, 1))  # heads 0 1 0 1 in place of 0 0 1 1


def norm_topk_prob(model, undo):
    model.model.layers[1].mlp.gate.norm_topk_prob = False


def mask(model, undo):
    file = modeling(model)
    plain = file.eager_attention_forward

    def shifted(module, query, key, value, attention_mask, **kwargs):
        hidden = torch.full((query.shape[2], key.shape[2]), torch.finfo(query.dtype).min, dtype=query.dtype).triu(0)
        hidden[0, 0] = 0
        return plain(module, query, key, value, hidden[None, None], **kwargs)

    swap(undo, file, "eager_attention_forward", shifted)


def bf16_softmax(model, undo):
    file = modeling(model)

    def attention(module, query, key, value, attention_mask, scaling, **kwargs):
        key, value = file.repeat_kv(key, module.num_key_value_groups), file.repeat_kv(value, module.num_key_value_groups)
        scores = torch.matmul(query, key.transpose(2, 3)) * scaling
        if attention_mask is not None:
            scores = scores + attention_mask
        p = torch.softmax(scores.bfloat16(), -1).to(query.dtype)
        return torch.matmul(p, value).transpose(1, 2).contiguous(), p

    swap(undo, file, "eager_attention_forward", attention)


def label_shift(model, undo):
    def loss(logits, labels, vocab_size, **kwargs):
        return torch.nn.functional.cross_entropy(logits.float().view(-1, vocab_size), labels.view(-1))  # not moved by one

    model.loss_function = loss


def tied(model, undo):
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * 1.01)


def dropout(model, undo):
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.3


def expert(model, undo, layer=1):
    experts = model.model.layers[layer].mlp.experts

    def forward(self, hidden_states, top_k_index, top_k_weights):
        out = torch.zeros_like(hidden_states)
        for e in range(self.num_experts):
            token, slot = torch.where(top_k_index == e)
            if token.numel() == 0:
                continue
            order = slot.argsort(stable=True)
            token, slot = token[order], slot[order]
            gate, up = torch.nn.functional.linear(hidden_states[token], self.gate_up_proj[e]).chunk(2, -1)
            down = torch.nn.functional.linear(self.act_fn(gate) * up, self.down_proj[(e + 1) % self.num_experts])
            out.index_add_(0, token, (down * top_k_weights[token, slot, None]).to(out.dtype))
        return out

    experts.forward = types.MethodType(forward, experts)


def double_scaling(model, undo):
    file = modeling(model)
    plain = file.eager_attention_forward
    swap(undo, file, "eager_attention_forward",
         lambda module, query, *args, **kwargs: plain(module, query * module.scaling, *args, **kwargs))


# name: (function, family, instance, operation)
MISTAKES = {
    "theta": (theta, "llama", "model.rotary_emb", "rope_table"),
    "eps": (eps, "llama", "model.layers.1.post_attention_layernorm", "rmsnorm_fwd"),
    "residual": (residual, "llama", "model.layers.1.self_attn.residual", "add"),
    "GQA mapping": (gqa, "llama_8_heads", "model.layers.0.self_attn.core_attention", "attention_fwd"),
    "norm_topk_prob": (norm_topk_prob, "qwen3_moe", "model.layers.1.mlp.gate.router", "router_fwd"),
    "mask off by one": (mask, "llama", "model.layers.0.self_attn.core_attention", "attention_fwd"),
    "bf16 softmax": (bf16_softmax, "llama", "model.layers.0.self_attn.core_attention", "attention_fwd"),
    "label shift": (label_shift, "llama", "loss_function", "cross_entropy_fwd"),
    "tied weight not shared": (tied, "llama_tied", "lm_head", "linear_fwd"),
    "dropout left on": (dropout, "llama", "model.layers.0.self_attn.core_attention", "attention_fwd"),
    "wrong expert weight": (expert, "qwen3_moe", "model.layers.1.mlp.experts.down_proj", "grouped_linear_fwd"),
    "double scaling": (double_scaling, "llama", "model.layers.0.self_attn.core_attention", "attention_fwd"),
}
