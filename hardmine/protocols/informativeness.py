"""`analyse informativeness`: how well the distance of a matching pair tells how much can be learnt from it.

AdaSample, Fig. 3: the norm of the gradient of each pair's loss with respect to all parameters, against the pair's
matching distance, and their Pearson correlation over training. The choice of p by distance rests on the two going
together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call, grad, vmap

from hardmine.errors import InputError
from hardmine.mining.batch import Batch
from hardmine.mining.class_distances import OnlineDistances
from hardmine.mining.derive import class_centroids, nearest_classes
from hardmine.mining.embed import embed_entries, ready
from hardmine.mining.entries import list_entries
from hardmine.mining.exclusions import read_exclusions, without
from hardmine.mining.miners import Tuples
from hardmine.mining.overlap import Overlap
from hardmine.mining.plan import BatchPlan
from hardmine.mining.samplers import PairSampler
from hardmine.mining.staged import Elapsed
from hardmine.options import Options
from hardmine.pipeline.pixels import require_grey_patches
from hardmine.protocols.moments import Moment
from hardmine.store.distances import full_float32
from hardmine.store.patches import PatchStore
from hardmine.train.losses import Loss
from hardmine.train.networks import Network
from hardmine.train.objective import build_objective
from hardmine.train.recipe import Named
from hardmine.train.runs import Run
from hardmine.train.step import planned_input
from hardmine.train.supply import build_sampler


class InformativenessOptions(Options):
    """positives: 'run', pairs as the run's own sampler draws them at that moment, or 'random', the same random pairs at
    all moments, which cover the whole range of distances. batches: of the recipe's size; the first is drawn with the
    run's own seed, the others with those that follow. chunk: pairs whose gradients are in memory at once. split: of the
    store; default: the recipe's."""

    positives: Literal["run", "random"] = "run"
    batches: int = Field(4, ge=1)
    chunk: int = Field(16, ge=1)
    split: str | None = None


@dataclass(frozen=True)
class Pairs:
    """What was measured of N pairs. distance: float32 (N,), Euclidean, from anchor to positive. gradient_norm: float32
    (N,). loss: float32 (N,), without the sampler's weight. anchor_row, positive_row, label: int64 (N,). anchor_view,
    positive_view: int16 (N,)."""

    distance: np.ndarray
    gradient_norm: np.ndarray
    loss: np.ndarray
    anchor_row: np.ndarray
    positive_row: np.ndarray
    anchor_view: np.ndarray
    positive_view: np.ndarray
    label: np.ndarray

    @classmethod
    def joined(cls, parts: list[Pairs]) -> Pairs:
        """The pairs of all `parts`, in order."""
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))


class Bench:
    """The data, pairs and loss of a run, to measure networks on; the parts that do not change over training.

    store: another patch store than the recipe's. Its exclusion list, if any, belongs to its own store only. Raises
    InputError, MissingError, StoreError, UnknownNameError.
    """

    def __init__(self, run: Run, options: InformativenessOptions, store: str | Path | None = None):
        recipe = run.recipe
        self.options, self.own = options, options.positives == "run"
        self.store = PatchStore.open(recipe.data.store if store is None else store)
        require_grey_patches(self.store)
        self.split = self.store.resolve_split(options.split or (recipe.data.split if store is None else None))
        self.entries = list_entries(self.store, self.split, recipe.views)
        if store is None and recipe.data.exclude is not None:
            self.entries, _ = without(self.entries, read_exclusions(recipe.data.exclude, self.store).rows)
        self.recipe = recipe if self.own else recipe.model_copy(update={"sampler": Named(name="random")})
        self.overlap = Overlap(self.store, self.store.rows(self.split), recipe.data.exclude_overlap)

    def measure(self, run: Run, moment: Moment, device: torch.device, advance: Callable[[], None]) -> tuple[Pairs, int]:
        """The pairs of `options.batches` batches under the weights of `moment`, and how many more had no loss, for want
        of a negative. advance: called after each batch."""
        network = moment.network(run)
        objective = build_objective(self.recipe, network)
        if objective.state():
            raise InputError(
                f"loss {self.recipe.loss.name!r} has learned something of its own, which is not kept with the "
                "weights: informativeness is measured of losses without"
            )
        sampler = self._sampler()
        objective.advance(Elapsed(moment.step, self.recipe.train.total_steps, sampler.steps_per_pass))
        parts, skipped = [], 0
        with ready(network, device), full_float32():
            drawn = objective.miner is not None and objective.miner.needs_drawn
            for plan in self._plans(sampler, network, moment, device, drawn):
                pixels = torch.from_numpy(self.store.gather(plan.rows)).to(device)
                given = planned_input(pixels, plan, network, self.recipe.views)
                excluded = torch.from_numpy(self.overlap.among(plan.label)).to(device) if self.overlap.known else None
                with torch.no_grad():
                    batch = Batch(network(given), torch.from_numpy(plan.labels), plan.pairs, excluded)
                tuples = None if objective.miner is None else objective.miner(batch)
                loss, cotangent = pair_cotangents(objective.loss, batch, tuples)
                norm = pair_gradient_norms(network, _by_pair(given, plan.pairs), cotangent, self.options.chunk)
                has_loss = _with_tuple(plan.pairs, tuples)
                anchors, positives = batch.parts()
                measured = ((anchors - positives).norm(dim=1), norm, loss)
                rows = (plan.anchor_row, plan.positive_row, plan.anchor_view, plan.positive_view, plan.label)
                parts.append(Pairs(*(x[has_loss] for x in (*(m.cpu().numpy() for m in measured), *rows))))
                skipped += int((~has_loss).sum())
                advance()
        return Pairs.joined(parts), skipped

    def _sampler(self) -> PairSampler:
        sampler = build_sampler(self.recipe, self.entries)
        if not isinstance(sampler, PairSampler):
            raise InputError(
                f"informativeness is a property of pairs, and sampler {self.recipe.sampler.name!r} gives single items"
            )
        return sampler

    def _plans(
        self, sampler: PairSampler, network: Network, moment: Moment, device: torch.device, drawn: bool
    ) -> Iterator[BatchPlan]:
        """Batches of the sampler as it was at `moment`, with distances of these weights."""
        sampler.draws_negatives, sampler.overlaps = drawn, self.overlap.between

        def embed(rows: np.ndarray, views: np.ndarray) -> np.ndarray:
            return embed_entries(self.store, rows, views, network, views=self.recipe.views, device=device)

        if sampler.needs_distances:
            sampler.distances = OnlineDistances(self.entries, embed)
        if sampler.needs_nearest:
            centroids = class_centroids(embed(self.entries.row, self.entries.view), self.entries.offsets)
            near = nearest_classes(centroids, sampler.needs_nearest, device)[0]
            overlapping = self.overlap.between(np.arange(len(near))[:, None], near)
            sampler.use_nearest(np.where(overlapping, -1, near), None, moment.step)
        step = 0
        if self.own and moment.sampler is not None:
            sampler.load(moment.sampler)
            step = moment.step
        for number in range(self.options.batches):
            sampler.seed = self.recipe.train.seed + number
            yield sampler.plan(step)


