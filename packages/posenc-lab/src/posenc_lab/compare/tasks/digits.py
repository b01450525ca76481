"""Digits: which of ten digits an image of 8 x 8 pixels shows; tested on finer and coarser grids of patches.

The images are scikit-learn's 1,797 handwritten digits. The last ones are held out: the data set is ordered by writer,
so they are mostly by writers that are not in the training set.

A length is the number of patches along a side, and a patch has the same number of pixels at every length: for other
lengths the test images are resized, so that the digit is the same and only the number of positions changes.

- ``accuracy``: with the scheme as it was trained, at integer rows and columns.
- ``resized``, for schemes of two coordinates at other grids than in training: with positions fitted to the training
  grid. Schemes that accept fractional coordinates get each patch's position on the training grid; the tables of
  relative_2d, which needs integers, are interpolated.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc.models import ImageClassifier
from posenc.positions.positions import Positions
from posenc.schedule import Schedule
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Shape
from posenc.schemes.relative_2d import Relative2D
from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.layers import entries
from posenc_lab.compare.task import ANSWERS, Accuracy, Answers, Kind, Loaded, Tick
from posenc_lab.kit.files import digest_of

SIDE = 8  # pixels
CLASSES = 10
WHITE = 16
TUNED = 8  # one in so many of the remaining images is for tuning


class Digits(Answers):
    """Which digit an image shows."""

    defaults: ClassVar = {
        "schemes": ("nope", "learned", "sinusoidal", "rope", "alibi", "fourier_features", "relative_2d"),
        "train_length": 8,
        "steps": 400,
        "layers": 2,
        "dim": 48,
        "batch_size": 32,
        "learning_rate": 3e-3,
        "windows": 500,
    }
    multiples = (0.75, 1, 1.5, 2)
    called = "an image"
    lengths = "patches a side"
    trained = "training grid"
    grid = True
    kinds: ClassVar = {
        "accuracy": Kind(
            "accuracy",
            ANSWERS,
            "Accuracy at each grid",
            "Share of digits recognised against the patches along a side; away from the training grid the same images "
            "are resized. Bars: 95 % intervals.",
        ),
        "resized": Kind(
            "accuracy with fitted positions",
            ANSWERS,
            "Accuracy with positions fitted to the training grid",
            "The same where each patch has its place on the training grid (relative_2d: its tables interpolated).",
        ),
    }
    title = "One digit, other grids"
    axis = "patches along a side"
    units = "images"
    chance = 0.1
    how_to_read = (
        "Sinusoidal, Fourier features and relative 2D are given the row and the column of a patch. The others take "
        "one coordinate, and are given the patch's number, counted along the rows: at another grid the patch below "
        "is another number of steps away.",
        "Away from the training grid the same images are resized and every patch keeps its size in pixels. With "
        "fitted positions a patch stands where that part of the image stood in training.",
    )
    not_concluded = (
        "Images of 8 × 8 pixels are not photographs. A resized image also shows something else in each patch, so "
        "what is lost at another grid is not all lost to positions.",
        "Fitted positions are not more training: a model trained at several grids would do better at each.",
    )

    def where(self, kind: str, length: int, train_length: int) -> str:
        grid = f"{length} × {length} patches"
        fitted = " with fitted positions" if kind == "resized" else ""
        return f"At the training grid of {grid}" if length == train_length else f"At {grid}{fitted}"

    def check(self, config: CompareConfig) -> None:
        """`ConfigError` unless a patch has a whole number of pixels."""
        config.require("train_length", config.train_length in (4, 8), "4 or 8, patches along a side of 8 pixels")

    def require(self, scheme: str) -> None:
        """ValueError also for a composition of schemes that cannot read the same coordinates."""
        super().require(scheme)
        two = [entry.name for entry in entries(scheme) if entry.axes == "two"]
        one = [entry.name for entry in entries(scheme) if entry.axes == "one"]
        if two and one:
            raise ValueError(
                f"schemes must agree on the coordinates of a patch, got {scheme!r}: "
                f"{two[0]} takes two and {one[0]} takes one"
            )

    def tokens(self, config: CompareConfig) -> int:
        return config.train_length**2

    def shape(self, config: CompareConfig, scheme: str) -> Shape:
        """A grid for schemes of two coordinates, else a sequence of all patches."""
        line, side = super().shape(config, scheme), config.train_length
        return replace(line, grid=(side, side)) if _takes_grid(entries(scheme)) else line

    def model(self, config: CompareConfig, scheme: str, position: Scheme | Schedule) -> nn.Module:
        """A vision Transformer with patches of 1 x 1 or 2 x 2 pixels, by the training grid."""
        raster = not _takes_grid(entries(scheme))
        return ImageClassifier(CLASSES, SIDE // config.train_length, raster=raster, **self.sizes(config, position))

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return F.cross_entropy(model(pixels(batch)).float(), batch[:, -1])

    def plan(self, scheme: str, lengths: Sequence[int], train_length: int) -> list[tuple[str, int]]:
        """Accuracy at every grid and, if positions can be fitted to the training grid, also with fitted positions."""
        kinds = [("accuracy", length) for length in lengths]
        if _can_resize(scheme):
            kinds += [("resized", length) for length in lengths if length != train_length]
        return kinds

    def load(self, config: CompareConfig) -> Loaded:
        """The images, of which the last ones are held out."""
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        rows = np.column_stack((images, labels)).astype(np.uint8)
        if config.windows > len(rows) // 2:
            raise ValueError(f"windows must leave half of {len(rows):,} images to train on, got {config.windows}")
        rest, test = rows[: -config.windows], torch.from_numpy(rows[-config.windows :].astype(np.int64))
        train, tuning = rest[: -len(rest) // TUNED], rest[-len(rest) // TUNED :]
        return Loaded(
            lambda rng, count, size: train[rng.integers(len(train), size=count)],
            lambda rng, count, size: tuning[rng.integers(len(tuning), size=count)],
            lambda model, device, tick: _Grids(model, test.to(device), config.train_length, tick),
            config.windows * sum(length**2 for length in config.test_lengths),
            f"scikit-learn's digits: {len(rows):,} images of 8 × 8 pixels, the last {config.windows} held out",
            digest_of(rows.tobytes()),
        )


def pixels(batch: Tensor) -> Tensor:
    """The images (batch, 1, 8, 8) of a batch, from -1 to 1."""
    return batch[:, :-1].view(-1, 1, SIDE, SIDE).float() * (2 / WHITE) - 1


def resized(model: nn.Module, side: int) -> nn.Module:
    """A copy of a model, with the tables of every `Relative2D` in it interpolated to a grid of ``side``; the model
    itself if there is none."""
    if not any(isinstance(module, Relative2D) for module in model.modules()):
        return model
    other = copy.deepcopy(model)
    for parent in list(other.modules()):
        for name, child in parent.named_children():
            if isinstance(child, Relative2D):
                setattr(parent, name, child.resized((side, side)))
    return other


def fitted(side: int, train_side: int, device: torch.device) -> Positions:
    """The centres of a grid's patches in the coordinates of the training grid, so that the image keeps its place."""
    place = Positions.grid(side, side, device=device).coords
    return Positions((place + 0.5) * (train_side / side) - 0.5)


