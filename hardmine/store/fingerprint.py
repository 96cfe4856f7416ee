"""Content keys: what a round was made from, so that it is found by its key and never by its name.

A key is a plain dict of parts (network, dtype, metric, views, split, patches); its hash is the sha256 of its canonical
JSON. Two keys that differ can say in which part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

Key = dict[str, Any]


def content_key(
    *,
    network: Mapping[str, Any],
    views: Mapping[str, Any] | None,
    split: str,
    patches: str,
    dtype: str = "float32",
    metric: str = "euclidean",
) -> Key:
    """The key of one embedding pass.

    network: `Network.identity()` (name, weights sha256, options, input side, dim). views: the view table's options
    (`Views.model_dump()`) or None. split: name of the split. patches: `PatchStore.fingerprint`.
    """
    parts = {
        "network": dict(network),
        "dtype": dtype,
        "metric": metric,
        "views": None if views is None else dict(views),
        "split": split,
        "patches": patches,
    }
    return json.loads(canonical(parts))  # as it will be read back: tuples become lists, numbers JSON numbers


def canonical(parts: Mapping[str, Any]) -> str:
    """Canonical JSON: sorted names, no spaces, no NaN. Raises TypeError / ValueError on what JSON cannot say."""
    return json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


def key_hash(key: Mapping[str, Any]) -> str:
    """Hex sha256 of the key's canonical JSON."""
    return hashlib.sha256(canonical(key).encode()).hexdigest()


def weights_sha256(state: Mapping[str, torch.Tensor]) -> str:
    """Hex sha256 over a state dict: names in sorted order, each with its dtype, shape and raw bytes. It does not depend
    on the device, on the order of the dict or on how it was saved."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def shards_digest(fingerprints: Sequence[str]) -> dict[str, Any]:
    """What tells whether a patch store begins with these shards: their count, and the hex sha256 of their
    fingerprints, one a line. An append adds shards at the end, so the digest of as many first shards stays."""
    digest = hashlib.sha256("".join(f"{each}\n" for each in fingerprints).encode()).hexdigest()
    return {"count": len(fingerprints), "sha256": digest}


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """The parts in which two keys differ, one line each: 'network.weights: 3f2a... there, 91bc... here'."""
    first, second = flat(theirs), flat(ours)
    return [
        f"{name}: {_short(first.get(name))} there, {_short(second.get(name))} here"
        for name in sorted(first.keys() | second.keys())
        if first.get(name) != second.get(name)
    ]


def flat(parts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A tree of mappings as one: 'network.weights' for what lies in 'network' under 'weights'."""
    found: dict[str, Any] = {}
    for name, value in parts.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 24 else text[:12] + "..."
