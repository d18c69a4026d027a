"""Which hpc_train a job runs: how it is recognised, copied, and missed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_train.errors import UserError
from hpc_train.jobs.launch.installation_check import refusal
from hpc_train.jobs.record.installation import (
    PACKAGE,
    Installation,
    copy_code,
    fingerprint_of,
    problem_of,
    this_installation,
    version_of,
)
from tests.unit.jobs.submissions import a_submission


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    """Of a small package in a folder of its own."""
    package = tmp_path / "checkout/hpc_train"
    (package / "inner/__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (package / "inner/a.py").write_text("A = 1\n")
    (package / "inner/__pycache__/a.pyc").write_text("compiled")
    found = replace(this_installation(), package=str(package), version="1.2.3", copied=True)
    return replace(found, fingerprint=fingerprint_of(package))


def test_this_one() -> None:
    found = this_installation()
    assert (found.package, found.version) == (str(PACKAGE), version_of(PACKAGE))
    assert found.copied, "tests run from a checkout"
    assert found == this_installation()


def test_a_fingerprint_is_of_names_and_contents_but_not_of_what_python_compiles(installation: Installation) -> None:
    package, first = Path(installation.package), installation.fingerprint
    (package / "inner/__pycache__/b.pyc").write_text("more")
    assert fingerprint_of(package) == first
    (package / "inner/a.py").rename(package / "inner/b.py")
    assert fingerprint_of(package) != first
    (package / "inner/b.py").rename(package / "inner/a.py")
    (package / "inner/a.py").write_text("A = 2\n")
    assert fingerprint_of(package) != first


def test_a_copy_is_the_users_alone_and_stays_as_the_checkout_changes(
    installation: Installation, tmp_path: Path
) -> None:
    job_dir = tmp_path / "job"
    job_dir.mkdir()
    copy_code(installation, job_dir)
    copy = installation.code(job_dir)
    assert (copy / "inner/a.py").read_text() == "A = 1\n"
    assert not (copy / "inner/__pycache__").exists()
    assert (copy / "inner/a.py").stat().st_mode & 0o077 == copy.parent.stat().st_mode & 0o077 == 0
    (Path(installation.package) / "inner/a.py").write_text("A = 2\n")
    assert problem_of(installation, job_dir) is None
    copy_code(installation, job_dir)  # as at a resume: it is there
    (copy / "__init__.py").write_text('__version__ = "9"\n')
    said = problem_of(installation, job_dir)
    assert said is not None and f"but {copy} holds hpc_train 9 (" in said
    shutil.rmtree(copy)
    assert "which is gone" in str(problem_of(installation, job_dir))


def test_a_checkout_that_changes_while_it_is_copied_is_refused(installation: Installation, tmp_path: Path) -> None:
    (Path(installation.package) / "inner/a.py").write_text("A = 2\n")
    with pytest.raises(UserError, match="has changed while the job was submitted; submit it again"):
        copy_code(installation, tmp_path)
    assert list((tmp_path / "installation").iterdir()) == []


def test_an_installed_package_is_not_copied_and_missed_where_another_is_in_its_place(
    installation: Installation, tmp_path: Path
) -> None:
    central = replace(installation, copied=False)
    copy_code(central, tmp_path)
    assert not (tmp_path / "installation").exists()
    submission = a_submission(installation=central)
    assert refusal(submission, tmp_path) is None
    (Path(central.package) / "__init__.py").write_text('__version__ = "2.0.0"\n')
    said = str(refusal(submission, tmp_path))
    assert said.startswith("the job does not start: it was submitted with hpc_train 1.2.3 (")
    assert "holds hpc_train 2.0.0 (" in said
    assert said.endswith(f"go on with another version: hpc-train resume {tmp_path} --with-this-version")
    shutil.rmtree(central.package)
    assert "which is gone: there is no" in str(refusal(submission, tmp_path))
    gone = a_submission(installation=replace(central, python="/nowhere/python"))
    assert "whose interpreter /nowhere/python is gone" in str(refusal(gone, tmp_path))


def test_a_python_of_another_version_or_one_that_imports_another_package(
    installation: Installation, tmp_path: Path
) -> None:
    central = replace(installation, copied=False)
    other = a_submission(installation=replace(central, python_version="3.8.1"))
    assert "by now" in str(refusal(other, tmp_path)) and "is Python 3." in str(refusal(other, tmp_path))
    assert "imports /elsewhere by now" in str(refusal(a_submission(installation=central), tmp_path, Path("/elsewhere")))
    assert refusal(a_submission(), tmp_path) is None, "submitted by an older version"
