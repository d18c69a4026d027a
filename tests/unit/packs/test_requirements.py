"""`resources.requirements`: what pip finds, without a network, and what is refused."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hpc_train.errors import UserError
from hpc_train.packs.requirements import install_requirements, resolve_requirements, said_by_pip
from tests.support import LIMIT_SECS

PYTHON = Path(sys.executable)


@pytest.fixture(autouse=True)
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    make_wheel(folder, "own_base", "1.0")
    make_wheel(folder, "own_tool", "2.0", "own-base>=1")
    make_wheel(folder, "wants_old", "1.0", "numpy<1.0")
    make_wheel(folder, "numpy", "0.9")
    return folder


def make_wheel(folder: Path, name: str, version: str, *requires: str) -> Path:
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text)}\n"
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return wheel


def test_what_the_environment_lacks_is_installed_beside_it(tmp_path: Path, wheels: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("own-tool\nnumpy>=1\n")
    lines = resolve_requirements(PYTHON, file)
    assert sorted(line.partition(" ")[0] for line in lines) == ["own_base", "own_tool"]
    assert all("#sha256=" in line for line in lines)
    make_wheel(wheels, "own_base", "1.1")  # comes too late: what was found is installed
    install_requirements(PYTHON, lines, tmp_path / "packages", file)
    assert {path.name for path in (tmp_path / "packages").glob("*.py")} == {"own_base.py", "own_tool.py"}
    asked = "import own_tool, own_base, numpy; print(own_tool.VERSION, own_base.VERSION)"
    done = subprocess.run(
        [PYTHON, "-c", asked],
        env={"PYTHONPATH": str(tmp_path / "packages")},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECS,
    )
    assert done.stdout == "2.0 1.0\n", done.stderr
    (wheel,) = wheels.glob("own_tool-*")
    wheel.write_bytes(b"another")
    with pytest.raises(UserError, match="pip cannot install it"):
        install_requirements(PYTHON, lines, tmp_path / "more", file)


def test_what_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    with pytest.raises(UserError, match="cannot be read: No such file"):
        resolve_requirements(PYTHON, file)
    for text, said in (
        ("nowhere-at-all\n", "No matching distribution found for nowhere-at-all"),
        ("wants-old\n", "numpy"),
        ("not a requirement\n", "Invalid requirement"),
        ("numpy==0.9\n", "numpy==0.9"),
    ):
        file.write_text(text)
        with pytest.raises(UserError, match=said) as refused:
            resolve_requirements(PYTHON, file)
        assert "\n" not in str(refused.value) and "resources.requirements" in str(refused.value)


def test_what_pip_says_is_cut() -> None:
    text = "WARNING: a\nERROR: Could not find b (from versions: 1, 2)\n\nERROR: No \x1b[1mmatch\n[notice] new\n"
    assert said_by_pip(text) == "Could not find b; No \\x1b[1mmatch"
    assert said_by_pip("") == "it gives no reason"
    assert len(said_by_pip("x" * 10_000 + "\n" * 5 + "y\n" * 100)) < 400
