"""Text as tokens, by a tokenizer of the library `tokenizers`.

tokenize = Tokenize("tokenizer.json", field="json.text", add_eos="</s>")
tokenize({"json": {"text": "Hello"}})  # -> {"tokens": int64 tensor [n]}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
from attrs import field, frozen

from energy_data.core.lazy import cached_property
from energy_data.core.sample import place_of, sample_field
from energy_data.errors import MissingExtraError, SampleError, SpecError

_FILE = "tokenizer.json"
_SHOWN = 20  # fields of a sample that an error names


def _absolute(path: str | Path) -> str:
    return str(Path(path).absolute())


@frozen(slots=False)
class Tokenizing(ABC):
    """Base of what turns samples into tokens. Its file is opened by the first sample."""

    tokenizer: str = field(converter=_absolute)  # workers may have another working directory
    """A `tokenizer.json`, or a folder with one, as `save_pretrained` writes it."""

    max_length: int | None = field(default=None, kw_only=True)
    """Tokens of a sample that are kept, the first ones; None: all."""

    @tokenizer.validator
    def _check_file(self, _: Any, path: str) -> None:
        if not self.file.is_file():
            problem = f"there is no file {self.file}"
            raise SpecError(f"tokenizer: {problem}. Name a tokenizer.json, or a folder with one.")

    @max_length.validator
    def _check_length(self, _: Any, length: int | None) -> None:
        if length is not None and length < 1:
            raise SpecError(f"max_length: must be >= 1, got {length}. Or leave it out.")

    @property
    def file(self) -> Path:
        """The `tokenizer.json`."""
        path = Path(self.tokenizer)
        return path / _FILE if path.is_dir() else path

    @cached_property
    def loaded(self) -> Any:
        """The `tokenizers.Tokenizer`. SpecError if the file holds none."""
        try:
            from tokenizers import Tokenizer  # noqa: PLC0415 - optional
        except ImportError as error:
            raise MissingExtraError("making tokens of text", "tokenizers") from error
        try:
            found = Tokenizer.from_file(str(self.file))
        except Exception as error:  # what `tokenizers` raises, for any problem
            problem = f"it holds no tokenizer: {error}"
            raise SpecError(f"{self.file}: {problem}. Save one by `Tokenizer.save`.") from error
        found.no_truncation()  # files may have the settings of their training
        found.no_padding()
        return found

    def encode(self, text: str) -> Any:
        """Return text as `tokenizers.Encoding`, without what a post-processor adds.

        It encodes one text at a time: `encode_batch` starts threads, which a forked process lacks.
        """
        return self.loaded.encode(text, add_special_tokens=False)

    def __call__(self, sample: Any) -> dict[str, torch.Tensor]:
        """Return the tokens of a sample, and what else there is for each."""
        try:
            fields = self.fields_of(sample)
        except SampleError as error:
            for name, value in place_of(sample).items():
                setattr(error, name, value)
            raise
        return {name: values[: self.max_length] for name, values in fields.items()}

    @abstractmethod
    def fields_of(self, sample: Any) -> dict[str, torch.Tensor]:
        """Return `tokens` and other fields, all of one length. SampleError if there are none."""

    @property
    @abstractmethod
    def reads(self) -> tuple[str, ...]:
        """The fields of a sample that the tokens depend on."""

    @property
    def facts(self) -> dict[str, Any]:
        """What decides, besides the file, which tokens a sample has."""
        return attrs.asdict(self, filter=lambda one, _: one.name != "tokenizer")

    @property
    def fingerprint(self) -> str:
        """Return 16 hex digits of everything that decides which tokens a sample has."""
        digest = blake2b(self.file.read_bytes(), digest_size=8)
        digest.update(repr((type(self).__name__, sorted(self.facts.items()))).encode())
        return digest.hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone: each process loads the tokenizer from its file."""
        return {one.name: getattr(self, one.name) for one in attrs.fields(type(self))}


@frozen(slots=False)
class Tokenize(Tokenizing):
    """Makes tokens of the text of a sample: `{"tokens": int64 tensor [n]}`.

    Names of tokens in the text, such as `</s>`, become those tokens. Others are only added if
    `add_bos` or `add_eos` say so, whatever the file adds by itself. It may be called in any
    process and thread: its pickle is the path, and each process loads the tokenizer once.

    Raises SampleError if a sample has no text, SpecError for a file that is no tokenizer,
    MissingExtraError without `tokenizers`.
    """

    field: str = attrs.field(default="text", kw_only=True)
    """The field of a sample that holds the text; `json.text` is an entry of the field `json`."""

    add_bos: str | None = attrs.field(default=None, kw_only=True)
    """The name of the token put before the text, such as `<s>`; None: none."""

    add_eos: str | None = attrs.field(default=None, kw_only=True)
    """The name of the token put after the text; None: none."""

    @add_bos.validator
    @add_eos.validator
    def _check_token(self, key: attrs.Attribute[Any], token: str | None) -> None:
        if not isinstance(token, str | None):
            problem = f"must be the name of a token, such as '</s>', got {token!r}"
            raise SpecError(f"{key.name}: {problem}. Pass the name, not the id.")

    def fields_of(self, sample: Any) -> dict[str, torch.Tensor]:
        """Return the tokens of a sample."""
        text = value_of(sample, self.field)
        if not isinstance(text, str):
            problem = f"its field {self.field!r} must be a str, got {type(text).__name__}"
            raise SampleError(f"{problem}. Name the `field` of the text.")
        front, back = self._added
        return {"tokens": tensor_of([*front, *self.encode(text).ids, *back])}

    @property
    def reads(self) -> tuple[str, ...]:
        """The field of the text."""
        return (self.field,)

    @cached_property
    def _added(self) -> tuple[list[int], list[int]]:
        """The tokens put before the text, and those after it."""
        return self._token("add_bos", self.add_bos), self._token("add_eos", self.add_eos)

    def _token(self, name: str, token: str | None) -> list[int]:
        if token is None:
            return []
        found: int | None = self.loaded.token_to_id(token)
        if found is None:
            raise SpecError(f"{self.file}: it has no token {token!r}. Correct `{name}`.")
        return [found]


def tensor_of(tokens: list[int]) -> torch.Tensor:
    """Return tokens as int64 [n]; twice as fast as `torch.tensor`."""
    return torch.from_numpy(np.array(tokens, np.int64))


def value_of(sample: Any, name: str) -> Any:
    """Return a field of a sample, or an entry of one: `json.text`. SampleError if it has none."""
    found = find_value(sample, name)
    if found is None:
        names = list(_names(sample))
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        problem = f"it has no {name!r}, or it is None, found {shown or type(sample).__name__}"
        raise SampleError(f"{problem}. Correct `field`, or the sample.")
    return found


def find_value(sample: Any, name: str) -> Any:
    """Return a field of a sample, or an entry of one; None if it has none."""
    found = sample_field(sample, name)
    if found is None and "." in name:
        found = sample
        for part in name.split("."):
            found = None if found is None else sample_field(found, part)
    return found


def _names(sample: Any) -> Iterator[str]:
    """Yield the names of the fields of a sample, and of their entries."""
    fields = sample if isinstance(sample, Mapping) else getattr(sample, "__dict__", {})
    for name, value in fields.items():
        if name.startswith("__"):
            continue
        if isinstance(value, Mapping):
            yield from (f"{name}.{one}" for one in value)
        else:
            yield name
