"""States that the real Energon saves are refused, with what to do, and run no code."""

from __future__ import annotations

import pytest
from tars import sample_files, write_tar

from energy_data import StateMismatchError, read_state
from energy_data.data.prepare import prepare

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_state_of_the_real_energon_is_refused(energon, tmp_path, ranks):
    files = [file for number in range(40) for file in sample_files(number)]
    write_tar(tmp_path / "data/0.tar", files)
    prepare(tmp_path / "data", sqlite=True)
    energon.do("state", tmp_path / "data", file=str(tmp_path / "state.pt"), ranks=ranks)
    with pytest.raises(StateMismatchError, match="it is a SavableDataLoaderState of Energon: the"):
        read_state(tmp_path / "state.pt")
