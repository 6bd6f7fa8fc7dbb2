"""The same training steps in PyTorch, timed: what `assay bench --beside FILE` prints beside its own.

    python golden/bench_torch.py --model DIR --batch FILE --precision bf16 --out torch
    assay bench --model DIR --batch FILE --precision bf16 --beside torch/torch-eager.json --beside torch/torch-compiled.json

Hugging Face's model of the folder (its weights where it has them, else drawn), the batch file of `assay bench` (bench/batch.safetensors),
gradient clipping and AdamW as assay's defaults, eager and compiled.  bf16: parameters and gradients in bf16, masters and states of
AdamW in fp32, as the engine holds them (which adds gradients of microbatches in fp32; PyTorch here in bf16).  The attention backend
that ran is read from a profile of one step, not from what was asked for.  Each mode writes one file with the keys of docs/BENCH.md.
"""
import argparse
import json
import pathlib
import platform
import statistics
import sys
import time

import torch
import transformers
from safetensors.torch import load_file

FORMAT = "assay-bench-1"
IGNORE = -100
BACKENDS = {
    "flash_attention_for_cpu": "flash (CPU)",
    "flash_attention": "flash",
    "efficient_attention": "memory-efficient",
    "cudnn_attention": "cuDNN",
    "fused_attention_overrideable": "fused (overrideable)",
    "attention_math": "math",
}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True, type=pathlib.Path, help="Hugging Face folder")
    p.add_argument("--batch", required=True, type=pathlib.Path, help="safetensors with input_ids, labels")
    p.add_argument("--out", required=True, type=pathlib.Path, help="folder that takes torch-MODE.json")
    p.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    p.add_argument("--modes", default="eager,compiled", help="eager, compiled or both (default)")
    p.add_argument("--attention", choices=("sdpa", "eager", "flash_attention_2"), default="sdpa")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--warmup", type=int, default=3, help="steps before the measured ones, at least 1")
    p.add_argument("--steps", type=int, default=10, help="measured steps, at least 1")
    p.add_argument("--threads", type=int, default=0, help="of a CPU (default: PyTorch's own)")
    a = p.parse_args()
    a.modes = a.modes.split(",")
    if a.warmup < 1 or a.steps < 1 or not set(a.modes) <= {"eager", "compiled"}:
        p.error("--warmup and --steps: at least 1; --modes: eager, compiled")
    return a


def refuse_foreign(path):
    """Only a file that this script wrote is overwritten."""
    if path.exists():
        try:
            ours = json.loads(path.read_text()).get("program", "").startswith("PyTorch")
        except (ValueError, AttributeError):
            ours = False
        if not ours:
            sys.exit(f"{path}: exists and is no result of bench_torch.py: not overwritten")


