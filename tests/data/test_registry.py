"""Which format a dataset has: by names, by content, and by packages that add formats."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tars import sample_files, write_tar

from energy_data.data import registry
from energy_data.data.registry import format_of, open_source
from energy_data.errors import MissingExtraError, SpecError

PACKAGE = """
from energy_data.data.registry import SourceFormat
from energy_data.testing import NumberSource

FORMAT = SourceFormat(
    ".numbers", lambda path, options: NumberSource(7), detect=lambda path: path.startswith("n://")
)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a package with a module and an entry point."""
    registry.installed_formats.cache_clear()

    def install(text, entry="FORMAT"):
        site = tmp_path / "site"
        facts = site / "numbers_format-1.0.dist-info"
        facts.mkdir(parents=True)
        (facts / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: numbers_format\nVersion: 1.0\n"
        )
        (facts / "entry_points.txt").write_text(
            f"[energy_data.sources]\nnumbers = numbers_format:{entry}\n"
        )
        (site / "numbers_format.py").write_text(text)
        monkeypatch.syspath_prepend(site)

    yield install
    sys.modules.pop("numbers_format", None)
    registry.installed_formats.cache_clear()


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".arrow", ".tar"])
def test_a_file_of_another_name_is_recognised_by_its_first_bytes(tmp_path, suffix):
    path = tmp_path / "data"
    table = pa.table({"n": range(3)})
    if suffix == ".jsonl":
        path.write_text('{"n": 1}\n')
    elif suffix == ".parquet":
        pq.write_table(table, path)
    elif suffix == ".arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    else:
        write_tar(path, sample_files(1))
    assert format_of(path).suffix == suffix
    assert format_of(f"{tmp_path}/da*").suffix == suffix
    assert len(open_source(path).read(np.array([0]))) == 1


def test_a_file_of_no_format_is_an_error_that_lists_the_known_ones(tmp_path):
    (tmp_path / "x.zip").write_bytes(b"PK34PK345")
    known = r"\.jsonl, .*\.bin, (?!.*\.bin).*\.parquet, \.arrow or \.tar"
    for path in ("x.zip", "x.*"):
        with pytest.raises(SpecError, match=rf"end with {known}, and it begins with b'PK34PK34'"):
            open_source(tmp_path / path)
    with pytest.raises(SpecError, match=rf"there are no {known} files in it"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("gone", "no such file or folder. Check"),
        ("corpus", r"no such file or folder. Did you mean .*corpus\.bin\?"),
        ("x*", "no file fits"),
        ("ftp://x/y", "no format fits"),
    ],
)
def test_a_path_to_nothing_is_an_error(tmp_path, monkeypatch, path, problem):
    monkeypatch.chdir(tmp_path)
    Path("corpus.bin").touch()
    with pytest.raises(SpecError, match=problem):
        open_source(path)


def test_a_format_whose_extra_is_not_installed_says_which(tmp_path, monkeypatch):
    pq.write_table(pa.table({"n": range(3)}), tmp_path / "x.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'energy_data\[parquet\]'"):
        open_source(tmp_path / "x.parquet")


@pytest.mark.parametrize("path", ["x.numbers", "n://x"])
def test_a_package_adds_a_format(tmp_path, monkeypatch, install, path):
    monkeypatch.chdir(tmp_path)
    install(PACKAGE)
    (tmp_path / "x.numbers").touch()
    assert len(open_source(path)) == 7
    with pytest.raises(SpecError, match=r"or \.numbers"):
        format_of("s3://x")


def test_packages_are_imported_only_where_no_format_of_ours_fits(tmp_path, install):
    install("raise RuntimeError('half installed')")
    (tmp_path / "x.jsonl").write_text(json.dumps({"n": 1}))
    assert len(open_source(tmp_path / "x.jsonl")) == 1
    with pytest.raises(SpecError, match="no such file"):
        open_source(tmp_path / "gone")
    (tmp_path / "x.numbers").touch()
    with pytest.raises(SpecError, match=r"entry point 'numbers'.*half installed"):
        open_source(tmp_path / "x.numbers")


def test_an_entry_point_that_is_no_format_is_an_error(tmp_path, install):
    install("FORMAT = open")
    (tmp_path / "x.numbers").touch()
    with pytest.raises(SpecError, match="numbers_format:FORMAT must be a SourceFormat, found"):
        open_source(tmp_path / "x.numbers")


def test_a_folder_may_be_detected_by_a_file_in_it(tmp_path, monkeypatch):
    ours = registry.FORMATS[0]._replace(
        suffix=".ours", shards=None, detect=lambda path: path == str(tmp_path)
    )
    monkeypatch.setattr(registry, "FORMATS", [*registry.FORMATS, ours])
    write_tar(tmp_path / "x.tar", sample_files(1))
    assert format_of(tmp_path) is ours
