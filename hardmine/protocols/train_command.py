"""What `hardmine train` does, alone or as one of the processes that torchrun has started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hardmine.protocols.evaluate import check_evaluations, score, splits_of
from hardmine.train.loop import Progress, train
from hardmine.train.ranks import joined, launched_as
from hardmine.train.recipe import load_recipe


def speaks() -> bool:
    """Whether this is the process of a training that prints."""
    return launched_as() == 0


def run_train(
    recipe: str, run: Path | None, resume: bool, settings: Sequence[str], device: str | None, progress: Progress
) -> dict[str, Any]:
    """Train a recipe in the folder `run`; None is one named by the recipe and its digest. The result as a JSON object,
    in every process."""
    with joined(device) as ranks:
        loaded = load_recipe(recipe, settings)
        check_evaluations(loaded)
        folder = run or Path("runs") / f"{Path(recipe).stem}-{loaded.digest()[:8]}"
        result = train(
            loaded,
            folder,
            score,
            splits_of,
            must_resume=resume,
            ranks=ranks,
            progress=progress if ranks.first else None,
        )
    return {"run": str(result.path), "trained_steps": result.trained, "processes": ranks.size, **result.result}
