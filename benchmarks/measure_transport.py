"""Measures how one loader hands over one kind of batch, and prints one line of JSON."""

import argparse
import json
import time
from importlib import import_module

from benchmarks.measure import cpu_seconds, descendants, leave, memory_mb
from benchmarks.parcels import KINDS, check, expected, touch

WARM_UP_BATCHES = 12  # more than any loader has ahead
MIN_BATCHES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", required=True, choices=KINDS)
    parser.add_argument("--loader", required=True, help="a file of transports/, without its ending")
    parser.add_argument("--num-workers", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--touch", action="store_true", help="one byte of each page")
    asked = parser.parse_args()

    stream = import_module(f"benchmarks.transports.{asked.loader}").batches(
        asked.kind, asked.num_workers
    )
    wanted = expected(asked.kind)
    for _ in range(WARM_UP_BATCHES):
        batch = next(stream)
        check(batch, wanted)
    if len(list(descendants())) <= asked.num_workers:
        raise RuntimeError("no workers were started")

    count, touched = 0, 0
    all_s, own_s, begin = -cpu_seconds(), -time.process_time(), time.perf_counter()
    until = begin + asked.seconds
    while time.perf_counter() < until or count < MIN_BATCHES:
        batch = next(stream)
        if asked.touch:
            touched += touch(batch)
        count += 1
    wall_s = time.perf_counter() - begin
    own_s, all_s = own_s + time.process_time(), all_s + cpu_seconds()
    check(batch, wanted)

    measured = {
        "kind": asked.kind,
        "loader": asked.loader,
        "num_workers": asked.num_workers,
        "touched": asked.touch,
        "batches": count,
        "wall_ms": wall_s / count * 1000,
        "gb_per_s": KINDS[asked.kind].num_bytes * count / wall_s / 1e9,
        "own_cpu_ms": own_s / count * 1000,
        "cpu_ms": all_s / count * 1000,
        "pss_mb": memory_mb(),
    }
    print(json.dumps(measured), flush=True)
    leave()


if __name__ == "__main__":
    main()
