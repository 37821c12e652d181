from copy import deepcopy

import pytest
from jsonschema import Draft202012Validator
from yaml_text import parse_metadataset

from energy_data.config.keys import JoinedPart, JoinSpec, LeafKeys, NodeKeys
from energy_data.config.schema import (
    GROUPS,
    KINDS,
    PARTS,
    FileKeys,
    keys_next_to,
    metadataset_schema,
)
from energy_data.config.staged import DocsPerStepSpec, Ramp, StagedRecipe, StagePart
from energy_data.config.yaml_nodes import Diagnostics, read_text
from energy_data.core.recipe import keys_of
from energy_data.errors import SpecError
from energy_data.nodes.blend import BlendSpec, Mixed, MixSpec
from energy_data.nodes.passes import EpochizeSpec, RepeatSpec

SCHEMA = metadataset_schema()

GOOD = [
    "{path: x}",
    "{path: x, id: y, split_part: val, subset: {range: [0, 5]}}",
    "{path: x, subset: {range: [0, end]}, subflavors: {a: [1, {b: ~}]}, subflavor: s}",
    "{path: x, subset: {range: [0%, 33.3%]}}",
    "{path: x, subset: {range: [50%, end]}}",
    "{blend: [{path: x, weight: 0}, {path: y}], subset: {range: [0%, 5%]}}",
    "{blend: [{path: x, weight: 1e-3}, {weight: 2, blend: [{path: y}]}]}",
    "{blend_epochized: [{path: x, repetitions: 0.5}, {concat: [{path: y}]}]}",
    "{concat: [{path: x}, {epochize: {length: 5, of: {path: y}}}]}",
    "{repeat: {times: 3, of: {blend: [{path: x, weight: 3}]}}}",
    "{docs_per_step: {target: 256, of: {path: x}}}",
    "{docs_per_step: {target: [[0, 64], [9, 256]], mode: exact, shares: 4, of: {path: x}}}",
    "{docs_per_step: {target: 5, last: short, lookahead: 1, of: {blend: [{path: x}]}}}",
    "{staged: {stages: [{name: a, path: x}]}}",
    "{staged: {unit: tokens, stages: [{name: a, for: 1.5B, path: x}, {name: b, path: x}]}}",
    "{staged: {default: {path: y}, stages: [{name: a b, start: 5, seed: 3, path: x}]}}",
    "{mix: {parts: [{path: x, weight: 2}, {blend: [{path: y}]}], by: batches}}",
    "{blend: [{path: x, weight: {step: {0: 0, 5: 1}}}, {path: y}]}",
    "{blend: [{path: x, weight: {linear: {0: 1, 1.5K: 1e-3}, unit: tokens}}]}",
    "{blend: [{path: x, weight: {cosine: {'7': 1}, unit: samples}}]}",
    "{path: x, split_part: ~, subset: ~, subflavors: ~, aux: ~, dataset_config: ~}",
    "{path: x, dataset_config: a.yaml, split_config: deep/b.yaml}",
    "{path: x, shuffle_over_epochs_multiplier: ~}",
    "{path: x, shuffle_over_epochs_multiplier: -1}",
    "{blend: [{path: x, shuffle_over_epochs_multiplier: 3, weight: 2}]}",
    "{path: x, aux: {a: ./y, b: filesystem://z, c: {path: q}, d: {fs_path: /r}}}",
    "{path: x, aux: {a: s3://y/z, b: filesystem+https://y, c: {fs_path: gs://y/z}}}",
    "{path: x, aux: {a: byterange+az://y/z, b: {path: s3://y/z}}}",
    "{join: [{path: x}, {path: y, nonmatch: none}]}",
    "{join: {a: {path: x, split_part: val}, b: {path: y, subflavors: {k: 1}}}, id: z}",
    "{join: [{path: x}, {path: y}], joiner: {__module__: a.b, __function__: c}}",
    "{join: [{path: x}, {path: y}], joiner: {__module__: a, __class__: B}}",
    "{blend_epochized: [{join: [{path: x}, {path: y}], subset: {range: [0, 5]}}]}",
]

