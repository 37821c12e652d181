from __future__ import annotations

import pytest
import torch

from energy_data.data.files.recent import RECENT
from energy_data.data.tar import native


@pytest.fixture(autouse=True)
def _nothing_was_decoded():
    RECENT.clear()


@pytest.fixture
def stacked(monkeypatch):
    """The tensors that were copied into their batch."""
    stack, seen = torch.stack, []
    monkeypatch.setattr(torch, "stack", lambda *a, **k: seen.extend(a[0]) or stack(*a, **k))
    return seen


@pytest.fixture(scope="module", params=["compiled", "python"])
def reading(request):
    """Tars are read by the compiled part, then by Python alone: all is the same."""
    if request.param == "compiled" and native.TAR is None:
        pytest.skip("installed without a compiler")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(native, "TAR", None)
        yield
