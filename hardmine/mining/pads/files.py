"""Policies and distributions as files: tensors in safetensors, what they mean as JSON in its metadata, no pickle.

For the transfer experiments of the PADS paper: a policy trained on one data set acts on another, fixed or learning on,
or its last distribution alone is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hardmine.errors import InputError
from hardmine.mining.pads.distribution import Distribution
from hardmine.mining.pads.policy import Policy
from hardmine.mining.pads.support import Support
from hardmine.options import check
from hardmine.store.files import write_atomic
from hardmine.store.tensor_files import read_tensors, tensor_bytes

_POLICY, _DISTRIBUTION = "PADS policy", "PADS distribution"


@dataclass(frozen=True)
class SavedPolicy:
    """A policy's file. weights: by the names of `Policy`. about: state_size, bins, actions (multipliers), metrics (the
    parts of its metric vectors, in order) and the distribution that it was last at work on."""

    path: Path
    weights: dict[str, Tensor]
    about: dict[str, Any]

    def into(self, policy: Policy, **wanted: Any) -> None:
        """Copy the weights into `policy`. wanted: what `about` must say under these names. Raises InputError, which
        names the first difference."""
        wanted = {"state_size": policy.state_size, "bins": policy.bins, **wanted}
        for name, value in wanted.items():
            if self.about.get(name) != value:
                raise InputError(
                    f"{self.path} holds a policy for {name} {self.about.get(name)}, and this run has {name} {value}: "
                    "choose the same options as the run that it comes from"
                )
        try:
            policy.load_state_dict(self.weights)
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise InputError(f"{self.path} holds a policy of other layers: {reason}") from error


def save_policy(path: str | Path, policy: Policy, distribution: Distribution, **about: Any) -> None:
    """Write a policy with the distribution it was last at work on. about: further facts, JSON. Raises DiskError."""
    facts = {"state_size": policy.state_size, "bins": policy.bins, "distribution": distribution.json(), **about}
    _write(path, _POLICY, policy.state_dict(), facts)


def load_policy(path: str | Path) -> SavedPolicy:
    """The policy that `save_policy` wrote. Raises MissingError, InputError."""
    weights, about = _read(path, _POLICY)
    broken = [name for name, value in weights.items() if not torch.isfinite(value).all()]
    if broken:
        raise InputError(f"{path} holds values that are not finite, in {broken[0]}; take another file")
    return SavedPolicy(Path(path), weights, about)


def save_distribution(path: str | Path, distribution: Distribution) -> None:
    """Write a distribution over distances. Raises DiskError."""
    q = torch.tensor(distribution.q, dtype=torch.float64)
    _write(path, _DISTRIBUTION, {"q": q}, {"support": distribution.support.model_dump(mode="json")})


def load_distribution(path: str | Path) -> Distribution:
    """The distribution that `save_distribution` wrote, or the last one of a saved policy. Raises MissingError,
    InputError."""
    tensors, about = _read(path, _DISTRIBUTION, _POLICY)
    if about["kind"] == _POLICY:
        about = about["distribution"]
        q = about["q"]
    else:
        q = tensors["q"].tolist()
    return Distribution(check(Support, about["support"], str(path)), tuple(q))


def _write(path: str | Path, kind: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    write_atomic(Path(path), tensor_bytes(tensors, {"kind": kind, **about}))


def _read(path: str | Path, *kinds: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    expected = f"a {' or a '.join(kinds)}"
    tensors, about = read_tensors(Path(path), expected)
    if about.get("kind") not in kinds:
        raise InputError(f"{path} holds {about.get('kind', 'something else')}; expected {expected}")
    return tensors, about
