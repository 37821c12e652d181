"""Plain scalars of YAML: what the text of one means.

As YAML 1.1, which Energon's reader follows, with three exceptions that are safer: `1e-3` is a
number, dates are text, and `010` or `1:30` (a number to one reader, text to another) are refused.
"""

from __future__ import annotations

import re
from typing import TypeAlias

Scalar: TypeAlias = str | int | float | bool | None

MAX_DIGITS = 100  # of a number

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **{
        sign + word: float(f"{sign}inf")
        for sign in ("", "+", "-")
        for word in (".inf", ".Inf", ".INF")
    },
}
_DIGITS = "[0-9](?:_?[0-9])*"
_INTEGER = re.compile("[-+]?(?:0|[1-9](?:_?[0-9])*)")
_HEXADECIMAL = re.compile("[-+]?0x[0-9a-fA-F]+")
_FLOAT = re.compile(rf"[-+]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][-+]?[0-9]+)?")
_AMBIGUOUS = re.compile(
    r"[-+]?(?:0[0-9_]+|0o[0-7]+|0b[01_]+|[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?)"
)


def scalar_of(text: str) -> Scalar:
    """Return what a plain scalar means. ValueError (what is wrong) if that is not clear."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    if _AMBIGUOUS.fullmatch(text):
        raise ValueError(
            "some readers take it for a number in another base. Write it in quotes, "
            "or as a plain decimal number"
        )
    whole = _INTEGER.fullmatch(text)
    if (whole or _FLOAT.fullmatch(text)) and len(text) > MAX_DIGITS:
        raise ValueError(
            f"a number of more than {MAX_DIGITS} digits. Write it in quotes if it is text"
        )
    if whole:
        return int(text)
    if len(text) <= MAX_DIGITS and _HEXADECIMAL.fullmatch(text):
        return int(text, 16)
    return float(text) if _FLOAT.fullmatch(text) else text
