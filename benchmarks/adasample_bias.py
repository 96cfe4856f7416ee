"""How far AdaSample's expected step is from the gradient of its objective: python benchmarks/adasample_bias.py [RUN]

The objective is (1/n) sum_c (1/K_c) sum_i L_ci^alpha over the n classes of a batch and the K_c candidates of each
class's anchor (Eq. 9). A pair is drawn with p_ci proportional to d_ci^(2 alpha - 1) and its gradient weighted with
w_ci. With the exact w the expected step is the gradient of the objective. Eq. 13's w is 1 / d, without the class's
normaliser of p and up to a common factor. The script prints, for each kind of weight, the cosine of the expected step
to that gradient and its relative bias |s E[w grad L] - g| / |g| at the best common factor s, which a learning rate
would take up.

Without RUN it takes a linear model of three classes, where all outcomes of a batch are enumerated. With RUN, a folder
that `train` wrote, also a batch of real patches under the run's weights (batch norm in eval mode; each anchor's
negative is the nearest other anchor), where weights that depend on the whole batch are averaged over seeded draws.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hardmine.mining.batch import Batch
from hardmine.mining.entries import list_entries
from hardmine.mining.miners import Tuples
from hardmine.mining.samplers.adasample import inverse_distance_weights, normalised_weights, probabilities
from hardmine.options import check
from hardmine.pipeline.pixels import prepare
from hardmine.pipeline.views import Views
from hardmine.store.patches import PatchStore
from hardmine.train.losses import losses
from hardmine.train.runs import Run, load

Gradient = Callable[[np.ndarray], np.ndarray]  # coefficients (n, K) -> gradient of sum_ci coefficient_ci L_ci, (P,)
Weights = Callable[[np.ndarray, np.ndarray], np.ndarray]  # d, p of the n drawn pairs -> w (n,)
CAP = 10.0


def of_batch(exponent: float) -> dict[str, Weights]:
    """The weights with mean 1 over the batch, which depend on all n pairs drawn, by name."""
    return {
        "1/d, mean 1 (Eq. 13)": lambda d, p: inverse_distance_weights(d, np.inf),
        f"1/d, mean 1, capped at {CAP:g} x median (default)": lambda d, p: inverse_distance_weights(d, CAP),
        "1/d, normaliser, mean 1": lambda d, p: normalised_weights(d, p, exponent, np.inf),
        f"1/d, normaliser, mean 1, capped at {CAP:g} x median": lambda d, p: normalised_weights(d, p, exponent, CAP),
    }


def biases(
    loss: np.ndarray, distance: np.ndarray, gradient: Gradient, exponent: float, draws: int | None
) -> dict[str, dict[str, float]]:
    """Cosine and bias for each kind of weight. loss, distance: float64 (n, K), NaN where a class has fewer candidates.
    draws: of whole batches; None enumerates all of them."""
    alpha, p, n = (exponent + 1) / 2, probabilities(distance, exponent), len(distance)
    count = (~np.isnan(distance)).sum(1)[:, None]
    target = np.nan_to_num(alpha * loss ** (alpha - 1) / count) / n
    coefficients = {  # E[w_ci 1(i is drawn)] / n
        "exact": target,
        "none (p alone)": p / n,
        "1/d": np.nan_to_num(p / distance) / n,
        "1/d, normaliser": np.nan_to_num(alpha * distance ** (exponent - 1) / count) / n,  # p cancels in p w
    }
    outcomes, chance = _outcomes(p, draws)
    for name, weights in of_batch(exponent).items():
        expected = np.zeros_like(p)
        for outcome, share in zip(outcomes, chance):
            drawn = np.arange(n), outcome
            expected[drawn] += share * weights(distance[drawn], p[drawn]) / n
        coefficients[name] = expected
    exact = gradient(target)
    found = {}
    for name, each in coefficients.items():
        step = gradient(each)
        cosine = float(step @ exact / np.linalg.norm(step) / np.linalg.norm(exact))
        bias = np.linalg.norm(step * (step @ exact) / (step @ step) - exact) / np.linalg.norm(exact)
        found[name] = {"cosine": cosine, "bias": float(bias)}
    return found


def _outcomes(p: np.ndarray, draws: int | None) -> tuple[Any, Any]:
    """Which candidate each class draws, (D, n), and the probability of each outcome (D,)."""
    if draws is None:
        outcomes = np.array(list(itertools.product(*(np.flatnonzero(row) for row in p))))
        return outcomes, np.prod(p[np.arange(len(p)), outcomes], axis=1)
    u = np.random.default_rng(0).random((draws, len(p), 1))
    outcomes = np.minimum((np.cumsum(p, 1) <= u).sum(2), (p > 0).sum(1) - 1)
    return outcomes, np.full(draws, 1 / draws)


def small_model(exponent: float) -> dict[str, dict[str, float]]:
    """Three classes of four candidates, a linear layer, L = d^2."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([0.3, 0.6, 1.0], dtype=torch.float64)[:, None, None]
    centre = torch.randn(3, 1, 8, generator=generator, dtype=torch.float64)
    x = centre + scale * torch.randn(3, 5, 8, generator=generator, dtype=torch.float64)
    layer = torch.randn(4, 8, generator=generator, dtype=torch.float64).requires_grad_()
    f = torch.nn.functional.normalize(x @ layer.T, dim=2)
    loss = (f[:, :1] - f[:, 1:]).square().sum(2)

    def gradient(coefficients: np.ndarray) -> np.ndarray:
        (found,) = torch.autograd.grad((torch.from_numpy(coefficients) * loss).sum(), layer, retain_graph=True)
        return found.flatten().numpy()

    values = loss.detach().numpy()
    return biases(values, np.sqrt(values), gradient, exponent, None)


