"""Recipes: a TOML file that fixes a run. Every key is checked; an unknown one is an error with the nearest name."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from hardmine.errors import InputError, MissingError, UnknownNameError
from hardmine.mining.pads.options import PolicyOptions
from hardmine.options import Options, apply_override, check
from hardmine.pipeline.augment import Augment
from hardmine.pipeline.views import Views
from hardmine.train.optimizers import Optimizer

DEFAULT_PAIRS = 128
# Options that recipes did not have at first, with the value that changes nothing: a run without one keeps its digest
LATER: dict[str, dict[str, Any]] = {
    "policy": {"redraw_every": None},
    "train": {"steps_per_epoch": None, "autocast": None, "compile": False},
    "optimizer": {"fused": None},
    "mining": {"first_step": 0},
}


class Named(BaseModel):
    """A part found by name; its further keys are that part's own options, checked by the part."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


class NetworkSection(Named):
    """name and options of the network. weights: a file to start from (safetensors or a published torch file)."""

    weights: str | None = None


class Data(Options):
    """store: path of the patch store trained on. split: one of its splits (not needed where it has one).
    loader_workers: processes that gather pixels; 0 gathers in the training process. exclude_overlap: classes with
    patches of one photograph closer than this many keypoint sizes are no negatives of each other (0: off). exclude: an
    exclusion list, as `hardmine audit` writes it: its rows are not trained on."""

    store: str
    split: str | None = None
    loader_workers: int = Field(0, ge=0)
    exclude_overlap: float = Field(1.0, ge=0)
    exclude: str | None = None


class Schedule(Options):
    """Learning rate over the run. linear: lr (1 - step / steps), HardNet's. step: lr times `gamma` at each milestone, a
    fraction of the run (AdaSample: 30, 60, 80 of 90 epochs). constant."""

    name: Literal["linear", "step", "constant"] = "linear"
    milestones: tuple[float, ...] = (30 / 90, 60 / 90, 80 / 90)
    gamma: float = Field(0.1, gt=0, le=1)

    def factor(self, step: int, steps: int) -> float:
        """What the learning rate is multiplied by at `step` (0-based) of `steps`."""
        if self.name == "linear":
            return 1 - step / steps
        if self.name == "step":
            return self.gamma ** sum(step >= m * steps for m in self.milestones)
        return 1.0


