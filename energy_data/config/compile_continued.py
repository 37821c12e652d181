"""Compiling `staged`: datasets that would begin anew in a stage, though nobody has said so."""

from __future__ import annotations

from energy_data.config.diagnostics import Diagnostics
from energy_data.config.twigs import Branch, Twig, twigs

KEY = "shuffle_over_epochs_multiplier"


class Continued:
    """The datasets that go on from stage to stage, as far as they are compiled.

    How many epochs are shuffled together is part of an id that is not given. So a dataset that is
    shuffled otherwise in a later stage is another leaf there, and would begin anew in silence.
    """

    def __init__(self, faults: Diagnostics) -> None:
        self._faults = faults
        self._known: list[tuple[str, Twig]] = []  # stage and leaf

    def see(self, stage: str, tree: Branch | Twig) -> None:
        """Note the leaves of a stage that go on, and what is wrong with them."""
        ids = {leaf.id for _, leaf in self._known}
        leaves = list(twigs(tree))
        for leaf in leaves:
            if leaf.id not in ids:
                self._check(leaf)
        self._known += [(stage, leaf) for leaf in leaves]

    def _check(self, leaf: Twig) -> None:
        for stage, other in self._known:
            both_named = leaf.definition.id is not None and other.definition.id is not None
            apart = leaf.independent or other.independent or both_named
            if apart or other.data[:2] != leaf.data[:2] or other.epochs == leaf.epochs:
                continue
            said = leaf.definition
            self._faults.report(
                said.places.get(KEY, said.places[leaf.kind]),
                said.where,
                f"{leaf.written}: its {KEY} is {_shown(leaf)} here, and {_shown(other)} in stage "
                f"{stage!r} at {other.definition.place}: it could not go on, but would "
                "begin anew. Make them equal; or give it an `id:` in both, or write "
                "`on_enter: restart`, if it shall.",
            )
            return


def _shown(leaf: Twig) -> str:
    return "null" if leaf.epochs is None else str(leaf.epochs)
