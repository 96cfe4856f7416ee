"""`analyse distribution`: what PADS' policy did in a run, and the policy and its last distribution as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from hardmine.errors import InputError
from hardmine.mining.miners.pads import PadsMiner
from hardmine.mining.pads.controller import Pads
from hardmine.mining.pads.files import save_distribution
from hardmine.mining.pads.plots import draw_history, history_figure
from hardmine.options import check
from hardmine.store.files import disk_errors
from hardmine.train import checkpoint
from hardmine.train.runs import Run


def analyse_distribution(run: str | Path, out: str | Path) -> dict[str, Any]:
    """Write into the folder `out`, from the newest checkpoint of a run with a [policy]: `distribution.png`, steps
    across and distances up (the PADS paper's Fig. 1 and 4), `history.npz` (see `History`), `policy.safetensors` and
    `distribution.safetensors`, which other runs may start from; the picture also goes to the run's TensorBoard.

    Returns the counts, the reward's share of the training time, and the mean distance at the start and at the end.
    Raises InputError where the run has no policy or no checkpoint yet, MissingError, StoreError, DiskError.
    """
    opened, out = Run.open(run), Path(out)
    pads, step = _policy_of(opened)
    policy, distribution = _save(pads, out)
    picture, history = out / "distribution.png", out / "history.npz"
    draw_history(picture, pads.history)
    pads.history.save(history)
    with SummaryWriter(str(opened.path / "tensorboard")) as board:
        board.add_figure("policy/distribution", history_figure(pads.history), step)
    seconds = opened.seconds()
    middle = (pads.history.edges[1:] + pads.history.edges[:-1]) / 2
    return {
        "run": str(run),
        "step": step,
        "calls": pads.calls,
        "rewards": {str(r): int((pads.history.reward[1:] == r).sum()) for r in (-1, 0, 1)},
        "mean distance at the start": float((pads.history.p[0] * middle).sum()),
        "mean distance now": float((pads.history.p[-1] * middle).sum()),
        "share of the time": seconds.get("policy", 0.0) / max(sum(seconds.values()), 1e-9),
        "written": [str(path) for path in (picture, history, policy, distribution)],
    }


def save_policy_of(run: str | Path, out: str | Path) -> tuple[Path, Path]:
    """Write `policy.safetensors` and `distribution.safetensors`, of the newest checkpoint of a run, into the folder
    `out`; their paths. Raises as `analyse_distribution`."""
    pads, _ = _policy_of(Run.open(run))
    return _save(pads, Path(out))


def _save(pads: Pads, out: Path) -> tuple[Path, Path]:
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; --out is a folder")
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    policy, distribution = out / "policy.safetensors", out / "distribution.safetensors"
    pads.save_policy(str(policy))
    save_distribution(distribution, pads.distribution)
    return policy, distribution


def _policy_of(run: Run) -> tuple[Pads, int]:
    """The policy of the newest checkpoint, and the checkpoint's step."""
    recipe, newest = run.recipe, checkpoint.last(run.path / "checkpoints")
    if recipe.policy is None or recipe.miner is None:
        raise InputError(f"{run.path} has no [policy]: nothing adapted a distribution in it")
    if newest is None:
        raise InputError(f"{run.path} has no checkpoint yet: train it further")
    miner = check(PadsMiner, recipe.miner.options, f"miner {recipe.miner.name!r}")
    pads = Pads(recipe.policy, miner.distribution, total_steps=recipe.train.total_steps, seed=recipe.train.seed)
    pads.load_state_dict(newest.tensors("policy"))
    return pads, newest.step
