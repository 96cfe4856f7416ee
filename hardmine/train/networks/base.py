"""What a network is, how one is built from a name and a seed, and how published weights get into it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from hardmine.errors import InputError, MissingError
from hardmine.options import Options as NetworkOptions
from hardmine.options import check
from hardmine.pipeline.image_frame import ImageFrame
from hardmine.registry import Registry
from hardmine.store.fingerprint import weights_sha256


class Network(nn.Module):
    """Patches or images to descriptors.

    forward maps float32 (n, channels, side, side) in [0, 1] to float32 (n, dim), also where it computes in half
    precision; any further input normalisation happens inside, so that mining, training and evaluation cannot differ in
    it. `frame` says how an image becomes such an input; None: grey patches of one size are scaled to the side as a
    whole. `unit_norm` says whether the descriptors lie on the unit sphere. `batch`: how many are embedded at once where
    nobody says otherwise. Randomness (dropout) comes from torch's global generator only.
    """

    Options: ClassVar[type[NetworkOptions]] = NetworkOptions
    name: str
    side: int
    dim: int
    unit_norm: bool
    channels: int = 1
    frame: ImageFrame | None = None
    batch: int = 1024

    def __init__(self, options: NetworkOptions):
        super().__init__()
        self.options = options

    def identity(self) -> dict[str, Any]:
        """JSON-able facts that fix the descriptors of a patch: name, options, input and output size, and `weights`,
        the sha256 of the state dict. Part of a mining round's content key."""
        return {
            "network": self.name,
            "weights": weights_sha256(self.state_dict()),
            "options": self.options.model_dump(mode="json"),
            "side": self.side,
            "dim": self.dim,
        }

    def from_published(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a published checkpoint of this architecture under the names used here; anything else is
        returned as it is. A network whose names are the published ones need not override this."""
        return state


networks: Registry[type[Network]] = Registry("network", "hardmine.train.networks")


def build(name: str, options: Mapping[str, Any] | None = None, seed: int = 0) -> Network:
    """The network called `name` on the CPU, in training mode, with weights drawn from `seed` alone: torch's global
    generators are neither read nor moved.

    Raises UnknownNameError for an unknown network or option, InputError for an option out of range.
    """
    kind = networks.get(name)
    checked = check(kind.Options, options or {}, f"the options of network {name!r}")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would move the generators of the GPUs as well
        return kind(checked).to(memory_format=torch.channels_last)  # about a fifth faster, trained and applied, on CPUs


def load_weights(network: Network, file: Path | str) -> None:
    """Copy the weights of `file` into `network`, all of them or none.

    file: a `.safetensors` file, or a torch file that holds a state dict, bare or under the key "state_dict" (read
    without unpickling code). Published checkpoints of the same architecture are recognised by their names. Raises
    MissingError where there is no such file, and InputError, with the file's name, where it is unreadable, lacks
    tensors, holds further ones, or holds values that are not finite.
    """
    file = Path(file)
    state = network.from_published(_read_state(file))
    wanted = network.state_dict()
    missing = [k for k in wanted if k not in state and not k.endswith(".num_batches_tracked")]  # absent before 2018
    unexpected = [k for k in state if k not in wanted]
    reshaped = [
        f"{k} {tuple(state[k].shape)} instead of {tuple(wanted[k].shape)}"
        for k in wanted
        if k in state and state[k].shape != wanted[k].shape
    ]
    problems = [
        f"{what}: {_some(names)}"
        for what, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", reshaped))
        if names
    ]
    if problems:
        raise InputError(
            f"{file} does not hold the weights of a {network.name!r} network with these options. "
            f"Tensors {'; '.join(problems)}. Choose the matching --network and options."
        )
    broken = [k for k, v in state.items() if not torch.isfinite(v).all()]
    if broken:
        raise InputError(f"{file} holds values that are not finite, in {_some(broken)}; take another checkpoint")
    network.load_state_dict(state, strict=False)  # the only key that may be absent is the step count of batch norm


def _read_state(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise MissingError(f"no weights file {file}")
    try:
        if file.suffix == ".safetensors":
            content: Any = load_file(file, device="cpu")
        else:
            content = torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, LookupError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"{file} cannot be read as weights ({reason}); expected a .safetensors file or a torch state dict"
        ) from error
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in content.values()):
        raise InputError(f"{file} holds no state dict (names to tensors), neither bare nor under 'state_dict'")
    return dict(content)


def _some(names: list[str], at_most: int = 4) -> str:
    shown = ", ".join(names[:at_most])
    return shown if len(names) <= at_most else f"{shown} and {len(names) - at_most} more"
