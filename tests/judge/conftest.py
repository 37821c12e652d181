"""The real Energon, in a process of its own; without it these tests are skipped."""

import json
import subprocess
from pathlib import Path

import pytest
from place import PYTHON

HERE = Path(__file__).parent


class Energon:
    """Tells the driver what to do."""

    def __init__(self, log):
        self.process = subprocess.Popen(
            [str(PYTHON), str(HERE / "driver.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def do(self, job, path, **options):
        said = json.dumps({"job": job, "path": str(path), **options})
        self.process.stdin.write(said + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert "done" in answer, answer["failed"]
        return answer["done"]

    def reads(self, path, *, split_part="train", config=None, decoder="default", training=False):
        return self.do(
            "read",
            path,
            split_part=split_part,
            config=config or {},
            decoder={} if decoder == "default" else decoder,
            training=training,
        )

    def prepares(self, path, *options, answers=None):
        return self.do("prepare", path, options=[str(one) for one in options], answers=answers)


@pytest.fixture(scope="session")
def energon(tmp_path_factory):
    if not Path(PYTHON).exists():
        pytest.skip("Energon is not installed: `make .venv-judge/.installed`")
    with (tmp_path_factory.mktemp("energon") / "log").open("w") as log:
        energon = Energon(log)
        yield energon
        energon.process.stdin.close()
        energon.process.wait(60)
        energon.process.stdout.close()
