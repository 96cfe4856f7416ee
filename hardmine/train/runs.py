"""A run's folder: what fixes the run, how far it is, and the network that came out of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hardmine.errors import InputError, MissingError, StoreError
from hardmine.options import check
from hardmine.store.files import json_lines, write_atomic, write_lock
from hardmine.store.tensor_files import about_tensors, tensor_bytes
from hardmine.train import checkpoint
from hardmine.train.networks import Network, build, load_weights
from hardmine.train.recipe import Recipe

_HEADER, _RESULT, _LOG, _KEPT = "run.json", "result.json", "log.jsonl", "kept"
_SUFFIX = ".safetensors"
_WEIGHTS = f"weights{_SUFFIX}"
_AHEAD = "ahead/"  # phases that are not the training process's own time
_PHASES: tuple[str, ...] = ("plan", "loading", "waiting", "transform", "forward", "loss", "backward", "optimiser")
_PHASES += ("mining", "fetching", "policy", "validation", "checkpoint", "ahead/gather", "ahead/transform")


class Run:
    """The folder of one run. Paths in it: `checkpoints/` and `best/` (see `checkpoint`), `kept/` (weights files of the
    steps to keep), `mining/` (a mining store), `tensorboard/`, `log.jsonl`, and when it is finished
    `weights.safetensors` and `result.json`."""

    def __init__(self, path: Path, header: dict[str, Any]):
        self.path, self.header = path, header
        self.recipe: Recipe = check(Recipe, header["recipe"], str(path / _HEADER))

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """A run that is there. Raises MissingError, StoreError."""
        file = Path(path) / _HEADER
        if not file.is_file():
            raise MissingError(f"{path} is no run: it has no {_HEADER}. Give the folder that `train` wrote.")
        try:
            return cls(Path(path), json.loads(file.read_text()))
        except (json.JSONDecodeError, KeyError) as error:
            raise StoreError(f"{file} is damaged: {error!r}") from error

    @classmethod
    @contextmanager
    def writing(cls, path: Path, recipe: Recipe, data: str, must_exist: bool = False) -> Iterator[Run]:
        """Start the run of `recipe` in `path`, or continue it, as its only writer. data: the fingerprint of the patch
        store. Raises InputError where the folder holds another run or something else, LockedError. A run that has done
        nothing yet, since its recipe did not fit, is no other run: a corrected recipe takes its place."""
        if must_exist and not (path / _HEADER).is_file():
            raise MissingError(f"there is no run to resume in {path}")
        if path.is_dir() and not (path / _HEADER).is_file() and any(p.name[0] != "." for p in path.iterdir()):
            raise InputError(f"{path} is not empty and holds no run: choose another folder")
        with write_lock(path, "the run"):
            header = {"recipe": recipe.model_dump(mode="json"), "digest": recipe.digest(), "data": data}
            begun = any(p.name[0] != "." and p.name != _HEADER for p in path.iterdir())
            if (path / _HEADER).is_file() and (begun or must_exist):
                run = cls.open(path)
                for part, what in (("digest", "another recipe"), ("data", "another content of the patch store")):
                    if run.header[part] != header[part]:
                        raise InputError(f"{path} holds a run of {what}: choose another --run, or delete it")
                run.recipe = recipe  # the same but for what the digest leaves open
            else:
                write_atomic(path / _HEADER, json.dumps(header, indent=1).encode())
                run = cls(path, header)
            yield run

    @classmethod
    def reading(cls, path: Path, recipe: Recipe) -> Run:
        """The run in `path`, which another process is `writing`, with the recipe as it is now."""
        run = cls.open(path)
        run.recipe = recipe
        return run

    @property
    def result(self) -> dict[str, Any] | None:
        """What the run came to (step, weights, metrics), or None while it is unfinished."""
        file = self.path / _RESULT
        return json.loads(file.read_text()) if file.is_file() else None

    def finish(self, network: Network, result: dict[str, Any]) -> None:
        """Write the weights, then the result, which marks the run as finished."""
        write_atomic(self.path / _WEIGHTS, _weights_bytes(network))
        write_atomic(self.path / _RESULT, json.dumps(result, indent=1, sort_keys=True).encode())

    def keep(self, network: Network, step: int, sampler: dict[str, Any]) -> None:
        """Keep the weights of `step`, and the sampler's state, as `kept/000123.safetensors`, there as a whole or not at
        all. `load` takes that file as it takes the final weights."""
        (self.path / _KEPT).mkdir(exist_ok=True)
        write_atomic(self.path / _KEPT / f"{step:06d}{_SUFFIX}", _weights_bytes(network, step=step, sampler=sampler))

    def kept(self) -> dict[int, Path]:
        """The weights files of the steps that were kept, ascending."""
        found = {int(p.stem): p for p in (self.path / _KEPT).glob(f"[0-9]*{_SUFFIX}")}
        return dict(sorted(found.items()))

    def log(self) -> list[dict[str, Any]]:
        """The records of `log.jsonl`, in order."""
        return json_lines(self.path / _LOG)

    def seconds(self) -> dict[str, float]:
        """Where the time went, by phase (loading, forward, mining, ...): what the log accounts for, not what a kill
        threw away."""
        return {phase: value for phase, value in _seconds(self.log()).items() if not phase.startswith(_AHEAD)}

    def phases(self) -> list[dict[str, Any]]:
        """The phases in the order of a step: seconds, their share of all, and milliseconds per step logged. Work that
        was done ahead, beside the step, by a thread or by loader workers, comes last and has no share."""
        lines = self.log()
        spent, steps = _seconds(lines), max((line["step"] for line in lines), default=0)
        total = sum(value for phase, value in spent.items() if not phase.startswith(_AHEAD))
        place = {phase: i for i, phase in enumerate(_PHASES)}
        return [
            {
                "phase": phase.removeprefix(_AHEAD) + " (ahead)" * phase.startswith(_AHEAD),
                "seconds": round(spent[phase], 3),
                "share": None if phase.startswith(_AHEAD) else round(spent[phase] / max(total, 1e-9), 4),
                "ms per step": round(1e3 * spent[phase] / max(steps, 1), 3),
            }
            for phase in sorted(spent, key=lambda phase: place.get(phase, len(place)))
        ]

    @property
    def mining(self) -> Path:
        """Path of the run's mining store: the rounds trained from, and those of the evaluation stores."""
        return self.path / "mining"

    @property
    def weights(self) -> Path:
        """The final weights; the newest checkpoint's while the run is unfinished. Raises MissingError."""
        if (self.path / _WEIGHTS).is_file():
            return self.path / _WEIGHTS
        newest = checkpoint.last(self.path / "checkpoints")
        if newest is None:
            raise MissingError(f"{self.path} has no weights yet: train has not reached its first checkpoint")
        return newest.path / _WEIGHTS


