"""Files of golden/: a safetensors writer whose bytes depend on nothing but its input, and the manifest.

The writer orders tensors and metadata by name, so that two runs of a script give the same sha256
(the safetensors package keeps metadata in a hash map with an order of its own).
"""
import hashlib
import json
import pathlib
import platform

import torch

GOLDEN = pathlib.Path(__file__).resolve().parent
MANIFEST = GOLDEN / "MANIFEST.json"

# Dtype objects are taken at import, before make_models.py gives torch.float32 another meaning.
DTYPE_NAMES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64",
               torch.float16: "F16", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e8m0fnu: "F8_E8M0"}


def save_safetensors(path, tensors, metadata=None):
    """Writes {name: tensor} and {key: str} to `path`; data begins on a multiple of 8 bytes."""
    header, blobs, offset = {}, [], 0
    if metadata:
        header["__metadata__"] = {k: str(metadata[k]) for k in sorted(metadata)}
    for name in sorted(tensors):
        t = tensors[name].detach().contiguous().cpu()
        blob = t.reshape(-1).view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": DTYPE_NAMES[t.dtype], "shape": list(t.shape),
                        "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def save_json(path, value):
    """Writes JSON with sorted keys and a final newline."""
    pathlib.Path(path).write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def update_manifest(section, command, seeds, folder, names=None, some=False):
    """Records versions, command, seeds and the sha256 of every file under golden/<folder>, of its folders `names` alone.
    some: only a few of them were made now, the section keeps its versions."""
    import transformers

    manifest = json.loads(MANIFEST.read_text()) if MANIFEST.exists() else {}
    folders = [GOLDEN / folder] if names is None else [GOLDEN / folder / n for n in names]
    files = sorted(p for f in folders for p in f.rglob("*") if p.is_file())
    versions = {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}
    if some and section in manifest:
        versions = {k: manifest[section][k] for k in versions}
    manifest[section] = {
        "command": command,
        **versions,
        "seeds": seeds,
        "sha256": {str(p.relative_to(GOLDEN)): hashlib.sha256(p.read_bytes()).hexdigest()
                   for p in files},
    }
    save_json(MANIFEST, manifest)
    return files
