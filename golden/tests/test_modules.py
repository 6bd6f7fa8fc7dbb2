"""Modules beside Llama's: Gemma's norm, LayerNorm, DeepSeek's attention and ropes, OLMoE's clip, routers backward, the balancing loss; the real Megatron core where it is installed.

Honest runs pass, and a mistake in each is named."""
import copy
import importlib.util
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
import trials_trace as trials  # noqa: E402
from test_trace import ASSAY, operations  # noqa: E402


def without_one(norm):
    """Gemma's norm with the weight for 1 + weight."""
    norm.forward = lambda x: (norm._norm(x.float()) * norm.weight.float()).type_as(x)


def constant_sum(router):
    """Weights of the chosen whose sum is a constant on the way back."""
    def forward(x):
        logits = torch.nn.functional.linear(x.reshape(-1, x.shape[-1]), router.weight)
        scores = torch.nn.functional.softmax(logits, dtype=torch.float, dim=-1)
        top, indices = torch.topk(scores, router.top_k, dim=-1)
        return logits, (top / top.sum(-1, keepdim=True).detach()).to(logits.dtype), indices

    router.forward = forward


class Modules(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name) / "t"
        warnings.simplefilter("ignore")

    def tearDown(self):
        self.temporary.cleanup()

    def run_of(self, name, model):
        trials.train(model, "plain", self.folder / name, microbatches=1)
        return trials.replay(ASSAY, self.folder / name)

    def honest(self, family, dtype, attention, count, **kinds):
        name = f"{family}_{str(dtype)[6:]}_{attention}"
        passed, failed, skipped, first = self.run_of(name, models.build(family, dtype, attention))
        self.assertEqual((failed, skipped), (0, 0), f"{name}: {first}")
        self.assertGreaterEqual(passed, count, name)
        found = [o["op"] for o in operations(self.folder / name)]
        for op, n in kinds.items():
            self.assertEqual(found.count(op), n, f"{name}: {op}")

    def named(self, name, model, instance, operation):
        _, failed, _, first = self.run_of(name, model)
        self.assertGreater(failed, 0)
        self.assertEqual(first, (instance, operation))

    def test_norm_of_gemma(self):
        for dtype in (torch.float32, torch.bfloat16):
            self.honest("gemma", dtype, "eager", 86, rmsnorm_fwd=5, rmsnorm_bwd=5)
        model = models.build("gemma")
        without_one(model.model.layers[1].input_layernorm)
        self.named("wrong", model, "model.layers.1.input_layernorm", "rmsnorm_fwd")

    def test_latent_attention(self):
        for dtype, attention in ((torch.float32, "eager"), (torch.bfloat16, "eager"), (torch.bfloat16, "sdpa")):
            self.honest("deepseek_v3", dtype, attention, 118, attention_fwd=2, attention_bwd=2, router_bwd=1, rope_fwd=4, rope_bwd=4)
        model = models.build("deepseek_v3")
        model.model.layers[1].self_attn.scaling *= 1.1
        self.named("wrong", model, "model.layers.1.self_attn.core_attention", "attention_fwd")

    def test_yarn(self):
        for family in ("llama_yarn", "llama_yarn_mscale"):
            for dtype in (torch.float32, torch.bfloat16):
                self.honest(family, dtype, "eager", 60, rope_table=1, rope_fwd=4, rope_bwd=4)
            model = models.build(family)
            model.model.rotary_emb.attention_scaling = 1.0
            self.named("wrong_" + family, model, "model.rotary_emb", "rope_table")

    def test_latent_attention_beside_its_folder(self):
        """Against config.json, weights and the reference: the inner norms have the eps of their class and not rms_norm_eps."""
        for eps, code, word in ((None, 0, "RIGHT: "), (1e-2, 1, "holds eps 0.01, the model's is 1e-06")):
            model = models.build("deepseek_v3", attention="eager", experts="eager")
            model.save_pretrained(self.folder / "model")
            if eps:
                model.model.layers[1].self_attn.kv_a_layernorm.variance_epsilon = eps
            name = self.folder / f"beside_{eps}"
            trace = assay_trace.attach(model, str(name))
            ids = torch.arange(26).reshape(2, 13) * 7 % 97
            with trace.step():
                model(input_ids=ids, labels=ids).loss.backward()
            trace.close()
            r = subprocess.run([ASSAY, "check", "--trace", name, "--model", self.folder / "model"], capture_output=True, text=True, check=False)
            self.assertEqual(r.returncode, code, r.stdout + r.stderr)
            self.assertIn(word, r.stdout.splitlines()[-1])

    def test_experts_of_v2_beside_its_folder(self):
        """Pairs are rotated where they are; a choice of the best groups, and one without."""
        import transformers

        for name, method, code, word in (("deepseek_v2", None, 0, "RIGHT: "), ("deepseek_v2_lite", None, 0, "RIGHT: "),
                                         ("deepseek_v2", "greedy", 1, "router_fwd of model.layers.1.mlp.gate.router, output indices")):
            folder = pathlib.Path(__file__).resolve().parent.parent / "models" / name
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", experts_implementation="eager")
            for layer in model.model.layers[1:] if method else ():
                layer.mlp.gate.topk_method = method
            trace = assay_trace.attach(model, str(self.folder / f"{name}_{method}"))
            ids = torch.arange(40).reshape(2, 20) * 7 % 67
            with trace.step():
                model(input_ids=ids, labels=ids).loss.backward()
            trace.close()
            r = subprocess.run([ASSAY, "check", "--trace", self.folder / f"{name}_{method}", "--model", folder], capture_output=True, text=True, check=False)
            self.assertEqual(r.returncode, code, r.stdout + r.stderr)
            self.assertIn(word, r.stdout)

    def test_rope_of_neighbours(self):
        from transformers.models.deepseek_v3 import modeling_deepseek_v3 as file

        plain = file.apply_rotary_pos_emb_interleave
        file.apply_rotary_pos_emb_interleave = file.apply_rotary_pos_emb  # halves are rotated where neighbours should be
        try:
            self.named("wrong", models.build("deepseek_v3"), "model.layers.0.self_attn.rope_q", "rope_fwd")
        finally:
            file.apply_rotary_pos_emb_interleave = plain

    def test_complex_rope(self):
        from transformers.models.deepseek_v2 import modeling_deepseek_v2 as file

        for dtype in (torch.float32, torch.bfloat16):
            self.honest("deepseek_v2", dtype, "eager", 60, rope_table=1, rope_fwd=4, rope_bwd=4, attention_bwd=2)
        plain = file.apply_rotary_emb
        file.apply_rotary_emb = lambda q, k, turns: plain(q, k, turns.conj())  # the other way round
        try:
            self.named("wrong", models.build("deepseek_v2"), "model.layers.0.self_attn.rope_q", "rope_fwd")
        finally:
            file.apply_rotary_emb = plain

    def test_clipped_heads(self):
        for dtype in (torch.float32, torch.bfloat16):
            self.honest("olmoe_clip", dtype, "eager", 60, clamp_fwd=6, clamp_bwd=6)

        def limit(value):
            model = models.build("olmoe_clip", experts="eager")
            attention = model.model.layers[1].self_attn
            attention.config = copy.copy(attention.config)
            attention.config.clip_qkv = value
            return model

        for name, value in (("other", 0.9), ("none", None)):
            self.named(name, limit(value), "model.layers.1.self_attn.clip_q", "clamp_fwd")

    def test_balancing_loss(self):
        for dtype in (torch.float32, torch.bfloat16):
            self.honest("mixtral_aux", dtype, "sdpa", 50, load_balancing_fwd=1, load_balancing_bwd=1)
        model = models.build("mixtral_aux")
        model.num_experts_per_tok = 3
        self.named("wrong", model, "load_balancing_loss", "load_balancing_fwd")

    def test_balancing_loss_of_padded_rows(self):
        ids, mask = torch.randint(0, 97, (3, 11)), torch.ones(3, 11, dtype=torch.long)
        mask[0, :4] = mask[2, :1] = 0
        for name, counted in (("honest", mask), ("wrong", torch.ones_like(mask))):
            from transformers.models.mixtral import modeling_mixtral as file

            plain, model = file.load_balancing_loss_func, models.build("mixtral_aux")
            file.load_balancing_loss_func = lambda logits, n, k, m, counted=counted: plain(logits, n, k, counted)
            try:
                trace = assay_trace.attach(model, str(self.folder / name))
                with trace.step():
                    model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss.backward()
                trace.close()
            finally:
                file.load_balancing_loss_func = plain
            passed, failed, _, first = trials.replay(ASSAY, self.folder / name)
            self.assertGreater(passed, 40)
            self.assertEqual(first, None if name == "honest" else ("load_balancing_loss", "load_balancing_fwd"), f"{failed} failed")

    def layernorms(self, dtype, width, plant=None):
        from transformers.models.cohere.modeling_cohere import CohereLayerNorm

        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.LayerNorm(width), torch.nn.Linear(width, width),
                                    torch.nn.LayerNorm(width, bias=False), torch.nn.Linear(width, width), CohereLayerNorm(width)).to(dtype)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.3 * torch.randn_like(p))
        if plant:
            plant(model)
        name = f"{dtype}_{width}_{plant is None}"
        trace = assay_trace.attach(model, str(self.folder / name))
        with trace.step():
            for shift in (0.0, 5.0):
                model(torch.randn(2, 7, width).add(shift).to(dtype)).float().square().sum().backward()
        trace.close()
        return (self.folder / name, *trials.replay(ASSAY, self.folder / name))

    def test_layernorm(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float16):
            for width in (8, 130):
                folder, passed, failed, skipped, first = self.layernorms(dtype, width)
                self.assertEqual((failed, skipped), (0, 0), f"{dtype} {width}: {first}")
                found = [o["op"] for o in operations(folder)]
                self.assertEqual((found.count("layernorm_fwd"), found.count("layernorm_bwd")), (6, 6))

        def half_of_beta(model):
            norm, plain = model[1], torch.nn.functional.layer_norm
            norm.forward = lambda x: plain(x, norm.normalized_shape, norm.weight, 0.5 * norm.bias, norm.eps)

        _, _, failed, _, first = self.layernorms(torch.float32, 8, half_of_beta)
        self.assertEqual(first, ("1", "layernorm_fwd"))

    def test_routers_backward(self):
        for family, dtype in (("qwen3_moe", torch.bfloat16), ("mixtral", torch.float32), ("qwen2_moe", torch.bfloat16)):
            self.honest(family, dtype, "sdpa", 100, router_fwd=2, router_bwd=2, attention_bwd=2)
        model = models.build("qwen3_moe")
        constant_sum(model.model.layers[1].mlp.gate)
        self.named("wrong", model, "model.layers.1.mlp.gate.router", "router_bwd")


@unittest.skipUnless(importlib.util.find_spec("megatron"), "no megatron-core: the collector for the real Megatron core was not run")
class Megatron(unittest.TestCase):
    def test_two_layouts_beside_each_other(self):
        import showcase

        with tempfile.TemporaryDirectory() as root:
            for layout in ("1", "tp2"):
                showcase.spawn(layout, [(n, showcase.folder_of(root, n, layout)) for n in ("qk_norm", "mla")], False)
                for name in ("qk_norm", "mla"):
                    passed, failed, _, first = trials.replay(ASSAY, showcase.folder_of(root, name, layout))
                    self.assertEqual(failed, 0, first)
                    self.assertGreater(passed, 40)
            for name, code, word in (("qk_norm", 0, "RIGHT: "), ("mla", 1, "not summed over tp")):
                r = subprocess.run([ASSAY, "diff", *(showcase.folder_of(root, name, t) for t in ("1", "tp2")), "--noise", "auto"],
                                   capture_output=True, text=True, check=False)
                self.assertEqual(r.returncode, code, r.stdout + r.stderr)
                self.assertIn(word, r.stdout.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