class Loop(Options):
    """pairs: n, pairs a batch, each of another class, 128 by default; for samplers of pairs only. steps: optimiser
    steps of the run. mine_every: steps between two mining rounds, for samplers that need one. Both may be given in
    epochs instead (epochs, mine_every_epochs), of pairs_per_epoch pairs each (HardNet: 5,000,000; AdaSample:
    1,000,000), or of steps_per_epoch steps (DSDML: as many as a pass over the classes has). lag: how many steps late a
    sampler uses the losses. augment: flips and turns of pairs of patches, see `mining.samplers.pairs`.
    checkpoint_every: steps between two checkpoints. keep_every: keep the weights of step 0 and every so many steps for
    good, for `analyse` (0: none). log_every: steps between two lines of the log. seed: of the initial weights, the
    plans and dropout. autocast: the network computes in half precision, the loss and the weights stay in float32;
    "float16" with a scaled loss, see `GradScaler`; mining and evaluation stay in float32. compile: the network's step
    by `torch.compile`."""

    pairs: int | None = Field(None, ge=2)
    steps: int = Field(400, ge=1)
    mine_every: int = Field(200, ge=1)
    epochs: float | None = Field(None, gt=0)
    mine_every_epochs: float | None = Field(None, gt=0)
    pairs_per_epoch: int | None = Field(None, ge=1)
    steps_per_epoch: int | None = Field(None, ge=1)
    lag: int = Field(16, ge=1)
    augment: Literal["none", "fliprot", "dihedral", "tfeat"] = "none"
    checkpoint_every: int = Field(100, ge=1)
    keep_every: int = Field(0, ge=0)
    log_every: int = Field(10, ge=1)
    seed: int = Field(0, ge=0)
    autocast: Literal["bfloat16", "float16"] | None = None
    compile: bool = False

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> Loop:
        for steps, epochs in (("steps", "epochs"), ("mine_every", "mine_every_epochs")):
            if getattr(self, epochs) is not None and steps in self.model_fields_set:
                raise ValueError(f"give either {steps} or {epochs}, not both")
            if getattr(self, epochs) is not None and self.pairs_per_epoch is None and self.steps_per_epoch is None:
                raise ValueError(f"{epochs} needs pairs_per_epoch, or steps_per_epoch")
        if self.pairs_per_epoch is not None and self.steps_per_epoch is not None:
            raise ValueError("give either pairs_per_epoch or steps_per_epoch, not both")
        return self

    @model_serializer(mode="wrap")
    def _as_it_was_said(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without the default of a number of steps that was given in epochs, so that it can be read again."""
        said = plain(self)
        for steps, epochs in (("steps", "epochs"), ("mine_every", "mine_every_epochs")):
            if getattr(self, epochs) is not None:
                said.pop(steps, None)
        return said

    @property
    def total_steps(self) -> int:
        """Optimiser steps of the run."""
        return self.steps if self.epochs is None else self._in_steps(self.epochs)

    @property
    def mining_interval(self) -> int:
        """Steps between two mining rounds."""
        return self.mine_every if self.mine_every_epochs is None else self._in_steps(self.mine_every_epochs)

    def _in_steps(self, epochs: float) -> int:
        if self.steps_per_epoch is not None:
            return max(1, round(epochs * self.steps_per_epoch))
        assert self.pairs_per_epoch is not None  # the validator has checked
        return max(1, round(epochs * self.pairs_per_epoch / (self.pairs or DEFAULT_PAIRS)))


class MinedRounds(Options):
    """The rounds that are trained from (`train.mine_every` says how often the run mines one itself).

    first_step: steps before the first of them. Until then positives and classes are drawn evenly, as by `random` and
    `class-balanced`: the distances of a network that has learned nothing say little about what is hard.

    start: a mining store, path or fsspec URL, of which a round is trained from first, instead of one mined with the
    initial weights, until `mine_every` steps are done; start_round: its number, or 'latest'. It must be of this store,
    split and views; start_network: 'same', it must be of the run's network and initial weights as well, or 'any'.

    stale_after: age in steps from which a round that is trained from is stale. min_still_hard: it is stale where the
    share of its hard negatives that are still hard (see `mining.staleness`) is below this. on_stale: 'warn' says so in
    the log and the result, once for each round; 'mine' mines anew at once; 'fail' ends the run. staleness_every: the
    share is measured every so many steps of a round's use, and in any case at its end (null: at its end alone).
    staleness_anchors: items it is measured with, each with 32 others; 0 measures none, and logs the age alone."""

    first_step: int = Field(0, ge=0)
    start: str | None = None
    start_round: int | Literal["latest"] = "latest"
    start_network: Literal["same", "any"] = "same"
    stale_after: int | None = Field(None, ge=1)
    min_still_hard: float | None = Field(None, gt=0, le=1)
    on_stale: Literal["warn", "mine", "fail"] = "warn"
    staleness_every: int | None = Field(None, ge=1)
    staleness_anchors: int = Field(256, ge=0)

    @model_validator(mode="after")
    def _nothing_is_without_effect(self) -> MinedRounds:
        if self.start is None and (self.start_round, self.start_network) != ("latest", "same"):
            raise ValueError("start_round and start_network say which round of `start`: give start")
        if self.start is not None and self.first_step:
            raise ValueError("give either start, a round to begin with, or first_step, the step of the first round")
        if self.on_stale != "warn" and not self.has_limits:
            raise ValueError(f"on_stale = {self.on_stale!r} needs a limit: give stale_after or min_still_hard")
        if self.staleness_anchors == 0 and (self.min_still_hard is not None or self.staleness_every is not None):
            raise ValueError("min_still_hard and staleness_every need staleness_anchors above 0")
        if self.on_stale != "warn" and self.min_still_hard is not None and self.staleness_every is None:
            raise ValueError(
                f"on_stale = {self.on_stale!r} with min_still_hard needs staleness_every: otherwise the share is "
                "measured when a round's use is over"
            )
        return self

    @property
    def has_limits(self) -> bool:
        """Whether a round can become stale."""
        return self.stale_after is not None or self.min_still_hard is not None


class Evaluation(Options):
    """A patch store and the protocol it is evaluated with, after training. options: the protocol's own."""

    store: str
    protocol: str = "phototour"
    split: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)


