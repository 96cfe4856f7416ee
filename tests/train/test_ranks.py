"""Two processes that share each batch do what one does: plans, losses, gradients, statistics, and whole trainings."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from polygon_world import polygon_store
from rank_scenarios import PAIRS, STEPS, all_steps, item_plan, pair_plan, plans_of, trainings
from ranks_world import together

from hardmine.errors import InputError
from hardmine.pipeline.augment import Augment, TrainingImages
from hardmine.pipeline.image_frame import ImageFrame
from hardmine.store.rounds import MiningStore
from hardmine.train.ranks import Ranks


@pytest.fixture
def one_thread():
    """Every process that is compared has one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What each of two processes has after one step."""
    return together(all_steps, 2, tmp_path_factory.mktemp("steps"))


@pytest.fixture(scope="module")
def one():
    threads = torch.get_num_threads()
    found = all_steps(Ranks("cpu"))
    torch.set_num_threads(threads)
    return found


def close(found, expected, tolerance, noise=0.0):
    """noise: what a number that is 0 but for rounding may come to."""
    assert (found - expected).abs().max() <= tolerance * expected.abs().max() + noise


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_two_processes_is_that_of_one(name, one, two):
    expected, half = one[name], name.endswith("bfloat16")
    tolerance = 0.1 if half else 1e-3
    for found in (each[name] for each in two):
        close(found["loss"], expected["loss"], tolerance)
        close(found["unweighted"], expected["unweighted"], tolerance)
        for figure, value in expected["figures"].items():
            close(found["figures"][figure], value, 10 * tolerance)
        largest = max(gradient.abs().max() for gradient in expected["gradients"].values())
        for parameter, gradient in expected["gradients"].items():  # of a bias before batch norm it is 0
            close(found["gradients"][parameter], gradient, 5 * tolerance, 1e-5 * largest)
        for key, value in expected["state"].items():
            close(found["state"][key].double(), value.double(), tolerance)
        for mine, theirs in zip(found["learned"], expected["learned"], strict=True):
            assert theirs.abs().max() > 0
            close(mine, theirs, tolerance)
    first, second = (each[name] for each in two)
    for key, value in first["state"].items():
        assert torch.equal(value, second["state"][key])  # to the bit, or they would drift apart
    assert all(torch.equal(first["after"][key], second["after"][key]) for key in first["after"])


@pytest.mark.parametrize("plan", [pair_plan(), item_plan()], ids=["pairs", "items"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_shares_are_equal_and_disjoint_and_pairs_stay_whole(plan, size):
    shares = [plan.slots(rank, size) for rank in range(size)]
    assert {len(share) for share in shares} == {len(plan) // size}
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(plan)))
    if plan.pairs is not None:
        for share in shares:
            assert len(set(share % PAIRS)) == len(share) // 3
            assert np.array_equal(share.reshape(3, -1) // PAIRS, np.repeat([[0], [1], [2]], PAIRS // size, axis=1))


def test_a_batch_that_cannot_be_shared_evenly_is_refused():
    with pytest.raises(InputError, match="8 pairs cannot be shared evenly among 3 processes"):
        pair_plan().slots(0, 3)


def test_augmentation_belongs_to_the_place_in_the_batch():
    frame, images = ImageFrame(3, 12, 10), np.random.default_rng(0).integers(0, 256, (12, 20, 30, 3), dtype=np.uint8)
    transform, plan = TrainingImages(frame, Augment(), 4), item_plan()
    whole = transform(images, plan)
    for slots in (plan.slots(0, 2), plan.slots(1, 2)):
        assert torch.equal(transform(images[slots], plan, slots), whole[slots])


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return polygon_store(tmp_path_factory.mktemp("images"), classes=8, each=8, sides=28)


@pytest.fixture(scope="module")
def runs(store, tmp_path_factory):
    """The folder of the trainings of two processes, and what each process saw."""
    folder = tmp_path_factory.mktemp("runs")
    return folder, together(trainings, 2, folder / "calls", store, folder)


def lines(run):
    every = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("seconds/")} for line in every]


def weights(run: Path):
    return (run / "weights.safetensors").read_bytes()


def test_both_processes_plan_and_end_alike(runs):
    _, (first, second) = runs
    assert first == second
    assert sorted(first["straight"][0]) == list(range(8))
    assert first["straight"][1]["steps"] == 8
    assert first["stopped"][1].startswith("stopped by SIGTERM after step 5 of 8")


def test_a_stopped_training_of_two_ends_with_the_same_bits(runs):
    folder, (first, _) = runs
    assert weights(folder / "stopped") == weights(folder / "straight")
    assert lines(folder / "stopped") == lines(folder / "straight")
    whole, rest = first["straight"][0], first["resumed"][0]
    assert rest == {step: plan for step, plan in whole.items() if step >= 5}
    rounds = [MiningStore(folder / name / "mining").rounds() for name in ("straight", "stopped")]
    assert [r.attrs for r in rounds[0]] == [r.attrs for r in rounds[1]]


def test_one_process_does_what_two_do_and_goes_on_where_they_were(runs, store, tmp_path, one_thread):
    folder, (first, _) = runs
    alone, outcome = plans_of(Ranks("cpu"), store, tmp_path / "alone")
    assert alone == first["straight"][0]
    assert outcome == first["straight"][1]
    for mine, theirs in zip(lines(tmp_path / "alone"), lines(folder / "straight"), strict=True):
        assert mine.keys() == theirs.keys()
        if "loss" in mine:
            assert mine["loss"] == pytest.approx(theirs["loss"], rel=0.02)
    rest, _ = plans_of(Ranks("cpu"), store, folder / "left")
    assert rest == {step: plan for step, plan in alone.items() if step >= 5}
