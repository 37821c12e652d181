"""`storage`: how stores are reached, by prefixes of URLs. It has no credentials, only names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import evolve, field, frozen

from energy_data.config.yaml_nodes import Diagnostics, Place, Value
from energy_data.core.recipe import (
    FLAG,
    InvalidValueError,
    Rule,
    ValueProblem,
    did_you_mean,
    listed,
    matching,
)
from energy_data.remote.mirror_paths import without_secrets

_OPTIONS: Mapping[str, Mapping[str, Rule]] = {
    "s3": {
        "endpoint": matching(
            re.compile(r"^https?://[^\s/?#@]+(/[^\s?#@]*)?$"),
            "the URL of a server, without credentials",
        ),
        "region": matching(re.compile(r"^[a-z0-9-]{1,32}$"), "the name of a region"),
        "profile": matching(
            # Neither an access key nor a secret one that was put here by mistake.
            re.compile(
                r"^(?!A[KS]IA[A-Z0-9]{12,}$)(?![A-Za-z0-9/+=]{40,}$)[A-Za-z0-9_.@ /+-]{1,64}$"
            ),
            "the name of a profile in ~/.aws/config or ~/.aws/credentials",
        ),
        "anonymous": FLAG,
    },
    "gs": {"anonymous": FLAG},
    "az": {
        "account": matching(re.compile(r"^[a-z0-9]{3,24}$"), "the name of a storage account"),
        "anonymous": FLAG,
    },
}
"""The options of each scheme."""

_PREFIX = r"://[^\s/?#@*{\[]+(/[^\s/?#@*{\[]+)*"
_CREDENTIAL = re.compile("key|secret|token|passw|credential|signature|sas|auth", re.IGNORECASE)
_EXAMPLE = "Write it like `s3://bucket: {endpoint: http://minio:9000}`."


def _checked(found: Any) -> Any:
    if problems := list(_problems(found)):
        raise InvalidValueError(problems)
    return found


def _problems(found: Any) -> Iterator[ValueProblem]:
    """Yield what is wrong. No value is shown, as it may be a credential."""
    if not isinstance(found, dict):
        yield ValueProblem((), f"must be a mapping of prefixes of URLs to options. {_EXAMPLE}")
        return
    for prefix, options in found.items():
        scheme = prefix.partition("://")[0]
        if scheme not in _OPTIONS or not re.fullmatch(scheme + _PREFIX, prefix):
            stores = listed(f"{one}://" for one in _OPTIONS)
            problem = f"{without_secrets(prefix)!r} is no bucket or folder of {stores}. {_EXAMPLE}"
            yield ValueProblem((prefix,), problem, at_key=True)
        elif not isinstance(options, dict):
            yield ValueProblem((prefix,), f"must be a mapping of options. {_EXAMPLE}")
        else:
            for one in _problems_of(options, _OPTIONS[scheme]):
                yield evolve(one, path=(prefix, *one.path))


def _problems_of(options: Mapping[str, Any], known: Mapping[str, Rule]) -> Iterator[ValueProblem]:
    for name, value in options.items():
        if name in known:
            try:
                known[name].accept(value)
            except ValueError:
                yield ValueProblem((name,), f"must be {known[name].must_be}.")
            continue
        problem = f"unknown option '{name}', known here: {listed(known)}."
        if near := did_you_mean(name, known):
            problem = f"unknown option '{name}'. Did you mean '{near}'?"
        elif _CREDENTIAL.search(name):
            problem = (
                f"'{name}' is a credential, and a metadataset has none. Set it in the environment, "
                "or write it into a profile of ~/.aws/credentials and name that by `profile`. "
                "Change it, if others have seen this file."
            )
        yield ValueProblem((name,), problem, at_key=True)
    if options.get("anonymous") is True and "profile" in options:
        yield ValueProblem(("profile",), "requests are anonymous, or of a profile. Keep one.")


STORAGE = Rule(
    "a mapping of prefixes of URLs to options",
    {
        "type": "object",
        "patternProperties": {
            f"^{scheme}{_PREFIX}$": {
                "type": "object",
                "properties": {name: rule.schema for name, rule in options.items()},
                "additionalProperties": False,
                "not": {
                    "properties": {"anonymous": {"const": True}},
                    "required": ["anonymous", "profile"],
                },
            }
            for scheme, options in _OPTIONS.items()
        },
        "additionalProperties": False,
    },
    _checked,
)


@frozen(eq=False)
class StorageTable:
    """The options in all files of a metadataset: a URL has those of its longest prefix."""

    _diagnostics: Diagnostics
    _known: dict[str, tuple[Mapping[str, Any], Place]] = field(factory=dict)
    _used: list[tuple[str, Mapping[str, Any], Place, str]] = field(factory=list)

    def add(self, file: Value) -> None:
        """Add the options in a file. A prefix with others than in another file is reported."""
        found = file.data.get("storage") if isinstance(file.data, dict) else None
        if found is None or list(_problems(found.plain())):
            return  # it has none, or the grammar reports what is wrong
        for prefix, each in found.plain().items():
            options = {name: value for name, value in each.items() if value is not False}
            place = found.keys[prefix]
            known, first = self._known.setdefault(prefix, (options, place))
            if known != options:
                problem = f"{prefix} has other options at {first}, found {options} and {known}."
                advice = "Make them the same, or name a longer prefix."
                self._diagnostics.report(place, "storage", f"{problem} {advice}")

    def of(self, url: str) -> Mapping[str, Any]:
        """Return the options for a URL; none for other paths."""
        plain = re.sub("(?<!:)/+", "/", url) + "/"
        prefixes = [prefix for prefix in self._known if plain.startswith(f"{prefix}/")]
        return self._known[max(prefixes, key=len)][0] if prefixes else {}

    def to_read(self, url: str, place: Place, where: str) -> Mapping[str, Any]:
        """Return the options that a nested file is read with, where it is named."""
        self._used.append((url, self.of(url), place, where))
        return self._used[-1][1]

    def check_files(self) -> None:
        """Report nested files that were read before a file named their store's options."""
        for url, used, place, where in self._used:
            if used != self.of(url):
                problem = f"{url} was read before a file below named options of its store."
                self._diagnostics.report(place, where, f"{problem} Write them into this file.")
