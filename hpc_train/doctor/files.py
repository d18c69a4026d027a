"""What `hpc-train doctor` reports about the file system of a job-dir.

It is tried out by `python -m hpc_train.doctor.files DIR`, a process of its own: a file system may hang for ever.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpc_train.doctor.tools import Finding, Outcome, emit
from hpc_train.files import create, open_to_change, open_to_lock, read_bytes, replace_text, unforeseen
from hpc_train.folders import make_new_folder, remove_tree, rename
from hpc_train.telemetry.units import size

WRITE_BYTES, LITTLE_WRITE_BYTES = 256 << 20, 64 << 20
LITTLE_FREE_BYTES = 2e9
WRITE_SECS = 10.0
"""A slow disk is given less to write, so that it takes about as long at most."""
SLOW_BYTES_PER_SEC = 50e6
FIRST_PIECE_BYTES = 8 << 20

_NETWORK = re.compile(
    r"nfs\d?|cifs|smb\d?|smbfs|lustre|gpfs|beegfs\w*|ceph|fuse\..+|panfs|pvfs2|orangefs|9p|afs|wekafs|virtiofs|ocfs2|gfs2"
)
_OBJECTS = re.compile(r"fuse\.(s3fs|gcsfuse|mountpoint-s3|goofys|rclone|blobfuse\d?|geesefs)")
"""These keep objects, not files: a rename copies, and is not atomic."""
_MEMORY = ("tmpfs", "ramfs")
_OWN_LOCKS = re.compile(r"(^|,)(localflock|local_lock=(all|flock)|nolock)(,|$)")
"""Mount options with which locks do not reach other nodes."""
_ELSEWHERE = "name a folder that you may write to, with --job-dir (or --root for all jobs)"


def command(job_dir: Path) -> list[str]:
    """The program that tries out the file system of `job_dir`."""
    return [sys.executable, "-m", "hpc_train.doctor.files", str(job_dir)]


def file_findings(outcome: Outcome, results: Mapping[str, Any]) -> list[Finding]:
    """The findings about the job-dir, its locks, and how fast it is written to. Pure.

    Args:
        outcome: Of the program; results: what it had reported when it ended.
    """
    findings = [job_dir_finding(outcome, results)]
    if "locks" in results:
        findings.append(locks_finding(results))
    if "write_secs" in results:
        findings.append(speed_finding(results["written_bytes"], results["write_secs"], results["fstype"]))
    if outcome.failure and "renamed" in results and "write_secs" not in results:
        check = "write speed" if "locks" in results else "locks"
        problem = results.get("error") or outcome.failure
        findings.append(
            Finding(check, "fails", problem, _problem_advice(results, problem), needed=check == "write speed")
        )
    return findings


def job_dir_finding(outcome: Outcome, results: Mapping[str, Any]) -> Finding:
    """Whether a job can keep its files there. Pure; as above."""
    if "renamed" not in results:
        problem = results.get("error") or outcome.failure or "the check ended without a word"
        place = f"{results['folder']}: " if "folder" in results and results["folder"] not in problem else ""
        return Finding("job-dir", "fails", place + problem, _problem_advice(results, problem), needed=True)
    fstype, free = results["fstype"], results["free_bytes"]
    kind = "in memory" if fstype in _MEMORY else "network" if _NETWORK.fullmatch(fstype) else "of this machine alone"
    found = f"{results['folder']}: {fstype} ({kind}), {size(free)} free"
    advice = None
    if free < LITTLE_FREE_BYTES:
        advice = "free some space: each checkpoint holds the model and its optimizer, and several are kept"
    elif fstype in _MEMORY:
        advice = "it is gone after the next boot, and counts as memory: choose a folder on a disk for what is to last"
    elif _OBJECTS.fullmatch(fstype):
        advice = (
            "it keeps objects, where a rename is a copy: a job killed at the wrong moment may leave half a checkpoint"
        )
    return Finding("job-dir", "warning" if advice else "ok", found, advice, needed=True)


def locks_finding(results: Mapping[str, Any]) -> Finding:
    """Whether flock keeps a second job out of a job-dir. Pure."""
    locks, fstype = results["locks"], results["fstype"]
    heart = "jobs then watch a lock of another node for 25 s before they take it for a dead job's"
    if locks == "exclusive":
        found = "flock between two processes works"
        if own := _OWN_LOCKS.search(results.get("options", "")):
            found += f", but not between nodes ({fstype} is mounted with {own.group(2)})"
            return Finding("locks", "warning", found, f"{heart}; mount it with locks that all nodes see")
        return Finding("locks", "ok", found)
    if locks == "shared":
        advice = "never start two jobs in one job-dir, or choose another file system; mount this one with flock"
        return Finding("locks", "fails", f"flock on {fstype} lets two processes in at once", advice)
    advice = f"{heart}; mount it with flock (Lustre: -o flock; NFS: a lock daemon)"
    return Finding("locks", "warning", f"{fstype} has no flock ({locks})", advice)


def speed_finding(count: int, secs: float, fstype: str) -> Finding:
    """Whether checkpoints are written fast enough. Pure."""
    speed = count / max(secs, 1e-9)
    found = f"{speed / 1e6:,.0f} MB/s ({count >> 20} MiB with fsync)"
    if speed >= SLOW_BYTES_PER_SEC:
        return Finding("write speed", "ok", found)
    advice = "checkpoints of large models will take long: choose a faster file system, or raise save_checkpoints_secs"
    if _NETWORK.fullmatch(fstype):
        advice += "; a scratch file system is often faster than the one of home folders"
    return Finding("write speed", "warning", found, advice)


def mount_of(path: str, mounts: str) -> tuple[str, str]:
    """(type, options) of the file system that `path` lies on, from the text of /proc/mounts. Pure."""
    best, found = -1, ("unknown", "")
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 4:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code.group(1), 8)), fields[1])
        within = path == point or path.startswith(point.rstrip("/") + "/")
        if within and len(point) >= best:  # of two at one place, the later hides the earlier
            best, found = len(point), (fields[2], fields[3])
    return found


def _problem_advice(results: Mapping[str, Any], problem: str) -> str:
    if "did not end within" in problem:
        left = f"; {results['scratch']} may be left there" if "scratch" in results else ""
        return f"the file system hangs or is very slow: try another --job-dir, and tell those who run it{left}"
    if re.search("No space|quota", problem):
        return "free some space (df, quota), or choose another --job-dir"
    if "Read-only" in problem:
        return "it is mounted read-only here; choose another --job-dir"
    return _ELSEWHERE


def _examine(job_dir: Path) -> None:
    folder = job_dir.absolute()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "is not a folder", str(folder))
    real, space = os.path.realpath(folder), os.statvfs(folder)
    fstype, options = mount_of(real, Path("/proc/self/mounts").read_text(errors="replace"))
    free = space.f_bavail * space.f_frsize
    emit(folder=str(folder), fstype=fstype, options=options, free_bytes=free)
    scratch = unforeseen(folder / "hpc-train-doctor")
    try:
        make_new_folder(scratch, 0o700)
    except OSError as error:
        raise OSError(error.errno, f"nothing can be written there: {error.strerror}", str(folder)) from None
    try:
        emit(scratch=str(scratch))
        _try_rename(scratch)
        emit(renamed=True)
        emit(locks=_try_flock(scratch / "lock"))
        count = WRITE_BYTES if free >= LITTLE_FREE_BYTES else LITTLE_WRITE_BYTES
        written, secs = _write(scratch / "data", min(count, max(free // 2, 1 << 20)))
        emit(written_bytes=written, write_secs=secs)
    finally:
        remove_tree(scratch)


def _try_rename(scratch: Path) -> None:
    """A file over another, as all small files are written, and a folder, as checkpoints are."""
    replace_text(scratch / "old", "old")
    replace_text(scratch / "new", "new")
    rename(scratch / "new", scratch / "old")
    make_new_folder(scratch / "folder.tmp")
    rename(scratch / "folder.tmp", scratch / "folder")
    if read_bytes(scratch / "old", 16) != b"new" or (scratch / "new").exists() or not (scratch / "folder").is_dir():
        raise OSError(errno.EIO, "a rename did not do what it should", str(scratch))


def _try_flock(path: Path) -> str:
    """How two processes fare that lock `path` one after the other: "exclusive", "shared", or why there are no locks."""
    file = open_to_lock(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        others = _flock_in_child(path)
        fcntl.flock(file, fcntl.LOCK_UN)
        again = _flock_in_child(path)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        os.close(file)
    if others:
        return "shared"
    return "exclusive" if again else "a lock stays after it was let go"


def _flock_in_child(path: Path) -> bool:
    """Whether another process gets the lock."""
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(BaseException):
            fcntl.flock(open_to_change(path), fcntl.LOCK_EX | fcntl.LOCK_NB)
            code = 0
        os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def _write(path: Path, count: int) -> tuple[int, float]:
    """Bytes written and the seconds that took, `count` at most, in pieces that grow while there is time for more."""
    noise = memoryview(os.urandom(FIRST_PIECE_BYTES))  # a file system may compress, or leave out zeros
    written, piece, start = 0, min(FIRST_PIECE_BYTES, count), time.perf_counter()
    with open(create(path), "wb", buffering=0) as file:
        while written < count:
            began, end = time.perf_counter(), written + piece
            while written < end:
                written += file.write(noise[: end - written])
            os.fsync(file.fileno())
            now = time.perf_counter()
            # The next piece is as large as all before it.
            piece = min(written, count - written)
            if now - start + 2 * (now - began) > WRITE_SECS:
                break
        return written, time.perf_counter() - start


def main() -> None:
    """Tries out the folder that the first argument names, or will be made in."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # removes what was written
    try:
        _examine(Path(sys.argv[1]))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        emit(error=f"{where}{error.strerror or error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
