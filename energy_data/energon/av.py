"""Energon's names for audio and video: `from energy_data.energon.av import AVDecoder`.

data = get_clips_uniform(decoder, clip_duration_seconds=3, num_clips=5, request_video=True)
"""

from __future__ import annotations

from itertools import chain
from typing import Literal, overload

import torch

from energy_data.data.decode.av import AVData, AVDecoder

__all__ = ["AVData", "AVDecoder", "get_clips_uniform", "get_single_frames_uniform"]


def get_clips_uniform(
    av_decoder: AVDecoder,
    clip_duration_seconds: float,
    num_clips: int,
    request_video: bool = False,
    request_audio: bool = False,
    video_out_frame_size: tuple[int, int] | None = None,
) -> AVData:
    """Return clips at equal distances: the first at the beginning, the last up to the end.

    Args:
        av_decoder: The file.
        clip_duration_seconds: Length of each clip; not longer than the file.
        num_clips: Number of clips; one is at the beginning.
        request_video: Give the frames of each, uint8 [frames, 3, H, W].
        request_audio: Give the sound of each, [channels, samples].
        video_out_frame_size: (width, height) to scale to; None: as it is.

    Raises ValueError if neither is asked for, if the file has no such stream, or is too short.
    """
    if not (request_video or request_audio):
        raise ValueError("get_clips_uniform: ask for one of request_video and request_audio.")
    length = av_decoder.get_video_duration()[0] if request_video else None
    length = length or av_decoder.get_audio_duration()
    if length is None or length < clip_duration_seconds:
        raise ValueError(
            f"get_clips_uniform: clips of {clip_duration_seconds} s were asked for, of a file of "
            f"{length} s. Ask for shorter ones."
        )
    starts = torch.linspace(0, length - clip_duration_seconds, num_clips, dtype=torch.float64)
    ranges = [(start, start + clip_duration_seconds) for start in starts.tolist()]
    return av_decoder.get_clips(
        video_clip_ranges=ranges if request_video else None,
        audio_clip_ranges=ranges if request_audio else None,
        video_out_frame_size=video_out_frame_size,
    )


@overload
def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: tuple[int, int] | None = None,
    return_timestamps: Literal[False] = False,
) -> torch.Tensor: ...
@overload
def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: tuple[int, int] | None = None,
    return_timestamps: Literal[True],
) -> tuple[torch.Tensor, list[float]]: ...
def get_single_frames_uniform(
    av_decoder: AVDecoder,
    num_frames: int,
    *,
    video_out_frame_size: tuple[int, int] | None = None,
    return_timestamps: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, list[float]]:
    """Return frames at equal distances, uint8 [num_frames, 3, H, W]; the first and the last are in.

    With `return_timestamps` also when each begins, in seconds. Costs decoding the file once to
    count its frames, and from its beginning for each. ValueError if it has no video, or too little.
    """
    count = av_decoder.get_video_duration(get_frame_count=True)[1] or 0
    if not 1 <= num_frames <= count:
        raise ValueError(
            f"get_single_frames_uniform: {num_frames} frames were asked for, of {count}. Ask for "
            f"1 to {count}."
        )
    places = torch.linspace(0, count - 1, num_frames, dtype=torch.float64).round().tolist()
    clips, times = av_decoder.get_video_clips(
        [(place, place) for place in places], "frames", video_out_frame_size
    )
    begins = list(chain.from_iterable(time[:1] for time in times))
    frames = torch.cat(clips)
    return (frames, begins) if return_timestamps else frames
