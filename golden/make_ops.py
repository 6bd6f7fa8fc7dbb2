"""One small file per operation under golden/ops/: inputs, outputs and gradients, from torch autograd in double.

The formulas are written out with elementary tensor operations; torch differentiates them. In each file `x`
is an input, `y` an output, `dy` the incoming gradient and `d<input>` the resulting one; README.md lists the
names. Attributes (eps, theta, ...) are strings in __metadata__. Run: python golden/make_ops.py
"""
import math
import shutil

import torch
import torch.nn.functional as F

from double import Float32Counter, deterministic
from files import GOLDEN, save_safetensors, update_manifest

OPS = GOLDEN / "ops"
SEED = 4243
IGNORE = -100


class Draw:
    """Random doubles from one seed per file, so that a new file moves no other."""

    def __init__(self, name):
        seed = SEED + sum((i + 1) * b for i, b in enumerate(name.encode()))
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape, scale=1.0):
        return scale * torch.randn(shape, generator=self.generator)

    def uniform(self, *shape, low=0.0, high=1.0):
        return low + (high - low) * torch.rand(shape, generator=self.generator)

    def integers(self, high, *shape):
        return torch.randint(0, high, shape, generator=self.generator)


def grad_of(function, inputs, douts):
    """Outputs of function(**inputs) and the gradients {"d" + name} of sum(out * dout); only doubles get one."""
    leaves = {n: t.clone().requires_grad_(t.dtype == torch.float64) for n, t in inputs.items()}
    with Float32Counter() as counter:
        outs = function(**leaves)
        total = sum((outs[n] * d).sum() for n, d in douts.items())
        wanted = {n: t for n, t in leaves.items() if t.requires_grad}
        grads = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)
    assert counter.count == 0
    grads = {"d" + n: torch.zeros_like(t) if g is None else g for (n, t), g in zip(wanted.items(), grads)}
    return {n: t.detach() for n, t in outs.items()}, grads


def write(name, inputs, douts, function, attributes=None, extra=None, skip=()):
    """Computes one case and writes it. `skip` names gradients that are not part of the operation."""
    outs, grads = grad_of(function, inputs, douts)
    tensors = {**inputs, **outs, **{"d" + n: d for n, d in douts.items()}, **(extra or {})}
    tensors.update({n: g for n, g in grads.items() if n not in skip})
    assert all(torch.isfinite(t).all() for t in tensors.values()), name
    save_safetensors(OPS / (name + ".safetensors"), tensors, {"op": name, **(attributes or {})})
    return tensors


# ---------------------------------------------------------------- norm, linear, embedding, activation

def rmsnorm():
    eps = 1e-5

    def f(x, gamma):
        rstd = (x.pow(2).mean(-1) + eps).rsqrt()
        return {"y": gamma * (x * rstd[:, None]), "rstd": rstd}

    d = Draw("rmsnorm")
    x = d.normal(7, 13)
    x[3] *= 1e-3  # a row whose mean square is below eps
    write("rmsnorm", {"x": x, "gamma": d.uniform(13, low=0.5, high=1.5)}, {"y": d.normal(7, 13)}, f, {"eps": eps})


def layernorm():
    eps = 1e-5

    def f(x, gamma, beta):
        mean = x.mean(-1)
        rstd = ((x - mean[:, None]).pow(2).mean(-1) + eps).rsqrt()
        return {"y": gamma * ((x - mean[:, None]) * rstd[:, None]) + beta, "mean": mean, "rstd": rstd}

    d = Draw("layernorm")
    x = d.normal(7, 13)
    x[3] = 0.5 + 1e-2 * x[3]  # a mean far above the deviations
    write("layernorm", {"x": x, "gamma": d.uniform(13, low=0.5, high=1.5), "beta": d.normal(13)}, {"y": d.normal(7, 13)}, f, {"eps": eps})


def linear():
    for name, bias in (("linear", False), ("linear_bias", True)):
        d = Draw(name)
        inputs = {"x": d.normal(7, 11), "weight": d.normal(5, 11)}
        if bias:
            inputs["bias"] = d.normal(5)
        write(name, inputs, {"y": d.normal(7, 5)},
              lambda x, weight, bias=None: {"y": F.linear(x, weight, bias)}, {"weight": "[out,in]"})


