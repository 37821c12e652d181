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

from benchmarks.case import Batch, Case, find_case

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
WARM_UP_SAMPLES = 2_048  # enough to start workers and to fill every shuffle buffer
WARM_UP_BATCHES = 64
TRAINING_S = 1.0
WITHOUT_WORKERS = ("bare", "bare_tokens", "pyarrow_")


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
    if asked.loader not in case.loaders or (asked.num_workers and asked.loader in WITHOUT_WORKERS):
        print("null")
        return
    read_all(asked.folder / case.name)
    begin = time.perf_counter()
    batches = import_module(f"benchmarks.loaders.{asked.loader}").batches
    stream = batches(case, asked.folder / case.name, case.batch_size, asked.num_workers)
    first = next(stream)
    first_s = time.perf_counter() - begin
    case.check(first)
    warm_up = case.warm_up or min(WARM_UP_BATCHES * case.batch_size, WARM_UP_SAMPLES)
    for _ in range(-(-warm_up // case.batch_size)):
        case.check(next(stream))

    samples = asked.samples or case.num_samples - (case.warm_up or 0)
    measured = {
        "case": case.name,
        "loader": asked.loader,
        "num_workers": asked.num_workers,
        **throughput(case, stream, -(-samples // case.batch_size)),
        "wait_ms": waiting(stream, case.step_ms / 1000),
        "first_s": first_s,
        "pss_mb": memory_mb(),
        "num_processes": len(list(descendants())),
        "must": case.must.get(asked.loader),
    }
    case.check(next(stream))
    print(json.dumps(measured), flush=True)
    leave()


def throughput(case: Case, stream: Iterator[Batch], num_batches: int) -> dict[str, float]:
    """Return what it costs to take batches as fast as they come, per sample (1,000 tokens)."""
    count, disk_mb, all_s, own_s = 0, -read_mb(), -cpu_seconds(), -time.process_time()
    wall_s = -time.perf_counter()
    for _ in range(num_batches):
        count += case.count(next(stream))
    wall_s, own_s = wall_s + time.perf_counter(), own_s + time.process_time()
    per = 1e6 / count * (1000 if case.pack_length else 1)
    all_s, disk_mb = all_s + cpu_seconds(), disk_mb + read_mb()
    return {
        "batches": num_batches,
        "cpu_us": all_s * per,
        "trainer_us": own_s * per,
        "wall_us": wall_s * per,
        "disk_mb": disk_mb,
    }


def waiting(stream: Iterator[Batch], step_s: float) -> float:
    """Return how many milliseconds a trainer waits for a batch, beside a step of its own."""
    waited_s, steps = 0.0, max(10, round(TRAINING_S / step_s))
    for _ in range(steps):
        time.sleep(step_s)  # a step on a GPU, which needs no CPU
        begin = time.perf_counter()
        next(stream)
        waited_s += time.perf_counter() - begin
    return waited_s / steps * 1000


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
