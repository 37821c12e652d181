"""A short video with sound, and a sound, written by PyAV."""

import io
from fractions import Fraction

import numpy as np

FRAMES, RATE, SOUND_RATE = 20, 10, 8000


def video(*, suffix="mp4", codec="mpeg4", with_sound=True, seconds_of_sound=2):
    """Return 20 grey frames 32 x 16, 10 a second, each brighter than the last, with a ramp."""
    import av  # noqa: PLC0415 - an extra

    file = io.BytesIO()
    with av.open(file, "w", format={"mkv": "matroska"}.get(suffix, suffix)) as container:
        pictures = container.add_stream(codec, rate=RATE)
        pictures.width, pictures.height, pictures.pix_fmt = 32, 16, "yuv420p"
        pictures.codec_context.gop_size = 5
        if with_sound:
            sound = container.add_stream("flac" if suffix == "mkv" else "aac", rate=SOUND_RATE)
            sound.layout = "mono"
        for number in range(FRAMES):
            pixels = np.full((16, 32, 3), number * 12, np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, RATE)
            container.mux(pictures.encode(frame))
        if with_sound:
            for frame in _sound(av, sound, length=seconds_of_sound * SOUND_RATE):
                container.mux(sound.encode(frame))
            container.mux(sound.encode(None))
        container.mux(pictures.encode(None))
    return file.getvalue()


def wav():
    """Return two seconds of a ramp, 8,000 samples a second, int16."""
    return sound("wav", "pcm_s16le", SOUND_RATE, 2 * SOUND_RATE)


def sound(suffix, codec, rate, length):
    """Return a ramp of some length, mono."""
    import av  # noqa: PLC0415 - an extra

    file = io.BytesIO()
    with av.open(file, "w", format={"mkv": "matroska"}.get(suffix, suffix)) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.layout = "mono"
        for frame in _sound(av, stream, rate, length):
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def _sound(av, stream, rate=SOUND_RATE, length=2 * SOUND_RATE):
    ramp = (np.arange(length) % 30000).astype(np.int16)
    form = {"aac": "fltp", "libmp3lame": "s16p"}.get(stream.name, "s16")
    values = ramp.astype(np.float32) / 32768 if form == "fltp" else ramp
    step = stream.codec_context.frame_size or 1000
    for start in range(0, len(values), step):
        frame = av.AudioFrame.from_ndarray(values[None, start : start + step], form, "mono")
        frame.sample_rate, frame.pts = rate, start
        frame.time_base = Fraction(1, rate)
        yield frame
