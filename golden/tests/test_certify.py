"""assay certify --python: torch callables, judged on inputs that the judge made."""
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import torch

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import certify_functions  # noqa: E402
from assay_trace import certify_memory  # noqa: E402


class Runs(unittest.TestCase):
    """How a function of a module is certified: what every file of these tests shares."""
    module, path = "certify_functions", ()

    def run_assay(self, *words):
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent), *self.path, os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run([os.environ["ASSAY"], *words], capture_output=True, text=True, env=env)
        return done.returncode, done.stdout + done.stderr

    def certify(self, function, operation, *more):
        name = function if ":" in function else f"{self.module}:{function}"
        limits = [word for option, value in (("--limit", "3600"), ("--call-limit", "60")) if option not in more for word in (option, value)]
        return self.run_assay("certify", "--seeds", "1", "--python", name, "--python-program", sys.executable, "--operation", operation,
                              *limits, *more)

    def fails(self, function, operation, trial, words):
        code, text = self.certify(function, operation)
        self.assertEqual(code, 1, text)
        self.assertIn(f"FAIL {trial} ", text)
        self.assertIn(words, text)

    def passes(self, function, operation, trials=(), *more):
        code, text = self.certify(function, operation, *more)
        self.assertEqual(code, 0, text)
        for trial in ("accepts", "guards", "inputs", "written", "exact", "local", "special", "repeat", "threads", "state", *trials):
            self.assertIn(f"pass {trial} ", text)
        return text

    def all_of(self, check, rows):
        """Two at a time: most of a run is the import of torch."""
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for future in [pool.submit(check, *row) for row in rows]:
                future.result()


