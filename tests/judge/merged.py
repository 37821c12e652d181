"""Runs where the real Energon is: reports where its merged transforms differ from ours."""

import importlib.machinery
import importlib.util
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image

try:
    import torchvision
except RuntimeError:  # its compiled part is for another torch; the transforms do not need it
    for name in [name for name in sys.modules if name.startswith("torchvision")]:
        del sys.modules[name]
    found = importlib.machinery.PathFinder.find_spec("torchvision")
    sys.modules["torchvision"] = torchvision = types.ModuleType("torchvision")
    torchvision.__path__ = list(found.submodule_search_locations)

import megatron.energon.transforms as theirs
from torchvision import transforms as T  # noqa: N812 - as everyone does

OURS = Path(__file__).parents[2] / "energy_data" / "energon" / "transforms.py"
spec = importlib.util.spec_from_file_location("ours", OURS)  # ours is not installed here
ours = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ours)

warnings.simplefilter("ignore")  # Energon leaves out align_corners
BICUBIC = T.InterpolationMode.BICUBIC


def sheared(module):
    class Sheared(module.CustomTransform):
        def __init__(self):
            pass

        def apply_transform(self, matrix, dst_size):
            moved = self.translate(3, 1) @ self.shear(0.2, 0.1) @ self.rotate(0.3)
            back = self.translate(50, 40) @ self.vflip() @ self.hflip() @ self.scale(1.5, 1)
            return back @ moved @ matrix, dst_size, ()

    return Sheared()


CHAINS = {
    "resize": lambda _: [T.Resize(20)],
    "resize within": lambda _: [T.Resize(20, max_size=24), T.Resize([11, 33])],
    "crop": lambda _: [T.RandomResizedCrop(16), T.RandomHorizontalFlip()],
    "narrow crop": lambda _: [T.RandomResizedCrop((9, 7), scale=(3, 4), ratio=(0.1, 0.2))],
    "wide crop": lambda _: [T.RandomResizedCrop((9, 7), scale=(3, 4), ratio=(8, 9))],
    "flips": lambda _: [T.RandomVerticalFlip(), T.RandomHorizontalFlip(), T.CenterCrop(30)],
    "rotation": lambda _: [T.RandomRotation(40), T.CenterCrop((25, 31))],
    "expanded": lambda _: [T.RandomRotation(40, expand=True), T.RandomCrop(20)],
    "padded": lambda _: [T.RandomCrop((60, 70), pad_if_needed=True)],
    "bicubic": lambda _: [T.Resize(20, interpolation=BICUBIC), T.RandomCrop(15)],
    "filled": lambda _: [T.RandomRotation(40, fill=7), T.RandomRotation(10, fill=7)],
    "perspective": lambda _: [T.RandomPerspective(p=0.8), T.Resize(30)],
    "custom": lambda module: [T.Resize(30), sheared(module)],
}

noise = np.random.default_rng(0).integers(0, 255, (40, 53, 3), dtype=np.uint8)
IMAGES = {
    "pil": Image.fromarray(noise),
    "grey": Image.fromarray(noise[:, :, 0]),
    "tensor": torch.tensor(noise).permute(2, 0, 1).float(),
}


def result(module, chain, image, seed):
    torch.manual_seed(seed)
    try:
        return np.asarray(module.MergeTransform(CHAINS[chain](module))(IMAGES[image])).tolist()
    except (ValueError, NotImplementedError):
        return "refused"


for chain in CHAINS:
    for image in IMAGES:
        for seed in range(5):
            if result(theirs, chain, image, seed) != result(ours, chain, image, seed):
                sys.stderr.write(f"differs: {chain}, {image}, {seed}\n")
sys.stdout.write(f"compared {len(CHAINS) * len(IMAGES) * 5}\n")
