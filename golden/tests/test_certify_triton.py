"""assay certify --python of functions that launch Triton kernels, in Triton's interpreter."""
import importlib.util
import pathlib
import sys
import tempfile
import unittest

import test_certify

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "certify"


@unittest.skipUnless(importlib.util.find_spec("triton"), "no Triton")
class CertifyTriton(test_certify.Runs):
    module = "certify_triton_functions"
    path = (str(EXAMPLES),)

    def test_honest(self):
        self.all_of(self.passes, (("honest", "rmsnorm_fwd"), ("add", "add"), ("rmsnorm_triton:rmsnorm", "rmsnorm_fwd", ("batch", "strides")),
                                  ("swiglu_triton:swiglu", "swiglu_fwd", ("batch",))))

    def test_mistakes(self):
        self.all_of(self.fails, (
            ("wrong_eps", "rmsnorm_fwd", "local", "rstd"),
            ("wrong_block", "rmsnorm_fwd", "local", "rstd"),
            ("sum_in_bf16", "rmsnorm_fwd", "local", "rstd"),
            ("wrong_id", "rmsnorm_fwd", "written", "elements of y are never written, the first is element 0, in "),
            ("last_row", "rmsnorm_fwd", "written", " elements of y are never written, the first is element "),
            ("store", "rmsnorm_fwd", "guards", "memory is touched that is no tensor's (signal 11) at certify_triton_functions.py:"),
            ("load", "rmsnorm_fwd", "guards", "memory is touched that is no tensor's (signal 11) at certify_triton_functions.py:"),
            ("load_of_one", "rmsnorm_fwd", "guards", "memory is touched that is no tensor's (signal 11)"),
            ("broken", "add", "accepts", "raises InterpreterError: ")))

    def test_certificate_names_the_interpreter(self):
        with tempfile.TemporaryDirectory() as folder:
            key, out = f"{folder}/key", f"{folder}/certs"
            self.assertEqual(self.run_assay("keygen", "--key", key)[0], 0)
            self.assertEqual(self.certify("add", "add", "--out", out, "--key", key)[0], 0)
            (certificate,) = pathlib.Path(out).glob("*.json")
            text = certificate.read_text()
            self.assertRegex(text, r'"toolkit":"Triton [0-9.]+, its interpreter with bfloat16 rounded to nearest even"')
            self.assertIn('"tier":"host"', text)
            self.assertIn("Triton's compiler: its interpreter runs one program after the other", text)

    def test_the_interpreter_as_it_comes_is_refused(self):
        """What `check` holds to torch's arithmetic is not so without the correction."""
        import os
        import subprocess
        program = "from assay_trace import certify_triton as t; before = t.check(); t.install(); print(before, t.check())"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                              env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(pathlib.Path(__file__).parents[1])})
        self.assertEqual(done.stdout.strip(), "a cast of bfloat16 None", done.stderr)


if __name__ == "__main__":
    unittest.main()
