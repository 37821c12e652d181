from __future__ import annotations

import tarfile

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from energy_data.data.tar.header import BLOCK, Fault, split_name, walk

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=120)
SIZES = st.one_of(st.integers(0, 3000), st.integers(0, 1 << 40))
KINDS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def headers(name, size, kind, mtime=0):
    member = tarfile.TarInfo(name)
    member.size, member.mtime = size, mtime
    return member.tobuf(kind, "utf-8", "surrogateescape")


@settings(max_examples=300, deadline=None)
@given(NAMES, SIZES, st.sampled_from(KINDS))
@example("n" * 95 + ".json", 5, tarfile.USTAR_FORMAT)  # fills its field: nothing ends it
@example("n" * 50 + "/" + "n" * 60 + ".json", 5, tarfile.USTAR_FORMAT)
@example("__/" + "n" * 100, 5, tarfile.USTAR_FORMAT)
def test_parsing_agrees_with_tarfile(name, size, kind):
    try:
        data = headers(name, size, kind)
    except (ValueError, tarfile.HeaderError):
        return
    payload = -(-size // BLOCK) * BLOCK
    members = walk(lambda at, length: data[at : at + length], 0, len(data) + payload)
    [member] = members
    said = (member.name.rstrip("/"), member.size, member.data)
    assert said == (name.rstrip("/"), size, len(data))


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=BLOCK, max_size=BLOCK), st.integers(0, 511), st.integers(1, 255))
def test_no_changed_or_random_header_passes(noise, place, change):
    good = bytearray(headers("a.txt", 5, tarfile.USTAR_FORMAT))
    good[place] ^= change
    # A byte of the checksum's own field may become a space or NUL that means the same.
    changed = [] if 148 <= place < 156 else [bytes(good)]
    for data in (*changed, noise):
        with pytest.raises(Fault):
            list(walk(lambda at, length, data=data: data[at : at + length], 0, BLOCK))


def test_signed_checksums_of_old_tars():
    data = bytearray(headers("grüße.txt", 0, tarfile.USTAR_FORMAT))
    signed = np.frombuffer(data, np.int8).astype(np.int64)
    total = int(signed.sum() - signed[148:156].sum() + 256)
    data[148:156] = b"%06o\0 " % total
    [member] = walk(lambda at, length: bytes(data[at : at + length]), 0, BLOCK)
    assert member.name == "grüße.txt"


@pytest.mark.parametrize(
    "body",
    [b"x", b"5 a=b", b"99 path=a\n", b"0 path=a\n", b"-9 path=a\n", b"9 path=a", b"8 patha\n"],
)
def test_damaged_pax_records(body):
    member = tarfile.TarInfo("a")
    member.type, member.size = tarfile.XHDTYPE, len(body)
    data = member.tobuf(tarfile.USTAR_FORMAT) + body.ljust(BLOCK, b"\0")
    data += headers("a.txt", 0, tarfile.USTAR_FORMAT)
    with pytest.raises(Fault, match="pax record"):
        list(walk(lambda at, length: data[at : at + length], 0, len(data)))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.txt", ("a", "txt")),
        ("d/a.seg.png", ("d/a", "seg.png")),
        ("d.x/a.txt", ("d.x/a", "txt")),
        ("./a.txt", ("./a", "txt")),
        ("a.", ("a", "")),
        ("a", None),
        (".a", None),
        ("d.x/a", None),
        ("d/.a", ("d/", "a")),
        ("d.x/.a", None),
        ("__a__", None),
        ("__a__/b.txt", None),
        ("__a__.txt", ("__a__", "txt")),
        ("__MACOSX/._a.txt", ("__MACOSX/", "_a.txt")),
    ],
)
def test_names_are_split_as_by_energon(name, parts):
    assert split_name(name) == parts