BAD = [
    "x",
    "5",
    "~",
    "{}",
    "[{path: x}]",
    "{path: 5}",
    '{path: ""}',
    '{path: "a\\nb"}',
    "{path: x, pahts: y}",
    "{path: x, aux: y}",
    "{path: x, aux: {a: 5}}",
    "{path: x, aux: {a: 'ftp://y'}}",
    "{path: x, aux: {a: 'filesystem://s3://y'}}",
    "{path: x, aux: {a: filesystem+y}}",
    "{path: x, aux: {a: {fs_path: 'ftp://y'}}}",
    "{path: x, aux: {a: 'filesystem://'}}",
    "{path: x, aux: {a: {path: y, fs_path: z}}}",
    "{path: x, aux: {a: {paht: y}}}",
    "{path: x, dataset_config: ../a.yaml}",
    "{path: x, split_config: /a.yaml}",
    "{path: x, split_config: deep/../a.yaml}",
    "{path: x, shuffle_over_epochs_multiplier: 0}",
    "{path: x, shuffle_over_epochs_multiplier: -2}",
    "{path: x, shuffle_over_epochs_multiplier: 1.5}",
    "{path: x, nonmatch: skip}",
    "{path: x, joiner: {__module__: a, __class__: B}}",
    "{blend: [{path: x}], shuffle_over_epochs_multiplier: 2}",
    "{blend: [{path: x}], aux: {a: y}}",
    "{join: [{path: x}]}",
    "{join: {a: {path: x}}}",
    "{join: x}",
    "{join: [{path: x}, {path: y, nonmatch: maybe}]}",
    "{join: [{path: x}, {path: y, subset: {range: [0, 5]}}]}",
    "{join: [{path: x}, {path: y, aux: {a: z}}]}",
    "{join: [{path: x}, {path: y, weight: 2}]}",
    "{join: [{path: x}, {blend: [{path: y}]}]}",
    "{join: [{path: x}, {path: y}], dataset_config: z}",
    "{join: [{path: x}, {path: y}], aux: {a: z}}",
    "{join: [{path: x}, {path: y}], joiner: a.b}",
    "{join: [{path: x}, {path: y}], joiner: {__module__: a}}",
    "{join: [{path: x}, {path: y}], joiner: {__module__: a, __class__: B, __function__: c}}",
    "{join: [{path: x}, {path: y}], joiner: {__module__: 'a;b', __class__: B}}",
    "{path: x, weight: 1}",
    "{path: x, repetitions: 1}",
    "{path: x, blend: [{path: y}]}",
    "{path: x, subflavors: 5}",
    "{path: x, subflavor: 5}",
    "{path: x, subset: [0, 5]}",
    "{path: x, subset: {range: [0]}}",
    "{path: x, subset: {range: [0, 5, 6]}}",
    "{path: x, subset: {range: [0, 5%]}}",
    "{path: x, subset: {range: [-1, 5]}}",
    "{path: x, subset: {range: [0%, 101%]}}",
    "{path: x, subset: {range: [end, 5]}}",
    "{path: x, subset: {ragne: [0, 5]}}",
    "{concat: [{path: x}], subset: {range: [0, 5]}}",
    "{concat: [{path: x}], id: y}",
    "{concat: [{path: x, weight: 1}]}",
    "{concat: []}",
    "{blend: {path: x}}",
    "{blend: [{path: x, weight: -1}]}",
    "{blend: [{path: x, weight: '1'}]}",
    "{blend: [{path: x, weight: true}]}",
    "{blend: [{path: x, weight: .inf}]}",
    "{blend: [{path: x, weight: 0}]}",
    "{mix: [{path: x}]}",
    "{mix: {parts: [{path: x, weight: 0}]}}",
    "{mix: {parts: [{path: x, weight: {step: {0: 1}}}]}}",
    "{mix: {parts: [{path: x}], by: turns}}",
    "{blend: [{path: x, weight: {}}]}",
    "{blend: [{path: x, weight: {unit: steps}}]}",
    "{blend: [{path: x, weight: {step: {}}}]}",
    "{blend: [{path: x, weight: {step: 5}}]}",
    "{blend: [{path: x, weight: {step: {0: 1}, linear: {0: 1}}}]}",
    "{blend: [{path: x, weight: {step: {0: 1}, until: 5}}]}",
    "{blend: [{path: x, weight: {step: {0: 1}, unit: epochs}}]}",
    "{blend: [{path: x, weight: {step: {0: -1}}}]}",
    "{blend: [{path: x, weight: {step: {0: {step: {0: 1}}}}}]}",
    "{blend: [{path: x, weight: {step: {-5: 1}}}]}",
    "{blend: [{path: x, weight: {step: {5k: 1}}}]}",
    "{blend_epochized: [{path: x, repetitions: {step: {0: 1}}}]}",
    "{blend_epochized: [{path: x, repetitions: 0.0}]}",
    "{blend_epochized: [{path: x, weight: 1}]}",
    "{epochize: {length: 0, of: {path: x}}}",
    "{epochize: {length: 5}}",
    "{epochize: {of: {path: x}}}",
    "{repeat: {times: 1.5, of: {path: x}}}",
    "{repeat: {times: 2, of: {path: x, weight: 1}}}",
    "{docs_per_step: {target: 0, of: {path: x}}}",
    "{docs_per_step: {target: [], of: {path: x}}}",
    "{docs_per_step: {target: [[0, 1, 2]], of: {path: x}}}",
    "{docs_per_step: {target: 5}}",
    "{docs_per_step: {target: 5, mode: quota, of: {path: x}}}",
    "{docs_per_step: 256}",
    "{staged: {stages: []}}",
    "{staged: {stages: [{path: x}]}}",
    "{staged: {stages: [{name: a}]}}",
    "{staged: {stages: [{name: ' a', path: x}]}}",
    "{staged: {stages: [{name: a/b, path: x}]}}",
    "{staged: {stages: [{name: a, path: x, for: 5X}]}}",
    "{staged: {stages: [{name: a, path: x, end: -5}]}}",
    "{staged: {stages: [{name: a, path: x, on_enter: anew}]}}",
    "{staged: {unit: hours, stages: [{name: a, path: x}]}}",
    "{staged: {unit: steps}}",
    "{staged: {resume: no, stages: [{name: a, path: x}]}}",
    "{concat: [{name: a, path: x}]}",
]

