"""Market-1501 (Zheng et al.): people seen by six cameras, as cut-out photographs.

Folders bounding_box_train (split `train`), query (`query`) and bounding_box_test (`gallery`) of files
PPPP_cCsS_FFFFFF_BB.jpg: person, camera, sequence, frame, box. Person 0000 marks a distractor, -1 junk.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import ClassVar

import numpy as np

from hardmine.errors import InputError, MissingError
from hardmine.pipeline.images import printable
from hardmine.pipeline.readers import base
from hardmine.pipeline.readers.listing import Listed, PictureReader
from hardmine.pipeline.readers.official import Official, Size

ROLES = ("identity", "distractor", "junk")  # the values of the column `role`
IDENTITY, DISTRACTOR, JUNK = range(len(ROLES))
FOLDERS = {"bounding_box_train": b"train", "query": b"query", "bounding_box_test": b"gallery"}
OFFICIAL = Official(
    "market1501",
    Size(36036, 1503),  # 1,501 people, the distractors and the junk
    {"train": Size(12936, 751), "query": Size(3368, 750), "gallery": Size(15913, 751)},
)
_PUBLISHED = {"bounding_box_test": 19732, ROLES[DISTRACTOR]: 2793}
_NAME = re.compile(rb"(-1|[0-9]{1,9})_c([0-9])(?![0-9]).*\.jpg", re.IGNORECASE)
_EXPECTED = "the unpacked Market-1501-v15.09.15: bounding_box_train, bounding_box_test and query"


@base.readers.register("market1501")
class Market1501(PictureReader):
    """Candidates in order of folder (train, query, gallery), then byte-sorted name; raw_label int64, the person's
    number (-1 junk, 0 distractors: these two classes are not of one person); source b"query/NAME.jpg".

    Columns: `camera` int64, from 1; `role` int64, the position in ROLES. Junk takes no part in any ranking, so it is
    stored but in no split; distractors are in the gallery. Queries come from the folder query alone, never from the
    gallery.
    """

    Options: ClassVar[type[base.Options]] = base.Options  # nothing to choose

    def listed(self) -> Listed:
        """Raises MissingError without the three folders, InputError where one cannot be listed."""
        self._expect_folders()
        source: list[bytes] = []
        person: list[int] = []
        camera: list[int] = []
        split: list[bytes] = []
        rejects: list[base.Reject] = []
        counts: Counter[str] = Counter()
        for folder, side in FOLDERS.items():
            for name in self._names(folder, counts):
                found = _NAME.fullmatch(name)
                path = b"%b/%b" % (folder.encode(), name)
                if found is None:
                    rejects.append(base.Reject(path, "the name is not PPPP_cCsS_FFFFFF_BB.jpg"))
                    continue
                role = role_of(int(found[1]))
                source.append(path)
                person.append(int(found[1]))
                camera.append(int(found[2]))
                split.append(side if role == IDENTITY or (role == DISTRACTOR and side == b"gallery") else b"")
        roles = np.array([role_of(each) for each in person], np.int64)
        files = sum(path.startswith(b"bounding_box_test/") for path in source)
        said = {
            f"market1501: images in bounding_box_test ({_PUBLISHED['bounding_box_test']:,} expected)": files,
            f"market1501: distractors in the gallery ({_PUBLISHED[ROLES[DISTRACTOR]]:,} expected)": int(
                (roles == DISTRACTOR).sum()
            ),
            "market1501: junk, stored in no split": int((roles == JUNK).sum()),
        }
        return Listed(
            source=source,
            raw_label=person,
            split=split,
            columns={"camera": np.array(camera, np.int64), "role": roles},
            rejects=rejects,
            counts=OFFICIAL.compare(person, split) | said | counts,
        )

    def _expect_folders(self) -> None:
        absent = [folder for folder in FOLDERS if not (self.src / folder).is_dir()]
        if not absent:
            return
        if not self.src.is_dir():
            raise MissingError(f"no folder {printable(self.src)}: expected {_EXPECTED}")
        names = sorted(path.name for path in self.src.iterdir() if not path.name.startswith("."))
        inside = [name for name in names if all((self.src / name / folder).is_dir() for folder in FOLDERS)]
        found = ", ".join(map(printable, names[:5])) + (", ..." if len(names) > 5 else "")
        advice = f" Give its folder {printable(inside[0])}." if inside else ""
        raise MissingError(
            f"no {' and no '.join(absent)} in {printable(self.src)} (found: {found or 'nothing'}): expected "
            f"{_EXPECTED}.{advice}"
        )

    def _names(self, folder: str, counts: Counter[str]) -> list[bytes]:
        """The .jpg files of one folder, byte-sorted; what else is there is counted."""
        path = self.src / folder
        try:
            there = sorted(os.listdir(os.fsencode(path)))
        except OSError as error:
            raise InputError(f"{printable(path)}: cannot list this folder ({error.strerror or error})") from error
        visible = [name for name in there if not name.startswith(b".")]
        names = [name for name in visible if name.lower().endswith(b".jpg")]
        for what, number in (
            ("dot files skipped", len(there) - len(visible)),
            ("files skipped that are no .jpg (Thumbs.db and the like)", len(visible) - len(names)),
        ):
            if number:
                counts[what] += number
        return names


def role_of(person: int) -> int:
    """What the images of a person's number are to a ranking: IDENTITY, DISTRACTOR or JUNK."""
    return JUNK if person < 0 else DISTRACTOR if person == 0 else IDENTITY
