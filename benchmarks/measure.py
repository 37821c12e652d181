"""Measures one loader on one case in this process, and prints one line of JSON."""

import argparse
import json
import os
import resource
import signal
import time
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from benchmarks.case import find_case

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
WARM_UP_SAMPLES = 2_048  # enough to start workers and to fill every shuffle buffer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", required=True)
    parser.add_argument("--loader", required=True, help="a file of loaders/, without its ending")
    parser.add_argument("--folder", required=True, type=Path, help="of the data of all cases")
    parser.add_argument("--samples", type=int, help="default: as the case says")
    parser.add_argument("--num-workers", type=int, default=0)
    asked = parser.parse_args()
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

    case = find_case(asked.case)
    if asked.loader not in case.loaders:
        print("null")
        return
    batches = import_module(f"benchmarks.loaders.{asked.loader}").batches
    stream = batches(case, asked.folder / case.name, case.batch_size, asked.num_workers)
    read_all(asked.folder / case.name)
    for _ in range(-(-WARM_UP_SAMPLES // case.batch_size)):
        case.check(next(stream))

    num_batches = -(-(asked.samples or case.num_samples) // case.batch_size)
    disk_mb, cpu_s, wall_s = -read_mb(), -cpu_seconds(), -time.perf_counter()
    for _ in range(num_batches):
        batch = next(stream)
    cpu_s, wall_s = cpu_s + cpu_seconds(), wall_s + time.perf_counter()

    disk_mb, pss_mb, num_processes = disk_mb + read_mb(), memory_mb(), len(list(descendants()))
    case.check(batch)
    per_100k = 100_000 / (num_batches * case.batch_size)
    measured = {
        "case": case.name,
        "loader": asked.loader,
        "num_workers": asked.num_workers,
        "samples": num_batches * case.batch_size,
        "cpu_s_per_100k": round(cpu_s * per_100k, 4),
        "wall_s_per_100k": round(wall_s * per_100k, 4),
        "pss_mb": round(pss_mb, 1),
        "disk_mb": round(disk_mb, 1),
        "num_processes": num_processes,
        "must": case.must.get(asked.num_workers),
        "others": case.others.get(asked.num_workers, {}),
    }
    print(json.dumps(measured), flush=True)
    leave()


def read_all(folder: Path) -> None:
    """Read all files of a case into the page cache, which some systems let go within seconds."""
    room = bytearray(1 << 20)
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(room):
                    pass


def leave() -> None:
    """End this process and its workers at once: all is measured, and some loaders wait long.

    Python's resource tracker ends by itself, once it has unlinked what they had in shared memory.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises when a worker is killed
    for pid, _ in list(descendants())[1:]:
        if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
        for file in Path("/dev/shm").glob(f"torch_{pid}_*"):
            file.unlink(missing_ok=True)
    os._exit(0)


def cpu_seconds() -> float:
    """Return the CPU time of this process, of its ended children and of its living ones."""
    ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    living = (sum(map(int, fields[11:15])) for pid, fields in descendants() if pid != os.getpid())
    return sum(usage.ru_utime + usage.ru_stime for usage in ended) + sum(living) / TICKS_PER_S


def read_mb() -> float:
    """Return what these processes had to read from disk: nothing, if the page cache is warm."""
    texts = [Path(f"/proc/{pid}/io").read_text() for pid, _ in descendants()]
    return sum(int(text.partition("\nread_bytes:")[2].split()[0]) for text in texts) / 1e6


def memory_mb() -> float:
    """Return the PSS of this process and its descendants: shared pages count once."""
    total_kb = 0
    for pid, _ in descendants():
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total_kb += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total_kb / 1024


def descendants() -> Iterator[tuple[int, list[str]]]:
    """Give (pid, the fields of /proc/PID/stat after the name) of this process and those below."""
    table = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                table[int(folder.name)] = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
    wanted = [os.getpid()]
    for pid in wanted:
        yield pid, table[pid]
        wanted += [child for child, fields in table.items() if int(fields[1]) == pid]


if __name__ == "__main__":
    main()
