"""Grids: the rows they stand for, what a base hands on, and what is wrong in one."""

import pytest

from hardmine.errors import InputError, MissingError, UnknownNameError
from hardmine.reproduce.set_file import load_set

PARTS = """
[parts.loss]
one = { title = "One", set = { loss = { name = "triplet" } } }
two = { title = "Two", set = { loss = { name = "margin" } }, note = "learns beta" }

[parts.miner]
near = { title = "near", set = { miner = { name = "semi-hard" } }, small = { "train.steps" = 3 } }
far = { title = "far", set = { miner = { name = "random" } }, paper = { "train.steps" = 9 } }
"""
GRID = """
[[grids]]
over = ["loss", "miner"]
recipe = "embedding-small"
"""
REST = """
title = "A grid"
source = "the tests"
measures = { r1 = { protocol = "retrieval", metric = "r@1" } }
columns = [{ train = "a", test = "b" }]
scales = { small = { about = "", stores = { a = { store = "x" }, b = { store = "y" } } } }
"""


@pytest.fixture
def written(tmp_path):
    """written(text, name) writes a set and returns its path."""

    def write(text, name="mine.toml"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_a_grid_stands_for_every_combination_in_order(written):
    grid = GRID + 'baseline = { miner = "near" }\n'
    rows = load_set(written("published = { two-far = [12.5] }\n" + REST + PARTS + grid)).rows
    assert [row.name for row in rows] == ["one-near", "one-far", "two-near", "two-far"]
    assert [row.title for row in rows] == ["One, near", "One, far", "Two, near", "Two, far"]
    assert [row.baseline for row in rows] == [None, "one-near", None, "two-near"]
    assert [row.published for row in rows] == [(), (), (), (12.5,)]
    assert [row.note for row in rows] == [None, None, "learns beta", "learns beta"]
    assert {row.recipe for row in rows} == {"embedding-small"}
    last, first = rows[3], rows[0]
    assert last.overrides("small") == {"loss": {"name": "margin"}, "miner": {"name": "random"}}
    assert last.overrides("paper") == {**last.overrides("small"), "train.steps": 9}
    assert first.overrides("small")["train.steps"] == 3


def test_only_some_parts_and_only_one_scale(written):
    grid = GRID + 'only = { loss = ["two"], miner = ["far", "near"] }\nscales = ["small"]\n'
    rows = load_set(written(REST + PARTS + grid)).rows
    assert [row.name for row in rows] == ["two-far", "two-near"]
    assert {row.scales for row in rows} == {("small",)}


def test_a_swept_part_gives_the_place_on_a_line(written):
    swept = '[parts.dim]\nd64 = { title = "64-d", x = 64 }\nd128 = { title = "128-d", x = 128 }\n'
    grid = GRID.replace('"miner"', '"dim"')
    rows = load_set(written('x_title = "dimensions"\n' + REST + PARTS + swept + grid)).rows
    found = [("One", 64.0), ("One", 128.0), ("Two", 64.0), ("Two", 128.0)]
    assert [(row.series, row.x) for row in rows] == found
    alone = GRID.replace('"loss", "miner"', '"dim"')
    rows = load_set(written('x_title = "dimensions"\n' + REST + swept + alone)).rows
    assert len({row.series for row in rows}) == 2


def test_a_base_hands_on_rows_parts_measures_and_columns(written):
    written(REST + PARTS + GRID, "below.toml")
    own = """
base = "below.toml"
title = "Above"
source = "the tests"
scales = { small = { about = "", stores = { a = { store = "other" }, b = { store = "y" } } } }

[[rows]]
name = "own"
title = "own"
contender = "pixels"

[parts.miner.third]
title = "third"

[[grids]]
over = ["miner", "loss"]
recipe = "embedding-small"
only = { miner = ["third"], loss = ["two"] }
baseline = { miner = "near" }
"""
    with pytest.raises(InputError, match="its baseline 'near-two' is no row"):
        load_set(written(own))
    found = load_set(written(own.replace('"miner", "loss"', '"loss", "miner"')))
    assert [row.name for row in found.rows] == ["own", "one-near", "one-far", "two-near", "two-far", "two-third"]
    assert found.rows[1].overrides("small")["miner"] == {"name": "semi-hard"}
    replaced = own + '[parts.miner.near]\ntitle = "nearer"\nset = { miner = { name = "soft-hard" } }\n'
    found = load_set(written(replaced.replace('"miner", "loss"', '"loss", "miner"')))
    assert [row.title for row in found.rows][1:] == ["One, nearer", "One, far", "Two, nearer", "Two, far", "Two, third"]
    assert found.rows[1].overrides("small") == {"loss": {"name": "triplet"}, "miner": {"name": "soft-hard"}}
    assert found.rows[-1].baseline == "two-near"
    assert found.title == "Above"
    assert found.measures.keys() == {"r1"}
    assert found.scales["small"].stores["a"].store == "other"


def test_a_base_is_a_shipped_set_or_a_file_and_no_circle(written):
    own = REST.replace('measures = { r1 = { protocol = "retrieval", metric = "r@1" } }', "")
    with pytest.raises(UnknownNameError, match="Did you mean 'gor-alpha'"):
        load_set(written('base = "gor-alfa"\n' + own))
    with pytest.raises(MissingError, match=r"no set at .*none\.toml, the base of .*mine\.toml"):
        load_set(written('base = "none.toml"\n' + own))
    with pytest.raises(InputError, match="is based on it"):
        load_set(written('base = "mine.toml"\n' + own))
    bare = {"title": "Bare", "source": "the tests", "base": "pads-table1"}
    found = load_set(written("\n".join(f'{key} = "{value}"' for key, value in bare.items())))
    assert found.scales == load_set("pads-table1").scales
    assert not any(row.published for row in found.rows)
    found = load_set(written('base = "embeddings-grocery"\n' + REST))
    assert found.rows == load_set("embeddings-grocery").rows


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ('over = ["loss", "miner"]', 'over = ["los", "miner"]', UnknownNameError, "Did you mean 'loss'"),
        ('over = ["loss", "miner"]', 'over = ["loss", "miner"]\nonly = { los = ["one"] }', UnknownNameError, "'loss'"),
        ("[[grids]]", '[[grids]]\nonly = { loss = ["ones"] }', UnknownNameError, "part of 'loss'.*Did you mean 'one'"),
        ("[[grids]]", '[[grids]]\nbaseline = { miner = "nere" }', UnknownNameError, "Did you mean 'near'"),
        ('title = "A grid"', 'title = "A grid"\npublished = { one-fa = [1] }', UnknownNameError, "mean 'one-far'"),
        ("[[grids]]", GRID + "[[grids]]", InputError, "another grid has the row 'one-near'"),
        ("[[grids]]", "[[grids]]\nbasline = {}", UnknownNameError, "Did you mean 'baseline'"),
        ("[[grids]]", "[grids]", InputError, r"expected a list of tables, each under \[\[grids\]\]"),
        ("[parts.loss]", '[parts.loss]\nthree = "x"', InputError, r"parts\.loss\.three: expected a table, not 'x'"),
        ("[parts.loss]", '[parts.loss]\nthree = { title = "x", sett = {} }', UnknownNameError, "Did you mean 'set'"),
        ("miner = { name = \"random\" }", "loss = 1", InputError, "two parts of 'One, far' set 'loss'"),
        ('title = "far"', 'title = "far", x = 1', InputError, "a set with an x_title gives every row an x"),
        ('title = "A grid"', 'title = "A grid"\ngrid = []', UnknownNameError, "Did you mean 'grids'"),
    ],
)  # fmt: skip
def test_a_wrong_grid_is_one_message(written, old, new, error, message):
    text = REST + PARTS + GRID
    assert old in text
    with pytest.raises(error, match=message):
        load_set(written(text.replace(old, new)))


def test_a_row_has_one_place_on_its_line(written):
    text = (REST + PARTS + GRID).replace('title = "far"', 'title = "far", x = 1').replace('"One"', '"One", x = 2')
    with pytest.raises(InputError, match="two parts with an x"):
        load_set(written('x_title = "x"\n' + text))
