"""Energon's public names with their parameters, as plain data; run by the judge's python.

$ENERGY_DATA_ENERGON_PYTHON tests/energon/names.py > tests/energon/names_7.4.1.json
"""

import inspect
import json
import sys
from importlib import import_module


def parameters(thing):
    try:
        found = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return None
    return [[one.name, one.kind.name, one.default is not one.empty] for one in found]


def public_methods(cls):
    return sorted(
        name
        for name in dir(cls)
        if not name.startswith("_") and not hasattr(object, name) and not hasattr(dict, name)
    )


def describe(module):
    names = {}
    for name in module.__all__:
        thing = getattr(module, name)
        names[name] = {"parameters": parameters(thing) if callable(thing) else None}
        if isinstance(thing, type):
            names[name]["methods"] = public_methods(thing)
    return names


if __name__ == "__main__":
    found = describe(import_module(sys.argv[1]))
    lines = [f"{json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found)]
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")
