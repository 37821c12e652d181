"""Packs as users write them: the documents of a batch, sorted, each into the first pack it fits."""

from typing import Any

import torch


def choose(lengths: list[int], limit: int) -> list[list[int]]:
    """Return the numbers of the documents of each pack."""
    packs: list[list[int]] = []
    rooms: list[int] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        length = lengths[number]
        place = next((i for i, room in enumerate(rooms) if room >= length), len(rooms))
        if place == len(rooms):
            packs.append([])
            rooms.append(limit)
        packs[place].append(number)
        rooms[place] -= length
    return packs


def join(packs: list[list[torch.Tensor]], limit: int) -> dict[str, Any]:
    """Return packs as one tensor [packs, limit], and how many tokens are in it."""
    values = torch.zeros(len(packs), limit, dtype=torch.int64)
    count = 0
    for row, documents in zip(values, packs, strict=True):
        tokens = torch.cat(documents)
        row[: len(tokens)] = tokens
        count += len(tokens)
    return {"values": values, "count": count}
