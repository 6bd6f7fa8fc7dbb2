"""assay certify --python: torch callables, judged on inputs that the judge made."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent


class Certify(unittest.TestCase):
    def run_assay(self, *words):
        env = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parent}:{os.environ.get('PYTHONPATH', '')}"}
        done = subprocess.run([os.environ["ASSAY"], *words], capture_output=True, text=True, env=env)
        return done.returncode, done.stdout + done.stderr

    def certify(self, function, operation, *more):
        return self.run_assay("certify", "--seeds", "1", "--python", f"certify_functions:{function}", "--python-program",
                              sys.executable, "--operation", operation, *more)

    def fails(self, function, operation, trial, words):
        code, text = self.certify(function, operation)
        self.assertEqual(code, 1, text)
        self.assertIn(f"FAIL {trial} ", text)
        self.assertIn(words, text)

    def test_honest_functions(self):
        for function, operation in (("rms", "rmsnorm_fwd"), ("add", "add"), ("Holder.wide", "add")):
            code, text = self.certify(function, operation, "--suggest")
            self.assertEqual(code, 0, text)
            for trial in ("accepts", "inputs", "exact", "local", "special", "repeat"):
                self.assertIn(f"pass {trial} ", text)
            self.assertIn("the tightest declaration", text)

    def test_planted_faults(self):
        self.fails("rms_with_eps_outside", "rmsnorm_fwd", "local", "rstd")
        self.fails("add_in_place", "add", "inputs", "changed input a of")
        self.fails("add_without_nan", "add", "special", "nan")
        self.fails("add_of_a_thread", "add", "repeat", "other bits in another run")
        self.fails("add_of_no_empty", "add", "accepts", "raises ValueError: nothing to add (certify_functions.py:")
        self.fails("add_of_two", "add", "accepts", "expected 1 outputs (y), found 2")
        self.fails("add_that_exits", "add", "crash", "exit code 7")

    def test_certificate(self):
        with tempfile.TemporaryDirectory() as folder:
            key, out = f"{folder}/key", f"{folder}/certs"
            self.assertEqual(self.run_assay("keygen", "--key", key)[0], 0)
            code, text = self.certify("add", "add", "--out", out, "--key", key)
            self.assertEqual(code, 0, text)
            (certificate,) = pathlib.Path(out).glob("*.json")
            self.assertIn('"kind":"python"', certificate.read_text())
            code, text = self.run_assay("verify", "--key", f"{key}.pub", "--so", str(HERE / "certify_functions.py"), str(certificate))
            self.assertEqual(code, 0, text)

    def test_refusals(self):
        for function, operation, words in (("add", "addition", "no collective, found 'addition'"),
                                           ("add", "all_reduce", "no collective"), ("none", "add", "no attribute 'none'")):
            code, text = self.certify(function, operation)
            self.assertEqual(code, 2, text)
            self.assertIn(words, text)


if __name__ == "__main__":
    unittest.main()
