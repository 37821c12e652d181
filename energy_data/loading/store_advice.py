"""What to change of a run that would wait for an object store."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, inf

from energy_data.loading.simulation import LeafLoad, SimulatedRun, Simulation
from energy_data.remote.fetcher import REQUESTS

_NEGLIGIBLE = 0.02  # the part of the time below which ranks do not wait
_FULL = 0.9  # the part of what a link or a fetcher can do above which it is the limit
_SPARE = 1.25  # times what is needed that is advised


def advice(run: SimulatedRun, found: Simulation, most: int) -> Iterator[str]:
    """Yield what to change, in sentences.

    most: the `max_samples_per_sequence` of the run.
    """
    if found.refused is not None:
        yield (
            f"The run stops after {found.batches:,} micro-batches: the cache may hold "
            f"{run.cache:,} bytes. Give it {found.window_bytes:,} bytes at least, and "
            f"{found.ahead_bytes:,} to read ahead."
        )
        return
    if found.batches > found.start_batches:
        yield from _waits(run, found, most)
    for leaf in found.leaves:
        if not leaf.is_ahead:
            yield (
                f"Leaf {leaf.id} is not read ahead: its format, a join or a filter does not say "
                f"where its samples are. Each of its reads waits, which is not counted here."
            )
    whole = sum(leaf.epoch_bytes for leaf in found.leaves)
    if run.cache < found.ahead_bytes:
        yield f"The cache is too small to read ahead. Give it {found.ahead_bytes:,} bytes."
    elif run.cache < whole:
        yield (
            f"The cache does not keep an epoch, so each epoch is fetched again. With {whole:,} "
            f"bytes it would not be."
        )


def _waits(run: SimulatedRun, found: Simulation, most: int) -> Iterator[str]:
    """Yield why ranks wait after the start, and what helps."""
    most_rate = found.most_batches_per_second(run.link)
    rate = 1 / run.batch_seconds if run.batch_seconds else most_rate
    waits = max(found.wait_share, 1 - most_rate / rate) if run.batch_seconds else 1.0
    if rate == inf:
        yield "The store feeds any rate in a long run, as nothing is fetched then."
        return
    if run.batch_seconds:
        yield f"In a long run, ranks wait {waits:.1%} of their time."
    else:
        yield f"The store feeds {rate:,.1f} micro-batches of each rank per second in a long run."
    if waits < _NEGLIGIBLE:
        return
    slowest = max(found.leaves, key=lambda leaf: (leaf.wait_s, leaf.requests))
    latency, bandwidth = run.link.latency, run.link.bandwidth
    bytes_per_s, requests_per_s = found.bytes_per_batch * rate, found.requests_per_batch * rate
    most_requests = REQUESTS / latency if latency else inf
    if bytes_per_s > _FULL * bandwidth:
        ranks = int(_FULL * bandwidth / bytes_per_s * run.ranks_per_node)
        fewer = f", use at most {ranks} ranks per node" if ranks and run.batch_seconds else ""
        yield (
            f"The bandwidth is the limit: a node needs {bytes_per_s / 1e6:,.2f} MB/s and has "
            f"{bandwidth / 1e6:,.2f}. Give it {_SPARE * bytes_per_s / 1e6:,.2f} MB/s{fewer}, or "
            f"make samples smaller. Leaf {slowest.id} waits most."
        )
    elif requests_per_s > _FULL * most_requests:
        times = _SPARE * requests_per_s / most_requests
        yield (
            f"The latency is the limit: a node needs {requests_per_s:,.0f} requests/s, and "
            f"{REQUESTS} at a time of {1000 * latency:,.0f} ms are {most_requests:,.0f}. "
            f"{_longer(slowest, most, times)}"
        )
    else:
        yield (
            f"Single requests are too late, although the store could answer more: lanes look too "
            f"few samples ahead for this latency. Raise shuffle_buffer_size. "
            f"{_longer(slowest, most, 2)}"
        )


def _longer(leaf: LeafLoad, most: int, times: float) -> str:
    """Return what makes the requests of a leaf so many times longer."""
    if leaf.in_runs:
        return f"Write leaf {leaf.id}, which waits most, in groups of {times:.1f} times the rows."
    length = f"from {most} to {ceil(most * times)}" if most else "above 0"
    return f"Raise max_samples_per_sequence {length}. Leaf {leaf.id} waits most."
