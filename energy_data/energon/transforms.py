"""Energon's `MergeTransform`: several transforms of torchvision as one resampling of the image.

    transform = MergeTransform([RandomResizedCrop(224), RandomHorizontalFlip()])
    image = transform(image)  # a PIL image, or a float tensor [C, H, W]

Random numbers are drawn from torch's global generator, in Energon's order. This module does not
import torchvision: it recognises its classes by their names.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import affine_grid, grid_sample

from energy_data.errors import SpecError

__all__ = ["CustomTransform", "MergeTransform", "TransformMapper"]

Matrix = npt.NDArray[np.float64]  # [3, 3]: (x, y, 1) in the image -> its place in the result
Size = npt.NDArray[np.int64]  # height, width
Mapped = tuple[Matrix, Size, Any]

_MODULE = "torchvision.transforms.transforms"
_FROM_PIL = MappingProxyType({"nearest": 0, "bilinear": 2, "bicubic": 3})


class TransformMapper(ABC):
    """A transform of images as a matrix."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, sample: Any) -> Any:
        """Apply the transform itself."""
        return self.transform(sample)

    @staticmethod
    def translate(x: float, y: float) -> Matrix:
        """Return the matrix of a translation."""
        return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]], np.float64)

    @staticmethod
    def rotate(angle: float) -> Matrix:
        """Return the matrix of a rotation, in radians, counter-clockwise; y points down."""
        cos, sin = np.cos(angle), np.sin(angle)
        return np.array([[cos, sin, 0], [-sin, cos, 0], [0, 0, 1]], np.float64)

    @staticmethod
    def scale(x: float, y: float) -> Matrix:
        """Return the matrix of a scaling."""
        return np.diag(np.array([x, y, 1], np.float64))

    @staticmethod
    def shear(x: float, y: float) -> Matrix:
        """Return the matrix of a shearing."""
        return np.array([[1, x, 0], [y, 1, 0], [0, 0, 1]], np.float64)

    @staticmethod
    def hflip() -> Matrix:
        """Return the matrix that mirrors x."""
        return TransformMapper.scale(-1, 1)

    @staticmethod
    def vflip() -> Matrix:
        """Return the matrix that mirrors y."""
        return TransformMapper.scale(1, -1)

    @abstractmethod
    def apply_transform(self, matrix: Matrix, dst_size: Size) -> Mapped:
        """Return the matrix after this transform, the size after it, and any description.

        matrix: that of the transforms before, [3, 3]. dst_size: (height, width) after them.
        """

    def fill(self) -> float | Sequence[float] | None:
        """Return the colour outside the image; None: it does not matter."""
        return None

    def interpolation(self) -> Any:
        """Return how pixels are interpolated, torchvision's enum; None: it does not matter."""
        return None


class CustomTransform(TransformMapper):
    """Derive from it, and define `apply_transform`, for a transform of your own."""


_translate, _scale = TransformMapper.translate, TransformMapper.scale


class _Torchvision(TransformMapper):
    """A transform of torchvision."""

    def __init__(self, transform: Any) -> None:
        """Raise SpecError for a transform that has no matrix."""
        super().__init__(transform)
        classes = [cls for cls in type(transform).__mro__ if cls.__module__ == _MODULE]
        self.name = next((cls.__name__ for cls in classes if cls.__name__ in _KNOWN), "")
        if not self.name:
            raise SpecError(
                f"MergeTransform: must have {', '.join(_KNOWN)} of torchvision.transforms, or a "
                f"CustomTransform, got a {type(transform).__name__}."
            )
        if self.name == "RandomRotation" and transform.center is not None:
            raise SpecError("MergeTransform: rotations must be about the centre of the image.")
        if self.name == "RandomPerspective" and transform.fill != 0:
            raise SpecError("MergeTransform: RandomPerspective must have fill=0.")

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> Mapped:
        """Return the matrix and the size after this transform, and its name."""
        own, size = _KNOWN[self.name](self.transform, dst_size)
        return own @ matrix, size, (self.name,)

    def fill(self) -> float | Sequence[float] | None:
        """Return the colour that pads."""
        fills = self.name in ("RandomCrop", "RandomRotation")
        return self.transform.fill if fills else None

    def interpolation(self) -> Any:
        """Return the interpolation of a transform that resizes or rotates."""
        resamples = self.name in ("RandomResizedCrop", "RandomRotation", "Resize")
        return self.transform.interpolation if resamples else None


