"""Data-parallel ranks with batches of their own (DDP, FSDP2) under `assay check`: one run, one sentence."""
import contextlib
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent), str(pathlib.Path(__file__).resolve().parent)]

import assay_trace  # noqa: E402
import foreign_models as models  # noqa: E402
from test_trace import ASSAY  # noqa: E402


def rank_of(rank, world, port, folder, mode, mistake):
    models.start_rank(rank, world, port)
    torch.set_num_threads(1)
    model = models.build("llama")
    if rank == 0:
        model.save_pretrained(folder / "model")
    if mistake == "scale" and rank == 1:
        model.model.layers[1].self_attn.scaling *= 1.2
    run = models.wrap(model, mode, world)
    trace = assay_trace.attach(run, str(folder / "trace"), microbatches=2)
    with trace.step(), run.no_sync() if mistake == "no reduction" else contextlib.nullcontext():
        for microbatch in range(2):
            torch.manual_seed(10 * microbatch + rank)
            ids = torch.randint(0, 97, (2, 11))
            loss = run(input_ids=ids, labels=ids).loss
            (loss / (1 if mistake == "loss" else 2)).backward()
    trace.close()
    torch.distributed.destroy_process_group()


class Ranks(unittest.TestCase):
    def verdict(self, mode, mistake=None):
        with tempfile.TemporaryDirectory() as root:
            folder = pathlib.Path(root)
            torch.multiprocessing.spawn(rank_of, (2, models.free_port(), folder, mode, mistake), nprocs=2)
            r = subprocess.run([ASSAY, "check", "--trace", str(folder / "trace"), "--model", str(folder / "model")],
                               capture_output=True, text=True, check=False)
            return r.returncode, r.stdout.strip().splitlines()[-1] if r.stdout else r.stderr

    def test_honest(self):
        for mode in ("ddp", "fsdp2"):
            code, sentence = self.verdict(mode)
            self.assertEqual(code, 0, sentence)
            self.assertRegex(sentence, r"^RIGHT: 90 outputs of operations and 501 tensors of the run")

    def test_mistakes(self):
        for mode, mistake, words in (("ddp", "scale", "attention_fwd of model.layers.1.self_attn.core_attention, output o (rank 1, "),
                                     ("fsdp2", "scale", "attention_fwd of model.layers.1.self_attn.core_attention, output o (rank 1, "),
                                     ("ddp", "loss", "the loss is scaled 2 times"),
                                     ("ddp", "no reduction", ".grad")):
            code, sentence = self.verdict(mode, mistake)
            self.assertEqual(code, 1, sentence)
            self.assertTrue(sentence.startswith("WRONG: ") and words in sentence, sentence)


if __name__ == "__main__":
    unittest.main()
