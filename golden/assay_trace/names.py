"""Names as Hugging Face writes them, whatever wrapped the model."""
import fnmatch

WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module")


def clean(name):
    """`module.` (DDP), `_orig_mod.` (torch.compile), FSDP's and activation checkpointing's words are not part of a name."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


class Filter:
    """Shell patterns over clean names: what matches `include` (all, when it is empty) and not `exclude`."""

    def __init__(self, include=(), exclude=()):
        self.include = [include] if isinstance(include, str) else list(include or ())
        self.exclude = [exclude] if isinstance(exclude, str) else list(exclude or ())

    def takes(self, name):
        return ((not self.include or any(fnmatch.fnmatchcase(name, p) for p in self.include))
                and not any(fnmatch.fnmatchcase(name, p) for p in self.exclude))
