"""Measures one loader that reads from a store in this process, and prints one line of JSON.

The first run takes an epoch, and leaves its state of the middle at `--state`. Another, with
`--resume`, starts from this state, as on another machine: with an empty cache. Another, with
`--step-s`, takes an epoch as a trainer does that is busy with each batch for so long.
"""

import argparse
import json
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from benchmarks.case import find_case
from benchmarks.measure import cpu_seconds, leave


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", required=True)
    parser.add_argument("--loader", required=True, help="a file of remotes/, without its ending")
    parser.add_argument("--url", required=True, help="of the dataset")
    parser.add_argument("--cache", required=True, type=Path, help="an empty folder")
    parser.add_argument("--state", required=True, type=Path, help="a file")
    parser.add_argument("--num-workers", type=int, required=True)
    parser.add_argument("--neighbours", type=int, default=100, help="that ours reads together")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--step-s", type=float, default=0.0)
    asked = parser.parse_args()
    case = replace(find_case(asked.case), neighbours=asked.neighbours)

    begin, cpu_s = time.perf_counter(), -cpu_seconds()
    module = import_module(f"benchmarks.remotes.{asked.loader}")
    loader = module.open_loader(case, asked.url, asked.cache, asked.num_workers)
    if asked.resume:
        loader.load_state_dict(json.loads(asked.state.read_text()))
    stream = iter(loader)
    next(stream)
    told = {"first_s": time.perf_counter() - begin}
    if not asked.resume:
        num_batches = case.num_samples // case.batch_size
        wait_s = 0.0
        for number in range(
            1, num_batches - 2 * asked.num_workers
        ):  # what is ahead is not measured
            time.sleep(asked.step_s)
            waited = -time.perf_counter()
            next(stream)
            wait_s += waited + time.perf_counter()
            if number == num_batches // 2:
                asked.state.write_text(json.dumps(loader.state_dict()))
        wall_s = time.perf_counter() - begin
        told["batch_s"] = (wall_s - told["first_s"]) / number
        told["wait"] = wait_s / (wall_s - told["first_s"])
        sample_mb = sum(len(case.write(number)) for number in range(32)) / 32e6
        told["mb_per_s"] = number * case.batch_size * sample_mb / wall_s
        told["cpu_s"] = cpu_s + cpu_seconds()
    print(json.dumps(told), flush=True)
    leave()


if __name__ == "__main__":
    main()
