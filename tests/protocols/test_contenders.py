"""What `--compare` takes: each form, several in one table, each embedded once, and one message for each mistake."""

import json
import sys

import cv2
import numpy as np
import pytest
import torch
from command import run
from hpatches_world import stored
from phototour_world import write_phototour

from hardmine.errors import InputError, MissingError, UnknownNameError
from hardmine.mining.embed import embed_entries
from hardmine.mining.mine import mine
from hardmine.pipeline.ingest import ingest
from hardmine.pipeline.pixels import prepare
from hardmine.protocols.base import protocol
from hardmine.protocols.contenders import contender, contenders, split_words
from hardmine.protocols.evaluate import check_evaluations, evaluate
from hardmine.protocols.hpatches.csv_files import write_csv
from hardmine.protocols.kornia_descriptor import KorniaDescriptor
from hardmine.protocols.phototour import PhotoTour
from hardmine.store.patches import PatchStore
from hardmine.train.networks import build
from hardmine.train.recipe import load_recipe
from hardmine.train.runs import Run, load


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    write_phototour(root / "raw")
    ingest("phototour", root / "raw", root / "store")
    return root / "store"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    file = tmp_path_factory.mktemp("weights") / "tfeat.params"
    torch.save(build("tfeat", seed=3).state_dict(), file)
    return file


def finished_run(path, store):
    """A run folder with initial weights, and no training."""
    recipe = load_recipe("hardnet", [f"data.store={store}", 'network={name="tfeat"}'])
    with Run.writing(path, recipe, "data") as opened:
        opened.finish(build("tfeat", seed=8), {"steps": 0})
    return path


def test_commas_in_brackets_do_not_separate():
    assert split_words("a,b[x=1,y=2]=f,,c") == ["a", "b[x=1,y=2]=f", "c"]
    assert split_words("") == []


def test_every_form_in_one_table_and_nothing_is_embedded_twice(store, weights, tmp_path):
    made = finished_run(tmp_path / "my run", store)
    words = ["pixels", "sift", "rootsift", "kornia:SIFTDescriptor", "kornia:MKDDescriptor[patch_size=16]"]
    words += [f"tfeat={weights}", f"tfeat[unit_norm=true]={weights}", str(made), str(made / "weights.safetensors")]
    first = evaluate("phototour", store, tmp_path / "mining", compare=words, network=build("tfeat").eval(), name="own")
    assert list(first.results) == [
        *words[:5],
        f"tfeat={weights}",  # the same label twice: told apart by the whole words
        f"tfeat[unit_norm=true]={weights}",
        "my run",
        "weights.safetensors",
        "own",
    ]
    count = len(PatchStore.open(store))
    assert first.embedded == 7 * count  # the run's weights lie in another mining store than its folder's round
    again = evaluate("phototour", store, tmp_path / "mining", compare=words, network=build("tfeat").eval(), name="own")
    assert again.embedded == 0
    for name, found in first.results.items():
        assert again.results[name].metrics == found.metrics
        assert 0 <= found.metrics["fpr95"] <= 1
    assert (made / "mining").is_dir()
    plain, unit = (first.results[f"tfeat{o}={weights}"] for o in ("", "[unit_norm=true]"))
    assert (plain.facts["similarity"], unit.facts["similarity"]) == ("distance", "inner product")
    assert plain.metrics != unit.metrics
    assert first.results["my run"].metrics == first.results["weights.safetensors"].metrics


def test_only_what_is_compared(store, tmp_path):
    report = evaluate("phototour", store, tmp_path / "mining", compare=["pixels"])
    assert list(report.results) == ["pixels"]
    assert (report.round, report.embedded) == (None, 0)
    assert not (tmp_path / "mining").exists()
    mine(PatchStore.open(store), tmp_path / "mining", build("tfeat"), derive=())
    beside = evaluate("phototour", store, tmp_path / "mining", compare=["pixels"], round="latest")
    assert list(beside.results) == ["pixels", "tfeat"]
    assert list(evaluate("phototour", store, tmp_path / "mining").results) == ["tfeat"]


