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
    """Return clips of equal length that start at equal distances.

    The first clip starts with the file. The last one ends where the shorter of the requested
    streams ends.

    Args:
        av_decoder: The file.
        clip_duration_seconds: Length of each clip; 0: one frame of video.
        num_clips: Number of clips.
        request_video: Return the frames of each clip, uint8 [frames, 3, H, W].
        request_audio: Return the audio of each clip, [channels, samples].
        video_out_frame_size: (width, height) to scale to; None: the size in the file.

    Raises ValueError if no stream is requested, or if the file does not have one of them or is
    shorter than a clip.
    """
    if not (request_video or request_audio):
        raise ValueError("get_clips_uniform: pass request_video=True, request_audio=True, or both.")
    length = _length(av_decoder, video=request_video, audio=request_audio)
    if length < clip_duration_seconds:
        raise ValueError(
            f"get_clips_uniform: clips of {clip_duration_seconds} s were requested, but the file "
            f"has {length} s. Request shorter clips."
        )
    half = 0.0 if clip_duration_seconds else 0.5 / av_decoder.get_video_fps()  # of a frame
    last = length - clip_duration_seconds - half
    starts = torch.linspace(half, last, num_clips, dtype=torch.float64)
    ranges = [(start, start + clip_duration_seconds) for start in starts.tolist()]
    return av_decoder.get_clips(
        video_clip_ranges=ranges if request_video else None,
        audio_clip_ranges=ranges if request_audio else None,
        video_out_frame_size=video_out_frame_size,
    )


def _length(av_decoder: AVDecoder, *, video: bool, audio: bool) -> float:
    """Return the seconds that all requested streams have."""
    lengths = {}
    if video:
        lengths["video"] = av_decoder.get_video_duration()[0]
    if audio:
        lengths["audio"] = av_decoder.get_audio_duration()
    for kind, length in lengths.items():
        if length is None:
            raise ValueError(f"get_clips_uniform: the file has no {kind}, or not its length.")
    return min(length for length in lengths.values() if length is not None)


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
    """Return frames at equal distances, uint8 [num_frames, 3, H, W], from the first to the last.

    The file is read once to count its frames, and decoded from its start for each frame.

    Args:
        av_decoder: The file.
        num_frames: Number of frames.
        video_out_frame_size: (width, height) to scale to; None: the size in the file.
        return_timestamps: Return also when each frame begins, in seconds.

    Raises ValueError if the file has fewer frames, or no video.
    """
    count = av_decoder.get_video_duration(get_frame_count=True)[1] or 0
    if not 1 <= num_frames <= count:
        raise ValueError(
            f"get_single_frames_uniform: {num_frames} frames were requested, but the file has "
            f"{count}. Request at least 1 and at most {count}."
        )
    places = torch.linspace(0, count - 1, num_frames, dtype=torch.float64).round().tolist()
    clips, times = av_decoder.get_video_clips(
        [(place, place) for place in places], "frames", video_out_frame_size
    )
    begins = list(chain.from_iterable(time[:1] for time in times))
    frames = torch.cat(clips)
    return (frames, begins) if return_timestamps else frames
