"""Small random models of twelve architectures with Hugging Face transformers, in double.

Per model, under golden/models/<name>/: config.json, model.safetensors, batch.safetensors,
golden.safetensors; for five of them also train_batch, train_golden and train_options.json.
README.md says what is in each file. Run: python golden/make_models.py [--check-only] [NAME...]
"""
import argparse
import json
import pathlib
import shutil
import tempfile

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file

from double import FLOAT32, FLOAT64, Float32Counter, deterministic, doubles
from files import GOLDEN, save_json, save_safetensors, update_manifest

MODELS = GOLDEN / "models"
BATCH, SEQ = 2, 41
TRAIN_SHAPE = (3, 2, 2, 24)  # steps, microbatches, batch, sequence
IGNORE = -100
UNTRAINED = "e_score_correction_bias"  # a buffer in every file: no gradient

# "v4" asks for rope_theta + rope_scaling on disk, as transformers 4 wrote it; "rope_scaling" is then
# that entry. "rename" gives keys of config.json the name that folders on the hub have (transformers 5
# saves num_experts as num_local_experts and reads both). "layout": every size that a layout cuts in
# two is even.
CASES = {
    "llama": dict(
        seed=11, arch="Llama", layout=True, train=dict(clip_grad=1.0),
        config=dict(
            vocab_size=131, hidden_size=64, intermediate_size=56, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=True,
            max_position_embeddings=512,
            rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                                 high_freq_factor=4.0, original_max_position_embeddings=64))),
    "llama_bias": dict(
        seed=12, arch="Llama", v4=True, rope_scaling=dict(type="linear", factor=2.5),
        config=dict(
            vocab_size=97, hidden_size=40, intermediate_size=51, num_hidden_layers=3,
            num_attention_heads=5, num_key_value_heads=1, rms_norm_eps=1e-6, tie_word_embeddings=False,
            attention_bias=True, mlp_bias=True, max_position_embeddings=128,
            rope_parameters=dict(rope_type="linear", rope_theta=500.0, factor=2.5))),
    "qwen2": dict(
        seed=13, arch="Qwen2", layout=True,
        config=dict(
            vocab_size=130, hidden_size=32, intermediate_size=72, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6, tie_word_embeddings=False,
            use_sliding_window=True, sliding_window=7, max_window_layers=2, max_position_embeddings=128,
            rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
    "qwen3": dict(
        seed=14, arch="Qwen3",
        config=dict(
            vocab_size=97, hidden_size=32, intermediate_size=61, num_hidden_layers=3, head_dim=16,
            num_attention_heads=3, num_key_value_heads=1, rms_norm_eps=1e-6, tie_word_embeddings=True,
            max_position_embeddings=128, rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "qwen3_moe": dict(
        seed=73, arch="Qwen3Moe", layout=True, rename=dict(num_local_experts="num_experts"), train=dict(clip_grad=5.0),
        config=dict(
            vocab_size=61, hidden_size=32, intermediate_size=40, moe_intermediate_size=16,
            num_hidden_layers=4, head_dim=16, num_attention_heads=4, num_key_value_heads=2,
            num_experts=8, num_experts_per_tok=2, norm_topk_prob=True, mlp_only_layers=[1],
            decoder_sparse_step=1, rms_norm_eps=1e-6, tie_word_embeddings=False,
            max_position_embeddings=128, rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
    "qwen3_moe_sparse2": dict(
        seed=30, arch="Qwen3Moe",
        config=dict(
            vocab_size=97, hidden_size=36, intermediate_size=50, moe_intermediate_size=20,
            num_hidden_layers=4, head_dim=8, num_attention_heads=3, num_key_value_heads=3,
            num_experts=8, num_experts_per_tok=3, norm_topk_prob=False, mlp_only_layers=[],
            decoder_sparse_step=2, rms_norm_eps=1e-6, tie_word_embeddings=True, attention_bias=True,
            max_position_embeddings=128, rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "mixtral": dict(
        seed=42, arch="Mixtral", v4=True, rope_scaling=None,
        config=dict(
            vocab_size=97, hidden_size=48, intermediate_size=28, num_hidden_layers=2,
            num_attention_heads=6, num_key_value_heads=3, num_local_experts=4, num_experts_per_tok=2,
            sliding_window=9, rms_norm_eps=1e-5, tie_word_embeddings=False,
            max_position_embeddings=128, rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "mistral": dict(
        seed=51, arch="Mistral", v4=True, rope_scaling=None, layout=True,
        config=dict(
            vocab_size=83, hidden_size=40, intermediate_size=54, num_hidden_layers=2, head_dim=8,
            num_attention_heads=6, num_key_value_heads=2, sliding_window=5, rms_norm_eps=1e-5,
            tie_word_embeddings=False, max_position_embeddings=128,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "ministral": dict(
        seed=52, arch="Ministral", layout=True,
        config=dict(
            vocab_size=87, hidden_size=32, intermediate_size=46, num_hidden_layers=4, head_dim=12,
            num_attention_heads=4, num_key_value_heads=2, sliding_window=6, rms_norm_eps=1e-5,
            layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            tie_word_embeddings=False, max_position_embeddings=128,
            rope_parameters=dict(rope_type="default", rope_theta=20000.0))),
    "qwen2_moe": dict(
        seed=97, arch="Qwen2Moe", layout=True, train=dict(clip_grad=4.0),
        config=dict(
            vocab_size=59, hidden_size=32, intermediate_size=26, moe_intermediate_size=6,
            shared_expert_intermediate_size=10, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, num_experts=6, num_experts_per_tok=2, norm_topk_prob=False,
            mlp_only_layers=[1], decoder_sparse_step=1, rms_norm_eps=1e-6, tie_word_embeddings=False,
            use_sliding_window=False, sliding_window=32, max_window_layers=2, max_position_embeddings=128,
            rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
    "qwen2_moe_window": dict(
        seed=53, arch="Qwen2Moe",
        config=dict(
            vocab_size=61, hidden_size=24, intermediate_size=21, moe_intermediate_size=9,
            shared_expert_intermediate_size=7, num_hidden_layers=4, num_attention_heads=3,
            num_key_value_heads=1, num_experts=5, num_experts_per_tok=3, norm_topk_prob=True, qkv_bias=False,
            mlp_only_layers=[], decoder_sparse_step=2, rms_norm_eps=1e-5, tie_word_embeddings=True,
            use_sliding_window=True, sliding_window=7, max_window_layers=3, max_position_embeddings=128,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "olmoe": dict(
        seed=63, arch="Olmoe", v4=True, rope_scaling=None, layout=True, train=dict(clip_grad=1.0),
        config=dict(
            vocab_size=67, hidden_size=32, intermediate_size=10, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, num_experts=6, num_experts_per_tok=3, norm_topk_prob=False, clip_qkv=1.25,
            rms_norm_eps=1e-5, tie_word_embeddings=False, max_position_embeddings=128,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "olmoe_noclip": dict(
        seed=62, arch="Olmoe",
        config=dict(
            vocab_size=71, hidden_size=40, intermediate_size=11, num_hidden_layers=2, num_attention_heads=5,
            num_key_value_heads=5, num_experts=5, num_experts_per_tok=2, norm_topk_prob=False, clip_qkv=None,
            attention_bias=True, rms_norm_eps=1e-6, tie_word_embeddings=True, max_position_embeddings=128,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "seed_oss": dict(
        seed=56, arch="SeedOss",
        config=dict(
            vocab_size=79, hidden_size=36, intermediate_size=35, num_hidden_layers=3, head_dim=8,
            num_attention_heads=6, num_key_value_heads=3, attention_bias=True, attention_out_bias=False,
            mlp_bias=False, residual_dropout=0.0, rms_norm_eps=1e-6, tie_word_embeddings=False,
            max_position_embeddings=128, rope_parameters=dict(rope_type="default", rope_theta=10000000.0))),
    "deepseek_v3": dict(
        seed=81, arch="DeepseekV3", train=dict(clip_grad=4.0, moe_router_bias_update_rate=0.0),
        config=dict(
            vocab_size=73, hidden_size=28, intermediate_size=26, moe_intermediate_size=9, num_hidden_layers=3,
            num_attention_heads=3, num_key_value_heads=3, q_lora_rank=12, kv_lora_rank=8, qk_nope_head_dim=6,
            qk_rope_head_dim=4, v_head_dim=10, first_k_dense_replace=1, n_routed_experts=12, n_shared_experts=2,
            num_experts_per_tok=4, n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5,
            rms_norm_eps=1e-5, tie_word_embeddings=False, max_position_embeddings=128,
            num_nextn_predict_layers=0, rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "deepseek_v3_q": dict(
        seed=82, arch="DeepseekV3", layout=True, v4=True, rope_scaling=None,
        config=dict(
            vocab_size=79, hidden_size=32, intermediate_size=22, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=12, qk_nope_head_dim=10, qk_rope_head_dim=6,
            v_head_dim=8, first_k_dense_replace=2, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
            topk_group=1, rms_norm_eps=1e-6, tie_word_embeddings=True, max_position_embeddings=128,
            num_nextn_predict_layers=0, rope_parameters=dict(rope_type="default", rope_theta=50000.0))),
    "deepseek_v2": dict(  # a choice limited to groups whose score is their best; the best of all chosen are not divided by their sum
        seed=191, arch="DeepseekV2", layout=True,
        config=dict(
            vocab_size=71, hidden_size=30, intermediate_size=26, moe_intermediate_size=8, num_hidden_layers=3,
            num_attention_heads=3, num_key_value_heads=3, q_lora_rank=14, kv_lora_rank=10, qk_nope_head_dim=4,
            qk_rope_head_dim=6, v_head_dim=8, first_k_dense_replace=1, n_routed_experts=8, n_shared_experts=2,
            num_experts_per_tok=4, topk_method="group_limited_greedy", n_group=4, topk_group=3, norm_topk_prob=False,
            routed_scaling_factor=4.0, rms_norm_eps=1e-5, tie_word_embeddings=False, max_position_embeddings=128,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "deepseek_v2_lite": dict(  # as the small ones are published: whole queries, no groups, experts in every layer but the first, yarn
        seed=84, arch="DeepseekV2", layout=True, v4=True,
        rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=2, beta_slow=0.5,
                          mscale=0.707, mscale_all_dim=0.707),
        config=dict(
            vocab_size=67, hidden_size=28, intermediate_size=22, moe_intermediate_size=6, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=2, q_lora_rank=None, kv_lora_rank=10, qk_nope_head_dim=8,
            qk_rope_head_dim=6, v_head_dim=4, first_k_dense_replace=1, n_routed_experts=6, n_shared_experts=1,
            num_experts_per_tok=2, topk_method="greedy", n_group=1, topk_group=1, norm_topk_prob=False,
            routed_scaling_factor=1.0, rms_norm_eps=1e-6, tie_word_embeddings=False, max_position_embeddings=64,
            rope_parameters=dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=16,
                                 beta_fast=2, beta_slow=0.5, mscale=0.707, mscale_all_dim=0.707))),
    "llama_yarn": dict(  # 41 positions of a model of 32; frequencies of both kinds and two between
        seed=91, arch="Llama", layout=True,
        config=dict(
            vocab_size=89, hidden_size=32, intermediate_size=44, num_hidden_layers=2, head_dim=16,
            num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6, tie_word_embeddings=False,
            max_position_embeddings=128,
            rope_parameters=dict(rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=32))),
    "deepseek_v3_yarn": dict(  # mscale is not mscale_all_dim: cos and sin have a factor of their own beside that of scores
        seed=92, arch="DeepseekV3", layout=True, v4=True,
        rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=2, beta_slow=0.5,
                          mscale=0.7, mscale_all_dim=0.9),
        config=dict(
            vocab_size=67, hidden_size=28, intermediate_size=22, moe_intermediate_size=6, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=2, q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=8,
            qk_rope_head_dim=6, v_head_dim=4, first_k_dense_replace=1, n_routed_experts=6, n_shared_experts=1,
            num_experts_per_tok=2, n_group=2, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5,
            rms_norm_eps=1e-6, tie_word_embeddings=False, max_position_embeddings=64, num_nextn_predict_layers=0,
            rope_parameters=dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=16,
                                 beta_fast=2, beta_slow=0.5, mscale=0.7, mscale_all_dim=0.9))),
}

TRAIN_OPTIONS = dict(optimizer="adam", lr=1e-3, lr_decay_style="constant", adam_beta1=0.9, adam_beta2=0.95,
                     adam_eps=1e-8, weight_decay=0.1, clip_grad=1.0)


def draw(shape, generator):
    return torch.randn(shape, generator=generator, dtype=FLOAT64)


def draw_weights(model, seed):
    """Sets every parameter, in name order, to random numbers that bf16 holds exactly.

    Norm weights stay away from 1 and biases from 0, so that leaving them out is visible. Matrices
    have a variance of 1/in_features, the router three times that deviation so that choices are clear.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            value = draw(p.shape, generator)
            if p.dim() == 1 and name.endswith("bias"):
                value = 0.2 * value + 0.1
            elif p.dim() == 1:
                value = 0.6 + 0.9 * torch.rand(p.shape, generator=generator, dtype=FLOAT64)
            elif "embed_tokens" in name:
                value = (0.2 if model.config.tie_word_embeddings else 0.5) * value
            elif name.endswith("gate.weight"):
                value = value * 3.0 / p.shape[-1] ** 0.5
            else:
                value = value / p.shape[-1] ** 0.5
            p.copy_(value.to(torch.bfloat16).to(FLOAT64))
        for name, b in sorted(model.named_buffers()):
            if name.endswith(UNTRAINED):
                b.copy_((0.2 * draw(b.shape, generator)).to(torch.bfloat16).to(FLOAT64))


def build_model(case):
    """The model in double, with drawn weights; call inside doubles()."""
    config_class = getattr(transformers, case["arch"] + "Config")
    model_class = getattr(transformers, case["arch"] + "ForCausalLM")
    config = config_class(**{"attention_dropout": 0.0, "use_cache": False, "pad_token_id": None, "bos_token_id": None,
                             "eos_token_id": None, **case["config"]})
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = model_class(config)
    draw_weights(model, case["seed"])
    return model.train()


def on_disk(model):
    """{name on disk: double tensor} as save_pretrained writes the parameters (experts one by one)."""
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        tensors = load_file(pathlib.Path(scratch) / "model.safetensors")
    assert all(t.dtype == FLOAT64 for t in tensors.values())
    return tensors


def grads_on_disk(model):
    """The gradients under the same names: they take the parameters' place while they are saved."""
    kept = {n: p.detach().clone() for n, p in model.named_parameters()}
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
        grads = {n: g for n, g in on_disk(model).items() if not n.endswith(UNTRAINED)}
        for n, p in model.named_parameters():
            p.copy_(kept[n])
    return grads


def draw_tokens(shape, vocab, generator, padding=None):
    """Token ids and labels; the first and the last id occur, and a few labels differ from their input; a padding id lies in the
    middle of every row and at its end."""
    ids = torch.randint(0, vocab, shape, generator=generator)
    flat = ids.view(-1)
    flat[1], flat[2], flat[5], flat[6] = 0, vocab - 1, flat[4], flat[4]
    if padding is not None:
        ids[..., 10:13] = ids[..., -2:] = padding
    labels = ids.clone()
    other = torch.rand(shape, generator=generator) < 0.1
    labels[other] = torch.randint(0, vocab, shape, generator=generator)[other]
    return ids, labels


def make_batch(case, generator):
    """One batch; masked labels at the start of row 0, in the middle and at the end of both rows."""
    ids, labels = draw_tokens((BATCH, SEQ), case["config"]["vocab_size"], generator, case.get("padding"))
    labels[0, :5] = IGNORE
    labels[0, 17:22] = IGNORE
    labels[1, 9] = IGNORE
    labels[1, 30:33] = IGNORE
    labels[0, -1] = IGNORE
    labels[1, -4:] = IGNORE
    return {"input_ids": ids, "labels": labels}


def make_train_batch(case, generator):
    """Steps x microbatches; the microbatches of a step have very different numbers of label tokens."""
    ids, labels = draw_tokens(TRAIN_SHAPE, case["config"]["vocab_size"], generator, case.get("padding"))
    labels[0, 0, :, :15] = IGNORE
    labels[0, 1, 1, 20:] = IGNORE
    labels[1, 0, 0, :] = IGNORE   # a row without a label
    labels[1, 0, 1, 3:] = IGNORE  # and two labels in the other
    labels[1, 1, :, 11:13] = IGNORE
    labels[2, 0, :, ::2] = IGNORE
    labels[2, 1, 1, 1:] = IGNORE  # the only label is at position 0, which the shift drops
    return {"input_ids": ids, "labels": labels}


def shifted_nll_sum(logits, labels):
    """Sum of the cross entropy of labels[:, 1:] under logits[:, :-1], and how many labels count."""
    target = labels[:, 1:].reshape(-1)
    logp = F.log_softmax(logits[:, :-1].reshape(-1, logits.shape[-1]), dim=-1)
    keep = target != IGNORE
    return -logp[keep, target[keep]].sum(), int(keep.sum())


def run_once(model, batch):
    """Forward and backward on one batch: logits, loss (the model's own token mean) and gradients."""
    model.zero_grad(set_to_none=True)
    with Float32Counter() as counter:
        out = model(input_ids=batch["input_ids"], labels=batch["labels"])
        out.loss.backward()
    assert counter.count == 0 and counter.doubles > 100, (counter.count, counter.doubles)
    nll, n = shifted_nll_sum(out.logits.detach(), batch["labels"])
    assert torch.allclose(out.loss.detach(), nll / n, rtol=1e-14, atol=0)
    golden = {"logits": out.logits.detach(), "loss": out.loss.detach().reshape(1)}
    golden.update({"grad." + n: g for n, g in grads_on_disk(model).items()})
    return golden


def train(model, batch, options):
    """AdamW steps by hand. The loss of a step is a mean over all its label tokens, not a mean of means."""
    b1, b2, lr = options["adam_beta1"], options["adam_beta2"], options["lr"]
    params = [p for _, p in model.named_parameters()]
    exp_avg = [torch.zeros_like(p) for p in params]
    exp_avg_sq = [torch.zeros_like(p) for p in params]
    losses, norms = [], []
    with Float32Counter() as counter:
        for step in range(TRAIN_SHAPE[0]):
            model.zero_grad(set_to_none=True)
            labels = batch["labels"][step]
            total = int((labels[:, :, 1:] != IGNORE).sum())
            loss = 0.0
            for m in range(TRAIN_SHAPE[1]):
                logits = model(input_ids=batch["input_ids"][step, m]).logits
                nll, _ = shifted_nll_sum(logits, labels[m])
                (nll / total).backward()
                loss = loss + nll.detach() / total
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
            norm = torch.sqrt(sum((g * g).sum() for g in grads))
            coeff = options["clip_grad"] / (norm + 1e-6)
            scale = coeff if coeff < 1 else torch.ones_like(coeff)
            losses.append(loss)
            norms.append(norm)
            with torch.no_grad():
                for p, g, m1, m2 in zip(params, grads, exp_avg, exp_avg_sq):
                    g = g * scale
                    m1.mul_(b1).add_((1 - b1) * g)
                    m2.mul_(b2).add_((1 - b2) * g * g)
                    m_hat, v_hat = m1 / (1 - b1 ** (step + 1)), m2 / (1 - b2 ** (step + 1))
                    decay = options["weight_decay"] if p.dim() > 1 else 0.0
                    p.sub_(lr * (m_hat / (v_hat.sqrt() + options["adam_eps"]) + decay * p))
    assert counter.count == 0
    golden = {"loss": torch.stack(losses), "grad_norm": torch.stack(norms)}
    golden.update({"weight." + n: w for n, w in on_disk(model).items()})
    return golden


def check_train(case, batch, options, golden):
    """torch's own AdamW and clip_grad_norm_, on a fresh model and one big loss per step, agree with train()."""
    model = build_model(case)
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in params if p.dim() > 1], "weight_decay": options["weight_decay"]},
         {"params": [p for p in params if p.dim() == 1], "weight_decay": 0.0}],
        lr=options["lr"], betas=(options["adam_beta1"], options["adam_beta2"]), eps=options["adam_eps"])
    for step in range(TRAIN_SHAPE[0]):
        optimizer.zero_grad()
        ids, labels = batch["input_ids"][step].flatten(0, 1), batch["labels"][step].flatten(0, 1)
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(params, options["clip_grad"])
        optimizer.step()
        assert torch.allclose(loss.detach(), golden["loss"][step], rtol=1e-12, atol=0)
        assert torch.allclose(norm, golden["grad_norm"][step], rtol=1e-12, atol=0)
    for name, weight in on_disk(model).items():
        assert torch.allclose(weight, golden["weight." + name], rtol=0, atol=1e-10), name


def write_config(folder, model, case):
    """config.json as transformers 5 writes it, or in the spelling of transformers 4."""
    with tempfile.TemporaryDirectory() as scratch:
        model.config.save_pretrained(scratch)
        config = json.loads((pathlib.Path(scratch) / "config.json").read_text())
    config.pop("dtype", None)
    config["architectures"] = [case["arch"] + "ForCausalLM"]
    config["torch_dtype" if case.get("v4") else "dtype"] = "float32"
    if case.get("v4"):
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
        config["rope_scaling"] = case["rope_scaling"]
        config.pop("layer_types", None)
        config["transformers_version"] = "4.40.0"
    for key in case.get("unsaid", ()):
        del config[key]
    for old, new in case.get("rename", {}).items():
        config[new] = config.pop(old)
    save_json(folder / "config.json", config)
    loaded = transformers.AutoConfig.from_pretrained(folder)
    for key, want in case["config"]["rope_parameters"].items():
        assert loaded.rope_parameters[key] == want, (key, loaded.rope_parameters)


class RouterMargin:
    """While open, records the smallest gap between the last chosen and the first unchosen probability."""

    def __init__(self, model):
        self.gap, self.hooks, self.model = float("inf"), [], model

    def record(self, router, _args, out):
        scores = out[0].detach().softmax(-1) if not hasattr(router, UNTRAINED) else self.of_groups(router, out[0].detach())
        best = scores.sort(-1, descending=True).values
        self.gap = min(self.gap, (best[:, router.top_k - 1] - best[:, router.top_k]).min().item())

    def of_groups(self, router, logits):
        """DeepSeek-V3's scores with bias, -inf outside the groups that are taken; the choice of groups has a gap, too."""
        scores = (logits.sigmoid() + getattr(router, UNTRAINED)).view(len(logits), router.num_group, -1)
        order = scores.topk(2).values.sum(-1).sort(-1, descending=True)
        gap = order.values[:, router.topk_group - 1] - order.values[:, router.topk_group]
        self.gap = min(self.gap, gap.min().item())
        taken = torch.zeros_like(order.values).scatter_(1, order.indices[:, :router.topk_group], 1.0)
        return scores.masked_fill(taken[..., None] == 0, float("-inf")).flatten(1)

    def __enter__(self):
        self.hooks = [m.register_forward_hook(self.record) for m in self.model.modules()
                      if hasattr(m, "top_k") and hasattr(m, "num_experts")]
        return self

    def __exit__(self, *_error):
        for h in self.hooks:
            h.remove()


class ClipMargin:
    """While open, counts the elements of q, k and v that clip_qkv cuts; records how near to it one comes."""

    def __init__(self, model):
        self.gap, self.cut, self.total, self.hooks = float("inf"), 0, 0, []
        self.clip, self.model = getattr(model.config, "clip_qkv", None), model

    def record(self, _module, _args, out):
        size = out.detach().abs()
        self.cut += int((size > self.clip).sum())
        self.total += size.numel()
        self.gap = min(self.gap, (size - self.clip).abs().min().item())

    def __enter__(self):
        if self.clip is not None:  # the outputs are cut in place, after the hooks have seen them
            names = ("q_norm", "k_norm", "v_proj")
            self.hooks = [m.register_forward_hook(self.record) for n, m in self.model.named_modules()
                          if n.endswith(names)]
        return self

    def __exit__(self, *_error):
        for h in self.hooks:
            h.remove()


def make_model(name, case):
    """Writes one folder."""
    folder = MODELS / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(1000 + case["seed"])
    batch = make_batch(case, generator)
    train_golden = None
    with doubles():
        model = build_model(case)
        weights = on_disk(model)
        with RouterMargin(model) as margin, ClipMargin(model) as clip:
            golden = run_once(model, batch)
            if "train" in case:
                options = {**TRAIN_OPTIONS, **case["train"]}
                train_batch = make_train_batch(case, generator)
                train_golden = train(model, train_batch, options)
                check_train(case, train_batch, options, train_golden)
    # Choices must not depend on the precision of a float32 run (infinite where there is no router).
    assert margin.gap > 2e-5, (name, margin.gap)
    assert clip.gap > 2e-5 and (clip.clip is None or 0.02 < clip.cut / clip.total < 0.5), (name, clip.gap)
    for n, w in weights.items():
        assert torch.equal(w, w.to(torch.bfloat16).to(FLOAT64)), n
    write_config(folder, model, case)
    save_safetensors(folder / "model.safetensors", {n: w.to(FLOAT32) for n, w in weights.items()},
                     {"format": "pt"})
    save_safetensors(folder / "batch.safetensors", batch)
    save_safetensors(folder / "golden.safetensors", golden)
    if train_golden is not None:
        save_safetensors(folder / "train_batch.safetensors", train_batch)
        save_safetensors(folder / "train_golden.safetensors", train_golden)
        save_json(folder / "train_options.json", options)
    params = sum(w.numel() for w in weights.values())
    print(f"{name}: {params} parameters, loss {golden['loss'].item():.6f}, router margin {margin.gap:.1e}")
    if clip.clip is not None:
        print(f"  clip_qkv cuts {clip.cut} of {clip.total} elements, margin {clip.gap:.1e}")
    if train_golden is not None:
        print(f"  train: loss {train_golden['loss'].tolist()} grad_norm {train_golden['grad_norm'].tolist()}")


def worst(got, want):
    """Largest error in units of the largest wanted value; NaN when anything is not a number."""
    return ((got.double() - want).abs().max() / want.abs().max().clamp_min(1e-300)).item()


def check_model(name):
    """A plain float32 run from the folder must agree: the aliases changed nothing but the precision."""
    folder = MODELS / name
    batch, golden = load_file(folder / "batch.safetensors"), load_file(folder / "golden.safetensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=FLOAT32, attn_implementation="eager", experts_implementation="eager").train()
    assert all(p.dtype == FLOAT32 for p in model.parameters())
    out = model(**batch, use_cache=False)
    out.loss.backward()
    err_logits, err_loss = worst(out.logits, golden["logits"]), worst(out.loss, golden["loss"])
    with tempfile.TemporaryDirectory() as scratch:
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
        model.save_pretrained(scratch)
        grads = load_file(pathlib.Path(scratch) / "model.safetensors")
    grads = {n: g for n, g in grads.items() if not n.endswith(UNTRAINED)}
    assert {"grad." + n for n in grads} == {n for n in golden if n.startswith("grad.")}
    assert set(grads) == {n for n in load_file(folder / "model.safetensors") if not n.endswith(UNTRAINED)}
    err_grad = max(worst(g, golden["grad." + n]) for n, g in grads.items() if golden["grad." + n].any())
    zero = sum(not golden["grad." + n].any() for n in grads)
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name}: float32 run: logits {err_logits:.1e}, loss {err_loss:.1e}, grads {err_grad:.1e}; "
          f"{zero} of {len(grads)} gradients are zero; {size} bytes")
    assert err_logits <= 1e-4 and err_loss <= 1e-4 and err_grad <= 1e-4
    assert size <= 1.5e6


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check-only", action="store_true", help="compare the folders with float32 runs")
    parser.add_argument("names", nargs="*", metavar="NAME", help="models to make or compare (all)")
    args = parser.parse_args()
    names = args.names or list(CASES)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    deterministic()
    if not args.check_only:
        for name in names:
            make_model(name, CASES[name])
        update_manifest("models", "python golden/make_models.py",
                        {n: c["seed"] for n, c in CASES.items()}, "models", CASES, bool(args.names))
    for name in names:
        check_model(name)


if __name__ == "__main__":
    main()
