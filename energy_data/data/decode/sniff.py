"""Recognises files by their first bytes."""

from __future__ import annotations

_PREFIXES = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
    (b"\0\0\0\x0cjP  ", "jp2"),
    (b"\x1aE\xdf\xa3", "mkv"),  # webm begins with the same bytes and is read in the same way
    (b"fLaC", "flac"),
    (b"ID3", "mp3"),
    (b"\xff\xfb", "mp3"),
    (b"FLV\x01", "flv"),
)
_RIFF = {b"WEBP": "webp", b"WAVE": "wav", b"AVI ": "avi"}
_LONGEST = 16  # bytes that are compared


def extension_of(data: bytes | memoryview) -> str:
    """Return the usual extension of an image, audio or video file; "" if it is none that is known.

    data: the whole file, or its beginning.
    """
    head = bytes(data[:_LONGEST])
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12], "")
    if head[4:8] == b"ftyp":
        return "mov" if head[8:10] == b"qt" else "mp4"
    return next((extension for prefix, extension in _PREFIXES if head.startswith(prefix)), "")
