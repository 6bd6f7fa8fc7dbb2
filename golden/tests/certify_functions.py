"""Callables for assay certify --python: honest ones, and what differs from them in one way each."""
import os

import torch


def rms(x, gamma, eps):
    r = torch.rsqrt(x.float().pow(2).mean(-1) + eps)
    return (x.float() * r[..., None] * gamma.float()).to(x.dtype), r


def rms_with_eps_outside(x, gamma, eps):
    r = 1 / (x.float().pow(2).mean(-1).sqrt() + eps)
    return (x.float() * r[..., None] * gamma.float()).to(x.dtype), r


def add(a, b):
    return a + b


def add_in_place(a, b):
    return a.add_(b)


def add_without_nan(a, b):
    return torch.nan_to_num(a + b, posinf=float("inf"), neginf=float("-inf"))


def add_of_a_thread(a, b):
    """Other bits with another number of threads."""
    return a + b if torch.get_num_threads() == 1 else (a.double() + b.double() * (1 + 2.0 ** -7)).to(a.dtype)


def add_of_no_empty(a, b):
    if a.numel() == 0:
        raise ValueError("nothing to add")
    return a + b


def add_of_two(a, b):
    return a + b, a


def add_that_exits(a, b):
    if a.numel() > 5:
        os._exit(7)
    return a + b


add.arithmetic = {"order": "none", "math_ulp": 0}
class Holder:
    wide = staticmethod(lambda a, b: (a.float() + b.float()).to(a.dtype))
