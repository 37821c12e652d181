"""Audio and video: decoded as asked for, or handed over as bytes with an error that says how."""

import pickle
import sys

import numpy as np
import pytest
from media import FRAMES, SOUND_RATE, video, wav
from tars import write_tar

from energy_data.data.decode.av import AVDecoder
from energy_data.data.decode.parts import SampleDecoder
from energy_data.data.prepare import prepare
from energy_data.data.typed.wrap import open_typed
from energy_data.errors import MissingExtraError, SpecError

pytest.importorskip("av")


@pytest.fixture(scope="module")
def mkv():
    return SampleDecoder().decode("a.mkv", video(suffix="mkv"))


def levels(clip):
    """Return the number of each frame, by how bright it is."""
    return [round(float(frame.float().mean()) / 12) for frame in clip]


def test_all_frames_and_all_sound(mkv):
    data = mkv.get_video_with_audio()
    [clip], [sound] = data.video_clips, data.audio_clips
    assert (clip.shape, str(clip.dtype)) == ((FRAMES, 3, 16, 32), "torch.uint8")
    assert levels(clip) == list(range(FRAMES))
    assert sound.shape == (1, 2 * SOUND_RATE)
    assert np.array_equal(sound[0].numpy(), np.arange(2 * SOUND_RATE))
    assert data.video_timestamps == [(0.0, pytest.approx(2.0))]
    assert data.audio_timestamps == [(0.0, pytest.approx(2.0))]


@pytest.mark.parametrize(
    ("unit", "clip_range", "numbers"),
    [
        ("frames", (3, 5), [3, 4, 5]),
        ("frames", (7, 7), [7]),
        ("frames", (18, 30), [18, 19]),
        ("seconds", (0.3, 0.5), [3, 4, 5]),
        ("seconds", (0.75, 0.78), [7]),
        ("seconds", (1.85, 9), [18, 19]),
        ("seconds", (0, 0), [0]),
    ],
)
def test_clips_have_the_frames_of_their_range(mkv, unit, clip_range, numbers):
    [clip], [(begin, _)] = mkv.get_video_clips([clip_range], video_unit=unit)
    assert levels(clip) == numbers
    assert begin == pytest.approx(numbers[0] / 10, abs=0.002)


@pytest.mark.parametrize("suffix", ["mkv", "mp4", "mov"])
def test_ranges_beyond_the_end_give_no_clip(suffix):
    decoder = SampleDecoder().decode(f"a.{suffix}", video(suffix=suffix))
    beyond = [(float(begin), begin + 0.5) for begin in range(3, 70, 3)]
    shown, times = decoder.get_video_clips([(1.9, 1.9), (1.95, 5), *beyond])
    assert [levels(clip) for clip in shown] == [[19], [19]]
    assert times == [pytest.approx((1.9, 2.0), abs=0.002)] * 2
    assert decoder.get_audio_clips(beyond) == ([], [])


def test_clips_can_be_scaled(mkv):
    [clip], _ = mkv.get_video_clips([(0, 0)], video_out_frame_size=(8, 4))
    assert clip.shape == (1, 3, 4, 8)


@pytest.mark.parametrize(
    ("unit", "clip_range", "bounds"),
    [
        ("samples", (1234, 5678), (1234, 5678)),
        ("seconds", (0.5, 1.0), (4000, 8000)),
        ("samples", (15990, 99999), (15990, 16000)),
        ("samples", (0, 1), (0, 1)),
    ],
)
@pytest.mark.parametrize("kind", ["mkv", "wav"])
def test_clips_have_the_samples_of_their_range(mkv, kind, unit, clip_range, bounds):
    decoder = mkv if kind == "mkv" else SampleDecoder().decode("a.wav", wav())
    [clip], [times] = decoder.get_audio_clips([clip_range], audio_unit=unit)
    assert clip[0].tolist() == list(range(*bounds))
    assert times == pytest.approx((bounds[0] / SOUND_RATE, bounds[1] / SOUND_RATE))


def test_facts_of_a_file(mkv):
    said = mkv.get_metadata(get_audio_num_samples=True)
    assert (said.video_width, said.video_height, said.video_num_frames) == (32, 16, FRAMES)
    assert (said.audio_channels, said.audio_sample_rate) == (1, SOUND_RATE)
    assert said.audio_num_samples == 2 * SOUND_RATE
    assert mkv.get_video_fps() == pytest.approx(10)
    assert mkv.get_audio_samples_per_second() == SOUND_RATE
    mp4 = SampleDecoder().decode("a.mp4", video())
    assert mp4.get_video_duration(get_frame_count=True) == (pytest.approx(2.0), FRAMES)
    assert mp4.get_audio_duration() == pytest.approx(2.0, abs=0.2)


def test_a_decoder_pickles_with_its_file(mkv):
    [clip], _ = pickle.loads(pickle.dumps(mkv)).get_video_clips([(3, 3)], "frames")
    assert levels(clip) == [3]


def test_all_decoded_at_once_on_request():
    decoder = SampleDecoder(av_decode="torch", video_decode_audio=True)
    assert len(decoder.decode("a.wav", wav()).audio_clips) == 1
    both = decoder.decode("a.mp4", video())
    assert (len(both.video_clips), len(both.audio_clips)) == (1, 1)
    assert not SampleDecoder(av_decode="torch").decode("a.mp4", video()).audio_clips
    container = SampleDecoder(av_decode="pyav").decode("a.mp4", video())
    assert len(container.streams.video) == 1
    container.close()


def test_a_stream_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="it has no video stream"):
        SampleDecoder().decode("a.wav", wav()).get_video()


def test_without_the_extra_the_error_names_it_and_the_bytes_are_there(monkeypatch, tmp_path):
    data = wav()
    write_tar(tmp_path / "a.tar", [("a.wav", data)])
    prepare(tmp_path, workers=1)
    sample = open_typed(tmp_path).read(np.array([0]))[0]
    monkeypatch.setitem(sys.modules, "av", None)
    assert isinstance(sample["wav"], AVDecoder)
    with pytest.raises(MissingExtraError, match=r"decoding audio and video needs the extra 'av'"):
        sample["wav"].get_audio()
    assert sample["wav"].stream.getvalue() == data
    torch_mode = open_typed(tmp_path, decoder=SampleDecoder(av_decode="torch"))
    with pytest.raises(MissingExtraError):
        torch_mode.read(np.array([0]))


def test_content_is_told_by_its_first_bytes():
    guess = SampleDecoder(guess_content=True)
    assert isinstance(guess.decode("a.unknown", video()), AVDecoder)
    assert isinstance(guess.decode("noextension", wav()), AVDecoder)
    assert guess.decode("a.txt", b"text") == "text"
    assert SampleDecoder().decode("a.unknown", wav()) == wav()


@pytest.mark.parametrize("options", [{"av_decode": "AV"}, {"image_decode": "jpg"}])
def test_modes_that_are_not_there_are_refused(options):
    with pytest.raises(SpecError, match="there is no mode"):
        SampleDecoder(**options)