def embedding():
    d = Draw("embedding")
    ids = d.integers(11, 3, 5)
    ids[0, 1], ids[2, 4], ids[0, 2], ids[1, 0] = 0, 10, 3, 3
    write("embedding", {"ids": ids, "weight": d.normal(11, 6)}, {"y": d.normal(3, 5, 6)},
          lambda ids, weight: {"y": weight[ids]})


def swiglu():
    """x [T,2F] = [gate | up]; with probs [T], row t is multiplied by probs[t]."""
    def f(x, probs=None):
        gate, up = x.chunk(2, dim=-1)
        y = gate * torch.sigmoid(gate) * up
        return {"y": y if probs is None else y * probs[:, None]}

    for name in ("swiglu", "swiglu_probs"):
        d = Draw(name)
        inputs = {"x": d.normal(7, 18, scale=2.0)}
        inputs["x"][0, :4] = torch.tensor([0.0, -40.0, 40.0, -800.0])  # exp(800) overflows a double
        if name == "swiglu_probs":
            inputs["probs"] = d.uniform(7)
            inputs["probs"][3] = 0.0
        write(name, inputs, {"y": d.normal(7, 9)}, f, {"formula": "silu(gate)*up(*probs), x = [gate | up]"})


def clamp():
    """Values inside, outside and exactly on the limit, where torch passes no gradient."""
    d = Draw("clamp")
    limit = 1.25
    x = d.normal(7, 13, scale=1.5)
    x[0, :6] = torch.tensor([limit, -limit, 0.0, 1.0e300, -1.0e300, limit * (1 + 2.0**-52)])
    write("clamp", {"x": x}, {"y": d.normal(7, 13)}, lambda x: {"y": x.clamp(min=-limit, max=limit)},
          {"limit": limit})


# ---------------------------------------------------------------- rotary embedding and attention

def llama3_inv_freq(inv, factor, low, high, original):
    """Long wavelengths are divided by factor, short ones kept, those between interpolated."""
    out = []
    for v in inv.tolist():
        wavelength = 2 * math.pi / v
        if wavelength < original / high:
            out.append(v)
        elif wavelength > original / low:
            out.append(v / factor)
        else:
            s = (original / wavelength - low) / (high - low)
            out.append((1 - s) * v / factor + s * v)
    return torch.tensor(out)


def rotate(x, cos, sin):
    """x [T,N,D], cos and sin [T,R/2]; the first R of D turn as two halves, the rest pass."""
    r = cos.shape[-1]
    a, b, rest = x[..., :r], x[..., r:2 * r], x[..., 2 * r:]
    c, s = cos[:, None, :], sin[:, None, :]
    return torch.cat([a * c - b * s, b * c + a * s, rest], dim=-1)


def rope():
    """Tables [P,R/2] for every position; q and k are rotated at positions in an order of their own."""
    cases = {
        "rope_default": dict(rotary_base=10000.0, rotary_dim=16),
        "rope_linear": dict(rotary_base=500.0, rotary_dim=16, factor=2.5),
        "rope_llama3": dict(rotary_base=10000.0, rotary_dim=16, factor=8.0, low_freq_factor=1.0,
                            high_freq_factor=4.0, original_max_position_embeddings=64),
        "rope_partial": dict(rotary_base=10000.0, rotary_dim=4),
    }
    p, t, head_dim = 37, 11, 16
    for name, attr in cases.items():
        dim = attr["rotary_dim"]
        inv = 1.0 / attr["rotary_base"] ** (torch.arange(0, dim, 2, dtype=torch.int64).double() / dim)
        if name == "rope_linear":
            inv = inv / attr["factor"]
        if name == "rope_llama3":
            inv = llama3_inv_freq(inv, attr["factor"], attr["low_freq_factor"], attr["high_freq_factor"],
                                  attr["original_max_position_embeddings"])
        angles = torch.arange(p, dtype=torch.int64).double()[:, None] * inv
        cos, sin = angles.cos(), angles.sin()
        d = Draw(name)
        position = d.integers(p, t)
        position[0], position[5], position[6] = p - 1, 0, position[4]
        write(name, {"q": d.normal(t, 3, head_dim), "k": d.normal(t, 1, head_dim)},
              {"q_out": d.normal(t, 3, head_dim), "k_out": d.normal(t, 1, head_dim)},
              lambda q, k: {"q_out": rotate(q, cos[position], sin[position]),
                            "k_out": rotate(k, cos[position], sin[position])},
              {"rope_type": {"rope_partial": "default"}.get(name, name.split("_")[1]), "head_dim": head_dim, **attr},
              {"inv_freq": inv, "cos": cos, "sin": sin, "position": position})


