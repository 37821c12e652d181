"""Transforms of images merged into one; `tests/judge` compares them with those of Energon."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from energy_data.energon.transforms import CustomTransform, MergeTransform
from energy_data.errors import SpecError

IMAGE = torch.arange(24.0).reshape(1, 4, 6)


def stand_in(name, **facts):
    """A transform of torchvision, which is not installed here."""
    kind = type(name, (SimpleNamespace,), {"__module__": "torchvision.transforms.transforms"})
    return kind(**facts)


RESIZE = {"max_size": None, "interpolation": SimpleNamespace(value="nearest")}


class Moved(CustomTransform):
    def __init__(self):
        pass

    def apply_transform(self, matrix, dst_size):
        return self.translate(2, 0) @ matrix, dst_size, ()


@pytest.mark.parametrize(
    ("transforms", "expected"),
    [
        ([], IMAGE),
        ([stand_in("CenterCrop", size=(2, 2))], IMAGE[:, 1:3, 2:4]),
        ([stand_in("RandomHorizontalFlip", p=1)], IMAGE.flip(2)),
        (
            [stand_in("RandomVerticalFlip", p=1), stand_in("RandomHorizontalFlip", p=0)],
            IMAGE.flip(1),
        ),
        (
            [stand_in("Resize", size=[8, 12], **RESIZE)],
            IMAGE.repeat_interleave(2, 1).repeat_interleave(2, 2),
        ),
        ([Moved(), stand_in("CenterCrop", size=(4, 2))], IMAGE[:, :, :2]),
    ],
)
def test_transforms_of_one_image_are_applied_as_one(transforms, expected):
    made = MergeTransform(transforms)(IMAGE)
    np.testing.assert_allclose(made, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("transforms", "problem"),
    [
        ([torch.nn.ReLU()], "or a CustomTransform, got a ReLU"),
        ([stand_in("RandomCrop", fill=1), stand_in("RandomCrop", fill=0)], "fill must be equal"),
        ([stand_in("RandomRotation", fill=0, center=(1, 1))], "about the centre"),
        ([stand_in("RandomPerspective", fill=3)], "must have fill=0"),
    ],
)
def test_what_cannot_be_one_is_an_error(transforms, problem):
    with pytest.raises(SpecError, match=problem):
        MergeTransform(transforms)