TOPS = [
    ("splits: {}", False),
    ("splits: {dev: {path: x}}", True),
    ("splits: {dev: {datasets: [{path: x, weight: 2}]}}", True),
    ("splits: {dev: {datasets: [{path: x, weight: 0}]}}", False),
    ("splits: {dev: {datasets: [{blend: [{path: x}]}]}}", True),
    ("splits: {dev: {blend: [{datasets: [{path: x}]}]}}", False),
    ("split: {train: {path: x}}", False),
    ("{splits: {train: {path: x}}, more: 5}", False),
    ("{splits: {train: {path: x}}, __module__: os}", False),
    ("{splits: {train: {path: x}}, __class__: MetadatasetV3}", False),
    ("{splits: {train: {datasets: [{path: x}]}}, __class__: Metadataset}", True),
    ("{splits: {test: {path: x}}, __module__: megatron.energon, __class__: MetadatasetV2}", True),
    ("[]", False),
]


def verdicts(text):
    """Return what the schema says of a text, and what the loader says."""
    value = read_text(text, "m.yaml", Diagnostics())
    try:
        parse_metadataset(text)
    except SpecError:
        loads = False
    else:
        loads = True
    return Draft202012Validator(SCHEMA).is_valid(value.plain()), loads


def test_it_is_a_schema():
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("node", GOOD)
def test_schema_and_loader_accept_the_same(node):
    assert verdicts(f"splits: {{train: {node}}}") == (True, True)


