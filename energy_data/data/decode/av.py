"""Audio and video files, decoded on request through PyAV (extra `av`)."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, pairwise
from math import ceil, floor, inf
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from energy_data.data.typed.samples import edataclass
from energy_data.errors import MissingExtraError

if TYPE_CHECKING:
    import torch

AVMode = Literal["torch", "AVDecoder", "pyav"]
MEDIA_EXTENSIONS = frozenset(("mp4", "avi", "mov", "webm", "mkv", "flac", "mp3", "wav", "flv"))

_PREROLL = 0.25  # seconds before a clip of audio: decoders drop their first frames after a seek

Ranges = Sequence[tuple[float, float]]
Times = list[tuple[float, float]]


@edataclass
class AVData:
    """Decoded clips, and the start and end of each in seconds."""

    video_clips: list[torch.Tensor] | None  # each uint8 [frames, 3, H, W]
    video_timestamps: Times | None
    audio_clips: list[torch.Tensor] | None  # each [channels, samples], in the type of the file
    audio_timestamps: Times | None


@edataclass
class AVMetadata:
    """Properties of the streams of a file; None if missing or unknown."""

    video_duration: float | None = None  # seconds
    video_num_frames: int | None = None
    video_fps: float | None = None
    video_width: int | None = None
    video_height: int | None = None
    audio_duration: float | None = None  # seconds
    audio_channels: int | None = None
    audio_sample_rate: int | None = None
    audio_num_samples: int | None = None


class AVDecoder:
    """An audio or video file in memory. Creating one decodes nothing.

    Every method raises MissingExtraError without PyAV (`stream` has the bytes in any case), and
    ValueError if the file has no stream of that kind or is damaged.
    """

    def __init__(self, stream: BinaryIO, suppress_warnings: bool = False) -> None:
        self.stream = stream
        self.suppress_warnings = suppress_warnings  # Energon's; there are no warnings

    def __reduce__(self) -> tuple[object, tuple[bytes]]:
        self.stream.seek(0)
        return _decoder, (self.stream.read(),)

    def get_video(self) -> AVData:
        """Return all frames."""
        return self.get_clips(video_clip_ranges=[(0, inf)])

    def get_audio(self) -> AVData:
        """Return the complete audio."""
        return self.get_clips(audio_clip_ranges=[(0, inf)])

    def get_video_with_audio(self) -> AVData:
        """Return all frames and the complete audio."""
        return self.get_clips(video_clip_ranges=[(0, inf)], audio_clip_ranges=[(0, inf)])

    def get_frames(self, video_decode_audio: bool = False) -> AVData:
        """Return all frames of a video, optionally with audio; of an audio file, all audio."""
        if not self.has_video_stream():
            return self.get_audio()
        with_audio = video_decode_audio and self.has_audio_stream()
        return self.get_video_with_audio() if with_audio else self.get_video()

    def get_clips(
        self,
        video_clip_ranges: Ranges | None = None,
        audio_clip_ranges: Ranges | None = None,
        video_unit: Literal["frames", "seconds"] = "seconds",
        audio_unit: Literal["samples", "seconds"] = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> AVData:
        """Return clips of both streams. See `get_video_clips` and `get_audio_clips`."""
        video, shown = self.get_video_clips(
            video_clip_ranges or (), video_unit, video_out_frame_size
        )
        audio, heard = self.get_audio_clips(audio_clip_ranges or (), audio_unit)
        return AVData(
            video_clips=video, video_timestamps=shown, audio_clips=audio, audio_timestamps=heard
        )

    def get_video_clips(
        self,
        video_clip_ranges: Ranges,
        video_unit: Literal["frames", "seconds"] = "seconds",
        video_out_frame_size: tuple[int, int] | None = None,
    ) -> tuple[list[torch.Tensor], Times]:
        """Return clips, each uint8 [frames, 3, H, W], and their start and end in seconds.

        Decodes from the key frame before each range; with the unit frames, from the start.

        Args:
            video_clip_ranges: (start, end) of each, both included. A range gives at least one
                frame; one that begins after the last frame gives no clip.
            video_unit: Unit of the ranges; seconds select the frames shown at that time.
            video_out_frame_size: (width, height) to scale to; None: the size in the file.
        """
        import torch

        clips, times = [], []
        for start, end in video_clip_ranges:
            with self._opened("video") as container:
                if video_unit == "frames":
                    last = None if end == inf else max(floor(end) + 1, 0)
                    frames = list(islice(container.decode(video=0), max(floor(start), 0), last))
                else:
                    frames = list(_shown(container, start, end))
            if frames:
                clips.append(torch.from_numpy(_pixels(frames, video_out_frame_size)))
                times.append((_begin(frames[0]), _end(frames[-1])))
        return clips, times

    def get_audio_clips(
        self, audio_clip_ranges: Ranges, audio_unit: Literal["samples", "seconds"] = "seconds"
    ) -> tuple[list[torch.Tensor], Times]:
        """Return clips, each [channels, samples], and their start and end in seconds.

        Args:
            audio_clip_ranges: (start, end) of each, the end excluded. Ranges of equal length give
                clips of equal length; the end of the file cuts a clip, and one that begins after
                it gives none.
            audio_unit: Unit of the ranges.
        """
        import torch

        clips, times = [], []
        for start, end in audio_clip_ranges:
            with self._opened("audio") as container:
                rate = container.streams.audio[0].sample_rate
                scale = 1 if audio_unit == "samples" else rate
                first = round(start * scale)
                samples = _sound(container, first, first + _rounded((end - start) * scale))
            if samples is not None and samples.shape[1]:
                clips.append(torch.from_numpy(samples))
                times.append((first / rate, (first + samples.shape[1]) / rate))
        return clips, times

    def has_video_stream(self) -> bool:
        """Return whether the file has a video stream."""
        with self._opened() as container:
            return bool(container.streams.video)

    def has_audio_stream(self) -> bool:
        """Return whether the file has an audio stream."""
        with self._opened() as container:
            return bool(container.streams.audio)

    def get_video_fps(self) -> float:
        """Return the mean number of frames per second."""
        with self._opened("video") as container:
            return float(container.streams.video[0].average_rate)

    def get_audio_samples_per_second(self) -> int:
        """Return the sample rate of the audio."""
        with self._opened("audio") as container:
            return int(container.streams.audio[0].sample_rate)

    def get_video_duration(self, get_frame_count: bool = False) -> tuple[float | None, int | None]:
        """Return the duration in seconds, and the number of frames if requested."""
        facts = self.get_metadata(get_video_frame_count=get_frame_count, get_audio=False)
        return facts.video_duration, facts.video_num_frames

    def get_audio_duration(self) -> float | None:
        """Return the duration of the audio in seconds."""
        return self.get_metadata(get_video=False).audio_duration

    def get_metadata(
        self,
        get_video: bool = True,
        get_video_duration: bool = True,
        get_video_frame_count: bool = True,
        get_video_frame_size: bool = True,
        get_audio: bool = True,
        get_audio_duration: bool = True,
        get_audio_num_samples: bool = False,
    ) -> AVMetadata:
        """Return properties of the streams.

        Counting frames reads the complete file, as does a duration that its header does not have;
        counting samples decodes the audio.
        """
        facts = AVMetadata()
        if get_video and self.has_video_stream():
            with self._opened() as container:
                stream = container.streams.video[0]
                facts.video_fps = float(stream.average_rate) if stream.average_rate else None
                if get_video_frame_size:
                    facts.video_width, facts.video_height = stream.width, stream.height
                count, facts.video_duration = _extent(
                    container, stream, count=get_video_frame_count, length=get_video_duration
                )
                facts.video_num_frames = count if get_video_frame_count else None
        if get_audio and self.has_audio_stream():
            with self._opened() as container:
                stream = container.streams.audio[0]
                facts.audio_sample_rate, facts.audio_channels = stream.sample_rate, stream.channels
                _, facts.audio_duration = _extent(
                    container, stream, count=False, length=get_audio_duration
                )
            if get_audio_num_samples:
                with self._opened() as container:
                    facts.audio_num_samples = sum(one.samples for one in container.decode(audio=0))
        return facts

    def _opened(self, kind: Literal["video", "audio"] | None = None) -> Any:
        container = open_container(self.stream)
        if kind is not None and not getattr(container.streams, kind):
            container.close()
            raise ValueError(f"it has no {kind} stream")
        return container

    def __repr__(self) -> str:
        return f"AVDecoder(stream={self.stream!r})"


def media_decoder(mode: AVMode, *, with_audio: bool) -> Callable[[bytes | memoryview], Any]:
    """Return the decoder of a mode: see `SampleDecoder`.

    Raises MissingExtraError if PyAV is needed at once, and not installed.
    """
    if mode == "AVDecoder":
        return _decoder
    require_av()
    if mode == "pyav":
        return lambda data: open_container(io.BytesIO(data))
    return lambda data: _decoder(data).get_frames(video_decode_audio=with_audio)


def require_av() -> Any:
    """Return PyAV; MissingExtraError if it is not installed."""
    try:
        import av  # noqa: PLC0415 - optional, and needed for audio and video only
    except ImportError as error:
        raise MissingExtraError("decoding audio and video", "av") from error
    return av


def open_container(stream: BinaryIO) -> Any:
    """Return an open container of PyAV; MissingExtraError if that is not installed.

    It starts no threads: there are many workers already, and they may be forked.
    """
    av = require_av()
    stream.seek(0)
    container = av.open(stream, "r")
    for one in container.streams:
        if one.codec_context is not None:
            one.codec_context.thread_type = "NONE"
    return container


def _decoder(data: bytes | memoryview) -> AVDecoder:
    return AVDecoder(io.BytesIO(data))


def _shown(container: Any, start: float, end: float) -> Iterator[Any]:
    """Yield the frames that are shown at some time from `start` to `end`, in seconds.

    A frame is shown until the next one begins, and the last frame for its own duration.
    """
    stream = container.streams.video[0]
    if start > 0:
        container.seek(floor(start / stream.time_base), stream=stream)
    frames = chain(container.decode(video=0), [None])
    for frame, following in pairwise(frames):
        if _begin(frame) > max(start, end):
            return
        until = _end(frame) if following is None else _begin(following)
        if until > start or _begin(frame) == start:
            yield frame


def _sound(container: Any, first: int, end: float) -> npt.NDArray[Any] | None:
    """Return samples [first, end) of each channel; None if there are none.

    The first sample of an audio file is 0, whatever delay of its encoder the file declares.
    """
    stream = container.streams.audio[0]
    rate, tick = stream.sample_rate, stream.time_base
    origin = 0 if container.streams.video else float((stream.start_time or 0) * tick)
    before = origin + first / rate - _PREROLL
    if before > 0:
        container.seek(floor(before / tick), stream=stream)
    pieces: list[npt.NDArray[Any]] = []
    start = stop = 0
    for frame in container.decode(audio=0):
        if not pieces:
            start = stop = round((_begin(frame) - origin) * rate)
        if stop >= end:
            break
        values = frame.to_ndarray()
        pieces.append(values if frame.format.is_planar else values.reshape(frame.samples, -1).T)
        stop += frame.samples
    if not pieces:
        return None
    if 0 < end - stop < rate * tick:  # mkv rounds times to milliseconds
        start += int(end) - stop
    last = None if end == inf else int(end) - start
    return np.ascontiguousarray(np.concatenate(pieces, axis=1)[:, max(first - start, 0) : last])


def _rounded(samples: float) -> float:
    """Return a length to the nearest sample, and the smaller one of x.5 (give or take an error).

    Then the last of clips at equal distances ends in the file.
    """
    return samples if samples == inf else ceil(round(samples, 6) - 0.5)


def _pixels(frames: Sequence[Any], size: tuple[int, int] | None) -> npt.NDArray[np.uint8]:
    options: dict[str, Any] = {"format": "rgb24"}
    if size is not None:
        options |= {"width": size[0], "height": size[1], "interpolation": "BILINEAR"}
    pixels = np.stack([frame.reformat(**options).to_ndarray() for frame in frames])
    return pixels.transpose(0, 3, 1, 2)


def _begin(frame: Any) -> float:
    return float((frame.pts or 0) * frame.time_base)


def _end(frame: Any) -> float:
    return float(((frame.pts or 0) + (frame.duration or 0)) * frame.time_base)


def _extent(container: Any, stream: Any, *, count: bool, length: bool) -> tuple[int, float | None]:
    """Return the number of packets and seconds of a stream, as far as requested."""
    known = stream.duration
    packets, end = 0, None
    if count or (length and known is None):
        for packet in container.demux(stream):
            if packet.pts is not None:
                packets += 1
                end = max(end or 0, packet.pts + (packet.duration or 0))
    ticks = known if known is not None else end and end - (stream.start_time or 0)
    return packets, float(ticks * stream.time_base) if length and ticks is not None else None
