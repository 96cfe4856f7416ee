import hashlib
import json

import pytest

from hardmine.errors import InputError, MissingError, UnknownNameError
from hardmine.train.recipe import LATER, Recipe, Schedule, load_recipe, shipped


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_recipe_is_valid(name):
    recipe = load_recipe(name)
    assert isinstance(recipe, Recipe)
    assert load_recipe(shipped()[name]).digest() == recipe.digest()


def test_an_unknown_key_is_an_error_with_the_nearest_name(tmp_path):
    with pytest.raises(UnknownNameError, match=r"'train.step'.*Did you mean 'train.steps'"):
        load_recipe("hardnet", ["train.step=3"])


def test_overrides_are_applied_and_change_the_digest():
    plain, changed = load_recipe("adasample"), load_recipe("adasample", ["sampler.lam=5", "data.store=elsewhere"])
    assert changed.sampler.options["lam"] == 5
    assert changed.data.store == "elsewhere"
    assert plain.digest() != changed.digest()


def test_a_run_without_an_option_that_came_later_keeps_its_digest():
    plain = load_recipe("pads")
    tree = plain.model_dump(mode="json", exclude={"data": {"loader_workers"}})
    for name in ("checkpoint_every", "keep_every", "log_every"):
        del tree["train"][name]
    tree["mining"]["on_stale"] = "go on"
    assert "redraw_every" in LATER["policy"]
    for section, options in LATER.items():
        for name in options:
            del tree[section][name]
    assert plain.digest() == hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
    assert load_recipe("pads", ["policy.redraw_every=9"]).digest() != plain.digest()


def test_what_does_not_change_the_weights_does_not_change_the_digest():
    plain = load_recipe("adasample")
    assert load_recipe("adasample", ["data.loader_workers=4", "train.log_every=1"]).digest() == plain.digest()


def test_a_recipe_that_is_not_there_or_not_toml(tmp_path):
    with pytest.raises(UnknownNameError, match="Did you mean 'hardnet'"):
        load_recipe("hardnett")
    with pytest.raises(MissingError, match="no recipe at"):
        load_recipe(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[data\n")
    with pytest.raises(InputError, match=r"bad.toml: not a TOML file"):
        load_recipe(tmp_path / "bad.toml")


def test_the_best_weights_are_not_chosen_on_the_test_set():
    overrides = ["validation.store=a", "evaluation=[{store='a'}]"]
    with pytest.raises(InputError, match="chosen on the test set 'a'"):
        load_recipe("hardnet", overrides)
    assert load_recipe("hardnet", [*overrides, "validation.split=val"]).validation.split == "val"


def test_steps_may_be_given_in_epochs():
    loop = load_recipe("hardnet").train.model_copy()
    assert (loop.total_steps, loop.mining_interval) == (400, 200)
    tree = ["train={pairs=1024, epochs=10, pairs_per_epoch=5000000, mine_every_epochs=0.5}"]
    loop = load_recipe("hardnet", tree).train
    assert (loop.total_steps, loop.mining_interval) == (48828, 2441)
    assert type(loop).model_validate(loop.model_dump(mode="json")) == loop  # as a run's folder keeps it
    with pytest.raises(InputError, match="either steps or epochs"):
        load_recipe("hardnet", ["train.epochs=2", "train.pairs_per_epoch=1000"])
    with pytest.raises(InputError, match="epochs needs pairs_per_epoch"):
        load_recipe("hardnet", ["train={epochs=2}"])
    loop = load_recipe("embedding-small", ["train={epochs=600, steps_per_epoch=4, mine_every_epochs=2.5}"]).train
    assert (loop.total_steps, loop.mining_interval) == (2400, 10)
    with pytest.raises(InputError, match="either pairs_per_epoch or steps_per_epoch"):
        load_recipe("embedding-small", ["train={epochs=2, steps_per_epoch=4, pairs_per_epoch=100}"])


def test_schedules_are_the_published_ones():
    linear = Schedule(name="linear")
    assert [linear.factor(t, 4) for t in range(4)] == [1, 0.75, 0.5, 0.25]
    step = Schedule(name="step")
    assert [step.factor(t, 90) for t in (0, 29, 30, 59, 60, 79, 80, 89)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    )
    assert Schedule(name="constant").factor(3, 4) == 1
