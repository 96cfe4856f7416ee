"""Training-time crops and flips of images, drawn anew for each image of each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torchvision.transforms import v2

from hardmine.options import Options
from hardmine.pipeline.image_frame import ImageFrame, Item, as_channels


class Augment(Options):
    """What an image goes through in training. Every draw is a function of (seed, step, place in the batch) alone.

    crop: "resized", a random part of the image, of `scale` of its area and `ratio` of width to height, scaled to the
    network's side (torchvision's RandomResizedCrop: PADS' released code; with scale 0.16 to 1 DSDML's); "random", a
    random side x side of the image whose shorter side was scaled to the network's `resize` (the PADS paper's text);
    "centre", the same cut as in evaluation. shift: after that, moved by up to so many pixels each way, the border
    repeated. degrees: turned by an angle within +-degrees. flip: mirrored left-right with probability 1/2.
    """

    crop: Literal["resized", "random", "centre"] = "resized"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    shift: int = Field(0, ge=0)
    degrees: float = Field(0.0, ge=0, le=180)
    flip: bool = True

    @model_validator(mode="after")
    def _ranges(self) -> Augment:
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale is a range within (0, 1], not {self.scale}")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"ratio is a range of positive numbers, not {self.ratio}")
        fields = type(self).model_fields
        if self.crop != "resized" and any(getattr(self, name) != fields[name].default for name in ("scale", "ratio")):
            raise ValueError(f'scale and ratio belong to crop = "resized", not to "{self.crop}"')
        return self

    def apply(
        self,
        items: Sequence[Item] | np.ndarray,
        frame: ImageFrame,
        seed: int,
        step: int,
        slots: np.ndarray | None = None,
    ) -> torch.Tensor:
        """The n images of step `step`, augmented: uint8 (n, channels, side, side). slots: int64 (n,), their places in
        the batch where they are a part of it."""
        transform = self._transform(frame)
        out = torch.empty((len(items), frame.channels, frame.side, frame.side), dtype=torch.uint8)
        places = np.arange(len(items)) if slots is None else slots
        draws = np.random.SeedSequence([seed, step]).generate_state(int(places.max(initial=0)) + 1, np.uint64)
        draws = draws[places] >> np.uint64(1)
        with torch.random.fork_rng(devices=[]):
            for i, item in enumerate(items):
                torch.default_generator.manual_seed(int(draws[i]))
                out[i] = transform(as_channels(np.asarray(item)[None], frame.channels)[0])
        return out

    def _transform(self, frame: ImageFrame) -> v2.Transform:
        steps: list[torch.nn.Module] = []
        if self.crop == "resized":
            steps.append(v2.RandomResizedCrop(frame.side, self.scale, self.ratio, antialias=True))
        else:
            steps.append(v2.Resize(frame.resize, antialias=True))
            steps.append((v2.RandomCrop if self.crop == "random" else v2.CenterCrop)(frame.side))
        if self.degrees:
            steps.append(v2.RandomRotation(self.degrees, v2.InterpolationMode.BILINEAR, fill=255))
        if self.shift:
            steps += [v2.Pad(self.shift, padding_mode="edge"), v2.RandomCrop(frame.side)]
        if self.flip:
            steps.append(v2.RandomHorizontalFlip())
        return v2.Compose(steps)


@dataclass(frozen=True)
class TrainingImages:
    """The transform of a run for `pipeline.loading.loader`: None for `augment` is the frame alone."""

    frame: ImageFrame
    augment: Augment | None
    seed: int

    @property
    def draws(self) -> bool:
        """Whether it uses torch's global generator, so that it must not run beside anything that does."""
        return self.augment is not None

    def __call__(self, items: Any, plan: Any, slots: np.ndarray | None = None) -> torch.Tensor:
        """uint8 (n, channels, side, side) of a plan's items, or of those in its `slots`."""
        if self.augment is None:
            return self.frame.fit(items)
        return self.augment.apply(items, self.frame, self.seed, plan.step, slots)
