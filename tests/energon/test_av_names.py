"""Clips and frames at equal distances, under Energon's names and with its numbers."""

from __future__ import annotations

import io

import pytest
import torch
from media import FRAMES, sound, video, wav

from energy_data.energon.av import AVDecoder, get_clips_uniform, get_single_frames_uniform
from energy_data.energon.media import AVMetadata

pytest.importorskip("av")


@pytest.fixture(scope="module")
def decoder():
    return AVDecoder(io.BytesIO(video()))


# What megatron-energon 7.4.1 answers for this file of 2 s with 10 frames per second.
CLIPS = {
    (3, 0.5): ([(0.0, 0.6), (0.7, 1.3), (1.5, 2.0)], [(0.0, 0.5), (0.75, 1.25), (1.5, 2.0)]),
    (1, 0.5): ([(0.0, 0.6)], [(0.0, 0.5)]),
    (2, 1.0): ([(0.0, 1.1), (1.0, 2.0)], [(0.0, 1.0), (1.0, 2.0)]),
}
FRAMES_AT = {1: [0.0], 2: [0.0, 1.9], 3: [0.0, 1.0, 1.9], 5: [0.0, 0.5, 1.0, 1.4, 1.9]}


@pytest.mark.parametrize(("num_clips", "seconds"), CLIPS)
def test_clips_are_from_the_beginning_to_the_end_at_equal_distances(decoder, num_clips, seconds):
    data = get_clips_uniform(decoder, seconds, num_clips, request_video=True, request_audio=True)
    shown, heard = CLIPS[num_clips, seconds]
    assert [time for pair in data.video_timestamps for time in pair] == pytest.approx(
        [time for pair in shown for time in pair]
    )
    assert [time for pair in data.audio_timestamps for time in pair] == pytest.approx(
        [time for pair in heard for time in pair], abs=0.02
    )
    assert [len(clip) for clip in data.video_clips] == [
        round((end - begin) * 10) for begin, end in shown
    ]


@pytest.mark.parametrize("seconds", [0.5, 1 / 3, 0.123])
@pytest.mark.parametrize(
    ("suffix", "codec", "rate"),
    [
        ("wav", "pcm_s16le", 11025),  # 0.5 s are 5512.5 samples
        ("flac", "flac", 44100),
        ("mkv", "flac", 11025),  # whose times are rounded to milliseconds
        ("mkv", "aac", 44100),
        ("webm", "libopus", 48000),
        ("mp3", "libmp3lame", 44100),  # whose first sample is not at 0 s
    ],
)
def test_audio_clips_can_be_stacked(suffix, codec, rate, seconds):
    decoder = AVDecoder(io.BytesIO(sound(suffix, codec, rate, 3 * rate + 2)))
    for num_clips in (3, 7, 33):
        data = get_clips_uniform(decoder, seconds, num_clips, request_audio=True)
        clips = torch.stack(data.audio_clips)
        assert clips.shape[:2] == (num_clips, 1)
        assert abs(clips.shape[2] - seconds * rate) <= 0.5


@pytest.mark.parametrize("seconds_of_sound", [1, 3])
def test_clips_of_both_streams_end_with_the_shorter_one(seconds_of_sound):
    data = video(suffix="mkv", seconds_of_sound=seconds_of_sound)
    end, decoder = min(2, seconds_of_sound), AVDecoder(io.BytesIO(data))
    both = get_clips_uniform(decoder, 0.5, 3, request_video=True, request_audio=True)
    assert [begin for begin, _ in both.video_timestamps] == pytest.approx(
        [0, (end - 0.5) / 2, end - 0.5], abs=0.1
    )
    assert both.audio_timestamps[-1] == pytest.approx((end - 0.5, end), abs=0.02)
    assert len({clip.shape for clip in both.audio_clips}) == 1
    alone = get_clips_uniform(decoder, 0.5, 3, request_audio=True)
    assert alone.audio_timestamps[-1][1] == pytest.approx(seconds_of_sound, abs=0.02)


def test_clips_of_no_length_are_single_frames(decoder):
    data = get_clips_uniform(decoder, 0, 5, request_video=True)
    assert [len(clip) for clip in data.video_clips] == [1] * 5
    assert (data.video_timestamps[0][0], data.video_timestamps[-1][0]) == (0.0, 1.9)


@pytest.mark.parametrize("num_frames", [1, 2, 3, 5, FRAMES])
def test_single_frames_are_at_equal_distances(decoder, num_frames):
    frames, times = get_single_frames_uniform(decoder, num_frames, return_timestamps=True)
    wanted = FRAMES_AT.get(num_frames, [number / 10 for number in range(FRAMES)])
    assert times == pytest.approx(wanted)
    assert frames.shape == (num_frames, 3, 16, 32)
    small = get_single_frames_uniform(decoder, num_frames, video_out_frame_size=(8, 4))
    assert small.shape == (num_frames, 3, 4, 8)


def test_what_a_file_has_not_cannot_be_asked_for(decoder):
    with pytest.raises(ValueError, match="pass request_video=True, request_audio=True"):
        get_clips_uniform(decoder, 1, 2)
    with pytest.raises(ValueError, match=r"clips of 5 s were requested, but the file has 2\.0 s"):
        get_clips_uniform(decoder, 5, 2, request_video=True)
    with pytest.raises(ValueError, match="21 frames were requested, but the file has 20"):
        get_single_frames_uniform(decoder, 21)
    silent = AVDecoder(io.BytesIO(video(with_sound=False)))
    with pytest.raises(ValueError, match="the file has no audio"):
        get_clips_uniform(silent, 1, 2, request_video=True, request_audio=True)
    sound = AVDecoder(io.BytesIO(wav()))
    assert get_clips_uniform(sound, 0.5, 2, request_audio=True).video_clips == []
    assert isinstance(sound.get_metadata(), AVMetadata)
