"""Packs are written: a tar file, so that each node needs no more than tar to unpack it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from hpc_train.errors import UserError
from hpc_train.files import open_to_read, read_bytes, replacement
from hpc_train.packs.contents import ENV, Member, folders_of, members_of, outside_of
from hpc_train.packs.interpreter import Interpreter, interpreter_of
from hpc_train.packs.manifest import FORMAT, NAME, Manifest
from hpc_train.packs.package_code import fingerprint_of
from hpc_train.packs.relocation import MAX_SCRIPT_BYTES, script_of

CHUNK_BYTES = 1 << 20
_SYSTEM_PACKAGES = "include-system-site-packages"


@dataclass(frozen=True)
class Planned:
    """What a pack is to have."""

    interpreter: Interpreter
    members: list[Member]
    manifest: Manifest


@dataclass(frozen=True)
class Written:
    """A pack that was written: its size, and the SHA-256 of its bytes."""

    bytes: int
    sha256: str


def plan_pack(venv: Path, report: Callable[[str], None]) -> Planned:
    """Looks at all files of an environment; writes nothing.

    Raises:
        UserError: It is no virtual environment, or has what cannot be packed.
    """
    interpreter = interpreter_of(venv)
    config = read_bytes(venv / "pyvenv.cfg", MAX_SCRIPT_BYTES).decode(errors="replace")
    for line in config.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == _SYSTEM_PACKAGES and value.strip() == "true":
            raise UserError(
                f"{venv} has the packages of {interpreter.base}, too ({_SYSTEM_PACKAGES} in pyvenv.cfg), which a pack "
                "would lack: install what is needed in it, and set that to false"
            )
    for what in outside_of(interpreter):
        report(f"warning: {what} is not in the pack: ranks read it where it is")
    members = members_of(interpreter)
    known = hashlib.sha256(f"{FORMAT} {interpreter.python} {interpreter.prefix}\n".encode())
    for one in members:
        if one.name.endswith(".pyc"):  # a start adds some, and the pack need not have all
            continue
        fields = (one.name, one.link, one.size, one.mtime, one.executable)
        known.update(repr(fields).encode(errors="surrogateescape"))
    manifest = Manifest(
        format=FORMAT,
        hpc_train=str(interpreter.hpc_train),
        python=interpreter.python,
        machine=interpreter.machine,
        libc=interpreter.libc,
        mpi=interpreter.mpi,
        prefix=interpreter.prefix,
        files=len(members),
        bytes=sum(one.size for one in members),
        contents=known.hexdigest(),
        code=fingerprint_of(Path(str(interpreter.package))),
    )
    return Planned(interpreter, members, manifest)


def write_pack(path: Path, planned: Planned) -> Written:
    """Writes the pack, which replaces `path` once it is whole; the same members make the same bytes.

    Raises:
        UserError: It cannot be written, or a file has changed meanwhile.
    """
    try:
        with replacement(path, mode=0o600) as file:
            hashing = _Hashing(cast("IO[bytes]", file))
            with tarfile.open(
                fileobj=cast("Any", hashing), mode="w|", bufsize=CHUNK_BYTES, format=tarfile.GNU_FORMAT
            ) as tar:
                manifest = json.dumps(planned.manifest.to_json(), indent=1) + "\n"
                tar.addfile(_info(NAME, len(manifest)), io.BytesIO(manifest.encode()))
                for folder in folders_of(planned.members):
                    info = _info(folder, 0)
                    info.type, info.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(info)
                for member in planned.members:
                    _add(tar, member, planned.interpreter.prefix)
            return Written(hashing.count, hashing.digest.hexdigest())
    except OSError as error:
        raise UserError(f"{error.filename or path}: cannot be packed: {error.strerror or error}") from None


def write_folder(path: Path, folder: Path, name: str) -> Written:
    """Writes the files of `folder` into a tar file, as those of a folder `name`.

    Raises:
        OSError: One cannot be read, or it cannot be written.
    """
    with replacement(path, mode=0o600) as file:
        hashing = _Hashing(cast("IO[bytes]", file))
        with tarfile.open(
            fileobj=cast("Any", hashing), mode="w|", bufsize=CHUNK_BYTES, format=tarfile.GNU_FORMAT
        ) as tar:
            tar.add(folder, name, filter=_owned_by_nobody)
        return Written(hashing.count, hashing.digest.hexdigest())


def sha256_of(path: Path) -> str:
    """Of the bytes of a file, which is read whole.

    Raises:
        OSError: It cannot be read.
    """
    digest = hashlib.sha256()
    with open_to_read(path, follow=True) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


class _Hashing:
    """A file to write to in sequence, and what the bytes that were written come to."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest, self.count = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.count += len(data)
        return self._file.write(data)


def _owned_by_nobody(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = int(info.mtime)
    return info


def _info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o644, 0
    return info


def _add(tar: tarfile.TarFile, member: Member, prefix: str) -> None:
    info = _info(member.name, member.size)
    info.mtime = member.mtime
    if member.source is None:
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, member.link, 0o777
        tar.addfile(info)
        return
    info.mode = 0o755 if member.executable else 0o644
    with open_to_read(member.source, follow=True) as file:
        if os.fstat(file.fileno()).st_size != member.size:
            raise OSError(0, "has changed meanwhile: is it being installed?", str(member.source))
        if member.executable and member.size <= MAX_SCRIPT_BYTES and member.name.startswith(f"{ENV}/bin/"):
            content = script_of(file.read(), prefix)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        else:
            tar.addfile(info, file)
