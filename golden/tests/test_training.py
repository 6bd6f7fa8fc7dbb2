"""What a training loop does around its backward, under `assay check`: clipping, clearing, masters, autocast, forwards that train nothing.

Honest loops are right, a mistake in each is named or not checked."""
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import warnings

import torch

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent), str(pathlib.Path(__file__).resolve().parent)]

import assay_trace  # noqa: E402
import foreign_models as models  # noqa: E402
from test_trace import ASSAY, operations, records  # noqa: E402


def batch(number):
    return torch.randint(0, 97, (2, 11), generator=torch.Generator().manual_seed(number))


def verdict(folder):
    r = subprocess.run([ASSAY, "check", "--trace", str(folder / "trace"), "--model", str(folder / "model")], capture_output=True, text=True)
    return r.returncode, r.stdout + r.stderr


def loop(folder, family="llama", dtype=torch.float32, microbatches=2, autocast=None, optimizer="AdamW", options=None, forward=None, plant=None,
         between=None, before=None, after=None, wrap=None, rank=0, clear=True, steps=1, numbered=None, **attach):
    """zero_grad at the end of the step, where a recorder that looks late finds nothing."""
    torch.manual_seed(5)
    model = models.build(family, dtype)
    if rank == 0:
        model.save_pretrained(folder / "model")
    if plant:
        plant(model)
    run = wrap(model) if wrap else model
    o = getattr(torch.optim, optimizer)(run.parameters(), lr=1e-3, **(options or {})) if isinstance(optimizer, str) else optimizer
    trace = assay_trace.attach(run, str(folder / "trace"), optimizer=o, microbatches=numbered, **attach)
    forward = forward or (lambda m, n: m(input_ids=batch(n), labels=batch(n)).loss)
    for step in range(steps):
        with trace.step():
            for microbatch in range(microbatches):
                with torch.autocast("cpu", dtype=autocast) if autocast else contextlib.nullcontext():
                    loss = forward(run, 100 * step + 10 * microbatch + rank)
                (loss / microbatches).backward()
                if between and microbatch == 0:
                    between(model)
            if before:
                before(run)
            if o:
                o.step()
            if after:
                after(model, o)
            if clear:
                run.zero_grad()
    trace.close()


