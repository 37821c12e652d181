"""`SampleDecoder`: how parts become values, in Energon's words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from energy_data.errors import SpecError
from energy_data.sources.decode import Buffer, Decoding, skip_part
from energy_data.sources.images import EXTENSIONS, ImageMode, check_image_mode
from energy_data.sources.media import MEDIA_EXTENSIONS, AVMode, media_decoder
from energy_data.sources.sniff import extension_of
from energy_data.sources.tar_names import split_name

PartFilter = Callable[[str], bool]
"""Whether a sample wants the part with this extension."""


class SampleDecoder:
    """Decodes parts by their extension.

    Text, JSON, numbers, numpy and torch files are decoded as `energy_data.sources.decode` says.
    Unlike Energon's, it unpickles nothing: parts that are pickles stay bytes.
    """

    def __init__(
        self,
        *,
        image_decode: ImageMode = "torchrgb",
        av_decode: AVMode = "AVDecoder",
        video_decode_audio: bool = False,
        guess_content: bool = False,
    ) -> None:
        """Say what parts become.

        Args:
            image_decode: What images become; by default float32 tensors [3, H, W] in [0, 1].
            av_decode: What audio and video become: "AVDecoder", which decodes what it is asked for;
                "torch", all decoded, as `AVData`; "pyav", an open container of PyAV.
            video_decode_audio: Decode the sound of videos too, where av_decode is "torch".
            guess_content: Tell images, audio and video by how they begin, not by their extensions.

        Raises SpecError for what cannot be.
        """
        check_image_mode(image_decode)
        if av_decode not in get_args(AVMode):
            known = ", ".join(get_args(AVMode))
            raise SpecError(f"av_decode: there is no mode {av_decode!r}, only: {known}.")
        self.image_decode, self.av_decode = image_decode, av_decode
        self.video_decode_audio, self.guess_content = video_decode_audio, guess_content
        self._decoding = self.decoding()

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _made, (type(self), self.config())

    def decoding(self, part_filter: PartFilter | None = None) -> Decoding:
        """Return it as sources take it; parts that the filter does not want become `UNWANTED`."""
        return PartDecoding(
            images=self.image_decode,
            part_filter=part_filter,
            av_decode=self.av_decode,
            video_decode_audio=self.video_decode_audio,
            guess_content=self.guess_content,
        )

    def decode(self, fname: str, raw: bytes) -> Any:
        """Return the bytes of a file decoded, by the extension of its name."""
        named = split_name(fname)
        return self._decoding.decoder(named[1] if named else "")(raw)

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return a sample with its parts decoded: those that are bytes, but for the `__` fields."""
        return {
            name: self._decoding.decoder(name)(value)
            if isinstance(value, bytes) and not name.startswith("__")
            else value
            for name, value in sample.items()
        }

    def config(self) -> dict[str, Any]:
        """Return the arguments it was made with."""
        return {
            "image_decode": self.image_decode,
            "av_decode": self.av_decode,
            "video_decode_audio": self.video_decode_audio,
            "guess_content": self.guess_content,
        }

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self.config().items())
        return f"{type(self).__name__}({said})"


@dataclass(frozen=True)
class PartDecoding(Decoding):
    """As `Decoding`, for some parts only, with audio and video."""

    images: ImageMode = "torchrgb"
    part_filter: PartFilter | None = None
    av_decode: AVMode | None = None  # None: audio and video stay bytes
    video_decode_audio: bool = False
    guess_content: bool = False

    def decoder(self, extension: str) -> Callable[[Buffer], Any]:
        """Return what decodes parts with this full extension."""
        if self.part_filter is not None and not self.part_filter(extension):
            return skip_part
        if self.mode == "bytes":
            return bytes
        return self._guessing(extension) if self.guess_content else self._by_name(extension)

    def _by_name(self, extension: str) -> Callable[[Buffer], Any]:
        last = extension.rpartition(".")[2].lower()
        if last in MEDIA_EXTENSIONS and self.av_decode is not None:
            return media_decoder(self.av_decode, with_audio=self.video_decode_audio)
        return Decoding.decoder(self, extension)

    def _guessing(self, extension: str) -> Callable[[Buffer], Any]:
        by_name = self._by_name(extension)

        def decode(data: Buffer) -> Any:
            found = extension_of(data)
            if found in EXTENSIONS or found in MEDIA_EXTENSIONS:
                return self._by_name(found)(data)
            return by_name(data)

        return decode


def _made(kind: type[SampleDecoder], config: Mapping[str, Any]) -> SampleDecoder:
    return kind(**config)
