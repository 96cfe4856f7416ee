"""A small real data set in the PhotoTour layout: smooth random textures, each seen a few times with noise."""

import cv2
import numpy as np


def write_phototour(folder, classes=24, per_class=3, seed=0, pairs=60):
    """A PhotoTour folder; patches of a class are noisy, shifted crops of one texture."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    patches, info, interest = [], [], []
    for c in range(classes):
        texture = cv2.GaussianBlur(rng.normal(size=(96, 96)), (0, 0), 4)
        texture = 128 + 60 * texture / texture.std()
        for k in range(per_class):
            dx, dy = rng.integers(10, 22, 2)
            crop = texture[dy : dy + 64, dx : dx + 64] * rng.uniform(0.7, 1.2) + rng.normal(0, 6, (64, 64))
            patches.append(np.clip(crop, 0, 255).astype(np.uint8))
            info.append((c, 0))
            interest.append((k, 100 * c + dx, dy, 0, 3))
    for b in range(0, len(patches), 256):
        block = np.zeros((256, 64, 64), np.uint8)
        block[: len(patches[b : b + 256])] = patches[b : b + 256]
        mosaic = block.reshape(16, 16, 64, 64).swapaxes(1, 2).reshape(1024, 1024)
        cv2.imwrite(str(folder / f"patches{b // 256:04d}.bmp"), mosaic)
    np.savetxt(folder / "info.txt", info, fmt="%d")
    np.savetxt(folder / "interest.txt", interest, fmt="%.3f")
    rows = []
    for match in (True, False):
        for _ in range(pairs):
            a, b = rng.choice(classes, 2, replace=False)
            i, j = rng.choice(per_class, 2, replace=False)
            b = a if match else b
            rows.append((a * per_class + i, a, 0, b * per_class + j, b, 0))
    np.savetxt(folder / f"m50_{pairs}_{pairs}_0.txt", rows, fmt="%d")