@pytest.mark.parametrize("node", BAD)
def test_schema_and_loader_refuse_the_same(node):
    assert verdicts(f"splits: {{train: {node}}}") == (False, False)


@pytest.mark.parametrize(("text", "good"), TOPS)
def test_schema_and_loader_agree_on_the_top_of_a_file(text, good):
    assert verdicts(text) == (good, good)


IN_TRAIN = "splits: {train: {%s}}"
TEMPLATES = {
    NodeKeys: IN_TRAIN % "%s, concat: [{path: x}]",
    JoinSpec: IN_TRAIN % "%s, join: [{path: x}, {path: y}]",
    BlendSpec: IN_TRAIN % "%s, blend: [{path: x, tokens_per_sample: 3}]",
    MixSpec: IN_TRAIN % "mix: {%s, parts: [{path: x}]}",
    EpochizeSpec: IN_TRAIN % "epochize: {%s, length: 5, of: {path: x}}",
    RepeatSpec: IN_TRAIN % "repeat: {%s, times: 5, of: {path: x}}",
    DocsPerStepSpec: IN_TRAIN % "docs_per_step: {%s, target: 5, of: {path: x}}",
    StagedRecipe: IN_TRAIN % "staged: {%s, stages: [{name: anneal, start: 5, path: x}]}",
    StagePart: IN_TRAIN % "staged: {stages: [{name: first, end: 1000, path: y}, "
    "{%s, name: second, path: x}]}",
    Ramp: IN_TRAIN % "staged: {stages: [{name: first, end: 1000, path: y}, "
    "{name: second, ramp: {%s, over: 5}, path: x}]}",
    Mixed: IN_TRAIN % "mix: {parts: [{%s, path: x}]}",
    JoinedPart: IN_TRAIN % "join: [{path: x}, {%s, path: y}]",
    **{
        part: IN_TRAIN % f"{PARTS[part]}: [{{%s, path: x}}]"
        for part in PARTS
        if part not in (JoinedPart, Mixed, StagePart)
    },
}
"""What an example of a key stands in, if not next to a path."""


def text_of(cls, one):
    """Return a file with the example of a key of a class."""
    if cls is FileKeys:
        rest = "" if one.name == "splits" else "splits: {train: {path: x}}"
        return f"{one.example}\n{rest}"
    if one.name in KINDS:
        return IN_TRAIN % one.example
    template = TEMPLATES.get(cls, IN_TRAIN % "%s, path: x")
    if one.name == "default":
        return template % one.example
    for key in ("name: second, ", "length: 5, ", "times: 5, ", "target: 5, ", "over: 5"):
        if key.startswith(f"{one.name}: "):
            template = template.replace(key, "")
    if one.name == "of":
        template = template.replace(", of: {path: x}", "")
    if one.name == "parts":
        template = template.replace(", parts: [{path: x}]", "")
    if one.name == "stages":
        return template.replace(", stages: [{name: anneal, start: 5, path: x}]", "") % one.example
    if cls is StagedRecipe:
        template = template.replace("start: 5", "end: 120000, start: 0")
    return template % one.example


def keys():
    owners = [FileKeys, NodeKeys, LeafKeys, *PARTS, *GROUPS]
    for cls in owners:
        for one in keys_of(cls).values():
            yield pytest.param(cls, one, id=f"{cls.__name__}-{one.name}")
    for cls in KINDS.values():
        for one in keys_next_to(cls).values():
            yield pytest.param(cls, one, id=f"{cls.__name__}-{one.name}")


@pytest.mark.parametrize(("cls", "one"), list(keys()))
def test_every_key_has_a_description_and_an_example_that_loads(cls, one):
    assert one.about.endswith(".")
    assert one.example.startswith(f"{one.name}: ")
    assert verdicts(text_of(cls, one)) == (True, True)


def test_the_schema_is_built_each_time():
    before = deepcopy(metadataset_schema())
    metadataset_schema()["$defs"].clear()
    assert metadataset_schema() == before
