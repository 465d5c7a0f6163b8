"""The wheel, with what it requires and nothing else, trains and evaluates."""

import os
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def list_requirements(dist, found):
    """All distributions that one requires, without extras."""
    for line in dist.requires or ():
        requirement = Requirement(line)
        applies = requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in {"", *requirement.extras}
        )
        name = requirement.name.lower()
        if applies and "extra" not in str(requirement.marker) and name not in found:
            found[name] = distribution(name)
            list_requirements(found[name], found)
    return found


@pytest.fixture
def environment(tmp_path):
    """A folder of packages that has what `pip install` of the wheel would bring."""
    site = tmp_path / "site"
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    (info,) = site.glob("*.dist-info")
    for dist in list_requirements(Distribution.at(info), {}).values():
        folder = Path(str(dist.locate_file("")))
        for name in {file.parts[0] for file in dist.files} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(folder / name)
    return site


@pytest.mark.slow
def test_the_wheel_runs_the_demo_with_its_requirements_alone(environment, tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COV", "PYTHON"))}

    def selfsight(*args):
        # -S leaves out the packages of this environment
        command = [sys.executable, "-S", "-m", "selfsight", *args]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=env | {"PYTHONPATH": str(environment), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    demo = ("shapes", "--recipe", "simclr.shapes", "--device", "cpu", "--out", "run")
    selfsight("pretrain", *demo, "--epochs", "1", "--optim.schedule.warmup-epochs", "0")
    evaluated = ("--labeled", "shapes", "--device", "cpu", "--protocol", "knn")
    assert "kNN" in selfsight("evaluate", "run", *evaluated)
    assert (tmp_path / "run" / "report.html").exists()
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import pytest"],
        env=env | {"PYTHONPATH": str(environment)},
        capture_output=True,
        check=False,
    )
    assert done.returncode != 0  # the environment is as small as it says
