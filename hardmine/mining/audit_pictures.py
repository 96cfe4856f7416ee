"""Contact sheets of an audit: the items in question, side by side, with their rows and classes, as PNG files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hardmine.mining.audit import Audit
from hardmine.store.files import write_atomic
from hardmine.store.patches import PatchStore

THUMB, GAP, LINE = 96, 8, 12
CAPTION = 2 * LINE + 4
ACROSS = 8  # thumbnails in a line of a sheet
MOST = 40  # groups on a sheet


def contact_sheet(store: PatchStore, groups: Sequence[np.ndarray], titles: Sequence[str], path: Path) -> Path:
    """Write one PNG: each group of rows in a line of its own, under its title (a group longer than eight is cut).

    Raises DiskError where the disk is full."""
    height = THUMB + CAPTION + LINE + GAP
    sheet = Image.new("RGB", (ACROSS * (THUMB + GAP) + GAP, max(1, len(groups)) * height + GAP), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(10)
    for line, (group, title) in enumerate(zip(groups, titles)):
        top = GAP + line * height
        more = f", {len(group) - ACROSS} more" if len(group) > ACROSS else ""
        pen.text((GAP, top), title + more, fill="black", font=font)
        for column, (row, pixels) in enumerate(zip(group[:ACROSS].tolist(), store.gather(group[:ACROSS]))):
            left = GAP + column * (THUMB + GAP)
            sheet.paste(thumbnail(pixels), (left, top + LINE))
            raw = store.raw_label[row]
            name = raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else str(raw)
            pen.text((left, top + LINE + THUMB), f"row {row}", fill="black", font=font)
            pen.text((left, top + 2 * LINE + THUMB), name[:15], fill="darkred", font=font)
    content = io.BytesIO()
    sheet.save(content, format="png")
    write_atomic(path, content.getbuffer())
    return path


def write_sheets(found: Audit, folder: Path) -> list[Path]:
    """Write a sheet for each kind of finding that there is: conflicts, duplicates, near duplicates, mixed classes,
    outliers and suspects, the first forty of each. Returns the files. Raises DiskError."""
    store, by_row = found.store, dict(zip(found.rows.tolist(), range(len(found.rows))))
    sheets: dict[str, tuple[list[np.ndarray], list[str]]] = {
        "conflicts": (list(found.conflicts[:MOST]), ["under two labels"] * MOST),
        "duplicates": (found.duplicates[:MOST], ["equal pixels"] * MOST),
        "near-duplicates": (list(found.near[:MOST]), [f"distance {d:.4f}" for d in found.near_distance[:MOST]]),
        "mixed-classes": (
            [_of_both(found, pair) for pair in found.mixed[:MOST]],
            [f"classes {a} and {b}: share {s:.2f}" for (a, b), s in zip(found.mixed.tolist(), found.mixed_share)],
        ),
    }
    for name, rows, score in (
        ("outliers", found.outliers[:MOST], found.outlier),
        ("suspects", found.suspects[:MOST], found.noise),
    ):
        titles = [f"score {score[by_row[r]]:.2f}, then others of its class" for r in rows.tolist()]
        sheets[name] = ([_with_class(found, r) for r in rows.tolist()], titles)
    return [contact_sheet(store, *what, folder / f"{name}.png") for name, what in sheets.items() if what[0]]


def _with_class(found: Audit, row: int) -> np.ndarray:
    label = found.store.label
    others = found.rows[(label[found.rows] == label[row]) & (found.rows != row)]
    return np.concatenate([[row], others[: ACROSS - 1]])


def _of_both(found: Audit, pair: np.ndarray) -> np.ndarray:
    label = found.store.label[found.rows]
    return np.concatenate([found.rows[label == c][: ACROSS // 2] for c in pair])


def thumbnail(pixels: np.ndarray) -> Image.Image:
    """An item's pixels as RGB, scaled to fit a grey square of THUMB pixels."""
    image = Image.fromarray(np.ascontiguousarray(pixels)).convert("RGB")
    scale = THUMB / max(image.size)
    image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
    square = Image.new("RGB", (THUMB, THUMB), "lightgrey")
    square.paste(image, ((THUMB - image.width) // 2, (THUMB - image.height) // 2))
    return square