class _Grids(Accuracy):
    """Tests one model on the same images at every grid; each image is a unit."""

    def __init__(self, model: nn.Module, test: Tensor, train_side: int, tick: Tick) -> None:
        super().__init__(model, tick)
        self._images, self._labels, self._train_side = pixels(test), test[:, -1], train_side

    def _right(self, kind: str, length: int) -> Tensor:
        model, positions, images = self.model, None, self._images
        if kind == "resized":
            model = resized(model, length)
            if model is self.model:
                positions = fitted(length, self._train_side, images.device)
        size = SIDE // self._train_side * length
        if size != SIDE:
            images = F.interpolate(images, (size, size), mode="bilinear", align_corners=False, antialias=True)
        found = self._run(lambda part: model(part, positions), images, length**2).argmax(1)
        return (found == self._labels)[:, None]


def _takes_grid(entries: tuple[Entry, ...]) -> bool:
    return all(entry.axes != "one" for entry in entries)


def _can_resize(scheme: str) -> bool:
    """Whether all parts of a scheme have tables to interpolate, or all accept fractional coordinates."""
    its = entries(scheme)
    ways = {"tables" if entry.scheme is Relative2D else "fractional" in entry.laws for entry in its}
    return _takes_grid(its) and ways in ({"tables"}, {True})


TASK = Digits()