class MergeTransform(torch.nn.Module):
    """Applies geometric transforms as one, so that an image is resampled once.

    The transforms that pad must have one `fill`, and those that resize or rotate one
    `interpolation`.
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        """transforms: those of torchvision, or of type CustomTransform. SpecError for others."""
        super().__init__()
        self.transforms: list[TransformMapper] = [
            one if isinstance(one, CustomTransform) else _Torchvision(one) for one in transforms
        ]
        self.fill_value = _only("fill", [one.fill() for one in self.transforms])
        modes = [one.interpolation() for one in self.transforms]
        self.interpolation = _only("interpolation", modes)

    def forward(self, x: Any) -> Any:
        """Return the transformed image: a PIL image, or a float tensor [C, H, W]."""
        is_tensor = isinstance(x, torch.Tensor)
        matrix, size = np.eye(3), np.array(x.shape[-2:] if is_tensor else (x.height, x.width))
        for transform in self.transforms:
            matrix, size, _ = transform.apply_transform(matrix, size)
        mode = getattr(self.interpolation, "value", "bilinear")
        if mode not in _FROM_PIL:
            raise SpecError(f"MergeTransform: interpolation must not be {mode!r}.")
        make = self._tensor if is_tensor else self._pil
        return make(x, matrix, size, mode)

    def _pil(self, image: Any, matrix: Matrix, size: Size, mode: str) -> Any:
        inverse = np.linalg.inv(matrix)
        inverse /= inverse[2, 2]
        fill = self.fill_value
        if isinstance(fill, int | float):
            fill = (fill,) * len(image.getbands())
        affine, perspective = 0, 2  # as in PIL.Image
        kind, count = (affine, 6) if _is_affine(inverse) else (perspective, 8)
        where = tuple(size[::-1].tolist())
        return image.transform(
            where, kind, inverse.flatten()[:count], _FROM_PIL[mode], fillcolor=fill
        )

    def _tensor(self, image: torch.Tensor, matrix: Matrix, size: Size, mode: str) -> torch.Tensor:
        if self.fill_value:
            raise SpecError(f"MergeTransform: tensors are padded with 0, got {self.fill_value}.")
        height, width = size.tolist()
        inverse = np.linalg.inv(  # of coordinates in [-1, 1]
            _translate(-1, -1)
            @ _scale(2 / width, 2 / height)
            @ matrix
            @ _scale(image.shape[-1] / 2, image.shape[-2] / 2)
            @ _translate(1, 1)
        )
        backward = torch.as_tensor(inverse, dtype=torch.float32)
        if _is_affine(inverse):
            grid = affine_grid(backward[None, :2], [1, 3, height, width], align_corners=False)
        else:
            x, y = torch.meshgrid(
                torch.linspace(-1, 1, width), torch.linspace(-1, 1, height), indexing="xy"
            )
            places = torch.stack([x, y, torch.ones_like(x)], -1)[..., None]
            found = (backward[None, None] @ places)[..., 0]
            grid = (found[..., :2] / found[..., 2:])[None]
        return grid_sample(image[None], grid, mode, "zeros", align_corners=False)[0]


def _only(name: str, values: Sequence[Any]) -> Any:
    """Return the one value that is not None; None without. SpecError if there are several."""
    given = [value for value in values if value is not None]
    if other := [value for value in given if value != given[0]]:
        raise SpecError(f"MergeTransform: {name} must be equal, got {given[0]} and {other[0]}.")
    return given[0] if given else None


def _is_affine(matrix: npt.NDArray[Any]) -> bool:
    return np.allclose(matrix[2, :2], 0)


def _size(height: float, width: float) -> Size:
    return np.array((height, width), np.int64)


def _resize(of: Any, size: Size) -> tuple[Matrix, Size]:
    wanted = [of.size] if isinstance(of.size, int) else list(of.size)
    height, width = size.tolist()
    if len(wanted) == 1:  # of the shorter edge
        short, long = wanted[0], int(wanted[0] * max(height, width) / min(height, width))
        if of.max_size is not None and long > of.max_size:
            short, long = int(of.max_size * short / long), of.max_size
        wanted = [long, short] if width <= height else [short, long]
    return _scale(wanted[1] / width, wanted[0] / height), _size(*wanted)


def _random_resized_crop(of: Any, size: Size) -> tuple[Matrix, Size]:
    top, left, height, width = _crop_box(of, *size.tolist())
    matrix = _scale(of.size[1] / width, of.size[0] / height) @ _translate(-left, -top)
    return matrix, _size(*of.size)


def _crop_box(of: Any, height: int, width: int) -> tuple[int, int, int, int]:
    """Return a random top, left, height and width, as torchvision does, without an image."""
    bounds = torch.log(torch.tensor(of.ratio)).tolist()
    for _ in range(10):
        area = height * width * torch.empty(1).uniform_(*of.scale).item()
        ratio = torch.exp(torch.empty(1).uniform_(*bounds)).item()
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return _random_below(height - h), _random_below(width - w), h, w
    ratio = min(max(width / height, min(of.ratio)), max(of.ratio))
    w = round(height * ratio) if width / height > ratio else width
    h = round(width / ratio) if width / height < ratio else height
    return (height - h) // 2, (width - w) // 2, h, w


def _random_below(most: int) -> int:
    return int(torch.randint(0, most + 1, size=(1,)).item())


def _center_crop(of: Any, size: Size) -> tuple[Matrix, Size]:
    height, width = of.size
    y, x = round((height - int(size[0])) / 2), round((width - int(size[1])) / 2)
    return _translate(x, y), _size(height, width)


def _random_crop(of: Any, size: Size) -> tuple[Matrix, Size]:
    height, width = size.tolist()
    wanted_height, wanted_width = of.size
    pad_y = max(0, wanted_height - height) if of.pad_if_needed else 0
    pad_x = max(0, wanted_width - width) if of.pad_if_needed else 0
    height, width = height + 2 * pad_y, width + 2 * pad_x
    if height < wanted_height or width < wanted_width:
        raise ValueError(f"crop size {of.size} is larger than the image, {(height, width)}")
    top = left = 0
    if (height, width) != (wanted_height, wanted_width):
        top, left = _random_below(height - wanted_height), _random_below(width - wanted_width)
    return _translate(pad_x - left, pad_y - top), _size(wanted_height, wanted_width)


def _random_horizontal_flip(of: Any, size: Size) -> tuple[Matrix, Size]:
    flips = bool(torch.rand(1) < of.p)
    matrix = _translate(float(size[1]), 0) @ TransformMapper.hflip() if flips else np.eye(3)
    return matrix, size


def _random_vertical_flip(of: Any, size: Size) -> tuple[Matrix, Size]:
    flips = bool(torch.rand(1) < of.p)
    matrix = _translate(0, float(size[0])) @ TransformMapper.vflip() if flips else np.eye(3)
    return matrix, size


def _random_rotation(of: Any, size: Size) -> tuple[Matrix, Size]:
    angle = of.get_params(of.degrees) * np.pi / 180
    height, width = size.tolist()
    if of.expand:
        cos, sin = abs(np.cos(angle)), abs(np.sin(angle))
        w, h = sin * height + cos * width, sin * width + cos * height
        size = _size(  # rounded as PIL does
            np.ceil(height / 2 + h / 2) - np.floor(height / 2 - h / 2),
            np.ceil(width / 2 + w / 2) - np.floor(width / 2 - w / 2),
        )
    moved = _translate(size[1] / 2, size[0] / 2) @ TransformMapper.rotate(angle)
    return moved @ _translate(-width / 2, -height / 2), size


def _random_perspective(of: Any, size: Size) -> tuple[Matrix, Size]:
    if not torch.rand(1) <= of.p:
        return np.eye(3), size
    begin, end = of.get_params(int(size[1]), int(size[0]), of.distortion_scale)
    rows, targets = list[list[float]](), list[float]()
    for (x, y), (u, v) in zip(begin, end, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        targets += [u, v]
    system, right = torch.tensor(rows, dtype=torch.float), torch.tensor(targets, dtype=torch.float)
    solution = torch.linalg.lstsq(system, right, driver="gels").solution
    return np.append(solution.numpy(), np.float32(1)).reshape(3, 3).astype(np.float64), size


_KNOWN: Mapping[str, Callable[[Any, Size], tuple[Matrix, Size]]] = MappingProxyType(
    {
        "Resize": _resize,
        "RandomResizedCrop": _random_resized_crop,
        "CenterCrop": _center_crop,
        "RandomCrop": _random_crop,
        "RandomHorizontalFlip": _random_horizontal_flip,
        "RandomVerticalFlip": _random_vertical_flip,
        "RandomRotation": _random_rotation,
        "RandomPerspective": _random_perspective,
    }
)