def build_network(recipe: Recipe) -> Network:
    """The network that a recipe starts from."""
    network = build(recipe.network.name, recipe.network.options, recipe.train.seed)
    if recipe.network.weights is not None:
        load_weights(network, Path(recipe.network.weights))
    return network


def load(path: str | Path) -> Network:
    """A trained network, in eval mode on the CPU: float32 (n, 1, side, side) in [0, 1] to descriptors (n, dim).

    path: a run's folder, or the `weights.safetensors` of a finished run, wherever it was copied to (it says which
    network it belongs to). Raises MissingError, InputError.
    """
    path = Path(path)
    if path.is_dir():
        opened = Run.open(path)
        name, options, weights = opened.recipe.network.name, opened.recipe.network.options, opened.weights
    else:
        about = about_weights(path)
        if "network" not in about:
            raise InputError(f"{path} does not say which network it belongs to: use --network NAME --weights {path}")
        name, options = about["network"], about["options"]
        weights = path
    network = build(name, options)
    load_weights(network, weights)
    return network.eval()


def about_weights(file: Path) -> dict[str, Any]:
    """What a weights file says of itself: `network` and `options`, in a kept one also `step` and `sampler` (its state
    then); empty in one of another program. Raises MissingError, InputError where it is no safetensors file."""
    if not file.is_file():
        raise MissingError(f"no run and no weights file at {file}")
    return about_tensors(file)


def _weights_bytes(network: Network, **more: Any) -> bytes:
    about = {"network": network.name, "options": network.options.model_dump(mode="json"), **more}
    return tensor_bytes(network.state_dict(), about)


def _seconds(lines: Iterable[dict[str, Any]]) -> dict[str, float]:
    """The seconds of each phase, summed over the lines of a log."""
    spent: dict[str, float] = {}
    for line in lines:
        for name, value in line.items():
            if name.startswith("seconds/"):
                spent[name.removeprefix("seconds/")] = spent.get(name.removeprefix("seconds/"), 0.0) + value
    return spent
