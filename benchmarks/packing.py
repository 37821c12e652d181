"""Packs as users write them: the documents of a batch, sorted, each into the first pack it fits."""

from typing import Any

import numpy as np
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
    """Return packs as batches for packed attention: what our `Joined` returns.

    `values` and `position_ids` are int64 [packs, limit], `cu_seqlens` has an int32 tensor per pack.
    `count` is the number of tokens.
    """
    values, positions = torch.zeros(2, len(packs), limit, dtype=torch.int64)
    starts, count = [], 0
    for row, places, documents in zip(values, positions, packs, strict=True):
        lengths = [len(document) for document in documents]
        ends = np.cumsum([0, *lengths], dtype=np.int32)
        total = int(ends[-1])
        row[:total] = torch.cat(documents)
        places[:total] = torch.cat([torch.arange(length) for length in lengths])
        starts.append(torch.from_numpy(ends))
        count += total
    return {"values": values, "position_ids": positions, "cu_seqlens": starts, "count": count}
