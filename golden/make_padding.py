"""golden/padding: models whose embedding has a padding_idx, with Hugging Face transformers in double.

nn.Embedding(vocab_size, hidden_size, padding_idx=config.pad_token_id) gives that row no gradient; here it stands in the middle
and at the end of every row of the batch, and has labels. Folders are those of golden/models. trace/honest: a pass of `untied` in
float32, recorded by assay_trace; trace/trained: the same, its embedding without the padding_idx. Run: python golden/make_padding.py
"""
import shutil

import torch
import transformers
from safetensors.torch import load_file

import assay_trace
from double import FLOAT32, deterministic
from files import GOLDEN, update_manifest
from make_models import check_model, make_model

DENSE = dict(vocab_size=29, hidden_size=16, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2,
             num_key_value_heads=1, rms_norm_eps=1e-6, max_position_embeddings=64,
             rope_parameters=dict(rope_type="default", rope_theta=10000.0))
CASES = {
    "untied": dict(seed=101, arch="Llama", train=dict(clip_grad=1.0), padding=2,
                   config=dict(DENSE, tie_word_embeddings=False, pad_token_id=2)),
    "tied": dict(seed=102, arch="Llama", train=dict(clip_grad=1.0), padding=26,  # counted from the end
                 config=dict(DENSE, tie_word_embeddings=True, pad_token_id=-3)),
    "class_default": dict(seed=103, arch="SeedOss", padding=1, unsaid=["pad_token_id"],
                          config=dict(DENSE, head_dim=8, tie_word_embeddings=False, pad_token_id=1, residual_dropout=0.0)),
}


def check_row(name, case):
    """The row has no gradient, or with a tied head one of the head alone; a row beside it has."""
    grads = load_file(GOLDEN / "padding" / name / "golden.safetensors")
    row = grads["grad.model.embed_tokens.weight"][case["padding"]]
    assert (grads["grad.model.embed_tokens.weight"][0] != 0).all()
    assert torch.any(row != 0) == case["config"]["tie_word_embeddings"], name


def record(name, trained):
    folder = GOLDEN / "padding" / "untied"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=FLOAT32, attn_implementation="eager").train()
    if trained:
        model.model.embed_tokens.padding_idx = None
    ids = load_file(folder / "batch.safetensors")["input_ids"][:1, 6:15]
    shutil.rmtree(GOLDEN / "padding" / "trace" / name, ignore_errors=True)
    trace = assay_trace.attach(model, str(GOLDEN / "padding" / "trace" / name))
    with trace.step():
        model(input_ids=ids, labels=ids).loss.backward()
    trace.close()


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    deterministic()
    for name, case in CASES.items():
        make_model("../padding/" + name, case)
        check_model("../padding/" + name)
        check_row(name, case)
    torch.set_num_threads(1)
    for name in ("honest", "trained"):
        record(name, name == "trained")
    update_manifest("padding", "python golden/make_padding.py", {n: c["seed"] for n, c in CASES.items()}, "padding")


if __name__ == "__main__":
    main()