class Certify(Runs):
    def test_honest_functions(self):
        for function, operation in (("rms", "rmsnorm_fwd"), ("add", "add"), ("Holder.wide", "add")):
            self.assertIn("the tightest declaration", self.passes(function, operation, (), "--suggest"))

    def test_honest_of_other_styles(self):
        self.all_of(self.passes, (("rms_of_rows", "rmsnorm_fwd", ("batch", "strides")), ("add_declared_in_place", "add"),
                                  ("add_not_contiguous", "add"), ("add_with_graph", "add"), ("add_that_prints", "add")))

    def test_wrong_results(self):
        self.all_of(self.fails, (
            ("rms_with_eps_outside", "rmsnorm_fwd", "local", "rstd"),
            ("add_without_nan", "add", "special", "nan"),
            ("add_of_a_thread", "add", "threads", "other bits in another run"),
            ("add_of_the_second_call", "add", "repeat", "output y has other bits in another run of this process"),
            ("add_of_an_address", "add", "repeat", "output y has other bits in another run of this process"),
            ("add_into_one_buffer", "add", "repeat", "output y of an earlier call, "),
            ("rms_of_the_batch", "rmsnorm_fwd", "batch", "output rstd has other bits without the other rows, in the first half of"),
            ("rms_of_whole_rows", "rmsnorm_fwd", "strides", "has other bits for rows with gaps, in rows with gaps in exact.")))

    def test_wrong_outputs(self):
        self.all_of(self.fails, (
            ("add_of_no_empty", "add", "accepts", "raises ValueError: nothing to add (certify_functions.py:"),
            ("add_of_two", "add", "accepts", "expected 1 outputs (y), found 2"),
            ("add_as_text", "add", "accepts", "output y: expected a tensor, found str"),
            ("add_in_float", "add", "accepts", "add: slot y: expected "),
            ("add_in_one_row", "add", "accepts", "add: slot y: expected ")))

    def test_memory(self):
        self.all_of(self.fails, (
            ("add_in_place", "add", "inputs", "changed input a, in "),
            ("add_in_the_memory_of_a", "add", "in_place", "output y lies in the memory of input a: expected memory of its own, or"),
            ("add_all_but_the_last", "add", "written", "1 of "),
            ("add_behind", "add", "guards", "memory is touched that is no tensor's (signal 11) at certify_functions.py:"),
            ("add_before", "add", "guards", "output y: written up to 1 bytes before its first element, in "),
            ("add_with_reads_behind", "add", "guards", "memory is touched that is no tensor's (signal 11)"),
            ("add_that_takes_all_memory", "add", "accepts", "raises MemoryError"),
            ("add_that_takes_all_tensors", "add", "accepts", "raises RuntimeError: ")))

    def test_what_it_does_to_its_process(self):
        self.all_of(self.fails, (
            ("add_that_exits", "add", "crash", "the function ends the process (exit code 7), in "),
            ("add_that_exits_well", "add", "crash", "the function ends the process (exit code 0), in "),
            ("add_that_raises_exit", "add", "accepts", "raises SystemExit: 0 (certify_functions.py:"),
            ("add_that_kills_itself", "add", "crash", "killed by signal 9 (Killed), in "),
            ("add_that_forks", "add", "state", "leaves 1 forked process behind, in "),
            ("add_with_default_dtype", "add", "state", "changes the default dtype from torch.float32 to torch.float64, in "),
            ("add_with_threads", "add", "state", "changes the number of threads from 1 to 2"),
            ("add_with_deterministic", "add", "state", "changes deterministic algorithms from (False, False) to (True, False)"),
            ("add_with_grad", "add", "state", "changes the grad mode from False to True"),
            ("add_with_random", "add", "state", "changes torch's random state"),
            ("add_with_flush", "add", "state", "changes flushing of subnormals from False to True"),
            ("add_with_matmul_precision", "add", "state", "changes the precision of float32 products from highest to medium")))

    def test_slices(self):
        """Guards of a device's tensors, on the CPU."""
        for at, found in ((None, (0, 0)), (-1, (1, 0)), (-4096, (4096, 0)), (12, (0, 1)), (12 + 4095, (0, 4096))):
            region = certify_memory.Slice(12, 0x5A, "cpu")
            region.tensor(torch.float32).fill_(1.0)
            if at is not None:
                certify_functions.write(region.whole, certify_memory.MARGIN + at, 1)
            self.assertEqual(region.beside(), found)

    def test_time(self):
        for function in ("add_that_hangs", "add_that_sleeps_in_c"):
            begin = time.monotonic()
            code, text = self.certify(function, "add", "--call-limit", "2")
            self.assertEqual(code, 1, text)
            self.assertRegex(text, r"FAIL time .*\n.*first: did not end within 2 s, in exact\.add\.0 \(F32 a\[7,5\] b\[7,5\]\)")
            self.assertLess(time.monotonic() - begin, 60)
        code, text = self.certify("add_that_hangs", "add", "--limit", "9", "--call-limit", "100")
        self.assertEqual(code, 1, text)
        self.assertIn("the trial did not end within 9 s, in ", text)

    def test_certificate(self):
        with tempfile.TemporaryDirectory() as folder:
            key, out = f"{folder}/key", f"{folder}/certs"
            self.assertEqual(self.run_assay("keygen", "--key", key)[0], 0)
            code, text = self.certify("add", "add", "--out", out, "--key", key)
            self.assertEqual(code, 0, text)
            self.assertNotIn("Triton", text)
            (certificate,) = pathlib.Path(out).glob("*.json")
            self.assertIn('"kind":"python"', certificate.read_text())
            code, text = self.run_assay("verify", "--key", f"{key}.pub", "--so", str(HERE / "certify_functions.py"), str(certificate))
            self.assertEqual(code, 0, text)

    def test_arithmetic_that_there_is_not(self):
        code, text = self.certify("rms_of_no_order", "rmsnorm_fwd")
        self.assertEqual(code, 2, text)
        self.assertIn("rms_of_no_order: arithmetic: order: expected none, sequential", text)

    def test_refusals(self):
        for function, operation, words in (("add", "addition", "no collective, found 'addition'"),
                                           ("add", "all_reduce", "no collective"), ("none", "add", "no attribute 'none'"),
                                           ("held", "add", "expected a function of Python, found list")):
            code, text = self.certify(function, operation)
            self.assertEqual(code, 2, text)
            self.assertIn(words, text)
        for words, more in (("expected cpu or cuda, found tpu", ("--python-device", "tpu")),
                            *((("torch finds no device", ("--python-device", "cuda")),) if not torch.cuda.is_available() else ())):
            code, text = self.certify("add", "add", *more)
            self.assertEqual(code, 2, text)
            self.assertIn(words, text)
        code, text = self.run_assay("certify", "--python-device", "cpu", "--so", "x.so:f")
        self.assertEqual(code, 2, text)
        self.assertIn("they are of --python", text)


if __name__ == "__main__":
    unittest.main()
