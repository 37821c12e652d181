"""Errors of a metadataset: collected with their places and raised all together."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from energy_data.errors import SpecError

SHOWN_LENGTH = 60  # characters of a found value in a message


@frozen
class Place:
    """A place in a file."""

    file: str
    line: int = 0  # from 1; 0: not from a text
    column: int = 0  # from 1, in characters

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class Diagnostics:
    """The problems found so far; each is kept once."""

    def __init__(self) -> None:
        self._texts: dict[tuple[Place, str, str], str] = {}
        self._num_reports = 0

    def __len__(self) -> int:
        """Return the number of reports, including those of known problems."""
        return self._num_reports

    def report(self, place: Place, where: str, problem: str) -> None:
        """Add a problem.

        place: its place in the file. where: the key or node, empty for the file as a whole.
        problem: *what is wrong, what was found. What to do.* A value that is used twice through an
        alias is reported once.
        """
        self._num_reports += 1
        text = f"{place}: {where}: {problem}" if where else f"{place}: {problem}"
        # Without a line, only the key tells two places apart.
        self._texts.setdefault((place, "" if place.line else where, problem), text)

    def messages(self) -> list[str]:
        """Return one line per problem: files in the order they were read, from top to bottom."""
        files = {place.file: None for place, *_ in self._texts}
        rank = {file: number for number, file in enumerate(files)}
        ordered = sorted(
            ((rank[place.file], place.line, place.column), number, text)
            for number, ((place, *_), text) in enumerate(self._texts.items())
        )
        return [text for *_, text in ordered]

    def raise_if_any(self) -> None:
        """Raise a SpecError with all problems, if there are any."""
        if self._texts:
            raise SpecError(self.messages())


def slip_of(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` misspells by one missing, doubled or swapped letter.

    For keys that accept any name: `vla` is a slip of `val`, `valid` may be a name of its own.
    """
    for name in known:
        rest = [name[:n] + name[n + 1 :] for n in range(len(name))]
        doubled = [name[:n] + name[n] + name[n:] for n in range(len(name) - 1)]
        swapped = [name[:n] + name[n + 1] + name[n] + name[n + 2 :] for n in range(len(name) - 1)]
        if word != name and word.lower() in (name, *rest, *doubled, *swapped):
            return name
    return None


def shown(text: str) -> str:
    """Return `text` in quotes, on one line, shortened for a message."""
    return repr(text if len(text) <= SHOWN_LENGTH else text[: SHOWN_LENGTH - 3] + "...")
