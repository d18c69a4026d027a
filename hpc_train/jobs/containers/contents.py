"""What an image holds, as its own programs say."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Annotated

from pydantic import Field, TypeAdapter, ValidationError

from hpc_train.errors import UserError
from hpc_train.telemetry.json_files import parsed
from hpc_train.text import visible

LOOK_SECS = 300
"""How long a command may take that looks into an image; on a busy file system Python starts slowly."""
MAX_SAID = 1 << 20
MARK = "hpc_train: "
LOOK_AT_PATHS = """\
full() {
    [ -r "$1" ] || return 0
    for one in "$1"/* "$1"/.[!.]* "$1"/..?*; do
        if [ -e "$one" ] || [ -L "$one" ]; then return 0; fi
    done
    return 1
}
for path; do
    if [ -f "$path" ]; then echo file
    elif [ ! -d "$path" ]; then echo none
    elif [ -L "$path" ] || full "$path"; then echo full
    else echo empty
    fi
done"""
"""For sh: what is at each path that it is given."""
LOOK_AT_PYTHON = f"""\
import json, os, platform, sys
found = {{"python": platform.python_version(), "folder": os.getcwd()}}
found["sees"] = [path for path in sys.argv[2:] if os.path.exists(path)]
found["writes"] = os.access(sys.argv[1], os.W_OK)
try:
    import importlib.util
    spec = importlib.util.find_spec("hpc_train")
    if spec is not None and spec.origin:
        found["package"] = os.path.dirname(spec.origin)
        from hpc_train.packs.package_code import fingerprint_of, version_of
        from pathlib import Path
        found["version"] = version_of(Path(found["package"])) or "unknown"
        found["code"] = fingerprint_of(Path(found["package"]))
except Exception as error:
    found["problem"] = str(error)[:300]
try:
    import mpi4py
    mpi4py.rc.initialize = False
    from mpi4py import MPI
    found["mpi"] = MPI.Get_library_version()[:200]
except Exception as error:
    found["without_mpi"] = str(error)[:300]
sys.stdout.write("\\n{MARK}" + json.dumps(found) + "\\n")
"""
"""For the image's Python: the job-dir, then paths that it should see. One line of JSON; it needs no hpc_train."""

Text = Annotated[str, Field(max_length=4096)]
PathText = Annotated[str, Field(max_length=4096, pattern=r"^/[^\x00-\x1f\x7f]*$")]


@dataclass(frozen=True)
class Contents:
    """What was found in an image.

    Attributes:
        python: The version of `python3`.
        folder: Where commands begin.
        sees: Of the paths asked for, those that are there.
        writes: Whether the job-dir can be written.
        package, version, code: The folder of hpc_train, its version and its code's fingerprint, where it has one.
        problem: Why that cannot be told.
        mpi: What mpi4py's MPI says of itself; None: `without_mpi` is why it has none.
    """

    python: Annotated[str, Field(pattern=r"^\d+\.\d+[\w.+-]{0,32}$")]
    folder: PathText
    sees: list[Text]
    writes: bool
    package: Text | None = None
    version: Annotated[str, Field(pattern=r"^[\w.+-]{1,64}$")] | None = None
    code: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None
    problem: Text | None = None
    mpi: Text | None = None
    without_mpi: Text | None = None

    @property
    def mpi_name(self) -> str:
        """Its MPI, in a few words."""
        return "MPI not known, without mpi4py" if self.mpi is None else first_line(self.mpi)


_CONTENTS = TypeAdapter(Contents)


@dataclass(frozen=True)
class ImageLook:
    """Asks an image, by the command that runs programs in it. See Look."""

    words: tuple[str, ...]
    image: str

    def kinds(self, paths: Sequence[str]) -> list[str]:
        found = output_of(
            [*self.words, "sh", "-c", LOOK_AT_PATHS, "-", *paths], "/", self.image, "cannot be run"
        ).split()
        if len(found) != len(paths):
            raise UserError(f"container: {self.image}: its sh prints something else than what is in it")
        return found

    def text(self, path: str) -> str:
        return output_of([*self.words, "cat", path], "/", self.image, f"{path} cannot be read")


def output_of(command: Sequence[str], folder: str, image: str, what: str) -> str:
    """What a command prints that looks into an image, MAX_SAID bytes at most.

    Raises:
        UserError: It fails, or prints more.
    """
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    except OSError as error:
        raise UserError(f"container: {command[0]} cannot be started: {error.strerror}") from None

    def read(stream: IO[bytes]) -> bytes:
        text = stream.read(MAX_SAID + 1)
        if len(text) > MAX_SAID:
            process.kill()
        return text

    with process, ThreadPoolExecutor(2) as pool:
        texts = [pool.submit(read, stream) for stream in (process.stdout, process.stderr) if stream is not None]
        try:
            process.wait(LOOK_SECS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise UserError(f"container: {image}: does not answer within {LOOK_SECS} s") from None
        except BaseException:
            process.kill()
            raise
        out, err = (text.result().decode(errors="replace") for text in texts)
    if max(len(out), len(err)) > MAX_SAID:
        raise UserError(f"container: {image}: {what}: it prints without end")
    if process.returncode:
        said = visible(err.strip().splitlines()[-1] if err.strip() else f"exit code {process.returncode}")
        raise UserError(f"container: {image}: {what}: {said}")
    return out


def look_at_contents(words: Sequence[str], image: str, folder: str, job_dir: str, paths: Sequence[str]) -> Contents:
    """What Python finds in an image.

    Raises:
        UserError: It has no python3, or cannot be run.
    """
    command = [*words, "python3", "-c", LOOK_AT_PYTHON, job_dir, *paths]
    text = output_of(command, folder, image, "its python3 cannot be run")
    lines = [line.removeprefix(MARK) for line in text.splitlines() if line.startswith(MARK)]
    try:
        return _CONTENTS.validate_python(parsed(lines[-1].encode()))
    except (IndexError, ValueError, ValidationError):
        raise UserError(f"container: {image}: its python3 does not say what it has") from None


def first_line(text: str) -> str:
    """The first words of what an MPI says of itself, fit to be shown. Pure."""
    line = text.strip().partition("\n")[0].partition(",")[0]
    return visible(" ".join(line.removeprefix("mpirun ").split()))[:80]