def pair_cotangents(loss: Loss, batch: Batch, tuples: Tuples | None) -> tuple[Tensor, Tensor]:
    """Each pair's loss L_i, float (n,), and its gradient with respect to its own two descriptors, float (n, 2, D).

    All other descriptors of the batch, the negatives too, and the choice of the tuples are held fixed.
    """
    n = batch.items
    x = batch.descriptors.detach().requires_grad_()
    free = Batch(x, batch.labels, batch.pairs, batch.not_negative)
    values, cotangents = x.new_zeros(n), x.new_zeros(n, 2, x.shape[1])
    for i in range(n):
        alone = x.new_zeros(n)
        alone[i] = n  # the mean over the items becomes the loss of item i
        value = loss(free, tuples, alone).value
        (found,) = torch.autograd.grad(value, x)
        values[i], cotangents[i, 0], cotangents[i, 1] = value.detach(), found[i], found[n + i]
    return values, cotangents


def pair_gradient_norms(network: Network, pixels: Tensor, cotangent: Tensor, chunk: int) -> Tensor:
    """Norm, over all parameters, of the gradient of each pair's loss, float32 (n,).

    pixels: float32 (n, 2, 1, side, side), the input of each pair. cotangent: (n, 2, D), the loss's gradient with
    respect to the two descriptors: the chain rule does the rest, J^T cotangent. The network computes in the mode it is
    in (eval: batch norm's statistics are constants). chunk: pairs whose gradients are in memory at once.
    """
    trained = {name: p.detach() for name, p in network.named_parameters() if p.requires_grad}
    fixed = {name: p.detach() for name, p in network.named_parameters() if not p.requires_grad}
    fixed |= dict(network.named_buffers())

    def product(parameters: dict[str, Tensor], two: Tensor, along: Tensor) -> Tensor:
        return (functional_call(network, {**parameters, **fixed}, (two,)) * along).sum()

    def norm(two: Tensor, along: Tensor) -> Tensor:
        gradient = grad(product)(trained, two, along)
        return torch.stack([g.square().sum() for g in gradient.values()]).sum().sqrt()

    return vmap(norm, chunk_size=chunk)(pixels, cotangent)


def _with_tuple(pairs: int, tuples: Tuples | None) -> np.ndarray:
    """bool (n,): the pairs that have a loss; all of them where it is computed on the whole batch."""
    if tuples is None:
        return np.ones(pairs, bool)
    return np.isin(np.arange(pairs), tuples.item.cpu().numpy())


def _by_pair(given: Tensor, pairs: int) -> Tensor:
    """(m, ...) anchors, positives and perhaps negatives as (n, 2, ...)."""
    return torch.stack([given[:pairs], given[pairs : 2 * pairs]], 1)
