"""Energon's names for what is known about media: what `get_media_metadata` of stores returns."""

from energy_data.data.decode.av import AVMetadata
from energy_data.data.decode.media import ImageMetadata

__all__ = ["AVMetadata", "ImageMetadata"]