class RealBatch:
    """n classes of a run's store, each extended to `per_class` entries by views, with an anchor drawn in each."""

    def __init__(self, run: Path, n: int, per_class: int, seed: int):
        recipe, network = Run.open(run).recipe, load(run)
        store, views = PatchStore.open(recipe.data.store), Views(per_class=per_class)
        entries, rng = list_entries(store, recipe.data.split, views), np.random.default_rng(seed)
        classes = rng.choice(len(entries.offsets) - 1, n, replace=False)
        size = np.diff(entries.offsets)[classes]
        start = entries.offsets[classes]
        anchor = start + rng.integers(size)
        others = [np.setdiff1d(np.arange(first, first + k), a) for first, k, a in zip(start, size, anchor)]
        self.owner = np.repeat(np.arange(n), size - 1)
        self.slot = np.concatenate([np.arange(k - 1) for k in size])
        entry = np.concatenate([anchor, *others])
        angle = torch.from_numpy(views.angles(entries.row[entry], entries.view[entry]))
        pixels = prepare(torch.from_numpy(store.gather(entries.row[entry])), network.side, angle=angle)
        f = network(pixels)
        anchors, self.candidates = f[:n], f[n:]
        apart = torch.cdist(anchors.detach(), anchors.detach()).fill_diagonal_(torch.inf)
        self.anchors, self.negatives = anchors[self.owner], anchors[apart.argmin(1)[self.owner]]
        self.parameters = [p for p in network.parameters() if p.requires_grad]

    def biases(self, loss_name: str, exponent: float, draws: int) -> dict[str, dict[str, float]]:
        """See `biases`; with the loss of that name."""
        kind, m = check(losses.get(loss_name), {}, "loss"), len(self.owner)
        item = torch.arange(m)
        batch = Batch(torch.cat([self.anchors, self.candidates, self.negatives]), self._labels(), m)
        tuples = Tuples(item, item + m, item + 2 * m, item)

        def gradient(coefficients: np.ndarray) -> np.ndarray:
            weight = torch.from_numpy(coefficients[self.owner, self.slot] * m)  # the loss takes the mean
            found = torch.autograd.grad(kind(batch, tuples, weight).value, self.parameters, retain_graph=True)
            return torch.cat([g.flatten() for g in found]).double().numpy()

        distance = self._table((self.anchors - self.candidates).detach().norm(dim=1))
        values = self._table(kind(batch, tuples).per_item)
        return biases(values, distance, gradient, exponent, draws)

    def _labels(self) -> Tensor:
        own = torch.from_numpy(self.owner)
        return torch.cat([own, own, own + len(own)])

    def _table(self, values: Tensor) -> np.ndarray:
        found = np.full((self.owner.max() + 1, self.slot.max() + 1), np.nan)
        found[self.owner, self.slot] = values.double().numpy()
        return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="The bias of AdaSample's weights.")
    parser.add_argument("run", nargs="?", type=Path, help="A run folder: measure a batch of real patches as well.")
    parser.add_argument("--exponents", type=float, nargs="+", default=[3.0, 12.0], help="2 alpha - 1")
    parser.add_argument("--classes", type=int, default=32)
    parser.add_argument("--per-class", type=int, default=8)
    parser.add_argument("--draws", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = {}
    for exponent in asked.exponents:
        found[f"small model, L = d^2, exponent {exponent:g}"] = small_model(exponent)
    if asked.run is not None:
        batch = RealBatch(asked.run, asked.classes, asked.per_class, asked.seed)
        for name in ("ht", "aht", "triplet-margin"):
            for exponent in asked.exponents:
                found[f"real batch, {name}, exponent {exponent:g}"] = batch.biases(name, exponent, asked.draws)
    if asked.json:
        print(json.dumps(found))
        return
    for title, rows in found.items():
        print(title)
        for name, row in rows.items():
            print(f"  {name:52} cosine {row['cosine']:.4f}  bias {row['bias']:.4f}")


if __name__ == "__main__":
    main()
