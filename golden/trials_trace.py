"""The trials of docs/DEBUG.md: 12 mistakes in Hugging Face models under six ways to run, honest runs, and what tracing costs.

python golden/trials_trace.py [--assay PROGRAM] [bugs] [honest] [overhead]     prints the tables in Markdown; exit 1 if one is wrong
"""
import argparse
import contextlib
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

import torch
import torch.multiprocessing

import foreign_models as models

import assay_trace

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODES = ("plain", "ddp", "fsdp2", "tp", "compile", "checkpoint")


def replay(program, folder):
    """(passed, failed, skipped, instance and operation of the first failure in order of execution)"""
    text = subprocess.run([program, "replay", str(folder)], capture_output=True, text=True).stdout
    totals = re.search(r"(\d+) passed, (\d+) failed, (\d+) skipped", text)
    first = re.search(r"^FAIL .*?: (\S+) (\w+) ", text[text.find("\n\n"):] if "\nFAIL" in text else "", re.M)
    named = next(((m.group(1), m.group(2)) for m in re.finditer(r"^FAIL  .*?, \w+: (\S+) ([a-z_]+)", text, re.M)), None)
    return (*((int(x) for x in totals.groups()) if totals else (0, 0, 0)), named or (first.groups() if first else None))


def train(model, way, folder, steps=1, microbatches=2, rank=0, world=1, optimizer=False, **options):
    run = models.wrap(model, way, world)
    optimizer = torch.optim.AdamW(run.parameters(), lr=1e-3, weight_decay=0.1) if optimizer else None
    context = torch.autocast("cpu", dtype=torch.bfloat16) if way == "autocast" else contextlib.nullcontext()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = assay_trace.attach(run, str(folder), optimizer=optimizer, **options)
        for step in range(steps):
            with trace.step():
                for microbatch in range(microbatches):
                    torch.manual_seed(100 * step + 10 * microbatch + (rank if way in ("ddp", "fsdp2") else 0))
                    ids = torch.randint(0, 97, (2, 11))
                    with context:
                        loss = run(input_ids=ids, labels=ids).loss
                    (loss / microbatches).backward()
                if optimizer:
                    optimizer.step()
                    optimizer.zero_grad()
        trace.close()


# --- mistakes ---------------------------------------------------------------------------------------------------

def mistake(name, mode, folder, rank=0, world=1):
    plant, family, _, _ = models.MISTAKES[name]
    undo, model = [], models.build(family, attention="eager", experts="eager" if family == "qwen3_moe" else None)
    plant(model, undo)
    try:
        train(model, mode, folder, rank=rank, world=world)
    finally:
        for function in reversed(undo):
            function()


def rank_of_mistakes(rank, world, port, folder, mode, names):
    models.start_rank(rank, world, port)
    for name in names:
        start = time.time()
        mistake(name, mode, folder / name.replace(" ", "_"), rank, world)
        if rank == 0:
            (folder / (name.replace(" ", "_") + ".seconds")).write_text(str(time.time() - start))
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def bugs(program, folder):
    rows, wrong = {name: [] for name in models.MISTAKES}, 0
    for mode in MODES:
        at = folder / mode
        at.mkdir()
        world = 2 if mode in ("ddp", "fsdp2", "tp") else 1
        if world > 1:
            torch.multiprocessing.spawn(rank_of_mistakes, (world, models.free_port(), at, mode, list(rows)), nprocs=world)
        for name, row in rows.items():
            file, start = name.replace(" ", "_"), time.time()
            if world == 1:
                mistake(name, mode, at / file)
            traced = float((at / (file + ".seconds")).read_text()) if world > 1 else time.time() - start
            start = time.time()
            passed, failed, _, first = replay(program, at / file)
            good = failed > 0 and first == models.MISTAKES[name][2:]
            wrong += not good
            row.append(("y" if good else f"n ({first})", traced + time.time() - start))
    print("| mistake | named | " + " | ".join(MODES) + " |\n|---|---|" + "---|" * len(MODES))
    for name, row in rows.items():
        print(f"| {name} | `{models.MISTAKES[name][2]}` `{models.MISTAKES[name][3]}` | "
              + " | ".join(f"{verdict}, {seconds:.1f} s" for verdict, seconds in row) + " |")
    return wrong


# --- honest runs ------------------------------------------------------------------------------------------------

