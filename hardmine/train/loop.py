"""`train`: the plain loop from a recipe to a finished run, exact to the bit however often it is killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from hardmine.errors import InputError, NumericalError, StoreError
from hardmine.metrics import LOWER_IS_BETTER
from hardmine.mining.class_distances import OnlineDistances, StoredDistances
from hardmine.mining.embed import embed_entries, require_fit
from hardmine.mining.entries import Entries, list_entries
from hardmine.mining.exclusions import Exclusions, KeptDistances, read_exclusions, without
from hardmine.mining.mine import mine
from hardmine.mining.overlap import Overlap
from hardmine.mining.samplers import PairSampler, Sampler, samplers
from hardmine.mining.samplers.pads_classes import PadsClasses
from hardmine.options import check
from hardmine.pipeline.augment import TrainingImages
from hardmine.pipeline.loading import loader
from hardmine.store.patches import PatchStore
from hardmine.store.rounds import Round
from hardmine.train import checkpoint
from hardmine.train.feedback import Feedback, build_feedback
from hardmine.train.log import RunLog
from hardmine.train.networks import Network
from hardmine.train.objective import build_objective
from hardmine.train.optimizers import NamedOptimizer
from hardmine.train.recipe import DEFAULT_PAIRS, Evaluation, MinedRounds, Recipe
from hardmine.train.round_in_use import RoundInUse
from hardmine.train.runs import Run, build_network
from hardmine.train.step import Step, StepResult

Progress = Callable[[int, int, dict[str, float]], None]


class Score(Protocol):
    """How a network is scored during training; handed in, since protocols stand above training."""

    def __call__(self, network: Network, evaluation: Evaluation, device: torch.device) -> dict[str, float]: ...


@dataclass(frozen=True)
class TrainResult:
    """path: the run's folder. result: its `result.json`. trained: steps done by this call (0: it was finished)."""

    path: Path
    result: dict[str, Any]
    trained: int


