"""Set files: closed, and every shipped one is whole."""

import json
import math
from functools import cache

import pytest

from hardmine.errors import InputError, MissingError, UnknownNameError
from hardmine.mining.miners.pads import PadsMiner
from hardmine.mining.pads.files import save_distribution
from hardmine.options import apply_override
from hardmine.protocols.base import protocols
from hardmine.reproduce import reproduce
from hardmine.reproduce.plan import UNTRAINED, Plan
from hardmine.reproduce.set_file import load_set, override_text, shipped_sets
from hardmine.reproduce.stores import ingest_command, known_stores
from hardmine.train.networks import build
from hardmine.train.objective import build_objective
from hardmine.train.recipe import shipped

SETS = sorted(shipped_sets())


@cache
def network(section):
    """Built once: the initial weights take their time."""
    options = json.loads(section)
    return build(options.pop("name"), {name: value for name, value in options.items() if name != "weights"})


def test_the_sets_that_are_promised_are_there():
    promised = {"adasample-table1", "adasample-table2", "adasample-table3", "gor-losses", "gor-alpha"}
    promised |= {"pads-table1", "pads-table2", "pads-table3", "pads-table4", "pads-table5"}
    promised |= {"gor-images", "gor-images-few", "gor-images-cars"}
    promised |= {f"dsdml-table{number}" for number in range(2, 8)}
    assert promised | {"local-descriptors"} <= set(SETS)


