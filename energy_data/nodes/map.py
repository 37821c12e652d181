"""Map: a function of each item."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.profiler import MAPPING
from energy_data.core.user_call import UserCall
from energy_data.nodes.unary import CallNode, UnarySpec


@frozen(kw_only=True)
class MapSpec(UnarySpec):
    """Return `function(item)`. If it raises `SkipSample`, skip the item."""

    kind = "map"
    is_one_to_one = True

    function: Callable[[Any], Any]

    def build(self, context: Context) -> MapNode:
        return MapNode(self, context)


class MapNode(CallNode):
    leaves_out = (("skipped", "SkipSample in map functions"),)

    def __init__(self, spec: MapSpec, context: Context) -> None:
        super().__init__(spec, context, UserCall(spec.function, context, "mapping", MAPPING))