def rotate_pairs(x, cos, sin):
    """x [T,N,2h], cos and sin [T,h]; neighbours turn, results lie in halves."""
    a, b = x[..., 0::2], x[..., 1::2]
    c, s = cos[:, None, :], sin[:, None, :]
    return torch.cat([a * c - b * s, b * c + a * s], dim=-1)


def mla_rope():
    """Between the linears of multi-latent attention: kv_combined [T,C+2h] apart, q [T,A,N+2h] turned at its end, kv [T,A,N+V] and the
    shared position part joined to k [T,A,N+2h] and v [T,A,V]."""
    cases = {"mla_rope": dict(a=3, n=6, h=4, v=5, c=7), "mla_rope_narrow": dict(a=1, n=1, h=1, v=2, c=3),
             "mla_rope_no_nope": dict(a=5, n=0, h=3, v=4, c=2)}
    p, t = 29, 9
    for name, size in cases.items():
        a, n, h, v, c = (size[key] for key in "anhvc")
        angles = torch.arange(p, dtype=torch.int64).double()[:, None] / 100.0 ** (torch.arange(h).double() / h)
        cos, sin = angles.cos(), angles.sin()
        d = Draw(name)
        position = d.integers(p, t)
        position[0], position[3], position[4] = p - 1, 0, position[2]

        def f(kv_combined, q, kv):
            compressed, shared = kv_combined[:, :c], rotate_pairs(kv_combined[:, None, c:], cos[position], sin[position])
            return {"kv_compressed": compressed, "v": kv[..., n:],
                    "q_out": torch.cat([q[..., :n], rotate_pairs(q[..., n:], cos[position], sin[position])], -1),
                    "k": torch.cat([kv[..., :n], shared.expand(-1, a, -1)], -1)}

        write(name, {"kv_combined": d.normal(t, c + 2 * h), "q": d.normal(t, a, n + 2 * h), "kv": d.normal(t, a, n + v)},
              {"kv_compressed": d.normal(t, c), "q_out": d.normal(t, a, n + 2 * h), "k": d.normal(t, a, n + 2 * h),
               "v": d.normal(t, a, v)}, f,
              {"kv_lora_rank": c, "qk_head_dim": n, "v_head_dim": v, "heads": a},
              {"cos": cos, "sin": sin, "position": position})


def attention():
    """q [T,A,D], k and v [T,G,D]; token (s,b) is row s*B + b. Query head j reads group j / (A/G).

    lse [T,A] is of the scaled scores.
    """
    cases = {
        "attention_causal": dict(a=4, g=2, d=8, window=0, scale=8 ** -0.5),
        "attention_mqa": dict(a=3, g=1, d=5, window=0, scale=5 ** -0.5),
        "attention_window": dict(a=4, g=4, d=8, window=4, scale=8 ** -0.5),
        "attention_scale": dict(a=4, g=2, d=8, window=0, scale=0.75),
        "attention_window1": dict(a=2, g=1, d=4, window=1, scale=0.5),
    }
    b, s = 2, 13
    for name, c in cases.items():
        q_pos, k_pos = torch.arange(s)[:, None], torch.arange(s)[None, :]
        visible = k_pos <= q_pos
        if c["window"]:
            visible = visible & (k_pos > q_pos - c["window"])

        def f(q, k, v):
            repeat = c["a"] // c["g"]
            q, k, v = (x.view(s, b, *x.shape[1:]) for x in (q, k, v))
            k, v = k.repeat_interleave(repeat, 2), v.repeat_interleave(repeat, 2)
            scores = torch.einsum("qbhd,kbhd->bhqk", q, k) * c["scale"]
            scores = scores.masked_fill(~visible, float("-inf"))
            lse = scores.logsumexp(-1)
            o = torch.einsum("bhqk,kbhd->qbhd", (scores - lse[..., None]).exp(), v)
            return {"o": o.reshape(s * b, c["a"], c["d"]), "lse": lse.permute(2, 0, 1).reshape(s * b, c["a"])}

        d, t = Draw(name), s * b
        write(name, {"q": d.normal(t, c["a"], c["d"]), "k": d.normal(t, c["g"], c["d"]),
                     "v": d.normal(t, c["g"], c["d"])}, {"o": d.normal(t, c["a"], c["d"])}, f,
              {"batch": b, "seq": s, "heads": c["a"], "groups": c["g"], "head_dim": c["d"], "window": c["window"],
               "scale": repr(c["scale"])}, {"position": torch.arange(s).repeat_interleave(b)})


