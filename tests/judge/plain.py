"""Samples as plain data, so that two programs can compare theirs. Runs in both."""

import hashlib

import numpy as np
import torch

BASIC = ("__key__", "__restore_key__", "__subflavors__", "__sources__", "__shard__", "__leaf__")


def plain(value):  # noqa: PLR0911 - a case each
    """Return a value as plain data: arrays, tensors and images by form and digest."""
    if isinstance(value, torch.Tensor):
        value = value.numpy()
        return ["tensor", *plain(value)[1:]]
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value).tobytes()
        return ["array", str(value.dtype), list(value.shape), digest(data)]
    if isinstance(value, bytes):
        return ["bytes", digest(value)]
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if hasattr(value, "tobytes") and hasattr(value, "mode"):
        return ["image", value.mode, list(value.size), digest(value.tobytes())]
    if hasattr(value, "get_clips"):
        return ["decoder", type(value).__name__]
    if hasattr(value, "video_clips"):
        clips = (value.video_clips, value.audio_clips)
        return ["clips", plain(clips), plain([value.video_timestamps, value.audio_timestamps])]
    return value


def plain_sample(sample):
    """Return all there is about a sample."""
    if isinstance(sample, dict):
        fields, basic = dict(sample), dict(sample)
    else:
        names = list(type(sample).__dataclass_fields__)
        fields = {name: getattr(sample, name) for name in names}
        basic = fields
    sources = [
        [str(one.dataset_path), one.index, one.shard_name, list(one.file_names)]
        for one in basic["__sources__"]
    ]
    return {
        "type": type(sample).__name__,
        "key": basic["__key__"],
        "restore": restore_key(basic["__restore_key__"]),
        "subflavors": basic["__subflavors__"] or {},
        "sources": sources,
        "shard": basic.get("__shard__"),
        "fields": {name: plain(one) for name, one in fields.items() if name not in BASIC},
    }


def restore_key(key):
    """Return the last two parts: before them, Energon notes the wrappers a sample went through."""
    return list(key[-2:])


def digest(data):
    return hashlib.sha1(bytes(data)).hexdigest()
