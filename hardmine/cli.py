"""The command line: parses, calls one function, prints. Heavy imports stay inside the commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hardmine.errors import HardmineError, InputError
from hardmine.printing import bar, print_json, show, show_parts, show_report, table

if TYPE_CHECKING:
    from hardmine.train.networks import Network

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="hardmine: mine hard examples once, keep them on disk, train descriptors from them.",
)

Set = Annotated[list[str] | None, typer.Option("--set", help="Set one option: key=value. May be given several times.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else there.")]
Split = Annotated[str | None, typer.Option(help="A split of the store; not needed where it has only one.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: CUDA where it is there.")]
Workers = Annotated[int, typer.Option(min=0, help="Worker processes; 0: this process does it.")]
Scheduler = Annotated[str | None, typer.Option(help="A running dask scheduler, tcp://host:port, instead.")]
CheckpointOption = Annotated[Path | None, typer.Option(help="A run folder, or the weights file of a run.")]
NetworkOption = Annotated[str | None, typer.Option(help="A network by name, with --weights or freshly initialised.")]
WeightsOption = Annotated[Path | None, typer.Option(help="Weights for --network: safetensors or a torch file.")]


@app.command()
def ingest(
    kind: Annotated[
        str,
        typer.Argument(help="The layout of SRC; docs/datasets.md lists them, e.g. phototour, photos, folder, table."),
    ],
    src: Annotated[Path, typer.Argument(help="Folder of the raw dataset.")],
    store: Annotated[Path, typer.Argument(help="Patch store to write.")],
    set_: Set = None,
    on_bad: Annotated[Literal["skip", "fail"], typer.Option(help="What happens to a bad source.")] = "skip",
    split: Annotated[
        str | None,
        typer.Option(
            help="by-class:0.8, by-image:0.8, by-item:0.85: the share of what the dataset would train on that stays in "
            "train, the rest becomes val; column: the dataset's own splits, which is the default where it has any."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
    min_per_class: Annotated[int, typer.Option(min=1, help="Smaller classes are stored but not used.")] = 1,
    max_per_class: Annotated[int | None, typer.Option(min=1, help="Further items are stored but not used.")] = None,
    shards: Annotated[
        Literal["hdf5", "webdataset"] | None,
        typer.Option(help="Kind of shards; default: hdf5 for patches, webdataset (tars of image files) for images."),
    ] = None,
    picture: Annotated[
        list[str] | None,
        typer.Option(
            help="How images are stored, key=value, several times: size=keep|shorter:N|square:N, crop=true|false, "
            "colour=rgb|grey, encoding=original|png|jpeg:QUALITY."
        ),
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Add what STORE does not have; no row of it moves.")] = False,
    workers: Workers = 0,
    scheduler: Scheduler = None,
    json: Json = False,
) -> None:
    """Write a patch store from a raw dataset, or add to one. A killed ingest goes on where it was."""
    from hardmine.pipeline.append import append as add
    from hardmine.pipeline.ingest import ingest as run

    if append and (split or seed or min_per_class != 1 or max_per_class or shards or picture):
        raise InputError(
            "with --append the store's own choices hold: leave out --split, --seed, --min-per-class, --max-per-class, "
            "--shards and --picture"
        )
    common: dict[str, Any] = {"options": _settings(set_), "on_bad": on_bad, "workers": workers, "scheduler": scheduler}
    with bar("items") as progress:
        if append:
            report = add(kind, src, store, **common, progress=progress)
        else:
            report = run(
                kind,
                src,
                store,
                **common,
                split=split,
                seed=seed,
                min_per_class=min_per_class,
                max_per_class=max_per_class,
                shards=shards,
                pictures=_settings(picture, "--picture"),
                progress=progress,
            )
    show(report.json(), json, f"patch store {store}")


@app.command()
def copy(
    src: Annotated[str, typer.Argument(help="A patch store or mining store: a folder, or a URL (s3://, gs://, ...).")],
    dst: Annotated[str, typer.Argument(help="Where to: a folder or a URL.")],
    json: Json = False,
) -> None:
    """Copy a store, and read every checksum of the copy again. A killed copy goes on where it was."""
    from hardmine.store.remote import copy_store

    with bar("bytes") as progress:
        report = copy_store(src, dst, progress=progress)
    show(report.json(), json, f"copy of {src} at {dst}")


@app.command()
def verify(
    store: Annotated[Path, typer.Argument(help="Patch store.")],
    workers: Annotated[int, typer.Option(min=1, help="Processes that read shards.")] = 1,
    json: Json = False,
) -> None:
    """Re-read every checksum of a patch store, and decode every item."""
    from hardmine.store.patches import PatchStore

    with bar("items") as progress:
        problems = PatchStore.open(store).verify(workers=workers, progress=progress)
    show({"store": str(store), "problems": problems}, json, f"{store}: {len(problems)} problems")
    if problems:
        raise typer.Exit(1)


@app.command()
def mine(
    store: Annotated[Path, typer.Argument(help="Patch store.")],
    mining: Annotated[Path, typer.Argument(help="Mining store to write a round to.")],
    checkpoint: CheckpointOption = None,
    network: NetworkOption = None,
    weights: WeightsOption = None,
    seed: Annotated[int, typer.Option(help="Seed of the weights of --network without --weights.")] = 0,
    split: Split = None,
    derive: Annotated[str, typer.Option(help="Comma-separated: pairs, knn, centroids, index.")] = (
        "pairs,knn,centroids,index"
    ),
    neighbours: Annotated[int, typer.Option(min=1, help="Length of the neighbour lists.")] = 16,
    index: Annotated[str, typer.Option(help="A faiss factory string.")] = "Flat",
    views: Annotated[int | None, typer.Option(min=2, help="Extend classes to this many rotated views.")] = None,
    knn_index: Annotated[str | None, typer.Option(help="Find neighbour lists through this faiss index.")] = None,
    autocast: Annotated[Literal["bfloat16", "float16"] | None, typer.Option(help="Embed in half precision.")] = None,
    compile: Annotated[bool, typer.Option("--compile", help="Compile the network (torch.compile).")] = False,
    workers: Workers = 0,
    scheduler: Scheduler = None,
    round: Annotated[str | None, typer.Option(help="Derive from this round (N, latest); no network needed.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Lists of another kind may be replaced.")] = False,
    repair: Annotated[str | None, typer.Option(help="Make a round's (N, latest) damaged files again.")] = None,
    prune: Annotated[int | None, typer.Option(min=0, help="Then delete all rounds but the newest N.")] = None,
    set_: Set = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Embed a patch store and derive hard pairs, neighbours and an index. On a key that is there it does nothing.

    --set gives options of the network, e.g. --set dropout=0.1. `inspect MINING` lists the rounds."""
    from hardmine.protocols.mine_command import Asked, run_mine

    given = any((checkpoint, network, weights, seed, set_))
    loaded = _network(checkpoint, network, weights, seed, set_)[0] if given or not (round or repair) else None
    what = tuple(name.strip() for name in derive.split(",") if name.strip())
    asked = Asked(split, what, neighbours, index, knn_index, views, autocast, compile, round, replace, repair, prune)
    with bar("patches") as progress:
        found = run_mine(store, mining, loaded, asked, device, workers, scheduler, progress)
    show(found, json, f"mining store {mining}")


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A TOML file, or the name of a recipe that hardmine ships.")],
    run: Annotated[Path | None, typer.Option(help="Run folder; default: runs/RECIPE-DIGEST.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Fail unless there is a run to go on with.")] = False,
    set_: Set = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Train a recipe. The same command on an unfinished run goes on where it was, to the bit.

    On several GPUs or cores: torchrun --nproc-per-node N -m hardmine -- train RECIPE ..."""
    from hardmine.protocols.train_command import run_train, speaks

    with bar("steps", shown=speaks()) as progress:
        found = run_train(recipe, run, resume, set_ or (), device, progress)
    if speaks():
        show(found, json, f"run {found['run']}")


@app.command()
def evaluate(
    protocol: Annotated[str, typer.Argument(help="phototour, retrieval, hpatches-verification, -matching, ...")],
    store: Annotated[Path, typer.Argument(help="Patch store.")],
    mining: Annotated[Path | None, typer.Option(help="Mining store; default: the run's, else STORE.mining.")] = None,
    round: Annotated[str | None, typer.Option(help="A committed round: its number, or 'latest'.")] = None,
    checkpoint: CheckpointOption = None,
    network: NetworkOption = None,
    weights: WeightsOption = None,
    seed: Annotated[int, typer.Option(help="Seed of the weights of --network without --weights.")] = 0,
    split: Split = None,
    option: Annotated[list[str] | None, typer.Option(help="An option of the protocol: key=value; repeatable.")] = None,
    benchmark: Annotated[str, typer.Option("--protocol", help="Of retrieval: cub, cars, sop, inshop, ...")] = "",
    compare: Annotated[str, typer.Option(help="Other descriptors in the same table, comma-separated; see above.")] = "",
    plot: Annotated[
        Path | None, typer.Option("--plot", "--roc", help="Draw the protocol's figure (phototour: ROC) to this PNG.")
    ] = None,
    histogram: Annotated[Path | None, typer.Option(help="Draw the pairs' similarities to this PNG.")] = None,
    set_: Set = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Evaluate a network, a committed round, or only what --compare names. Rounds whose key fits are reused.

    --compare takes pixels, sift, rootsift, kornia:CLASS, NETWORK=FILE, a run's folder, csv:FOLDER, comma-separated;
    options go in brackets: tfeat[unit_norm=true]=HardTFeat.pth."""
    from hardmine.protocols.chosen import default_mining
    from hardmine.protocols.contenders import split_words
    from hardmine.protocols.evaluate import evaluate as run

    loaded, label = None, None
    if round is None and (checkpoint or network or weights or set_ or not compare):
        loaded, label = _network(checkpoint, network, weights, seed, set_)
    elif checkpoint or network or weights or set_ or seed:
        raise InputError("give --round or a network, not both; --weights, --seed and --set go with --network")
    with bar("patches") as progress:
        report = run(
            protocol,
            store,
            mining or default_mining(store, checkpoint),
            network=loaded,
            name=label,
            round=round,
            split=split,
            options=_settings(option, "--option") | ({"protocol": benchmark} if benchmark else {}),
            compare=split_words(compare),
            plot=plot,
            histogram=histogram,
            device=device,
            progress=progress,
        )
    show_report(report, json)