class Validation(Evaluation):
    """Evaluated every so many steps while training. metric: the one that names the best weights (null: the last weights
    are the run's)."""

    every: int = Field(100, ge=1)
    metric: str | None = "fpr95"


class Policy(PolicyOptions):
    """PADS' policy, for the `pads` miner. split: of `data.store`, the held-out items of the training classes whose
    recall and NMI are its reward (specs 1.6: `ingest --split by-item:0.85` makes them). redraw_every: steps after which
    as many items of each class are drawn anew from both splits, to be held out, and the rest is trained on (null: the
    splits stay as they are). The first reward after a draw compares two sets of items."""

    split: str = "val"
    redraw_every: int | None = Field(None, ge=1)


class Recipe(Options):
    """Everything that fixes a run but the code and the data's content. miner: None is hardest-in-batch for a loss that
    is computed on tuples. augment: crops and flips of images, None for the network's frame alone. regularisers: name to
    options; each is added to the loss."""

    data: Data
    views: Views | None = None
    augment: Augment | None = None
    network: NetworkSection = NetworkSection(name="l2net")
    sampler: Named = Named(name="random")
    miner: Named | None = None
    policy: Policy | None = None
    loss: Named = Named(name="triplet-margin")
    regularisers: dict[str, dict[str, Any]] = Field(default_factory=dict)
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    train: Loop = Loop()
    mining: MinedRounds = MinedRounds()
    validation: Validation | None = None
    evaluation: tuple[Evaluation, ...] = ()

    @model_validator(mode="after")
    def _validation_is_not_the_test(self) -> Recipe:
        if self.validation is not None:
            chosen = (self.validation.store, self.validation.split)
            if self.validation.metric and chosen in {(e.store, e.split) for e in self.evaluation}:
                raise ValueError(f"the best weights would be chosen on the test set {chosen[0]!r}: validate elsewhere")
        return self

    @model_validator(mode="after")
    def _a_round_is_mined(self) -> Recipe:
        if self.mining.first_step >= self.train.total_steps:
            raise ValueError(
                f"mining.first_step = {self.mining.first_step} is not before the run's end, {self.train.total_steps} "
                "steps: no round would be mined"
            )
        return self

    def digest(self) -> str:
        """Hex sha256 of what the weights depend on. A run may go on with other loader workers, other checkpoints and
        kept weights, or a warning where it failed at a stale round."""
        free = {"data": {"loader_workers"}, "train": {"checkpoint_every", "keep_every", "log_every"}}
        plain = self.model_dump(mode="json", exclude=free)
        for section, options in LATER.items():
            for name, default in options.items():
                if plain[section] is not None and plain[section][name] == default:
                    del plain[section][name]
        plain["mining"]["on_stale"] = "mine" if self.mining.on_stale == "mine" else "go on"
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and apply `--set section.key=value` overrides (values as in TOML; a bare word is a string).

    path: a file, or the name of a recipe that hardmine ships ("own-photos"). Raises MissingError, InputError (which
    key, what is wrong), UnknownNameError (with the nearest key).
    """
    file = _find(path)
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: not a TOML file: {error}") from error
    for override in overrides:
        apply_override(tree, override)
    return check(Recipe, tree, str(file))


def shipped() -> dict[str, Path]:
    """The recipes that come with hardmine, name to file: beside the package in a checkout, inside it when installed."""
    package = Path(__file__).parents[1]
    folder = package / "recipes" if (package / "recipes").is_dir() else package.parent / "recipes"
    return {p.stem: p for p in sorted(folder.glob("*.toml"))}


def _find(path: str | Path) -> Path:
    if Path(path).is_file():
        return Path(path)
    if Path(path).suffix == "" and Path(path).name == str(path):
        if str(path) in shipped():
            return shipped()[str(path)]
        raise UnknownNameError("recipe", str(path), shipped())
    raise MissingError(f"no recipe at {path}")
