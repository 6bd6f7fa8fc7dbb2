"""One run of the real PaddleNLP trainer on a CPU: python golden/paddle_cpu.py JSON (golden/make_paddle.py starts it, once a rank).

The CPU has no matmul and no AdamW in bf16, and gloo no reduce_scatter: gradients here are a function of each element alone, so no
layout shows in any sum; the optimizer's step is the kernel for fp32 on the masters; everything that saves and loads is PaddleNLP's.
"""
import json
import os
import sys
import warnings

warnings.filterwarnings("ignore")
import numpy as np
import paddle
import paddlenlp.transformers
from paddle.distributed.fleet.utils import tensor_fusion_helper
from paddle.optimizer import adamw
from paddlenlp.trainer import Trainer, TrainerCallback, TrainingArguments

KINDS = ("moment1_0", "moment2_0", "beta1_pow_acc_0", "beta2_pow_acc_0")


class Operations:
    """paddle._C_ops, with AdamW of bf16 parameters on their masters."""

    def __getattr__(self, name):
        return getattr(paddle._C_ops, name)

    def adamw_(self, param, grad, lr, moment1, moment2, most, power1, power2, master, found, *rest):
        if master is None:
            return paddle._C_ops.adamw_(param, grad, lr, moment1, moment2, most, power1, power2, master, found, *rest)
        rest = list(rest)
        rest[8] = False  # multi_precision
        out = paddle._C_ops.adamw_(master, grad.cast("float32"), lr, moment1, moment2, most, power1, power2, None, found, *rest)
        param.copy_(master.cast(param.dtype), False)
        return out


def reduce_scatter(out, whole, op=None, group=None, sync_op=True):
    """By an all_reduce."""
    whole = whole.clone()
    task = paddle.distributed.all_reduce(whole, op=op, group=group, sync_op=True)
    n = out.shape[0]
    rank = group.rank if group is not None else paddle.distributed.get_rank()
    paddle.assign(whole[rank * n:(rank + 1) * n], out)
    return task if not sync_op else None


class Done:
    def wait(self):
        return True


def patch():
    adamw._C_ops = Operations()
    tensor_fusion_helper.get_current_device_type = lambda: "gpu"  # how its buffers are padded: the CPU has no row there
    paddle.distributed.reduce_scatter = lambda *a, **k: reduce_scatter(*a, **k) or Done()


class Data(paddle.io.Dataset):
    def __init__(self, vocabulary):
        self.ids = np.random.RandomState(7).randint(3, vocabulary, (64, 9)).astype("int64")

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i, :-1], "labels": self.ids[i, 1:]}


def bits(tensor):
    tensor = tensor.cpu()
    return (tensor.view("uint16") if tensor.dtype == paddle.bfloat16 else tensor).numpy()


class Dump(TrainerCallback):
    """What PaddleNLP holds when its first step begins (what a load left) and behind the last."""

    def __init__(self, path):
        self.path = path
        self.begun = False

    def dump(self, when, model, optimizer):
        names = {value.name: key for key, value in model.state_dict().items()}
        state = optimizer.state_dict()
        out = {"model:" + key: bits(value) for key, value in model.state_dict().items()}
        out.update({"master:" + names[key]: bits(value) for key, value in state.get("master_weights", {}).items()})
        for key, value in state.items():
            for kind in KINDS:
                if key.endswith("_" + kind):
                    out[f"state:{names[key[:-len(kind) - 1].removesuffix('_fp32_master_0')]}/{kind}"] = bits(value)
        np.savez(f"{self.path}.{when}.{os.environ.get('PADDLE_TRAINER_ID', '0')}.npz", **out)

    def on_step_begin(self, args, state, control, model=None, optimizer=None, **_):
        if not self.begun:
            self.begun = True
            self.dump("begin", model, optimizer)

    def on_train_end(self, args, state, control, model=None, optimizer=None, **_):
        self.dump("end", model, optimizer)


class Elementwise(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        loss = 0.0
        for p in model.parameters():
            if not p.stop_gradient:
                x = p.cast("float32")
                loss = loss + (x * x * 0.5 + paddle.sin(x * 50.0)).sum()
        return (loss, loss) if return_outputs else loss


def main():
    patch()
    run = json.loads(sys.argv[1])
    bf16 = run.get("bf16", True)
    dtype = "bfloat16" if bf16 else "float32"
    paddle.set_device("cpu")
    paddle.seed(1)
    args = TrainingArguments(output_dir=run["out"], max_steps=run["steps"], save_steps=run["steps"], save_strategy="steps",
                             per_device_train_batch_size=2, learning_rate=1e-3, lr_scheduler_type="linear", report_to=[],
                             disable_tqdm=True, unified_checkpoint=True, device="cpu", seed=1, bf16=bf16, fp16_opt_level="O2",
                             adam_beta2=0.98, weight_decay=0.1, max_grad_norm=0.0, unified_checkpoint_config=run.get("uc", ""),
                             ckpt_quant_stage=run.get("quant", "O0"), **run.get("args", {}))
    config_class, model_class = (getattr(paddlenlp.transformers, name) for name in run["classes"])
    config = config_class(**run["config"])
    config.tensor_parallel_degree = args.tensor_parallel_degree
    config.tensor_parallel_rank = args.tensor_parallel_rank
    for key in ("fuse_attention_qkv", "fuse_attention_ffn"):  # its classes drop them
        setattr(config, key, run["config"].get(key, False))
    config.dtype = dtype
    model = model_class.from_config(config, dtype=dtype)
    for name, parameter in model.named_parameters():
        if any(word in name for word in run.get("freeze", [])):
            parameter.stop_gradient = True
    trainer = Elementwise(model=model, args=args, train_dataset=Data(run["config"]["vocab_size"]), callbacks=[Dump(run["dump"])])
    trainer.train(resume_from_checkpoint=run.get("load"))


if __name__ == "__main__":
    main()
