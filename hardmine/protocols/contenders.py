"""What a descriptor is compared with, by the words of `--compare`: baselines, kornia's, networks, runs, CSV files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hardmine.errors import InputError, MissingError, UnknownNameError
from hardmine.options import Options, apply_override, check
from hardmine.protocols.base import Describe
from hardmine.protocols.baselines import BASELINES, baseline
from hardmine.protocols.kornia_descriptor import KorniaDescriptor
from hardmine.store.patches import PatchStore
from hardmine.train.networks import Network, build, load_weights, networks
from hardmine.train.runs import load

FORMS = "pixels, sift, rootsift, kornia:CLASS, NETWORK=FILE, a run's folder or weights, csv:FOLDER"
_CSV = re.compile(r"csv(\[(?P<options>[^\]]*)\])?:(?P<folder>.+)")
_WORD = re.compile(r"(?P<name>[\w.:-]+?)(\[(?P<options>[^\]]*)\])?(=(?P<file>.+))?")


class CsvLayout(Options):
    """delimiter: between a line's numbers; the benchmark's programs take a comma or a semicolon."""

    delimiter: Literal[",", ";"] = ","


@dataclass(frozen=True)
class Contender:
    """label: what its row is called. describe: the descriptors of a store's rows; or network: one in eval mode, to be
    embedded through a round, in the mining store `mining` where it has one of its own."""

    label: str
    describe: Callable[[PatchStore], Describe] | None = None
    network: Network | None = None
    mining: Path | None = None


def split_words(text: str) -> list[str]:
    """A comma-separated list, whose commas in brackets separate options: 'sift,kornia:SIFTDescriptor[a=1,b=2]'."""
    return [word for word in re.split(r",(?![^\[\]]*\])", text) if word]


def contenders(words: Sequence[str], taken: str | None = None) -> list[Contender]:
    """The contenders that are meant. Two of one label, or one labelled as `taken`, go by their whole words.

    - `pixels`, `sift`, `rootsift`: see `baselines`
    - `kornia:CLASS`, `kornia:CLASS[argument=value,...]`: a descriptor class of kornia's, e.g. kornia:SIFTDescriptor
    - `NETWORK=FILE`, `NETWORK[option=value,...]=FILE`: published weights, e.g. tfeat[unit_norm=true]=HardTFeat.pth
    - a run's folder, or the weights file of a run
    - `csv:FOLDER`, `csv[delimiter=;]:FOLDER`: descriptors in the layout of the HPatches benchmark

    Raises InputError for a word of no such form or given twice, and what reading the weights raises.
    """
    if len(set(words)) < len(words):
        twice = next(word for word in words if list(words).count(word) > 1)
        raise InputError(f"--compare names {twice!r} twice: leave one out")
    found = [contender(word) for word in words]
    labels = [each.label for each in found] + [str(taken)]
    return [
        each if labels.count(each.label) == 1 else Contender(word, each.describe, each.network, each.mining)
        for word, each in zip(words, found)
    ]


def contender(word: str) -> Contender:
    """The one contender that `word` means, see `contenders`."""
    if word in BASELINES:
        return Contender(word, describe=lambda store: baseline(store, word))
    if (listed := _CSV.fullmatch(word)) is not None:
        layout = check(CsvLayout, _options(word, listed["options"]), f"--compare {word}")
        return Contender(word, describe=lambda store: _csv(Path(listed["folder"]), store, layout.delimiter))
    if Path(word).exists():
        own = Path(word) / "mining"
        return Contender(Path(word).name or word, network=load(word), mining=own if Path(word).is_dir() else None)
    parsed = _WORD.fullmatch(word)
    if parsed is None:
        if "/" in word:
            raise MissingError(f"--compare {word}: there is no such run; expected {FORMS}")
        raise InputError(f"--compare {word}: expected {FORMS}")
    options = _options(word, parsed["options"])
    name, file = parsed["name"], parsed["file"]
    if name.startswith("kornia:") and file is None:
        return Contender(word, network=KorniaDescriptor(name.removeprefix("kornia:"), options))
    if file is None:
        known = [*BASELINES, *(f"{network}=FILE" for network in networks.names())]
        raise UnknownNameError("contender", word, [*known, "kornia:CLASS", "csv:FOLDER", "RUN"])
    network = build(name, options)
    load_weights(network, Path(file))
    return Contender(f"{name} ({Path(file).name})", network=network.eval())


def _options(word: str, text: str | None) -> dict[str, Any]:
    """What stands in a word's brackets."""
    options: dict[str, Any] = {}
    for pair in split_words(text or ""):
        apply_override(options, pair, f"--compare {word}: option")
    return options


def _csv(folder: Path, store: PatchStore, delimiter: str) -> Describe:
    from hardmine.protocols.hpatches.csv_files import csv_descriptors

    return csv_descriptors(folder, store, delimiter)
