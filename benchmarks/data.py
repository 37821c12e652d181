"""Makes the data of the cases, once: python -m benchmarks.data FOLDER CASE..."""

import argparse
import io
import json
import shutil
import tarfile
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks import mds
from benchmarks.case import Case, find_case

VERSION = 2  # raise it when the data of any case changes: they are made anew


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("cases", nargs="+")
    asked = parser.parse_args()
    for name in asked.cases:
        make(find_case(name), asked.folder / name)


def make(case: Case, folder: Path) -> None:
    """Make the data of one case, unless all of it is there."""
    facts = [VERSION, case.part, case.num_samples, case.samples_per_shard, case.weights]
    told = json.dumps(facts)
    done = folder / "done.json"
    if done.is_file() and done.read_text() == told:
        return
    print(f"making {folder} ...", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    if case.write_files is not None:
        case.write_files(case.files(folder))
        done.write_text(told)
        return
    each = case.num_samples // len(case.weights)
    folders = zip(case.tars(folder), case.litdata(folder), case.mds(folder), strict=True)
    for i, (tars, chunks, shards) in enumerate(folders):
        numbers = range(i * each, (i + 1) * each)
        write_tars(case, numbers, tars)
        with redirect_stdout(io.StringIO()):
            prepare_for_energon(tars)
            write_litdata(case, numbers, chunks)
        mds.write(shards, ((case.key(number), case.write(number)) for number in numbers))
    write_metadataset(case, folder)
    done.write_text(told)


def write_tars(case: Case, numbers: range, folder: Path) -> None:
    """Write samples as tar shards, one file per sample."""
    folder.mkdir(parents=True)
    for start in range(0, len(numbers), case.samples_per_shard):
        shard = folder / f"shard-{start // case.samples_per_shard:04d}.tar"
        with tarfile.open(shard, "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in numbers[start : start + case.samples_per_shard]:
                raw = case.write(number)
                entry = tarfile.TarInfo(f"{case.key(number)}.{case.part}")
                entry.size = len(raw)
                tar.addfile(entry, io.BytesIO(raw))


def prepare_for_energon(folder: Path) -> None:
    """Run `energon prepare`; what it writes is ours to read as well."""
    from megatron.energon.tools.prepare import command

    options = ["--non-interactive", "--no-progress", "--num-workers=1", "--split-ratio=1,0,0"]
    command.main([str(folder), *options, "--sample-type=CrudeWebdataset"], standalone_mode=False)


def write_litdata(case: Case, numbers: range, folder: Path) -> None:
    """Write samples as litdata's chunks."""
    import litdata

    litdata.optimize(
        partial(litdata_sample, case.name),
        inputs=list(numbers),
        output_dir=str(folder),
        chunk_bytes="64MB",
        num_workers=1,
        start_method="fork",
        verbose=False,
    )


def litdata_sample(name: str, number: int) -> Any:
    """Return a sample as litdata keeps it: already decoded if that saves work, with its key."""
    case = find_case(name)
    if case.decode_by_user:
        return {"keys": case.key(number), "values": case.write(number)}
    value = case.decode(case.write(number))
    return {"keys": case.key(number), "values": value} if isinstance(value, str) else value


def write_metadataset(case: Case, folder: Path) -> None:
    """Write the YAML that blends the datasets of a case, if there are several."""
    if len(case.weights) == 1:
        return
    parts = [
        {"weight": weight, "path": str(tars.relative_to(folder))}
        for weight, tars in zip(case.weights, case.tars(folder), strict=True)
    ]
    kind = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    tree = {**kind, "splits": {"train": {"blend": parts}}}
    case.metadataset(folder).write_text(yaml.safe_dump(tree, sort_keys=False))


if __name__ == "__main__":
    main()
