"""The balancing loss of Hugging Face's mixtures of experts: load_balancing_loss_func of the modeling file, over the router logits of all
layers together."""
import sys

import torch

from .rules import arithmetic

NAME, FUNCTION = "load_balancing_loss", "load_balancing_loss_func"


def follow(tracer):
    file = sys.modules.get(type(tracer.bare).__module__)
    plain, config = getattr(file, FUNCTION, None), tracer.model_config()
    if plain is None:
        if getattr(config, "output_router_logits", False):
            tracer.not_judged(NAME, f"no {FUNCTION} in the model's file")
        return

    def balance(gate_logits, num_experts=None, top_k=2, attention_mask=None):
        known = isinstance(gate_logits, tuple) and all(type(t) is torch.Tensor and t.dim() == 2 for t in gate_logits)
        if torch.compiler.is_compiling() or not tracer.active(NAME) or not known:
            if tracer.active(NAME):
                tracer.not_judged(NAME, "logits that are no tuple of [tokens, experts]")
            return plain(gate_logits, num_experts, top_k, attention_mask)
        return record(tracer, plain, gate_logits, (num_experts, top_k), attention_mask, int(config.num_experts_per_tok))

    balance.__name__ = FUNCTION
    setattr(file, FUNCTION, balance)
    tracer.undo.append(lambda: setattr(file, FUNCTION, plain))


def record(tracer, plain, gate_logits, sizes, mask, topk):
    logits = tuple(t.view_as(t) for t in gate_logits)  # whose gradients are those of this use alone
    loss = plain(logits, *sizes, mask)
    inputs = {"logits": tracer.copy(NAME + ".logits", torch.cat([t.detach() for t in logits]))}
    if mask is not None:
        inputs["row_weight"] = tracer.copy(NAME + ".row_weight", mask.reshape(-1).float().repeat(len(logits)))
    attrs, rounding = {"topk": topk}, ["scores"]
    tracer.op("load_balancing_fwd", NAME, inputs, {"loss": tracer.tensor(NAME, loss)}, attrs, arith=arithmetic(loss, rounding=rounding))
    if not (loss.requires_grad and all(t.requires_grad for t in logits)):
        return loss
    layers = {str(i): t for i, t in enumerate(logits)}
    tracer.gather(NAME, {"loss": loss, **layers}, lambda g: tracer.op(
        "load_balancing_bwd", NAME, inputs, {"dlogits": tracer.copy(NAME + ".dlogits", torch.cat([g[i] for i in layers]), "backward")},
        {**attrs, "scale": float(g["loss"])}, "backward", g["microbatch"], arith=arithmetic(loss, rounding=rounding)))
    return loss
