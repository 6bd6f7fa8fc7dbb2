"""The trace package on real PyTorch: what it writes is replayed by assay, every operation passes, a planted mistake is named.

ci/trace.sh runs it; ASSAY is the program."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import warnings

import torch

GOLDEN = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(GOLDEN))

import assay_trace  # noqa: E402
import foreign_models as models  # noqa: E402
import trials_trace as trials  # noqa: E402

ASSAY = os.environ.get("ASSAY", str(GOLDEN.parent / "build/dev/bin/assay"))


def records(folder, rank=0):
    return [json.loads(line) for line in (folder / f"rank-{rank:05d}.jsonl").read_text().splitlines()]


def operations(folder, rank=0):
    return [r for r in records(folder, rank) if r["type"] == "op"]


def honest_rank(rank, world, port, folder):
    models.start_rank(rank, world, port)
    for mode in ("ddp", "fsdp2", "tp"):
        trials.train(models.build("qwen3"), mode, folder / mode, steps=2, rank=rank, world=world, optimizer=True)
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()


class Trace(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name) / "t"
        warnings.simplefilter("ignore")

    def tearDown(self):
        self.temporary.cleanup()

    def passes(self, folder, least):
        passed, failed, skipped, first = trials.replay(ASSAY, folder)
        self.assertEqual((failed, skipped), (0, 0), first)
        self.assertGreaterEqual(passed, least)

    def train(self, family="llama", **options):
        trials.train(models.build(family), "plain", self.folder, **options)

    def test_every_operation_of_a_step(self):
        self.train(optimizer=True)
        self.passes(self.folder, 153)
        kinds = {o["op"] for o in operations(self.folder)}
        self.assertLessEqual({"linear_fwd", "linear_bwd_input", "linear_bwd_weight", "embedding_fwd", "embedding_bwd", "rmsnorm_fwd",
                              "rmsnorm_bwd", "rope_table", "rope_fwd", "rope_bwd", "attention_fwd", "attention_bwd", "swiglu_fwd",
                              "swiglu_bwd", "add", "cross_entropy_fwd", "cross_entropy_bwd", "adamw"}, kinds)

    def test_padding_of_an_embedding(self):
        """An id from the end, in the batch; the gradient of its row is zero, and replay says so of the ids as they are."""
        model = torch.nn.Sequential(torch.nn.Embedding(7, 4, padding_idx=-2))
        trace = assay_trace.attach(model, str(self.folder))
        with trace.step():
            (model(torch.tensor([[5, 1, 5], [5, 6, 0]])) * torch.randn(2, 3, 4)).sum().backward()
        trace.close()
        self.assertEqual([o["attrs"].get("padding_idx") for o in operations(self.folder)], [None, 5])
        self.passes(self.folder, 2)

    def test_experts_in_every_implementation(self):
        for experts in ("eager", "batched_mm", "grouped_mm"):
            folder = self.folder / experts
            trials.train(models.build("qwen3_moe", torch.bfloat16, experts=experts), "plain", folder)
            self.passes(folder, 116)
            self.assertLessEqual({"router_fwd", "gather_rows", "grouped_linear_fwd", "grouped_linear_bwd_weight",
                                  "grouped_linear_bwd_input", "weighted_combine_fwd", "weighted_combine_bwd"},
                                 {o["op"] for o in operations(folder)})

    def test_ranks(self):
        self.folder.mkdir()
        torch.multiprocessing.spawn(honest_rank, (2, models.free_port(), self.folder), nprocs=2)
        for mode in ("ddp", "fsdp2", "tp"):
            self.passes(self.folder / mode, 177)
            self.assertEqual(len(operations(self.folder / mode, 0)), len(operations(self.folder / mode, 1)))
        self.assertIn("partial", {r.get("kind") for r in records(self.folder / "tp")})

    def test_checkpointing_runs_again(self):
        for mode in ("checkpoint", "checkpoint_reentrant"):
            trials.train(models.build("llama"), mode, self.folder / mode)
            self.passes(self.folder / mode, 90)
            self.assertTrue(any(o.get("recompute") for o in operations(self.folder / mode)))

    def test_a_compiled_region_is_seen_from_outside(self):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model = models.wrap(models.build("llama"), "compile")
            trace = assay_trace.attach(model, str(self.folder))
            ids = torch.randint(0, 97, (2, 11))
            with trace.step():
                model(input_ids=ids, labels=ids).loss.backward()
            trace.close()
        self.assertTrue(any("compiled regions" in str(w.message) and "layers.0.self_attn.o_proj" in str(w.message) for w in said))
        self.passes(self.folder, 80)
        self.assertIn("model.layers.0.self_attn.o_proj", {r.get("name") for r in records(self.folder)})

    def test_a_mistake_is_named(self):
        for name, (_, _, instance, operation) in models.MISTAKES.items():
            with self.subTest(name):
                folder = self.folder / name.replace(" ", "_")
                trials.mistake(name, "plain", folder)
                _, failed, _, first = trials.replay(ASSAY, folder)
                self.assertGreater(failed, 0)
                self.assertEqual(first, (instance, operation))

    def test_values_are_the_same_with_and_without(self):
        gradients = []
        for traced in (False, True):
            model, ids = models.build("qwen3_moe", torch.bfloat16), torch.arange(22).reshape(2, 11)
            trace = assay_trace.attach(model, str(self.folder)) if traced else None
            if traced:
                with trace.step():
                    model(input_ids=ids, labels=ids).loss.backward()
                trace.close()
            else:
                model(input_ids=ids, labels=ids).loss.backward()
            gradients.append([p.grad for p in model.parameters()])
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(*gradients)))

    def test_close_takes_everything_off_and_another_may_come(self):
        plain = torch.nn.functional.linear, torch.nn.functional.cross_entropy
        model = models.build("llama")
        before = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
        for i in range(2):
            trace = assay_trace.attach(model, str(self.folder / str(i)))
            self.assertIsNot(torch.nn.functional.linear, plain[0])
            ids = torch.randint(0, 97, (2, 11))
            with trace.step():
                model(input_ids=ids, labels=ids).loss.backward()
            trace.detach()
            self.assertEqual((torch.nn.functional.linear, torch.nn.functional.cross_entropy), plain)
            self.assertEqual(sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()), before)
            self.passes(self.folder / str(i), 80)

    def test_an_exception_leaves_a_trace(self):
        model = models.build("llama")
        trace = assay_trace.attach(model, str(self.folder))
        ids = torch.randint(0, 97, (2, 11))
        with trace.step():
            model(input_ids=ids, labels=ids).loss.backward()
        with self.assertRaises(RuntimeError):
            with trace.step():
                model(input_ids=ids, labels=ids)
                raise RuntimeError("boom")
        trace.close()
        self.assertIn("boom", records(self.folder)[-1]["aborted"])
        self.passes(self.folder, 80)

    def test_filter_sampling_limit_hashes_statistics(self):
        self.train(include="model.layers.1.*", steps=3, every=2)
        names = {o["instance"] for o in operations(self.folder)}
        self.assertTrue(names and all(n.startswith("model.layers.1.") for n in names), names)
        self.assertEqual({r["step"] for r in records(self.folder) if "step" in r}, {0, 2})
        self.passes(self.folder, 30)
        for mode, key in (("hash", None), ("statistics", "statistics")):
            folder = self.folder / mode
            trials.train(models.build("llama"), "plain", folder, mode=mode)
            tensors = [r for r in records(folder) if r["type"] == "tensor"]
            self.assertTrue(tensors and all("hash" in r and "data" not in r for r in tensors))
            self.assertEqual(list(folder.glob("*.safetensors")), [])
            if key:
                self.assertTrue(any(key in r.get("extra", {}) for r in tensors))
        folder = self.folder / "limit"
        trials.train(models.build("llama"), "plain", folder, limit_bytes=20000)
        self.assertLess(sum(f.stat().st_size for f in folder.glob("*.safetensors")), 60000)

    def test_hashes_of_both_kinds_are_those_of_the_values(self):
        self.folder.mkdir()
        options = {"full": {"operations": False}, "hash": {"mode": "hash"}, "blake": {"mode": "hash", "hash": "blake2b-128"}}
        for name, each in options.items():
            torch.manual_seed(0)
            trials.train(models.build("llama"), "plain", self.folder / name, **each)
        kinds = {name: json.loads((self.folder / name / "index.json").read_text()).get("hash") for name in options}
        self.assertEqual(kinds, {"full": "xxh3-128", "hash": "xxh3-128", "blake": None})

        def diff(a, b):
            return subprocess.run([ASSAY, "diff", str(self.folder / a), str(self.folder / b)], capture_output=True, text=True)

        for a, b in (("full", "hash"), ("blake", "full"), ("hash", "hash")):
            out = diff(a, b)
            self.assertEqual(out.returncode, 0, out.stdout + out.stderr)
            self.assertRegex(out.stdout, r"\n[1-9]\d* passed, 0 failed, 0 skipped")
        self.assertIn("hashes of two kinds", diff("hash", "blake").stdout)
        text = (self.folder / "hash" / "rank-00000.jsonl").read_text().splitlines()
        record = next(json.loads(line) for line in text if '"model.norm"' in line)
        changed = record["hash"][:-1] + ("0" if record["hash"][-1] != "0" else "1")
        (self.folder / "hash" / "rank-00000.jsonl").write_text("\n".join(text).replace(record["hash"], changed) + "\n")
        out = diff("full", "hash")
        self.assertEqual(out.returncode, 1, out.stdout)
        self.assertIn("WRONG: model.norm", out.stdout)
        with self.assertRaisesRegex(ValueError, "hash: expected one of"):
            assay_trace.Writer(str(self.folder / "other"), hash="md5")

    def test_what_has_no_operation_is_said(self):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.out = torch.nn.GroupNorm(2, 8), torch.nn.Linear(8, 4)

            def forward(self, x):
                y = 2 * self.out(self.norm(x))
                return {"y": y, "bits": y.detach().to(torch.float8_e5m2fnuz), "turns": torch.polar(y.detach(), y.detach())}

        model = Model()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            trace = assay_trace.attach(model, str(self.folder), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        text = "\n".join(str(w.message) for w in said)
        self.assertIn("GroupNorm", text)
        self.assertIn("SGD", text)
        with warnings.catch_warnings(record=True) as said, trace.step():
            warnings.simplefilter("always")
            model(torch.randn(3, 8))["y"].sum().backward()
        self.assertIn("bits: no operation record: values of float8_e5m2fnuz are not recorded", str(said[0].message))
        trace.close()
        shapes = {r.get("name"): r.get("global_shape") for r in records(self.folder)}
        self.assertEqual((shapes["y"], shapes["turns"]), ([3, 4], [3, 4, 2]))
        self.assertNotIn("bits", shapes)
        self.passes(self.folder, 3)

    def test_statistics_count_what_is_not_finite(self):
        from assay_trace.writer import statistics
        found = statistics(torch.tensor([1.0, float("nan"), float("inf"), -3.0]))
        self.assertEqual((found["nan"], found["inf"], found["min"], found["max"], found["mean"]), (1, 1, -3.0, 1.0, -1.0))


if __name__ == "__main__":
    unittest.main()
