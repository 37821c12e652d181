"""Audio and video: bytes -> a decoder, or all of it decoded (extra `av`)."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from energy_data.sources.av_decoder import AVDecoder, open_container, require_av

AVMode = Literal["torch", "AVDecoder", "pyav"]

MEDIA_EXTENSIONS = frozenset(("mp4", "avi", "mov", "webm", "mkv", "flac", "mp3", "wav", "flv"))


def media_decoder(mode: AVMode, *, with_audio: bool) -> Callable[[bytes | memoryview], Any]:
    """Return what makes of files what `mode` says: see `SampleDecoder`.

    Raises MissingExtraError if PyAV is needed at once, and not installed.
    """
    if mode == "AVDecoder":
        return _decoder
    require_av()
    if mode == "pyav":
        return _container
    return partial(_decoded, with_audio=with_audio)


def _decoder(data: bytes | memoryview) -> AVDecoder:
    return AVDecoder(io.BytesIO(data))


def _container(data: bytes | memoryview) -> Any:
    return open_container(io.BytesIO(data))


def _decoded(data: bytes | memoryview, *, with_audio: bool) -> Any:
    return _decoder(data).get_frames(video_decode_audio=with_audio)