def test_descriptors_in_csv_files_give_what_the_network_gave_that_wrote_them(weights, tmp_path):
    opened = stored(tmp_path / "hpatches", {"i_one": 12, "v_two": 10})
    chosen = contender(f"tfeat={weights}").network
    write_csv(tmp_path / "csv", opened, lambda rows: embed_entries(opened, rows, None, chosen))
    words = [f"tfeat={weights}", f"csv:{tmp_path / 'csv'}"]
    report = evaluate("hpatches-matching", opened.path, tmp_path / "mining", compare=words)
    network, csv = report.results.values()
    assert csv.metrics == pytest.approx(network.metrics, abs=1e-6)
    assert csv.details.keys() == network.details.keys() != set()
    write_csv(tmp_path / "semi", opened, lambda rows: embed_entries(opened, rows, None, chosen), delimiter=";")
    (semi,) = evaluate(
        "hpatches-matching", opened.path, tmp_path / "mining", compare=[f"csv[delimiter=;]:{tmp_path / 'semi'}"]
    ).results.values()
    assert semi.details == csv.details
    with pytest.raises(InputError, match=r"--compare csv\[delimiter=x\]:a: delimiter: Input should be"):
        contender("csv[delimiter=x]:a")
    with pytest.raises(UnknownNameError, match="Did you mean 'delimiter'"):
        contender("csv[delimeter=;]:a")
    with pytest.raises(MissingError, match="nowhere"):
        evaluate("hpatches-matching", opened.path, tmp_path / "mining", compare=[f"csv:{tmp_path / 'nowhere'}"])


def test_a_figure_that_cannot_be_drawn_is_said_before_anything_is_measured(store, tmp_path, monkeypatch):
    monkeypatch.setattr(PhotoTour, "evaluate", lambda *given: pytest.fail("measured"))

    def refused(kind, message, protocol="phototour", **figure):
        with pytest.raises(kind, match=message):
            evaluate(protocol, store, tmp_path / "mining", compare=["pixels"], **figure)

    (tmp_path / "folder.png").mkdir()
    for figure in ("plot", "histogram"):
        refused(MissingError, "there is no folder .*nowhere", **{figure: tmp_path / "nowhere" / "figure.png"})
        refused(InputError, rf"--{figure} .*pdf: figures are written as PNG", **{figure: tmp_path / "figure.pdf"})
        refused(InputError, "give the name of a .png file", **{figure: tmp_path / "folder.png"})
    refused(
        InputError, "protocol 'hpatches-matching' draws no histogram", "hpatches-matching", histogram=tmp_path / "h.png"
    )


def test_kornias_descriptor_is_the_class_itself_on_patches_of_its_size(store):
    import kornia.feature

    network = contender("kornia:SIFTDescriptor[patch_size=32,rootsift=false]").network
    assert (network.side, network.dim, network.unit_norm) == (32, 128, True)
    patches = prepare(torch.from_numpy(PatchStore.open(store).gather(np.arange(5))), 32)
    expected = kornia.feature.SIFTDescriptor(32, rootsift=False)(patches)
    assert torch.equal(network(patches), expected)
    assert contender("kornia:SIFTDescriptor").network.side == 41  # the class's own size
    bare = contender("kornia:MKDDescriptor").network
    assert torch.equal(bare(patches), kornia.feature.MKDDescriptor(32, whitening=None)(patches))
    assert bare.dim == 238


def test_kornias_descriptors_are_told_apart_by_their_arguments():
    keys = [KorniaDescriptor("SIFTDescriptor", {"patch_size": n}).identity() for n in (32, 32, 64)]
    assert keys[0] == keys[1] != keys[2]
    assert keys[0]["options"] == {"patch_size": 32}
    assert json.loads(json.dumps(keys[0])) == keys[0]


@pytest.mark.parametrize(
    ("word", "kind", "message"),
    [
        ("shift", UnknownNameError, "Did you mean 'sift'"),
        ("kornia:SIFTDescripter", UnknownNameError, "Did you mean 'SIFTDescriptor'"),
        ("kornia:HardNet", UnknownNameError, "MKDDescriptor, SIFTDescriptor"),
        ("kornia:LAFDescriptor", UnknownNameError, "MKDDescriptor, SIFTDescriptor"),
        ("kornia:SIFTDescriptor[patchsize=3]", UnknownNameError, "Did you mean 'patch_size'"),
        ("kornia:SIFTDescriptor[patch_size=0]", InputError, "cannot be built with"),
        ("kornia:MKDDescriptor[whitening=pca]", InputError, "without whitening"),
        ("tfeat=nowhere.params", MissingError, "nowhere.params"),
        ("tfeet=nowhere.params", UnknownNameError, "Did you mean 'tfeat'"),
        ("tfeat[unitnorm=true]=nowhere.params", UnknownNameError, "Did you mean 'unit_norm'"),
        ("tfeat[unit_norm]=nowhere.params", InputError, "expected key=value"),
        ("runs/nowhere", MissingError, "no such run"),
        ("a b", InputError, "expected pixels, sift"),
    ],
)
def test_a_word_that_means_nothing(word, kind, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message):
        contender(word)


def test_a_word_given_twice_and_a_label_that_is_taken(tmp_path):
    with pytest.raises(InputError, match="'sift' twice"):
        contenders(["sift", "pixels", "sift"])
    finished_run(tmp_path / "own", tmp_path)
    assert [each.label for each in contenders([str(tmp_path / "own")], taken="own")] == [str(tmp_path / "own")]


