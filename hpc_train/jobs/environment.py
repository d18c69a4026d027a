"""What a job's ranks start from beside the environment of who submits: packs, containers, packages of its own."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from hpc_train.errors import UserError
from hpc_train.files import read_bytes, replacement
from hpc_train.folders import make_folder, remove, remove_tree
from hpc_train.jobdir.paths import PACKAGES, PACKS_FILE
from hpc_train.jobs.containers.check import checked_container
from hpc_train.jobs.record.installation import Installation, this_installation
from hpc_train.jobs.record.submission import Submission
from hpc_train.jobs.schedulers.base import ReportLine
from hpc_train.packs.archive import sha256_of, write_folder
from hpc_train.packs.cache import cache_folder, note_use, pack_of
from hpc_train.packs.manifest import Manifest, read_manifest
from hpc_train.packs.requirements import install_requirements, resolve_requirements
from hpc_train.processes import home_folder

MAX_LIST_BYTES = 1 << 16


@dataclass(frozen=True)
class Environment:
    """What is made for a job once it is submitted.

    Attributes:
        pack: As `resources.pack`, its path absolute.
        requirements: The pip file that `packages` come from.
        packages: Lines for pip, each for one exact package.
        is_kept: A job goes on with what its job-dir has.
    """

    pack: str = "none"
    requirements: Path | None = None
    packages: tuple[str, ...] = ()
    is_kept: bool = False

    def make(self, job_dir: Path, report: ReportLine) -> None:
        """Writes into a job-dir what its ranks start from.

        Raises:
            UserError: A pack cannot be made, or packages cannot be installed.
            OSError: The job-dir cannot be written.
        """
        if self.is_kept:
            kept = cache_folder(os.environ, home_folder())
            for path in _packs_of(job_dir):
                if path.parent == kept:
                    note_use(path, job_dir)
            return
        packs = []
        if self.pack == "auto":
            path, sha256 = pack_of(Path(sys.prefix), cache_folder(os.environ, home_folder()), report, job_dir)
            packs.append((sha256, path))
        elif self.pack != "none":
            packs.append((sha256_of(Path(self.pack)), Path(self.pack)))
        if self.requirements is not None:
            folder, tar = job_dir / PACKAGES, job_dir / f"{PACKAGES}.tar"
            make_folder(folder)  # also where nothing is missing
            install_requirements(Path(sys.executable), self.packages, folder, self.requirements)
            if packs:
                packs.append((write_folder(tar, folder, PACKAGES).sha256, tar))
                remove_tree(folder)
        if packs:
            with replacement(job_dir / PACKS_FILE, mode=0o600) as file:
                file.write("".join(f"{sha256}  {path}\n" for sha256, path in packs).encode(errors="surrogateescape"))
        else:
            remove(job_dir / PACKS_FILE, missing_ok=True)


def with_environment(submission: Submission, report: ReportLine) -> tuple[Submission, Environment]:
    """A new job with its paths absolute, and what is to be made for it; writes nothing.

    Raises:
        UserError: With what is wrong with its pack or requirements.
    """
    if not submission.resources:  # something else is wrong with them
        return submission, Environment()
    wants, folder = submission.wants, Path(submission.job_file).parent
    requirements = None if wants.requirements is None else folder / wants.requirements
    pack = _checked_pack(submission, folder, report)
    submission = _with_container(submission, folder, report)
    packages: tuple[str, ...] = ()
    if requirements is not None:
        packages = resolve_requirements(Path(sys.executable), requirements)
    return _with_paths(submission, pack, requirements), Environment(pack, requirements, packages)


def with_environment_again(
    submission: Submission, before: Submission, job_dir: Path, report: ReportLine
) -> tuple[Submission, Environment]:
    """The same of a job that goes on: with what it had, unless it is to have another pack.

    Raises:
        UserError: A pack is gone or another file, or it is to have other requirements.
    """
    if not submission.resources:
        return submission, Environment()
    wants, had, folder = submission.wants, before.wants, Path(submission.job_file).parent
    requirements = None if wants.requirements is None else folder / wants.requirements
    if (None if requirements is None else str(requirements)) != had.requirements:
        raise UserError(
            "resources.requirements: are those of the job's first submission; to have others, submit it anew, with "
            "--job-dir, and `warm_start_from` this one"
        )
    submission = _with_container(submission, folder, report)
    pack = _checked_pack(submission, folder, report, same=had.pack)
    if pack != had.pack:
        if requirements is not None and "none" in (pack, had.pack):
            raise UserError(
                "resources.pack: stays what it was, since the packages of resources.requirements are packed with it"
            )
        if requirements is None:
            return _with_paths(submission, pack, requirements), Environment(pack)
        raise UserError("resources.pack: a job with resources.requirements goes on with the pack that it had")
    if pack == "none" and requirements is not None and not (job_dir / PACKAGES).is_dir():
        raise UserError(f"resources.requirements: {job_dir / PACKAGES}, which the job had, is gone; submit it anew")
    if pack != "none" and (problem := _why_not_kept(submission, job_dir)) is not None:
        if pack == "auto" and requirements is None:
            report(f"resources.pack: {problem}; a new one is made")
            return _with_paths(submission, pack, None), Environment("auto")
        if requirements is not None:
            raise UserError(
                f"resources.pack: {problem}; submit the job anew, with --job-dir, and `warm_start_from` this one"
            )
        raise UserError(
            f"resources.pack: {problem}; to go on with the environment as it is now: --set resources.pack=none"
        )
    return _with_paths(submission, pack, requirements), Environment(is_kept=True)


def _why_not_kept(submission: Submission, job_dir: Path) -> str | None:
    """Why a job cannot go on with the packs that it had, or None. Reads them whole."""
    packs, installation = _packs_of(job_dir), submission.installation
    if not packs:
        return f"{job_dir / PACKS_FILE}, which the job had, is gone"
    for path, sha256 in packs.items():
        try:
            if sha256_of(path) != sha256:
                return f"{path} is another file than the one that the job had"
        except FileNotFoundError:
            return f"{path}, which the job had, is gone"
        except OSError as error:
            return f"{path}, which the job had, cannot be read: {error.strerror}"
    code = read_manifest(next(iter(packs))).code
    if installation is not None and code != installation.fingerprint:
        return f"the pack that the job had has another hpc_train ({code[:8]}) than {installation}"
    return None


def _with_container(submission: Submission, folder: Path, report: ReportLine) -> Submission:
    return replace(
        submission, resources={**submission.resources, "container": checked_container(submission, folder, report)}
    )


def _with_paths(submission: Submission, pack: str, requirements: Path | None) -> Submission:
    named = {"pack": pack, "requirements": None if requirements is None else str(requirements)}
    return replace(submission, resources={**submission.resources, **named})


def _packs_of(job_dir: Path) -> dict[Path, str]:
    """SHA-256 by path, first that of the environment."""
    try:
        text = read_bytes(job_dir / PACKS_FILE, MAX_LIST_BYTES).decode(errors="surrogateescape")
    except OSError:
        return {}
    lines = (line.partition("  ") for line in text.splitlines())
    return {Path(path): sha256 for sha256, _, path in lines}


def _checked_pack(submission: Submission, folder: Path, report: ReportLine, same: str = "") -> str:
    """`resources.pack` with an absolute path.

    Args:
        same: A pack that needs no further look.
    """
    wants, installation = submission.wants, submission.installation
    if wants.pack == "none":
        return "none"
    if submission.backend == "local":
        report("resources.pack: is not used: on this machine ranks start from the environment itself")
        return "none"
    if {**os.environ, **wants.environment}.get("PYTHONPATH"):  # its value may be a secret
        report(
            "warning: resources.pack: PYTHONPATH goes before the pack: what is in its folders, ranks read there; unset "
            "it to have them start from the pack alone"
        )
    if wants.pack == "auto":
        here = this_installation()
        if same != "auto" and installation is not None and installation.fingerprint != here.fingerprint:
            raise UserError(
                f"resources.pack: auto makes a pack of {here}, and the job goes on with {installation}; give its pack, "
                "or take --with-this-version"
            )
        return "auto"
    path = Path(os.path.normpath(folder / wants.pack))
    if str(path) == same:
        return same
    if problems := unfit(read_manifest(path), installation or this_installation()):
        raise UserError("\n".join(f"resources.pack: {path}: {problem}" for problem in problems))
    return str(path)


def unfit(manifest: Manifest, here: Installation) -> list[str]:
    """Why a job that runs the hpc_train `here` cannot start from a pack: another hpc_train or Python.

    What the nodes are like is known there alone: slurm/pack.sh looks before it unpacks.
    """
    again = "make it again with this one, or submit with the environment that it was made of"
    problems = []
    if manifest.hpc_train != here.version:
        problems.append(f"has hpc_train {manifest.hpc_train}, and this is {here.version}: {again}")
    elif manifest.code != here.fingerprint:
        problems.append(
            f"has other code of hpc_train ({manifest.code[:8]}) than this ({here.fingerprint[:8]}): {again}"
        )
    if manifest.python.split(".")[:2] != here.python_version.split(".")[:2]:
        problems.append(f"has Python {manifest.python}, and this is {here.python_version}: {again}")
    return problems
