"""A picture of queries and what was found for each: right neighbours framed green, wrong ones red."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hardmine.mining.audit_pictures import GAP, LINE, THUMB, thumbnail
from hardmine.store.files import write_atomic
from hardmine.store.patches import PatchStore

FRAME = 4
RIGHT, WRONG = (0, 150, 0), (200, 0, 0)
CELL = THUMB + 2 * FRAME


@dataclass(frozen=True)
class Panel:
    """A line of the picture: a query's row, and the rows of its neighbours, int64 (n,), under a descriptor's name."""

    name: str
    query: int
    near: np.ndarray


def draw_panels(store: PatchStore, panels: Sequence[Panel], file: Path) -> None:
    """Write a PNG: a line for each panel, the query first, a title where the name changes. Raises DiskError."""
    across = 1 + max((len(each.near) for each in panels), default=0)
    names = len(list(groupby(panels, lambda each: each.name)))
    width, height = (across + 1) * (CELL + GAP), CELL + LINE + GAP
    sheet = Image.new("RGB", (width, GAP + len(panels) * height + names * 2 * LINE), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(10)
    top = GAP
    for name, lines in groupby(panels, lambda each: each.name):
        pen.text((GAP, top), f"{name}: query, then its nearest (green: of its class)", fill="black", font=font)
        top += 2 * LINE
        for each in lines:
            rows = [each.query, *each.near.tolist()]
            for place, (row, pixels) in enumerate(zip(rows, store.gather(np.array(rows)))):
                left = GAP + place * (CELL + GAP) + (CELL // 2 if place else 0)  # the query stands apart
                if place:
                    right = store.label[row] == store.label[each.query]
                    pen.rectangle((left, top, left + CELL - 1, top + CELL - 1), fill=RIGHT if right else WRONG)
                sheet.paste(thumbnail(pixels), (left + FRAME, top + FRAME))
                pen.text((left + FRAME, top + CELL), f"row {row}", fill="black", font=font)
            top += height
    content = io.BytesIO()
    sheet.save(content, format="png")
    write_atomic(file, content.getbuffer())