@app.command()
def audit(
    store: Annotated[Path, typer.Argument(help="Patch store.")],
    mining: Annotated[Path, typer.Argument(help="Mining store with a round of it.")],
    round: Annotated[str, typer.Option(help="A committed round: its number, or 'latest'.")] = "latest",
    out: Annotated[Path | None, typer.Option(help="Folder for a report, contact sheets and an exclusion list.")] = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Find duplicates, label conflicts, overlapping classes, outliers, likely wrong labels, and collapse.

    --set gives its options, e.g. --set near=0.02 --set suspects=100."""
    from hardmine.protocols.audit import audit_store as run

    with bar("items") as progress:
        facts = run(store, mining, round, out, _settings(set_), progress)
    show(facts, json, f"audit of {store}")


@app.command()
def describe(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    source: Annotated[Path, typer.Argument(help="A photograph, or a patch store.")],
    out: Annotated[Path, typer.Argument(help="Where to write the .npz.")],
    points: Annotated[int, typer.Option(min=1, help="Most keypoints of a photograph.")] = 2000,
    device: Device = None,
    json: Json = False,
) -> None:
    """Describe a photograph (keypoints and descriptors) or a patch store (rows and descriptors) with a trained run."""
    from hardmine.protocols.describe import describe as write

    show(write(run, source, out, points=points, device=device), json, f"descriptors of {source}")


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="A patch store, a mining store or a run.")], json: Json = False
) -> None:
    """Say what is in a patch store, a mining store or a run."""
    from hardmine.protocols.inspect import inspect as look

    show_parts(look(path), json)


@app.command()
def analyse(
    what: Annotated[
        Literal["informativeness", "distribution", "dynamic-weights"],
        typer.Argument(help="informativeness of pairs; PADS' distribution; dynamic-weights of DSDML's losses."),
    ],
    run: Annotated[Path, typer.Argument(help="Run folder; for dynamic-weights also a loss by name, or all.")],
    out: Annotated[Path, typer.Option(help="Folder for the numbers and the figure.")],
    checkpoints: Annotated[str, typer.Option(help="Steps, comma-separated; default: all that were kept.")] = "",
    store: Annotated[Path | None, typer.Option(help="Another patch store than the recipe's.")] = None,
    set_: Set = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """informativeness: how matching distance and gradient norm go together over a training (train.keep_every = N).
    --set: positives=run|random, batches=4, chunk=16, split=NAME. distribution: a figure, and PADS' policy as files.
    dynamic-weights: |dL/ds| over similarity and training; --set: omegas=[0,1,2], other=0.5, loss.select=true, ..."""
    from hardmine.protocols.dynamic_weights import analyse_dynamic_weights
    from hardmine.protocols.informativeness_report import analyse_informativeness, steps
    from hardmine.protocols.pads_report import analyse_distribution

    if what != "informativeness":
        if checkpoints or store or device or (set_ and what == "distribution"):
            raise InputError(
                f"analyse {what} takes no --checkpoints, --store or --device; distribution no --set either"
            )
        pads = what == "distribution"
        show_parts(analyse_distribution(run, out) if pads else analyse_dynamic_weights(run, out, _settings(set_)), json)
        return
    with bar("batches") as progress:
        found = analyse_informativeness(run, out, steps(checkpoints), store, _settings(set_), device, progress)
    show_parts(found, json)


@app.command()
def demo(out: Annotated[Path, typer.Argument(help="Folder to work in.")] = Path("demo"), json: Json = False) -> None:
    """Ingest, mine, train, evaluate on real photographs that scikit-image ships; prints a table, writes a picture."""
    from hardmine.demo import demo as run

    found = run(out, say=lambda text: typer.echo(text, err=True))
    if json:
        print_json(found)
        return
    for each in found["tables"]:
        table(each["title"], each["columns"], each["rows"])
    for note in found["notes"]:
        typer.echo(note)
    typer.echo(f"picture: {found['picture']}")


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(metavar="SET", help="A set that hardmine ships, or a TOML file.")],
    data: Annotated[Path, typer.Option(help="Folder of the patch stores, NAME.store each, and weights/.")],
    out: Annotated[Path, typer.Option(help="Folder for runs and results.")] = Path("reproduce"),
    scale: Annotated[Literal["paper", "small"], typer.Option(help="small: for two cores.")] = "small",
    seeds: Annotated[int | None, typer.Option(min=1, help="So many seeds: 0, 1, ...; default: the set's.")] = None,
    seed_list: Annotated[str, typer.Option(help="These seeds, comma-separated.")] = "",
    rows: Annotated[str, typer.Option(help="Run these rows only, comma-separated.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be run, and show what is there.")] = False,
    device: Device = None,
    json: Json = False,
) -> None:
    """Run a published table again, beside the published figures. The same command goes on where it was."""
    from hardmine.reproduce.command import printed, run_command

    found = run_command(name, data, out, scale, seeds, seed_list, rows, dry_run, device)
    if json:
        print_json(found.json())
    else:
        tables, remarks = printed(found)
        for title, (columns, *lines) in tables.items():
            table(title, columns, lines)
        typer.echo("\n".join(remarks))
    if found.table.failed:
        raise typer.Exit(1)


def main() -> None:
    """Run the program. Errors made on purpose print one message; exit codes: 0 done, 1 failed, 2 bad usage or input."""
    try:
        app()
    except HardmineError as error:
        typer.echo(f"hardmine: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.filename is None:
            raise
        typer.echo(f"hardmine: {error.filename}: {error.strerror}: choose another path", err=True)
        sys.exit(1)


def _network(
    checkpoint: Path | None, name: str | None, weights: Path | None, seed: int, options: list[str] | None
) -> tuple[Network, str]:
    """The network that the options name, and what to call it."""
    from hardmine.protocols.chosen import chosen_network

    return chosen_network(checkpoint, name, weights, seed, _settings(options))


def _settings(pairs: list[str] | None, option: str = "--set") -> dict[str, Any]:
    from hardmine.options import apply_override

    tree: dict[str, Any] = {}
    for pair in pairs or ():
        apply_override(tree, pair, option)
    return tree