# ---------------------------------------------------------------- router and experts

ROUTERS = {
    "router_softmax_topk": dict(score="softmax", pre=1, norm=0, k=3),
    "router_softmax_topk_norm": dict(score="softmax", pre=1, norm=1, k=3),
    "router_softmax_top1": dict(score="softmax", pre=1, norm=0, k=1),
    "router_topk_softmax": dict(score="softmax", pre=0, norm=0, k=2),
    "router_topk_softmax_group": dict(score="softmax", pre=0, norm=0, k=3, groups=4, group_topk=2, scaling=1.5),
    "router_sigmoid": dict(score="sigmoid", pre=0, norm=1, k=3),
    "router_sigmoid_top1": dict(score="sigmoid", pre=0, norm=0, k=1),
    "router_sigmoid_bias": dict(score="sigmoid", pre=0, norm=1, k=2, bias=1),
    "router_sigmoid_bias_group": dict(score="sigmoid", pre=0, norm=1, k=4, bias=1, groups=3, group_topk=2, scaling=2.5),
}


def choose(keys, k, groups, group_topk):
    """Indices of the k largest keys, ascending; a group counts with the sum of its k // group_topk best keys."""
    def check_gap(x, n):
        best = x.sort(-1, descending=True).values
        assert n == x.shape[1] or (best[:, n - 1] - best[:, n]).min() > 1e-4  # float32 must choose the same

    if groups:
        t, e = keys.shape
        per_group = keys.view(t, groups, e // groups)
        group_score = per_group.topk(k // group_topk, dim=-1).values.sum(-1)
        check_gap(group_score, group_topk)
        kept = torch.zeros_like(group_score, dtype=torch.bool)
        kept.scatter_(1, group_score.topk(group_topk, dim=-1).indices, True)
        keys = per_group.masked_fill(~kept[:, :, None], float("-inf")).view(t, e)
    check_gap(keys, k)
    return keys.topk(k, dim=-1).indices.sort(-1).values


def router():
    t, e = 11, 12
    for name, c in ROUTERS.items():
        k, groups, group_topk = c["k"], c.get("groups", 0), c.get("group_topk", 0)
        d = Draw(name)
        inputs = {"logits": d.normal(t, e, scale=1.5)}
        if c.get("bias"):
            inputs["expert_bias"] = d.normal(e, scale=0.4)

        def f(logits, expert_bias=None):
            if c["score"] == "sigmoid":
                scores = torch.sigmoid(logits)
                keys = scores if expert_bias is None else scores + expert_bias
            else:
                scores = torch.softmax(logits, -1)
                keys = scores if c["pre"] else logits
            indices = choose(keys.detach(), k, groups, group_topk)
            if c["score"] == "softmax" and not c["pre"]:
                scores = logits
                probs = torch.softmax(logits.gather(1, indices), -1)
            else:
                probs = scores.gather(1, indices)
            if c["norm"]:
                probs = probs / (probs.sum(-1, keepdim=True) + (1e-20 if c["score"] == "sigmoid" else 0.0))
            probs = probs * c.get("scaling", 1.0)
            routing_map = torch.zeros(t, e, dtype=torch.int64).scatter(1, indices, 1)
            return {"scores": scores, "indices": indices, "probs": probs, "tokens_per_expert": routing_map.sum(0),
                    "probs_dense": torch.zeros_like(logits).scatter(1, indices, probs)}

        tensors = write(name, inputs, {"probs": d.normal(t, k)}, f,
                        {"score_function": c["score"], "pre_softmax": c["pre"], "norm_topk_prob": c["norm"], "topk": k,
                         "num_groups": groups, "group_topk": group_topk, "scaling_factor": c.get("scaling", 1.0)},
                        skip=("dexpert_bias",))
        if groups or c.get("bias"):  # the rule must matter: some token's experts are not the plain best ones
            assert not torch.equal(tensors["indices"], choose(tensors["logits"], k, 0, 0))


def aux_loss():
    """Switch load balancing: coeff * E / (k * T^2) * sum_i P_i n_i; the counts n_i carry no gradient."""
    t, e, k, coeff = 13, 8, 2, 0.01
    for name, score in (("aux_loss_softmax", "softmax"), ("aux_loss_sigmoid", "sigmoid")):
        def f(logits):
            if score == "softmax":
                scores = torch.softmax(logits, -1)
            else:
                scores = torch.sigmoid(logits)
                scores = scores / (scores.sum(-1, keepdim=True) + 1e-20)
            indices = choose(scores.detach(), k, 0, 0)
            counts = torch.zeros(t, e, dtype=torch.int64).scatter(1, indices, 1).sum(0)
            loss = coeff * e / (k * t * t) * (scores.sum(0) * counts).sum()
            return {"aux_scores": scores, "aux_indices": indices, "score_sums": scores.sum(0),
                    "tokens_per_expert": counts, "loss": loss.reshape(1)}

        d = Draw(name)
        write(name, {"logits": d.normal(t, e, scale=1.5)}, {"loss": torch.full((1,), 0.7)}, f,
              {"coeff": coeff, "topk": k, "score_function": score})


def z_loss():
    coeff = 0.001
    d = Draw("z_loss")
    write("z_loss", {"logits": d.normal(13, 8, scale=3.0)}, {"loss": torch.full((1,), 0.7)},
          lambda logits: {"lse": logits.logsumexp(-1), "z_sum": logits.logsumexp(-1).pow(2).sum().reshape(1),
                          "loss": (coeff * logits.logsumexp(-1).pow(2).mean()).reshape(1)}, {"coeff": coeff})


def silu_mlp(x, fc1, fc2, p=None):
    """fc1 [2F,H] = [gate; up], fc2 [H,F]: the combine weight p multiplies before the second product."""
    gate, up = (x @ fc1.T).chunk(2, dim=-1)
    h = F.silu(gate) * up
    return (h if p is None else h * p[:, None]) @ fc2.T


def experts():
    """y[t] = sum over its experts e, ascending, of expert_e(x[t], probs[t,e]). Expert 2 has no token."""
    t, h, f_, e, k = 9, 6, 5, 5, 2
    d = Draw("experts")
    order = d.uniform(t, e)
    order[:, 2] = -1.0
    indices = choose(order, k, 0, 0)
    # Rows in permuted order: expert by expert, token numbers ascending.
    pairs = sorted((indices[i, j].item(), i, j) for i in range(t) for j in range(k))
    row_expert, row_token, row_slot = (torch.tensor(column) for column in zip(*pairs))
    token_row = torch.zeros(t, k, dtype=torch.int64)
    token_row[row_token, row_slot] = torch.arange(t * k)

    def f(x, probs, fc1, fc2):
        y = torch.zeros(t, h)
        for i in range(e):
            rows, slots = row_token[row_expert == i], row_slot[row_expert == i]
            y = y.index_add(0, rows, silu_mlp(x[rows], fc1[i], fc2[i], probs[rows, slots]))
        return {"y": y}

    tensors = write("experts", {"x": d.normal(t, h), "probs": d.uniform(t, k, low=0.1), "fc1": d.normal(e, 2 * f_, h),
                                "fc2": d.normal(e, h, f_)}, {"y": d.normal(t, h)}, f,
                    {"topk": k, "fc1": "[gate; up]", "probs": "after the activation, before fc2"},
                    {"indices": indices, "row_token": row_token, "row_slot": row_slot, "token_row": token_row,
                     "tokens_per_expert": torch.bincount(row_expert, minlength=e)})
    assert not tensors["dfc2"][2].any() and tensors["tokens_per_expert"][2] == 0
    # The other place for the combine weight gives the same result.
    mlps = [silu_mlp(tensors["x"], tensors["fc1"][i], tensors["fc2"][i]) for i in range(e)]
    other = sum(tensors["probs"][:, j, None] * torch.stack(mlps)[indices[:, j], torch.arange(t)] for j in range(k))
    assert torch.allclose(other, tensors["y"], rtol=1e-12, atol=1e-13)


def shared_expert():
    t, h, f_ = 7, 6, 5
    d = Draw("shared_expert")
    write("shared_expert", {"x": d.normal(t, h), "fc1": d.normal(2 * f_, h), "fc2": d.normal(h, f_),
                            "gate": d.normal(1, h)}, {"y": d.normal(t, h)},
          lambda x, fc1, fc2, gate: {"y": torch.sigmoid(x @ gate.T) * silu_mlp(x, fc1, fc2)},
          {"formula": "sigmoid(x gate^T) * mlp(x)", "fc1": "[gate; up]"})


# ---------------------------------------------------------------- loss, optimizer, schedule

def cross_entropy():
    """targets are already shifted; token_loss is 0 where they are -100; loss is the mean over the others."""
    t, v = 11, 17
    d = Draw("cross_entropy")
    logits, targets = d.normal(t, v, scale=3.0), d.integers(v, t)
    logits[4] += 900.0  # exp overflows without the row maximum
    targets[0], targets[5], targets[10] = IGNORE, IGNORE, IGNORE
    targets[1], targets[2] = 0, v - 1
    keep = targets != IGNORE

    def f(logits, targets):
        lse = logits.logsumexp(-1)
        picked = logits.gather(1, targets.clamp_min(0)[:, None])[:, 0]
        token_loss = torch.where(keep, lse - picked, torch.zeros(t))
        return {"lse": lse, "token_loss": token_loss, "loss_sum": token_loss.sum().reshape(1),
                "loss": (token_loss.sum() / keep.sum()).reshape(1)}

    write("cross_entropy", {"logits": logits, "targets": targets}, {"loss": torch.ones(1)}, f,
          {"ignore_index": IGNORE}, {"num_tokens": keep.sum().reshape(1)})


def adamw():
    """Three steps of torch.optim.AdamW: weight decay on the matrix, none on the vector."""
    options = dict(lr=0.01, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
    d = Draw("adamw")
    tensors = {"matrix.0": d.normal(3, 5), "vector.0": d.normal(7)}
    params = [tensors["matrix.0"].clone().requires_grad_(), tensors["vector.0"].clone().requires_grad_()]
    betas = (options["beta1"], options["beta2"])
    optimizer = torch.optim.AdamW([{"params": params[:1], "weight_decay": options["weight_decay"]},
                                   {"params": params[1:], "weight_decay": 0.0}],
                                  lr=options["lr"], betas=betas, eps=options["eps"])
    for step in (1, 2, 3):
        for name, p in zip(("matrix", "vector"), params):
            p.grad = d.normal(*p.shape, scale=10.0 ** (step - 2))
            p.grad.view(-1)[0] = 0.0  # a zero gradient in every step: 0 / (0 + eps)
            tensors[f"{name}.grad.{step}"] = p.grad.clone()
        optimizer.step()
        for name, p in zip(("matrix", "vector"), params):
            tensors[f"{name}.{step}"] = p.detach().clone()
            tensors[f"{name}.exp_avg.{step}"] = optimizer.state[p]["exp_avg"].clone()
            tensors[f"{name}.exp_avg_sq.{step}"] = optimizer.state[p]["exp_avg_sq"].clone()
    save_safetensors(OPS / "adamw.safetensors", tensors, {"op": "adamw", **options})


def clip_grad():
    """norm over all tensors; coefficient clip / (norm + 1e-6), used only where it is below 1."""
    d = Draw("clip_grad")
    grads = {"a": d.normal(4, 5), "b": d.normal(7)}
    norm = torch.sqrt(sum(g.pow(2).sum() for g in grads.values()))
    tensors = {**grads, "grad_norm": norm.reshape(1)}
    for name, clip in (("active", 1.5), ("inactive", 100.0)):
        coeff = min(clip / (norm.item() + 1e-6), 1.0)
        tensors.update({f"clip_grad.{name}": torch.tensor([clip]), f"coeff.{name}": torch.tensor([coeff])})
        tensors.update({f"{n}.{name}": g * coeff for n, g in grads.items()})
    save_safetensors(OPS / "clip_grad.safetensors", tensors, {"op": "clip_grad"})


def learning_rate(n, style, o, wsd_style="linear"):
    """Megatron-LM's schedule at step n (its steps count samples; any unit gives the same table)."""
    if o["warmup"] > 0 and n <= o["warmup"]:
        return o["init"] + (o["max"] - o["init"]) * n / o["warmup"]
    if style == "constant":
        return o["max"]
    if n > o["decay"]:
        return o["min"]
    if style == "inverse-square-root":
        return max(o["min"], o["max"] * math.sqrt(max(o["warmup"], 1)) / math.sqrt(max(n, 1)))
    r = (n - o["warmup"]) / (o["decay"] - o["warmup"])
    if style == "linear":
        c = 1 - r
    elif style == "cosine":
        c = 0.5 * (math.cos(math.pi * r) + 1)
    else:
        u = (n - (o["decay"] - o["wsd_decay"])) / o["wsd_decay"]
        if u <= 0:
            c = 1.0
        else:
            c = {"linear": 1 - u, "cosine": 0.5 * (math.cos(math.pi * u) + 1),
                 "exponential": 2 * 0.5 ** u - 1, "minus_sqrt": 1 - math.sqrt(u)}[wsd_style]
    return o["min"] + c * (o["max"] - o["min"])


def lr_schedule():
    for name, warmup, init in (("lr_schedule", 7, 1e-5), ("lr_schedule_no_warmup", 0, 0.0)):
        o = dict(init=init, max=1e-3, min=1e-4, warmup=warmup, decay=40, wsd_decay=12)
        steps = torch.arange(0, 48)
        tensors = {"step": steps}
        for style in ("constant", "linear", "cosine", "inverse-square-root"):
            tensors[style] = torch.tensor([learning_rate(n, style, o) for n in steps.tolist()])
        for wsd in ("linear", "cosine", "exponential", "minus_sqrt"):
            tensors["WSD." + wsd] = torch.tensor([learning_rate(n, "WSD", o, wsd) for n in steps.tolist()])
        save_safetensors(OPS / (name + ".safetensors"), tensors,
                         {"op": "lr_schedule", "init_lr": o["init"], "max_lr": o["max"], "min_lr": o["min"],
                          "lr_warmup_steps": o["warmup"], "lr_decay_steps": o["decay"],
                          "lr_wsd_decay_steps": o["wsd_decay"]})


def check():
    """The written formulas against torch's own operations, where torch has them."""
    from safetensors.torch import load_file

    def load(name):
        return load_file(OPS / (name + ".safetensors"))

    def same(a, b):
        assert torch.allclose(a, b, rtol=1e-13, atol=1e-14), (a - b).abs().max()

    t = load("rmsnorm")
    same(t["y"], F.rms_norm(t["x"], (13,), t["gamma"], 1e-5))
    t = load("layernorm")
    same(t["y"], F.layer_norm(t["x"], (13,), t["gamma"], t["beta"], 1e-5))
    t = load("cross_entropy")
    same(t["loss"][0], F.cross_entropy(t["logits"], t["targets"], ignore_index=IGNORE))
    t = load("attention_causal")
    q, k, v = (t[n].view(13, 2, -1, 8).permute(1, 2, 0, 3) for n in "qkv")
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    same(t["o"], o.permute(2, 0, 1, 3).reshape(26, 4, 8))
    t = load("swiglu")
    same(t["y"], F.silu(t["x"][:, :9]) * t["x"][:, 9:])
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave
    t = load("mla_rope")
    both = [torch.cat([t[table][t["position"]]] * 2, -1)[None] for table in ("cos", "sin")]
    turned = apply_rotary_pos_emb_interleave(t["q"][None, ..., 6:], t["kv_combined"][None, :, None, 7:], *both, unsqueeze_dim=2)
    same(t["q_out"][..., 6:], turned[0][0])
    same(t["k"][..., 6:], turned[1][0].expand(-1, 3, -1))
    t = load("z_loss")
    softmax = torch.softmax(t["logits"], -1)
    same(t["dlogits"], 0.7 * 0.001 * 2 / 13 * t["lse"][:, None] * softmax)
    t = load("router_sigmoid_bias_group")
    groups = torch.zeros(11, 12).scatter(1, t["indices"], 1.0).view(11, 3, 4).sum(2) > 0
    assert (groups.sum(1) <= 2).all()
    same(t["probs"].sum(1), torch.full((11,), 2.5))


def main():
    deterministic()
    torch.set_default_dtype(torch.float64)
    shutil.rmtree(OPS, ignore_errors=True)
    for make in (rmsnorm, layernorm, linear, embedding, swiglu, clamp, rope, mla_rope, attention, router, aux_loss, z_loss, experts,
                 shared_expert, cross_entropy, adamw, clip_grad, lr_schedule):
        make()
    check()
    files = update_manifest("ops", "python golden/make_ops.py", SEED, "ops")
    print(f"{len(files)} files, {sum(f.stat().st_size for f in files)} bytes")


if __name__ == "__main__":
    main()