class Training:
    """Steps of one model; masters and AdamW in fp32 whatever the parameters are."""

    def __init__(self, a, mode):
        dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[a.precision]
        torch.manual_seed(1234)
        config = transformers.AutoConfig.from_pretrained(a.model)
        config.use_cache = False
        make = transformers.AutoModelForCausalLM
        kind = dict(attn_implementation=a.attention, dtype=dtype)
        stored = any((a.model / name).exists() for name in ("model.safetensors", "model.safetensors.index.json"))
        with torch.device(a.device):  # drawn there: a CPU takes minutes for a model of real size
            model = make.from_pretrained(a.model, config=config, **kind) if stored else make.from_config(config, **kind)
        self.device = torch.device(a.device)
        self.model = model.to(self.device).train()
        self.forward = torch.compile(self.model) if mode == "compiled" else self.model
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.split = dtype != torch.float32
        self.masters = [p.detach().float().clone() for p in self.parameters] if self.split else self.parameters
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01,
                                           fused=self.device.type == "cuda")  # fmt: skip
        file = load_file(a.batch)
        self.training = file["input_ids"].dim() == 4  # [steps, microbatches, b, s]; else [b, s]: no optimizer
        shape = (-1, *file["input_ids"].shape[-3:]) if self.training else (1, 1, *file["input_ids"].shape)
        self.ids = file["input_ids"].reshape(shape).to(self.device)
        self.labels = file["labels"].reshape(shape).to(self.device)
        self.done = 0

    def loss_sum(self, ids, labels):
        logits = self.forward(input_ids=ids).logits[:, :-1].float()
        return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1),
                                                 ignore_index=IGNORE, reduction="sum")  # fmt: skip

    def step(self):
        ids, labels = self.ids[self.done % len(self.ids)], self.labels[self.done % len(self.ids)]
        targets = (labels[:, :, 1:] != IGNORE).sum()
        total = torch.zeros((), device=self.device)
        for p in self.parameters:
            p.grad = None
        for row, label in zip(ids, labels):
            loss = self.loss_sum(row, label) / targets
            loss.backward()
            total += loss.detach()
        if self.training:
            self.update()
        self.done += 1
        return total

    def update(self):
        if self.split:
            for master, p in zip(self.masters, self.parameters):
                master.grad = p.grad.float() if p.grad is not None else None
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimizer.step()
        if self.split:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, self.masters)

    def wait(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def timed(self):
        self.wait()
        start = time.perf_counter()
        loss = self.step()
        self.wait()
        return time.perf_counter() - start, loss.item()


def attention_backend(training):
    """Names of the attention operators in a profile of one step, forward and backward alike; and its loss."""
    with torch.profiler.profile() as profile:
        loss = training.step()
        training.wait()
    names = {e.key for e in profile.key_averages()}
    found = set()
    for name in names:
        if "scaled_dot_product" in name:
            found.update(word for key, word in BACKENDS.items() if key in name and (key != "flash_attention" or "for_cpu" not in name))
        elif "flash_attn" in name.lower() or "_flash_attention_forward" in name:
            found.add("flash (package)")
    return " + ".join(sorted(found)) or "none of SDPA's (products and softmax)", loss.item()


def device_name(device):
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if platform.system() == "Linux" else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "CPU"


def measure(a, mode):
    training = Training(a, mode)
    losses = [training.timed()[1] for _ in range(a.warmup)]
    backend, loss = attention_backend(training)
    losses.append(loss)
    runs = [training.timed() for _ in range(a.steps)]
    seconds = [s for s, _ in runs]
    _, microbatches, b, s = training.ids.shape
    tokens, median = microbatches * b * s, statistics.median(seconds)
    result = {
        "format": FORMAT,
        "program": f"PyTorch {torch.__version__} {mode}",
        "transformers": transformers.__version__,
        "device": device_name(training.device),
        "world": 1,
        "devices": 1,
        "layout": "1",
        "precision": a.precision,
        "model": str(a.model),
        "batch": str(a.batch),
        "measured_with": "wall clock around a step, device synchronized",
        "attention_backend": backend,
        "optimizer_steps": training.training,
        "microbatches": microbatches,
        "micro_batch_size": b,
        "seq_length": s,
        "warmup": len(losses),  # the profiled step is the last of them
        "steps": a.steps,
        "s_per_step": {"median": median, "min": min(seconds), "max": max(seconds), "all": seconds},
        "tokens_per_step": tokens,
        "tokens_per_s": tokens / median,
        "tokens_per_s_per_device": tokens / median,
        "loss": losses + [loss for _, loss in runs],
    }
    if training.device.type == "cuda":
        result["peak_memory_bytes"] = torch.cuda.max_memory_allocated(training.device)
    else:
        result["threads"] = torch.get_num_threads()
    return result


def main():
    a = arguments()
    if a.threads > 0:
        torch.set_num_threads(a.threads)
    a.out.mkdir(parents=True, exist_ok=True)
    paths = {mode: a.out / f"torch-{mode}.json" for mode in a.modes}
    for path in paths.values():
        refuse_foreign(path)
    for mode, path in paths.items():
        torch._dynamo.reset()
        r = measure(a, mode)
        partial = path.with_suffix(".json.part")
        partial.write_text(json.dumps(r, indent=2) + "\n")
        partial.replace(path)
        print(f"{r['program']} on {r['device']}, {r['precision']}, attention: {r['attention_backend']}")
        print(f"  s/step {r['s_per_step']['median']:.6f} (min {r['s_per_step']['min']:.6f}, max {r['s_per_step']['max']:.6f})"
              f"  tokens/s {r['tokens_per_s']:.1f}  first loss {r['loss'][0]:.6f}  wrote {path}")


if __name__ == "__main__":
    main()
