"""Two traces of one tiny Llama under golden/trace/, for the test of `assay diff`.

a: two training steps' forward and backward, as Hugging Face computes it (float32, gradients not applied).
b: the same with one fault: in step 1, microbatch 1, one row of one layer's MLP output is scaled.
fault.json says where. Everything before the fault is equal bit for bit. Run: python golden/make_trace.py
"""
import shutil

import torch
import transformers

from double import deterministic
from files import GOLDEN, save_json, update_manifest
from trace_hook import Trace

TRACE = GOLDEN / "trace"
SEED = 77
FAULT = dict(name="model.layers.1.mlp.down_proj", phase="forward", step=1, microbatch=1, row=[1, 3], factor=1.25)
CONFIG = dict(vocab_size=23, hidden_size=8, intermediate_size=12, num_hidden_layers=3, num_attention_heads=2,
              num_key_value_heads=1, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False,
              attention_dropout=0.0, use_cache=False, pad_token_id=None, bos_token_id=None, eos_token_id=None)
STEPS, MICROBATCHES, BATCH, SEQ = 2, 2, 2, 5


def run(path, fault):
    """Same seed, same data: what `fault` changes is all that differs."""
    torch.manual_seed(SEED)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG, attn_implementation="eager"))
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            draw = torch.randn(p.shape, generator=generator)
            p.copy_(1 + 0.2 * draw if p.dim() == 1 else draw / p.shape[-1] ** 0.5)
    ids = torch.randint(0, CONFIG["vocab_size"], (STEPS, MICROBATCHES, BATCH, SEQ), generator=generator)
    trace = Trace(str(path), precision="fp32", model=CONFIG)

    def plant(_module, _inputs, out):
        if not fault or trace.step != fault["step"] or trace.microbatch != fault["microbatch"]:
            return out
        scale = torch.ones(out.shape[:2])
        scale[tuple(fault["row"])] = fault["factor"]
        return out * scale[:, :, None]

    model.get_submodule(FAULT["name"]).register_forward_hook(plant)  # before the trace's own hook
    trace.attach(model)
    for step in range(STEPS):
        model.zero_grad(set_to_none=True)
        for m in range(MICROBATCHES):
            trace.microbatch = m
            loss = model(input_ids=ids[step, m], labels=ids[step, m]).loss
            trace.tensor("loss", loss, "forward")
            (loss / MICROBATCHES).backward()
        trace.end_step(model)
    trace.close()


def main():
    transformers.logging.set_verbosity_error()
    deterministic()
    shutil.rmtree(TRACE, ignore_errors=True)
    run(TRACE / "a", None)
    run(TRACE / "b", FAULT)
    save_json(TRACE / "fault.json", FAULT)
    files = update_manifest("trace", "python golden/make_trace.py", SEED, "trace")
    print(f"{len(files)} files, {sum(f.stat().st_size for f in files)} bytes")


if __name__ == "__main__":
    main()