F, B, D, H = torch.float32, torch.bfloat16, torch.float64, torch.float16
# family, dtype, attention, experts, threads, way to run, with AdamW
HONEST = (("llama", F, "eager", None, 1, "plain", True), ("llama", F, "sdpa", None, 2, "plain", True),
          ("llama", B, "eager", None, 2, "plain", True), ("llama", B, "sdpa", None, 1, "plain", True),
          ("llama", D, "eager", None, 1, "plain", True), ("llama", H, "sdpa", None, 1, "plain", False),
          ("llama3_rope", F, "sdpa", None, 1, "plain", True), ("llama_tied", B, "sdpa", None, 2, "plain", True),
          ("llama", F, "sdpa", None, 1, "compile", True), ("llama", B, "eager", None, 1, "checkpoint", True),
          ("llama", F, "sdpa", None, 1, "checkpoint_reentrant", True), ("llama", F, "sdpa", None, 1, "autocast", True),
          ("mistral", B, "eager", None, 1, "plain", True), ("qwen2", F, "eager", None, 2, "plain", True),
          ("qwen3", B, "sdpa", None, 1, "plain", True), ("gemma", F, "eager", None, 1, "plain", True),
          ("mixtral", F, "sdpa", "eager", 1, "plain", True), ("mixtral", B, "eager", "grouped_mm", 2, "plain", True),
          ("qwen3_moe", B, "sdpa", "batched_mm", 1, "plain", True), ("qwen3_moe", F, "eager", "grouped_mm", 1, "checkpoint", True),
          ("olmoe", F, "sdpa", "eager", 2, "plain", True), ("olmoe", B, "eager", "eager", 1, "plain", True),
          ("deepseek_v3", F, "eager", None, 1, "plain", True), ("deepseek_v2", B, "eager", "eager", 1, "plain", True),
          ("olmoe_clip", B, "sdpa", "eager", 1, "plain", True), ("mixtral_aux", F, "sdpa", "eager", 2, "plain", True), ("qwen3_moe", H, "sdpa", "eager", 1, "plain", False))


def honest(program, folder):
    wrong, total = 0, 0
    print("| model | dtype | attention | experts | threads | run | claims | failed |\n|---|---|---|---|---|---|---|---|")
    threads = torch.get_num_threads()
    for i, (family, dtype, attention, experts, n, mode, optimizer) in enumerate(HONEST):
        torch.set_num_threads(n)
        train(models.build(family, dtype, attention, experts), mode, folder / str(i), steps=2, optimizer=optimizer)
        passed, failed, skipped, first = replay(program, folder / str(i))
        wrong += failed > 0 or passed == 0
        total += passed + failed
        print(f"| {family} | {str(dtype)[6:]} | {attention} | {experts or '-'} | {n} | {mode} | {passed} | {failed or 0}"
              + (f" {first}" if failed else "") + " |", flush=True)
    torch.set_num_threads(threads)
    print(f"\n{len(HONEST)} honest runs, {total} claims: {wrong} false alarms")
    return wrong


# --- what tracing costs -----------------------------------------------------------------------------------------

def overhead(folder, rounds=15):
    torch.manual_seed(0)
    import transformers
    config = transformers.LlamaConfig(**{**models.BASE, "vocab_size": 2048, "hidden_size": 384, "intermediate_size": 1024, "head_dim": 64, "num_key_value_heads": 2,
                                         "num_attention_heads": 6, "num_hidden_layers": 2, "max_position_embeddings": 512})
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="sdpa")
    ids = torch.randint(0, 2048, (4, 128))
    optimizer, times = torch.optim.AdamW(model.parameters(), lr=1e-5), {}
    torch.set_num_threads(1)  # threads that wait for each other cost CPU time, too
    modes = {"untraced": None, "hash": {"mode": "hash"}, "hash, BLAKE2b": {"mode": "hash", "hash": "blake2b-128"},
             "statistics": {"mode": "statistics"}, "full": {"mode": "full"}}

    def step():
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    for i in range(rounds):
        for mode, options in modes.items():
            trace = options and assay_trace.attach(model, str(folder / f"{mode}{i}"), optimizer=optimizer, **options)
            cpu, wall = time.process_time(), time.perf_counter()
            with trace.step() if trace else contextlib.nullcontext():
                step()
            times.setdefault(mode, []).append((time.process_time() - cpu, time.perf_counter() - wall))
            if trace:
                trace.close()
    print("| mode | CPU s of a step | beside the untraced | wall s | beside |\n|---|---|---|---|---|")
    for mode, each in times.items():
        row = []
        for i in range(2):  # medians: of the times, and of the ratios of pairs
            ratio = statistics.median(t[i] / base[i] for t, base in zip(each, times["untraced"]))
            row += [f"{statistics.median(t[i] for t in each):.3f}", f"{100 * (ratio - 1):+.0f} %"]
        print(f"| {mode} | {' | '.join(row)} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--assay", default=str(ROOT / "build/dev/bin/assay"))
    parser.add_argument("what", nargs="*", default=["bugs", "honest", "overhead"])
    a = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for what in a.what:
            at = pathlib.Path(folder) / what
            at.mkdir()
            if what == "overhead":
                overhead(at)
            else:
                wrong += {"bugs": bugs, "honest": honest}[what](a.assay, at)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
