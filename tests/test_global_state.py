"""Module-level state that changes is listed here, each with the reason why it is safe.

Worker threads share all modules with the trainer and with each other; so do forked processes.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import threading
from collections import Counter
from collections.abc import Iterator, MutableMapping, MutableSequence, MutableSet
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

import energy_data
from energy_data.errors import MissingExtraError

ROOT = Path(energy_data.__file__).parent

ALLOWED = {
    "local:keep_open": "lru_cache of open files and their indices; files are read by `pread`",
    "parts:_npy_header": "lru_cache of a pure function",
    "arena:_array_type": "lru_cache of a pure function; ctypes keeps the same kinds",
    "wrap:DEFAULT_DECODER": "says how to decode: nothing of it changes",
    "main:main": "click's; where it runs no loader has threads",
    "recipe:keys_of": "lru_cache of a pure function",
    "spec:_KINDS": "changed only where a class of specs is defined, in an import",
    "spec:_annotations": "lru_cache of a pure function",
    "process:_START_LOCK": "a lock",
    "processes:_LOCK": "a lock",
    "process:_OPEN": "a worker is added and discarded by the thread that uses it",
    "user_call:CALL": "of each thread its own",
    "batch_memory:_CURRENT": "of each thread its own",
    "registry:installed_formats": "cache of what is installed, which does not change",
    "recent:RECENT": "of each thread its own",
    "client:_CONNECTIONS": "of each thread its own; a forked process connects anew",
    "cached_ranges:boot_id": "cache of what does not change while the machine runs",
}

CHANGING = (MutableMapping, MutableSequence, MutableSet, np.ndarray, threading.local)
CHANGES = {
    *("append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "clear"),
    *("remove", "discard", "sort", "reverse", "move_to_end", "appendleft", "popleft", "fill"),
}
"""Methods that change what they are called on."""


def modules() -> Iterator[tuple[str, object, ast.Module]]:
    for info in pkgutil.walk_packages([str(ROOT)], "energy_data."):
        if info.name.endswith(("__main__", "._tar", "._copy")):  # `_tar` keeps interned names
            continue
        try:
            module = importlib.import_module(info.name)
        except MissingExtraError:  # an adapter for a trainer that is not installed
            continue
        yield info.name.rpartition(".")[2], module, ast.parse(source_of(module))


def source_of(module: object) -> str:
    return Path(module.__file__).read_text()


def assigned(tree: ast.Module) -> Iterator[str]:
    """The names that a module, not a function of it, gives values to."""
    for statement in tree.body:
        targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
        yield from (one.id for one in targets if isinstance(one, ast.Name))
        if isinstance(statement, ast.FunctionDef) and statement.decorator_list:
            yield statement.name


def is_kept(value: object) -> bool:
    """Whether a value may change, as far as its type tells."""
    kind = type(value)
    ours = kind.__module__.startswith("energy_data") and not isinstance(value, type)
    frozen = getattr(getattr(kind, "__attrs_props__", None), "is_frozen", False)
    frozen |= getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
    simple = isinstance(value, str | int | float | tuple | frozenset | BaseException)
    empty = not getattr(value, "__dict__", True) and not hasattr(kind, "__slots__")
    is_lock = kind.__name__ in ("lock", "RLock", "Condition", "Event", "Semaphore", "SimpleQueue")
    return (
        isinstance(value, CHANGING)
        or hasattr(value, "cache_info")
        or is_lock
        or (ours and not (frozen or simple or empty))
    )


def changed_in(tree: ast.Module) -> set[str]:
    """Names that functions write to: `x[...] =`, `x.append`, `x.y =`, `global x`, `x |=`."""
    found = set()
    functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.Lambda)]
    for node in chain.from_iterable(map(ast.walk, functions)):
        if isinstance(node, ast.Global):
            found |= set(node.names)
        elif isinstance(node, ast.Subscript | ast.Attribute):
            written = isinstance(node.ctx, ast.Store | ast.Del)
            changes = isinstance(node, ast.Attribute) and node.attr in CHANGES
            if written or changes:
                name = node.value
                found.add(name.id if isinstance(name, ast.Name) else getattr(name, "attr", ""))
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def of_classes(tree: ast.Module) -> Iterator[str]:
    """Containers that a class, and so all its objects, has in common, if mypy lets them change."""
    for cls in ast.walk(tree):
        for statement in cls.body if isinstance(cls, ast.ClassDef) else ():
            value = getattr(statement, "value", None)
            said = ast.unparse(getattr(statement, "annotation", ast.Constant("")))
            if "Mapping[" in said or "Sequence[" in said:
                continue
            if isinstance(value, ast.Dict | ast.List | ast.Set | ast.ListComp | ast.DictComp):
                yield f"{cls.name} in line {statement.lineno}"


def test_the_name_of_a_class_is_used_once():
    trees = [tree for _, _, tree in modules()]
    names = [one.name for tree in trees for one in tree.body if isinstance(one, ast.ClassDef)]
    assert sorted(name for name, times in Counter(names).items() if times > 1) == []


FOUND = [
    (name, key, getattr(module, key), tree)
    for name, module, tree in modules()
    for key in dict.fromkeys(assigned(tree))
    if hasattr(module, key) and is_kept(getattr(module, key)) and not key.startswith("__")
]
EVERYWHERE = set(chain.from_iterable(changed_in(tree) for _, _, tree in modules()))


def test_what_changes_and_is_kept_in_a_module_is_listed_with_its_reason():
    constant = {  # a table that nobody writes to
        f"{name}:{key}"
        for name, key, value, _ in FOUND
        if isinstance(value, dict | list | set | np.ndarray) and key not in EVERYWHERE
    }
    assert {f"{name}:{key}" for name, key, *_ in FOUND} - constant == set(ALLOWED)


def test_no_container_is_kept_by_a_class():
    assert {name: found for name, _, tree in modules() if (found := [*of_classes(tree)])} == {}


@pytest.mark.parametrize(
    "text",
    [
        *("x = {}\ndef f(k):\n    x[k] = 1", "x = []\ndef f(k):\n    x.append(k)"),
        *("x = 1\ndef f():\n    global x\n    x = 2", "x = {}\ndef f(k):\n    del x[k]"),
        *("import m\ndef f(k):\n    m.x[k] = 1", "x = set()\ndef f(k):\n    x.add(k)"),
    ],
)
def test_what_a_function_does_to_a_table_of_a_module_is_seen(text):
    assert "x" in changed_in(ast.parse(text))


def test_a_container_of_a_class_is_seen():
    assert list(of_classes(ast.parse("class A:\n    x: dict = {}")))
    assert not list(of_classes(ast.parse("class A:\n    x: tuple = ()")))
    assert not list(of_classes(ast.parse("class A:\n    x: Mapping[str, int] = {}")))


def test_tables_locks_caches_and_objects_that_change_are_seen():
    class Ours:
        def __init__(self):
            self.count = 0

    Ours.__module__ = "energy_data.some"
    for value in ({}, [], set(), threading.Lock(), threading.local(), np.zeros(1), Ours()):
        assert is_kept(value)
    for value in (1, "a", (), frozenset(), len, Ours):
        assert not is_kept(value)