def train(
    recipe: Recipe,
    path: str | Path,
    score: Score | None = None,
    splits: Callable[[Evaluation], Sequence[str | None]] | None = None,
    *,
    must_resume: bool = False,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> TrainResult:
    """Train `recipe` in the run folder `path`. The same call on an unfinished run continues it, on a finished one
    does nothing. score: needed where the recipe has a validation section. splits: which splits of its store an
    evaluation describes (`protocols.evaluate.splits_of`), that of the evaluation where None. Raises InputError,
    MissingError, StoreError, LockedError, NumericalError (the loss is not finite), DiskError.
    """
    if recipe.validation is not None and score is None:
        raise InputError("the recipe has a validation section: hand `train` the function that scores a network")
    store = PatchStore.open(recipe.data.store)
    for evaluation in recipe.evaluation:
        PatchStore.open(evaluation.store)  # what is missing is said now, not after the training
    excluded = None if recipe.data.exclude is None else read_exclusions(recipe.data.exclude, store)
    data = store.fingerprint if excluded is None else f"{store.fingerprint} without {excluded.digest()}"
    with Run.writing(Path(path), recipe, data, must_resume) as run:
        if run.result is not None:
            return TrainResult(run.path, run.result, 0)
        where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        training = _Training(run, store, excluded, score, where, progress)
        first = training.step
        training.loop()
        return TrainResult(run.path, training.finish(splits or (lambda each: [each.split])), training.step - first)


class _Training:
    """What a run holds in memory between two steps."""

    def __init__(
        self,
        run: Run,
        store: PatchStore,
        excluded: Exclusions | None,
        score: Score | None,
        device: torch.device,
        progress: Progress | None,
    ):
        recipe = run.recipe
        self.run, self.recipe, self.store, self.device = run, recipe, store, device
        self.score, self.progress = score, progress
        self.split = store.resolve_split(recipe.data.split)
        self.mined_entries = list_entries(store, self.split, recipe.views)
        self.entries, self.kept = without(self.mined_entries, excluded.rows if excluded else np.zeros(0, np.int64))
        self.network = build_network(recipe).to(device)
        require_fit(store, self.network, recipe.views)
        self.sampler = build_sampler(recipe, self.entries)
        self.online = getattr(self.sampler.options, "descriptors", "store") == "online"
        self.overlap = Overlap(store, store.rows(self.split), recipe.data.exclude_overlap)
        self.objective = build_objective(recipe, self.network, store.num_classes, device)
        if isinstance(self.sampler, PairSampler):
            self.sampler.draws_negatives, self.sampler.overlaps = self.objective.needs_drawn, self.overlap.between
        self.optimizer = NamedOptimizer(
            recipe.optimizer, self.network, self.objective.parameter_groups(), fused=device.type == "cuda"
        )
        self.policy = build_feedback(recipe, store, self.objective.miner, self.sampler)
        self.do_step = Step(
            self.network,
            self.objective,
            self.optimizer,
            device=device,
            seed=recipe.train.seed,
            views=recipe.views,
            overlap=self.overlap,
        )
        self.step = 0
        self.mined: RoundInUse | None = None
        self.handed: Round | None = None  # the round that the sampler has been given
        if not self.online and (self.sampler.needs_distances or self.sampler.needs_nearest):
            self.mined = RoundInUse(run, store, self.split, self.network, self.sampler, self._embed, device)
        elif recipe.mining != MinedRounds():
            raise InputError(
                f"the recipe's mining section is for samplers that train from mined rounds; {recipe.sampler.name!r} "
                f"{'embeds at each step' if self.online else 'needs none'}: leave the section out"
            )
        self.best: dict[str, Any] | None = None
        newest = checkpoint.last(run.path / "checkpoints")
        if newest is not None:
            self._restore(newest)
        self.log = RunLog(run.path, self.step, newest.state["log_lines"] if newest else 0)

    def loop(self) -> None:
        """Train to the last step, in stretches between two minings; the network is left in eval mode."""
        knobs, steps = self.recipe.train, self.recipe.train.total_steps
        workers = 0 if self.online else self.recipe.data.loader_workers  # online, a plan needs the weights of its step
        frame, transform = self.network.frame, None
        if frame is not None:
            transform = TrainingImages(frame, self.recipe.augment, knobs.seed)
        batches = loader(self.store, self.sampler, workers, knobs.lag - 1, transform)
        self.network.train()
        if self.step == 0:
            self._keep()
        while self.step < steps:
            self.sampler.between(self.step, min(steps, self._prepare()))
            began = time.perf_counter()
            for pixels, plan in batches:
                factor = self.recipe.schedule.factor(self.step, steps)
                self.objective.advance(self.step / steps)
                waited = time.perf_counter()
                result = self.do_step(pixels, plan, factor)
                self.sampler.record(self.step, result.unweighted)
                self.log.seconds(loading=waited - began, step=time.perf_counter() - waited)
                self.step += 1
                if self.step % knobs.log_every == 0 or self.step == steps:
                    self._report(result, self.recipe.optimizer.lr * factor)
                self._after_step()
                began = time.perf_counter()
        if self.mined is not None:
            self.mined.end(self.step, self.log)

    def _after_step(self) -> None:
        validation, knobs = self.recipe.validation, self.recipe.train
        last = self.step == knobs.total_steps
        if self.policy is not None and self.policy.due(self.step):
            self._ask_policy(self.policy)
        if validation is not None and self.score is not None and (last or self.step % validation.every == 0):
            self._validate()
        self._keep()
        if last or self.step % knobs.checkpoint_every == 0:
            self._save()

    def _keep(self) -> None:
        every = self.recipe.train.keep_every
        if every and self.step % every == 0:
            self.run.keep(self.network, self.step, self.sampler.state(self.step))

    def _prepare(self) -> int:
        """Give the sampler what it needs for the next stretch, of the round in use or of the weights of each step; the
        step before which it must be called again."""
        interval = self.recipe.train.mining_interval
        if self.online:
            self.sampler.distances = OnlineDistances(self.entries, self._embed)
        if self.mined is None:
            return (self.step // interval + 1) * interval
        source = self.mined.refresh(self.step, self.log)
        if source is not self.handed:
            self._hand_over(source, self.mined.mined_at)
        return self.mined.stop(self.step)

    def _hand_over(self, source: Round, mined_at: int) -> None:
        """Give the sampler what it needs of another round."""
        sampler = self.sampler
        if not np.array_equal(source.entry_row, self.mined_entries.row):
            raise StoreError(f"round {source.number} of {self.run.mining} does not list this run's entries")
        if sampler.needs_distances:
            stored = StoredDistances(*source.pair_distance(), self.mined_entries.offsets)
            sampler.distances = stored
            if len(self.kept) < len(self.mined_entries):
                sampler.distances = KeptDistances(stored, self.mined_entries.offsets, self.entries.offsets, self.kept)
        if sampler.needs_nearest:
            near = source.nearest_class()[0][:, : sampler.needs_nearest]
            overlapping = self.overlap.between(np.arange(len(near))[:, None], near)
            sampler.use_nearest(np.where(overlapping, -1, near), source, mined_at)
        self.handed = source

    def _embed(self, rows: np.ndarray, views: np.ndarray) -> np.ndarray:
        began = time.perf_counter()
        found = self._descriptors(rows, views)
        self.log.seconds(mining=time.perf_counter() - began)
        return found

    def _descriptors(self, rows: np.ndarray, views: np.ndarray | None) -> np.ndarray:
        return embed_entries(self.store, rows, views, self.network, views=self.recipe.views, device=self.device)

    def _ask_policy(self, policy: Feedback) -> None:
        began = time.perf_counter()
        figures = policy.ask(self.step, lambda rows: self._descriptors(rows, None))
        self.log.seconds(policy=time.perf_counter() - began)
        self.log.write(self.step, figures)

    def _validate(self) -> None:
        validation = self.recipe.validation
        assert validation is not None and self.score is not None  # noqa: PT018 - the caller has checked
        began = time.perf_counter()
        values = self.score(self.network, validation, self.device)
        self.log.seconds(validation=time.perf_counter() - began)
        self.log.write(self.step, {f"validation/{name}": value for name, value in values.items()})
        metric = validation.metric
        if metric is None:
            return
        if metric not in values:
            raise StoreError(f"validation gives {', '.join(values)}, but the recipe's metric is {metric!r}")
        sign = 1 if metric in LOWER_IS_BETTER else -1
        if self.best is None or sign * values[metric] < sign * self.best["value"]:
            self.best = {"step": self.step, "metric": metric, "value": values[metric]}
            checkpoint.save(self.run.path / "best", self.step, {"best": self.best}, weights=self.network.state_dict())
            checkpoint.keep_last(self.run.path / "best", 1)

    def _report(self, result: StepResult, lr: float) -> None:
        loss = float(result.loss)
        if not np.isfinite(loss):
            raise NumericalError(
                f"the loss is {loss} at step {self.step}: lower optimizer.lr ({lr:g} now); the last checkpoint is good"
            )
        figures = {"loss": loss, "unweighted_loss": float(result.unweighted), "lr": lr}
        figures |= {"skipped_anchors": float(result.skipped)} | {k: float(v) for k, v in result.figures.items()}
        figures |= self.sampler.scalars(self.step)
        self.log.write(self.step, figures)
        if self.progress is not None:
            self.progress(self.step, self.recipe.train.total_steps, figures)

    def _save(self) -> None:
        parts = {"optimizer": self.optimizer.state(), "loss": self.objective.state()}
        if self.policy is not None:
            parts["policy"] = self.policy.state()
        state = {
            "sampler": self.sampler.state(self.step),
            "best": self.best,
            "log_lines": self.log.lines,
            "round": self.mined and self.mined.state(),
        }
        folder = self.run.path / "checkpoints"
        checkpoint.save(folder, self.step, state, weights=self.network.state_dict(), **parts)
        checkpoint.keep_last(folder, 2)
        if self.mined is not None:
            self.mined.prune()

    def _restore(self, saved: checkpoint.Checkpoint) -> None:
        self.network.load_state_dict(saved.tensors("weights"))
        self.optimizer.load(saved.tensors("optimizer"))
        self.objective.load(saved.tensors("loss"))
        if self.policy is not None:
            self.policy.load(saved.tensors("policy"))
        self.step, self.best = saved.step, saved.state["best"]
        self.sampler.load(saved.state["sampler"])
        if self.mined is not None:
            self.mined.restore(saved.state["round"], saved.path)

    def finish(self, splits: Callable[[Evaluation], Sequence[str | None]]) -> dict[str, Any]:
        """Take the final weights, mine them over the recipe's evaluation stores, and mark the run as finished."""
        if self.best is not None:
            chosen = checkpoint.last(self.run.path / "best")
            if chosen is None or chosen.step != self.best["step"]:
                raise StoreError(f"the best weights, of step {self.best['step']}, are not in {self.run.path / 'best'}")
            self.network.load_state_dict(chosen.tensors("weights"))
        self.network.eval()
        evaluated = []
        for evaluation in self.recipe.evaluation:
            store = PatchStore.open(evaluation.store)
            for split in splits(evaluation):
                place = (store, self.run.mining, self.network)
                mined = mine(*place, split=split, derive=(), device=self.device, step=self.step)
                evaluated.append({**evaluation.model_dump(), "split": split, "round": mined.round.number})
        self.log.close()
        weights_step = self.best["step"] if self.best else self.step
        result = {"steps": self.step, "weights_of_step": weights_step, "best": self.best, "evaluation": evaluated}
        if self.mined is not None:
            result |= {"start": self.mined.origin(), "messages": self.mined.messages}
        self.run.finish(self.network, result)
        return result


def build_sampler(recipe: Recipe, entries: Entries) -> Sampler:
    """The sampler of a recipe over `entries`. Raises UnknownNameError, InputError."""
    kind = samplers.get(recipe.sampler.name)
    options = check(kind.Options, recipe.sampler.options, f"sampler {recipe.sampler.name!r}")
    knobs = recipe.train
    if issubclass(kind, PairSampler):
        pairs = knobs.pairs or DEFAULT_PAIRS
        return kind(entries, options, pairs=pairs, seed=knobs.seed, augment=knobs.augment, lag=knobs.lag)
    if knobs.pairs is not None or knobs.augment != "none":
        raise InputError(
            f"sampler {recipe.sampler.name!r} gives single items: its batch is set by its own options, and flips by "
            "[augment]; leave train.pairs and train.augment out"
        )
    if issubclass(kind, PadsClasses):
        return kind(entries, options, seed=knobs.seed, lag=knobs.lag)
    return kind(entries, options, seed=knobs.seed)