class Wrapped(torch.nn.Module):
    """As DistributedDataParallel is: what is inside may be called past it."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, **kwargs):
        return self.module(**kwargs)


def clip(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def clip_each(model):
    for p in model.parameters():
        torch.nn.utils.clip_grad_norm_([p], 0.1)


def rank_of(rank, world, port, folder, mode, before):
    models.start_rank(rank, world, port)
    torch.set_num_threads(1)
    loop(folder, wrap=lambda m: models.wrap(m, mode, world), rank=rank, before=before, numbered=2)
    torch.distributed.destroy_process_group()


def unsummed(model, world):
    """Tensor parallelism whose last row-parallel product hands on its part of the sum."""
    models.tensor_parallel(model, world)
    down = model.model.layers[1].mlp.down_proj
    down._forward_hooks.clear()
    down.register_forward_hook(lambda m, a, out: out.to_local())
    return model


def tensor_parallel_rank(rank, world, port, folder, right):
    models.start_rank(rank, world, port)
    loop(folder, wrap=lambda m: models.wrap(m, "tp", world) if right else unsummed(m, world), rank=rank,
         options={"foreach": False}, forward=lambda m, n: m(input_ids=batch(n - rank), labels=batch(n - rank)).loss)
    torch.distributed.destroy_process_group()


class Training(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder, self.count = pathlib.Path(self.temporary.name), 0
        warnings.simplefilter("ignore")

    def tearDown(self):
        self.temporary.cleanup()

    def says(self, code, *words, **options):
        self.count += 1
        folder = self.folder / str(self.count)
        folder.mkdir()
        loop(folder, **options)
        found, text = verdict(folder)
        self.assertEqual(found, code, text)
        for word in words:
            self.assertIn(word, text)
        return folder / "trace"

    def test_gradients_are_those_of_the_backward(self):
        self.says(0, "RIGHT")
        self.says(0, "RIGHT", optimizer=None)
        self.says(0, "RIGHT", options={"fused": True}, before=clip)
        self.says(0, "clipped from a norm of", before=clip)
        self.says(0, "clipped from a norm of", dtype=torch.bfloat16, before=clip, options={"foreach": True})
        self.says(1, "(phase grad, rank 0, step 0)", between=lambda m: m.zero_grad())
        self.says(1, "(phase grad, rank 0, step 0)", between=lambda m: m.zero_grad(set_to_none=False), before=clip)

    def test_a_wrapper_that_is_called_past_is_said(self):
        past = "the module that is recorded was not called in this step"
        self.says(2, past, wrap=Wrapped, forward=lambda m, n: m.module(input_ids=batch(n), labels=batch(n)).loss)

    def test_what_the_optimizer_reads(self):
        for optimizer in ("AdamW", "Adam"):
            self.says(1, "clipped one by one", optimizer=optimizer, before=clip_each)
        self.says(1, "clipped one by one", dtype=torch.bfloat16, before=clip_each)
        self.says(1, "clipped one by one", optimizer=None,
                  before=lambda m: (clip_each(m), torch.optim.SGD(m.parameters(), lr=0.1).step()))
        self.says(1, "are 2 times those of the backward", before=lambda m: [p.grad.mul_(2) for p in m.parameters()])
        self.says(1, "are not those of the backward", before=lambda m: [p.grad.copy_(p.grad.bfloat16()) for p in m.parameters()])
        self.says(2, "AdamW finds no gradient of 21 parameters that had one", before=lambda m: m.zero_grad())

        def by_hand(m):
            clip_each(m)
            with torch.no_grad():
                for p in m.parameters():
                    p -= 0.1 * p.grad

        self.says(0, "a gradient that was changed after the backward, and no optimizer was seen", optimizer=None, before=by_hand, clear=False)

    def test_a_scaler_unscales_in_place(self):
        """The trace has the scaled gradients; the operation reads what the kernel makes of them."""
        for fused in (False, True):
            model = models.build("llama")
            scaler, o = torch.amp.GradScaler("cpu", init_scale=1024.0), torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
            folder = self.folder / f"scaler_{fused}"
            trace = assay_trace.attach(model, str(folder), optimizer=o)
            with trace.step():
                scaler.scale(model(input_ids=batch(0), labels=batch(0)).loss).backward()
                scaler.step(o)
                scaler.update()
            trace.close()
            r = subprocess.run([ASSAY, "replay", str(folder)], capture_output=True, text=True)
            self.assertEqual(r.returncode, 0, r.stdout)
            self.assertEqual(sum(x["op"] == "adamw" for x in operations(folder)), 21)

    def test_the_factor_of_a_scaler(self):
        """Divided out where it was seen; clipping with it in the gradients shows in nothing that is read later."""
        for fused in (False, True):
            for clips, code, word in (("none", 0, "RIGHT"), ("behind", 0, "clipped from a norm of"),
                                      ("before", 2, "of 21 parameters were changed before the GradScaler's unscale_")):
                folder = self.folder / f"factor_{fused}_{clips}"
                model = models.build("llama")
                model.save_pretrained(folder / "model")
                scaler, o = torch.amp.GradScaler("cpu", init_scale=1024.0), torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused)
                trace = assay_trace.attach(model, str(folder / "trace"), optimizer=o)
                with trace.step():
                    scaler.scale(model(input_ids=batch(0), labels=batch(0)).loss).backward()
                    if clips == "behind":
                        scaler.unscale_(o)
                    if clips != "none":
                        clip(model)
                    scaler.step(o)
                    scaler.update()
                trace.close()
                found, text = verdict(folder)
                self.assertEqual(found, code, text)
                self.assertIn(word, text)

    def test_what_is_not_judged_is_in_the_trace(self):
        self.says(0, "note: not judged: Adam: only AdamW's steps are recorded", "(What was not judged is listed above.)", optimizer="Adam",
                  options={"weight_decay": 0.1})
        masters = [torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(3))]
        self.says(0, "AdamW: 2 of its 2 parameters are not the model's (masters of its own?), the first of shape [3, 2]",
                  optimizer=torch.optim.AdamW(masters, lr=1e-3))
        self.says(0, "not judged: model.layers.0.input_layernorm.weight: no gradient: frozen",
                  plant=lambda m: m.model.layers[0].input_layernorm.weight.requires_grad_(False))

    def test_the_precision_of_autocast(self):
        for family in ("llama", "qwen3_moe"):
            trace = self.says(0, "RIGHT", family=family, autocast=torch.bfloat16, before=clip)
            self.assertEqual(json.loads((trace / "index.json").read_text())["precision"], "bf16")
        self.says(2, "the run computed in fp16", autocast=torch.bfloat16, precision="fp16")
        self.says(1, "WRONG", autocast=torch.bfloat16, precision="fp32")

        def one(model):
            head, plain = model.lm_head, model.lm_head.forward

            def lowered(x):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    return plain(x).float()

            head.forward = lowered

        trace = self.says(1, "autocast to bfloat16 in 1 of 15 products, the first lm_head", plant=one)
        self.assertEqual(json.loads((trace / "index.json").read_text())["precision"], "fp32")

    def test_a_compiled_model_trains_while_it_is_recorded(self):
        """A compiled graph hands no gradient (None) to outputs that nobody reads."""
        self.says(0, "RIGHT", wrap=lambda m: torch.compile(m, backend="aot_eager"))

    def test_one_batch_in_every_microbatch(self):
        ids = batch(0)
        self.says(0, "RIGHT", forward=lambda m, n: m(input_ids=ids, labels=ids).loss)

    def test_forwards_that_train_nothing(self):
        def evaluated(same, graph):
            def forward(model, n):
                def look(n):
                    with contextlib.nullcontext() if graph else torch.no_grad():
                        model(input_ids=n, labels=n)

                ids = batch(n)
                look(ids if same else batch(n + 1))
                loss = model(input_ids=ids, labels=ids).loss
                look(batch(n + 2))
                return loss

            return forward

        counts = set()
        for same in (True, False):
            for graph in (True, False):
                trace = self.says(0, "a forward that no backward reached", forward=evaluated(same, graph))
                counts.add(next(line for line in verdict(trace.parent)[1].splitlines() if line.startswith("whole run")))
                forwards = [o for o in operations(trace) if o["op"] == "embedding_fwd"]
                self.assertEqual(sorted(o["microbatch"] for o in forwards), [-1, -1, -1, -1, 0, 1])
        self.assertEqual(len(counts), 1, counts)

        def detached(model):
            layer = model.model.layers[1]
            plain = layer.self_attn.forward
            layer.self_attn.forward = lambda *a, **k: (lambda out: (out[0].detach(), *out[1:]))(plain(*a, **k))

        self.says(1, "WRONG", forward=evaluated(True, False), plant=detached)
        self.count += 1
        folder = self.folder / str(self.count)
        folder.mkdir()
        model = models.build("llama")
        model.save_pretrained(folder / "model")
        trace = assay_trace.attach(model, str(folder / "trace"))
        with trace.step(), torch.no_grad():
            for i in range(2):
                model(input_ids=batch(i), labels=batch(i))
        trace.close()
        self.assertEqual({r["microbatch"] for r in records(folder / "trace") if r.get("name") == "input_ids"}, {0, 1})
        self.assertEqual(verdict(folder)[0], 0)

    def test_eps_of_a_module_that_bfloat16_hides(self):
        def eps(model):
            model.model.norm.variance_epsilon = 2e-6

        self.says(1, "rmsnorm_fwd of model.norm (rank 0, step 0): its module holds eps 2e-06, the model's is", dtype=torch.bfloat16, plant=eps)

    def test_documents_in_rows(self):
        positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1]]).expand(2, -1)

        def packed(model, n):
            return model(input_ids=batch(n), position_ids=positions, labels=batch(n)).loss

        def leaking(model, n):
            mask = torch.zeros(1, 1, 11, 11).masked_fill(~torch.ones(11, 11, dtype=torch.bool).tril(), torch.finfo(torch.float32).min)
            return model(input_ids=batch(n), position_ids=positions, attention_mask=mask, labels=batch(n)).loss

        trace = self.says(0, "operations     153 outputs computed again: right", "whole run      261 tensors beside the reference's: right", forward=packed)
        self.assertIn("rope_table", {o["op"] for o in operations(trace)})
        self.says(1, "attention_fwd of model.layers.0.self_attn.core_attention, output o", forward=leaking)
        plain = torch.arange(11)[None].expand(2, -1)
        self.says(0, "RIGHT", forward=lambda m, n: m(input_ids=batch(n), position_ids=plain, labels=batch(n)).loss)

    def test_tensor_parallel_ranks(self):
        for right, code, word in ((True, 0, "RIGHT"), (False, 1, "differs from the reference is model.layers.1 = ")):
            folder = self.folder / f"tp_{code}"
            folder.mkdir()
            torch.multiprocessing.spawn(tensor_parallel_rank, (2, models.free_port(), folder, right), nprocs=2)
            found, text = verdict(folder)
            self.assertEqual(found, code, text)
            self.assertIn(word, text)
            self.assertGreater(len([r for r in records(folder / "trace", 1) if r.get("name") == "model.layers.0.self_attn.q_proj"
                                    and r.get("segments", [[]])[-1] == [[16, 16]]]), 0)

    def test_ranks(self):
        for mode in ("ddp", "fsdp2", "fsdp2_bf16"):
            for before, code, word in ((clip, 0, "RIGHT"), (clip_each, 1, "clipped one by one")):
                folder = self.folder / f"{mode}_{code}"
                folder.mkdir()
                torch.multiprocessing.spawn(rank_of, (2, models.free_port(), folder, mode, before), nprocs=2)
                found, text = verdict(folder)
                self.assertEqual(found, code, text)
                self.assertIn(word, text)
                precision = json.loads((folder / "trace" / "index.json").read_text())["precision"]
                self.assertEqual(precision, "bf16" if mode == "fsdp2_bf16" else "fp32")


if __name__ == "__main__":
    unittest.main()
