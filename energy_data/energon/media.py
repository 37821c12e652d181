"""Energon's names for the results of `get_media_metadata` of file stores."""

from energy_data.data.decode.av import AVMetadata
from energy_data.data.decode.media import ImageMetadata

__all__ = ["AVMetadata", "ImageMetadata"]
