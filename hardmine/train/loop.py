"""`train`: the plain loop from a recipe to a finished run, exact to the bit however often it is killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from hardmine.errors import InputError, NumericalError, Stopped, StoreError
from hardmine.metrics import LOWER_IS_BETTER
from hardmine.mining.exclusions import Exclusions, read_exclusions
from hardmine.mining.mine import mine
from hardmine.mining.plan import require_equal_shares
from hardmine.mining.samplers import PairSampler
from hardmine.mining.staged import Elapsed
from hardmine.pipeline.augment import TrainingImages
from hardmine.pipeline.loading import loader
from hardmine.store.patches import PatchStore
from hardmine.train import checkpoint
from hardmine.train.feedback import Feedback, build_feedback
from hardmine.train.log import NoLog, RunLog
from hardmine.train.networks import Network
from hardmine.train.objective import build_objective
from hardmine.train.optimizers import NamedOptimizer
from hardmine.train.ranks import Ranks, default_device
from hardmine.train.recipe import Evaluation, Recipe
from hardmine.train.runs import Run, build_network
from hardmine.train.step import Step, StepResult
from hardmine.train.stopping import Request, sigterm
from hardmine.train.supply import Supply

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
    ranks: Ranks | None = None,
    progress: Progress | None = None,
) -> TrainResult:
    """Train `recipe` in the run folder `path`. The same call on an unfinished run continues it, on a finished one
    does nothing. score: needed where the recipe has a validation section. splits: which splits of its store an
    evaluation describes (`protocols.evaluate.splits_of`), that of the evaluation where None. ranks: the processes that
    share the training, see `ranks.joined`; None is this one alone, on `device`. On SIGTERM it writes a checkpoint after
    the present step and raises Stopped.

    Raises InputError, MissingError, StoreError, LockedError, NumericalError (the loss is not finite), DiskError.
    """
    if recipe.validation is not None and score is None:
        raise InputError("the recipe has a validation section: hand `train` the function that scores a network")
    ranks = Ranks(default_device(device)) if ranks is None else ranks
    store = PatchStore.open(recipe.data.store)
    for evaluation in recipe.evaluation:
        PatchStore.open(evaluation.store)  # what is missing is said now, not after the training
    excluded = None if recipe.data.exclude is None else read_exclusions(recipe.data.exclude, store)
    data = store.fingerprint if excluded is None else f"{store.fingerprint} without {excluded.digest()}"
    with ExitStack() as held:
        writing: list[Run] = []
        ranks.lead(lambda: writing.append(held.enter_context(Run.writing(Path(path), recipe, data, must_resume))))
        run = writing[0] if writing else Run.reading(Path(path), recipe)
        if run.result is not None:
            return TrainResult(run.path, run.result, 0)
        training = _Training(run, store, excluded, score, ranks, progress)
        first = training.step
        with sigterm() as request:
            training.loop(request)
        described = splits or (lambda each: [each.split])
        return TrainResult(run.path, ranks.lead(lambda: training.finish(described)), training.step - first)


class _Training:
    """What a run holds in memory between two steps."""

    def __init__(
        self,
        run: Run,
        store: PatchStore,
        excluded: Exclusions | None,
        score: Score | None,
        ranks: Ranks,
        progress: Progress | None,
    ):
        recipe = run.recipe
        self.run, self.recipe, self.store, self.ranks = run, recipe, store, ranks
        self.score, self.progress = score, progress
        self.network = build_network(recipe).to(ranks.device)
        self.supply = Supply(run, store, excluded, self.network, ranks)
        self.sampler = self.supply.sampler
        if self.sampler.items is not None:
            require_equal_shares(self.sampler.items, ranks.size)
        self.objective = build_objective(recipe, self.network, store.num_classes, ranks.device)
        if isinstance(self.sampler, PairSampler):
            self.sampler.draws_negatives = self.objective.needs_drawn
            self.sampler.overlaps = self.supply.overlap.between
        self.optimizer = NamedOptimizer(
            recipe.optimizer, self.network, self.objective.parameter_groups(), fused=ranks.device.type == "cuda"
        )
        self.policy = build_feedback(recipe, store, self.objective.miner, self.sampler)
        self.do_step = Step(
            self.network, self.objective, self.optimizer, recipe.train, ranks, recipe.views, self.supply.overlap
        )
        self.step = 0
        self.best: dict[str, Any] | None = None
        newest = checkpoint.last(run.path / "checkpoints")
        if newest is not None:
            self._restore(newest)
        lines = newest.state["log_lines"] if newest else 0
        self.log = self.supply.log = RunLog(run.path, self.step, lines) if ranks.first else NoLog()
        self._settle()

    def loop(self, request: Request) -> None:
        """Train to the last step, in stretches between two minings. Raises Stopped where it is requested."""
        knobs, steps, ranks = self.recipe.train, self.recipe.train.total_steps, self.ranks
        # online, a plan needs the weights of its step
        workers, depth = (0, 0) if self.supply.online else (self.recipe.data.loader_workers, knobs.lag - 1)
        frame, transform = self.network.frame, None
        if frame is not None:
            transform = TrainingImages(frame, self.recipe.augment, knobs.seed)
        batches = loader(self.store, self.sampler, workers, depth, transform, ranks.rank, ranks.size)
        self.network.train()
        if self.step == 0:
            self._keep()
        while self.step < steps:
            stop = min(steps, self.supply.prepare(self.step))
            if self.policy is not None:
                stop = self.policy.hold_out(self.step, stop)
            self.sampler.between(self.step, stop)
            for pixels, plan in request.ending(batches):
                with self.log.timed("waiting") if ranks.size > 1 else nullcontext():
                    asked = ranks.agree(request.made, plan)
                if asked:
                    self._stop()
                factor = self.recipe.schedule.factor(self.step, steps)
                self.objective.advance(Elapsed(self.step, steps, self.sampler.steps_per_pass))
                result = self.do_step(pixels, plan, factor)
                self.sampler.record(self.step, result.unweighted)
                self.step += 1
                if self.step % knobs.log_every == 0 or self.step == steps:
                    self.log.seconds(**batches.seconds(), **self.do_step.phases.seconds())
                    self._report(result, self.recipe.optimizer.lr * factor)
                self._after_step()
        if ranks.agree(request.made, None):
            self._stop()
        self.supply.end(self.step)

    def _settle(self) -> None:
        """Note what a checkpoint of this step keeps of what may change again before the next step is done: a run that
        is stopped there is to do it over."""
        self._settled = {"log_lines": self.log.lines, "round": self.supply.state()}

    def _stop(self) -> None:
        """Write a checkpoint where there is none of this step, and end."""

        def save() -> None:
            newest = checkpoint.last(self.run.path / "checkpoints")
            if newest is None or newest.step != self.step:
                self._save()
            self.log.close()

        self.ranks.lead(save)
        raise Stopped(
            f"stopped by SIGTERM after step {self.step} of {self.recipe.train.total_steps}: a checkpoint is written, "
            "and the same command goes on from it"
        )

    def _after_step(self) -> None:
        validation, knobs = self.recipe.validation, self.recipe.train
        last = self.step == knobs.total_steps
        if self.policy is not None and self.policy.due(self.step):
            self._ask_policy(self.policy)
        if validation is not None and self.score is not None and (last or self.step % validation.every == 0):
            self.ranks.lead(self._validate)
        self._keep()
        self._settle()
        if self.ranks.first and (last or self.step % knobs.checkpoint_every == 0):
            with self.log.timed("checkpoint"):
                self._save()
            self.supply.prune()

    def _keep(self) -> None:
        every = self.recipe.train.keep_every
        if self.ranks.first and every and self.step % every == 0:
            self.run.keep(self.network, self.step, self.sampler.state(self.step))

    def _ask_policy(self, policy: Feedback) -> None:
        with self.log.timed("policy"):
            figures = self.ranks.lead(lambda: policy.ask(self.step, self.supply.descriptors))
        self.log.write(self.step, figures)
        if self.ranks.size > 1:
            state = self.ranks.lead(policy.state)
            if not self.ranks.first:
                policy.follow(state, self.step)

    def _validate(self) -> None:
        validation = self.recipe.validation
        assert validation is not None and self.score is not None  # noqa: PT018 - the caller has checked
        with self.log.timed("validation"):
            values = self.score(self.network, validation, self.ranks.device)
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
            "scaler": self.do_step.scaler and self.do_step.scaler.state_dict(),
            **self._settled,
        }
        folder = self.run.path / "checkpoints"
        checkpoint.save(folder, self.step, state, weights=self.network.state_dict(), **parts)
        checkpoint.keep_last(folder, 2)

    def _restore(self, saved: checkpoint.Checkpoint) -> None:
        self.network.load_state_dict(saved.tensors("weights"))
        self.optimizer.load(saved.tensors("optimizer"))
        self.objective.load(saved.tensors("loss"))
        if self.policy is not None:
            self.policy.load(saved.tensors("policy"))
        self.step, self.best = saved.step, saved.state["best"]
        self.sampler.load(saved.state["sampler"])
        if self.do_step.scaler is not None:
            self.do_step.scaler.load_state_dict(saved.state["scaler"])
        self.supply.restore(saved)

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
                mined = mine(*place, split=split, derive=(), device=self.ranks.device, step=self.step)
                evaluated.append({**evaluation.model_dump(), "split": split, "round": mined.round.number})
        self.log.close()
        weights_step = self.best["step"] if self.best else self.step
        result = {"steps": self.step, "weights_of_step": weights_step, "best": self.best, "evaluation": evaluated}
        result |= self.objective.facts()
        if self.supply.mined is not None:
            result |= {"start": self.supply.mined.origin(), "messages": self.supply.mined.messages}
        self.run.finish(self.network, result)
        return result