def test_the_published_figures_of_pads_are_those_of_the_specs():
    """Specs 1.8: R@1 of CUB, CARS, SOP; the reference of Table 5. Every other figure is unknown."""
    rows = ("margin-distance-weighted", "margin-pads", "triplet-pads")
    known = {"pads-table1": (63.5, 67.3, 64.0), "pads-table2": (80.1, 83.5, 79.9), "pads-table3": (74.6, 76.5, 74.8)}
    for name, figures in known.items():
        found = {row.name: row.published for row in load_set(name).rows if row.published}
        assert {row: published[0] for row, published in found.items()} == dict(zip(rows, figures))
        assert all(math.isnan(value) for published in found.values() for value in published[1:])
        assert len(load_set(name).rows) == 12
    ablations = {row.name: row.published for row in load_set("pads-table5").rows if row.published}
    assert ablations == {"reference": (65.7, 69.2)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of stores with the weights that trainings start from, empty files, and a distribution to take."""
    root = tmp_path_factory.mktemp("data")
    (root / "weights").mkdir()
    for name in ("resnet50.pth", "googlenet.pth"):
        (root / "weights" / name).touch()
    save_distribution(root / "distribution", PadsMiner().distribution)
    return root


@pytest.mark.parametrize("name", SETS)
def test_a_shipped_set_is_whole(name, folder):
    """Every row's recipe takes its overrides at every scale, its parts exist and fit, its stores are known."""
    chosen = load_set(name)
    for measure in chosen.measures.values():
        assert measure.protocol in protocols.names()
    for scale, settings in chosen.scales.items():
        plan = Plan(chosen, scale, folder)
        checked = set()
        for job in plan.jobs:
            if job.train == UNTRAINED or (job.row.name, scale) in checked:
                continue
            checked.add((job.row.name, scale))
            assert job.row.recipe in shipped()
            taken = job.row.from_run
            recipe = plan.recipe(job, {kind: str(folder / "distribution") for kind in ("policy", "distribution")})
            assert recipe.train.seed == job.seed + (taken.shift_seed if taken else 0)
            assert taken is None or plan.source(job).row.name == taken.row
            assert recipe.evaluation == ()
            build_objective(recipe, network(recipe.network.model_dump_json()))
        for place in settings.stores.values():
            assert place.store in known_stores()
            assert ingest_command(place.store).count("{store}") == 1


@pytest.mark.parametrize("name", SETS)
def test_the_small_scale_differs_in_its_settings_only(name):
    chosen = load_set(name)
    for row in chosen.rows:
        assert set(row.paper) == set(row.small) or len(row.scales) == 1 or "paper" not in chosen.scales


def test_the_published_figures_of_table_1_are_those_of_the_specs():
    """Specs 4.4, in the order N->L, Y->L, L->N, Y->N, L->Y, N->Y."""
    chosen = load_set("adasample-table1")
    initials = ["".join(role[0].upper() for role in (c.train, c.test)) for c in chosen.columns]
    assert initials == ["NL", "YL", "LN", "YN", "LY", "NY"]
    published = {row.title: row.published for row in chosen.rows if row.published}
    assert published == {
        "HardNet*": (1.80, 2.89, 0.68, 0.90, 1.93, 1.71),
        "AdaSample*": (1.64, 2.62, 0.61, 0.88, 1.92, 1.46),
        "HardNet+*": (1.32, 2.31, 0.41, 0.67, 1.51, 1.24),
        "AdaSample+*": (1.25, 2.21, 0.40, 0.63, 1.40, 1.14),
    }


def test_the_published_figures_of_table_2_are_those_of_the_specs():
    chosen = load_set("adasample-table2")
    assert {row.name: row.published for row in chosen.rows if row.published} == {"aht-10": (94.78, 65.46, 83.98)}
    assert [column.measure for column in chosen.columns] == ["verification", "matching", "retrieval"]
    lambdas = [0, 1, 2, 5, 10, 20, math.inf]
    assert [(row.series, row.x) for row in chosen.rows] == [
        (loss, lam) for loss in ("triplet margin", "HT", "AHT") for lam in lambdas
    ]


def test_dsdmls_tables_are_four_losses_in_four_forms():
    forms = {"static": (False, False), "t": (True, False), "w": (False, True), "star": (True, True)}
    for number in range(2, 8):
        chosen = load_set(f"dsdml-table{number}")
        assert len(chosen.rows) == 16
        assert set(chosen.scales) == {"paper", "small"}
        for row in chosen.rows:
            loss, _, form = row.name.rpartition("-")
            assert row.set["loss"] == {"name": loss}
            assert (row.set["loss.select"], row.set["loss.dynamic"]) == forms[form]
            assert row.published == ()


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("[measures.fpr95]", "[measures.fpr]\nprotocl = 1\n[measures.fpr95]", InputError, "protocol"),
        ('title = "SIFT"', 'title = "SIFT"\nrecipe = "hardnet"', InputError, "either a recipe or a contender"),
        ('title = "SIFT"', 'title = "SIFT"\nset = { a = 1 }', InputError, "is not trained"),
        ('title = "SIFT"', 'title = "SIFT"\nweights = "a.params"', InputError, "go together"),
        ('title = "SIFT"', 'titel = "SIFT"', InputError, "title"),
        ('title = "A tiny table"', 'title = "A tiny table"\nabot = ""', UnknownNameError, "Did you mean 'about'"),
        ('name = "sift"', 'name = "hardnet"', InputError, "two rows are called 'hardnet'"),
        ('baseline = "hardnet"', 'baseline = "harnet"', InputError, "'harnet' is no row"),
        ("published = [2.0, 4.0]", "published = [2.0]", InputError, "1 published figures for 2"),
        ('train = "a"', 'train = "c"', InputError, "binds no store to the role 'c'"),
        ("seeds = 2", "seeds = 0", InputError, "greater than or equal to 1"),
        ("seeds = 2", "seeds = 2\noptions = { fpr = {} }", InputError, "'fpr', which is no measure"),
    ],
)
def test_a_wrong_set_file_is_one_message(tiny, old, new, error, message):
    with pytest.raises(error, match=message):
        load_set(tiny(old, new))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"train.pairs" = 6', '"train.pair" = 6', "Did you mean 'train.pairs'"),
        ('recipe = "hardnet"', 'recipe = "hardnett"', "Did you mean 'hardnet'"),
        ('protocol = "phototour"', 'protocol = "phototours"', "Did you mean 'phototour'"),
        ('metric = "fpr95"', 'metric = "fpr95"\noptions = { pair = "a" }', "Did you mean 'pairs'"),
    ],
)
def test_what_a_set_names_must_exist_before_anything_runs(stores, tiny, tmp_path, old, new, message):
    with pytest.raises(UnknownNameError, match=message):
        reproduce(tiny(old, new), stores, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_sets_are_found_by_name_or_path(tmp_path):
    with pytest.raises(UnknownNameError, match="Did you mean 'gor-alpha'"):
        load_set("gor-alfa")
    with pytest.raises(MissingError, match=r"no set at .*other\.toml"):
        load_set(str(tmp_path / "other.toml"))
    (tmp_path / "bad.toml").write_text("a = ")
    with pytest.raises(InputError, match="not a TOML file"):
        load_set(str(tmp_path / "bad.toml"))


@pytest.mark.parametrize(
    "value", [True, 3, 0.5, 1e-4, math.inf, 'a "b" \\c', [1, 2.5, "x"], {"name": "ht", "t": 1.0}, {}]
)
def test_an_override_survives_its_way_through_text(value):
    tree = {}
    apply_override(tree, override_text("a.b", value))
    assert tree == {"a": {"b": value}}
    assert type(tree["a"]["b"]) is type(value)