def test_without_kornia_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "kornia.feature", None)
    with pytest.raises(InputError, match=r"pip install 'hardmine\[kornia\]'"):
        contender("kornia:SIFTDescriptor")


def test_the_similarities_of_a_store_of_pairs_against_plain_loops(store):
    opened = PatchStore.open(store)
    x = np.random.default_rng(4).normal(size=(len(opened), 6)).astype(np.float32)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    listed = opened.pairs()
    products = np.array(
        [sum(float(p) * float(q) for p, q in zip(unit[i], unit[j])) for i, j in zip(listed.first, listed.second)]
    )
    found = protocol("phototour").evaluate(opened, lambda rows: unit[rows], None)
    others = products[~listed.match]
    assert found.details["non-matching-mean"] == pytest.approx(others.mean(), abs=1e-6)
    assert found.details["non-matching-second-moment"] == pytest.approx((others**2).mean(), abs=1e-6)
    edges = np.linspace(-1, 1, 101)
    shares = [np.histogram(products[which], edges)[0] / which.sum() for which in (listed.match, ~listed.match)]
    assert found.details["similarity-overlap"] == pytest.approx(np.minimum(*shares).sum(), abs=0.02)
    raw = protocol("phototour").evaluate(opened, lambda rows: 3 * x[rows], None)
    assert list(raw.details) == ["similarity-overlap"]
    edges, density = raw.curves["matching"]
    assert edges[0] == 0
    assert (density * np.diff(edges)).sum() == pytest.approx(1)
    assert sum(len(a) for curve in raw.curves.values() for a in curve) < 5000


def test_protocol_options_are_closed(store):
    with pytest.raises(UnknownNameError, match="Did you mean 'pairs'"):
        protocol("phototour", {"pair": "x"})
    with pytest.raises(UnknownNameError, match="pair list"):
        protocol("phototour", {"pairs": "x"}).evaluate(PatchStore.open(store), lambda rows: rows, None)


def test_a_recipe_says_before_training_that_its_protocol_does_not_exist(store, tmp_path):
    for setting, message in (
        ('evaluation=[{store="s", protocol="phototours"}]', "Did you mean 'phototour'"),
        ('evaluation=[{store="s", options={pear="x"}}]', "unknown key in the options of protocol 'phototour'"),
        ('validation={store="s", options={pairs=3}}', "pairs"),
    ):
        with pytest.raises(InputError, match=message):
            check_evaluations(load_recipe("hardnet", [setting]))
    words = ["train", "hardnet", "--run", tmp_path / "run", "--set", f"data.store={store}"]
    assert "pear" in run(*words, "--set", 'evaluation=[{store="s", options={pear="x"}}]', code=2)
    assert not (tmp_path / "run").exists()


def test_the_command_line(store, weights, tmp_path):
    words = ["evaluate", "phototour", store, "--compare", f"pixels,tfeat[unit_norm=true]={weights}"]
    words += ["--mining", tmp_path / "mining"]
    drawn = ["--plot", tmp_path / "roc.png", "--histogram", tmp_path / "histogram.png"]
    found = json.loads(run(*words, *drawn, "--option", "pairs=m50_60_60_0", "--json"))
    assert set(found["results"]) == {"pixels", "tfeat (tfeat.params)"}
    assert found["round"] is None
    assert 0 <= found["results"]["pixels"]["details"]["similarity-overlap"] <= 1
    for name in ("roc.png", "histogram.png"):
        assert cv2.imread(str(tmp_path / name)).std() > 0
    shown = run(*words)
    for text in ("details", "similarity-overlap", "rows embedded: 0", "pairs: m50_60_60_0"):
        assert text in shown
    assert "Did you mean 'pairs'" in run(*words, "--option", "pair=x", code=2)
    assert "--option x: expected key=value" in run(*words, "--option", "x", code=2)
    assert "Did you mean 'sift'" in run("evaluate", "phototour", store, "--compare", "sfit", code=2)
    assert "either --checkpoint RUN or --network NAME" in run("evaluate", "phototour", store, code=2)
    of_network = "--weights, --seed and --set go with --network"
    for idle in (
        ["--seed", 3],
        ["--round", "latest", "--weights", weights],
        ["--round", "latest", "--set", "dropout=0"],
    ):
        assert of_network in run(*words, *idle, code=2)
    made = finished_run(tmp_path / "run", store)
    assert of_network in run("evaluate", "phototour", store, "--checkpoint", made, "--seed", 3, code=2)
    named = ["evaluate", "phototour", store, "--network", "tfeat", "--weights", weights, "--seed", 3]
    assert "--seed is of initial weights" in run(*named, code=2)


def test_a_run_is_what_load_gives(store, tmp_path):
    made = finished_run(tmp_path / "run", store)
    assert contender(str(made)).network.identity() == load(made).identity()
    assert contender(str(made)).mining == made / "mining"
