"""The pages of the documentation as tests read them: their blocks, in order, and what is to be done with each.

A page can say, in comments that no reader sees, each on lines of its own before a block:

    <!-- not run: WHY -->                     the next block is checked, and not run
    <!-- not run, lines with TEXT: WHY -->    only those commands of it; TEXT is a regular expression
    <!-- before: COMMANDS -->                 what the block needs: run before it, in the same folder
    <!-- ends with N -->                      the exit code of its last command
    <!-- Ctrl-C after TEXT -->                its command is interrupted once it has printed TEXT

What a block of commands prints can be shown in a fence with `text` after it, where `…` is any text, and a line `…` any
lines. Nothing else may be printed.
"""

from __future__ import annotations

import ast
import builtins
import os
import re
import shlex
import shutil
import signal
import subprocess
import symtable
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import typer

from hpc_train.outcome import EXIT_INTERRUPTED
from tests.forks import forked, forks
from tests.support import BIN, LIMIT_SECS, REPOSITORY, environment, run_program, wait_for

GENERATED = ("api.md",)
"""Pages that are made from docstrings, whose examples other tests read."""
PROGRAM = re.compile(
    r"apptainer|bash|cat|cd|cp|curl|exec|export|git|grep|head|horovodrun|hpc-train|ls|make|mkdir|mpirun|mv|pip|python|rm"
    r"|sbatch|scancel|scontrol|source|squeue|srun|ssh|tail|tensorboard|unzip|wget|\.ci/run"
)
"""What a line begins with, after assignments, in an indented block of commands."""
_QUEUE = re.compile(r'(?:\w+=(?:"[^"]*"|\S)* )*(sbatch|scancel|squeue|scontrol) ')
"""Commands for Slurm: tests/slurm/test_pages.py runs these."""
_NOTE = re.compile(r"<!-- (not run|before|ends with|Ctrl-C after)(?:, lines with (.+?):|:)? (.*?) -->", re.DOTALL)
_FILE = re.compile(r"# ([\w./-]+\.(?:py|yaml|txt|csv))\b.*\n")


@dataclass
class Block:
    """A block of a page: `language` is what its fence says; of an indented one, what it looks like.

    Attributes:
        printed: What a block after it shows as the output of its commands.
    """

    page: Path
    line: int
    language: str
    text: str
    notes: list[tuple[str, str, str]] = field(default_factory=list)
    printed: str | None = None

    def __str__(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file whose content it is, which its first line names in a comment."""
        found = _FILE.match(self.text) if self.language in ("python", "yaml", "") else None
        return found and found[1]

    @property
    def skipped(self) -> str | None:
        """Why all of it is not run; None: it is."""
        return next((why for kind, lines, why in self.notes if kind == "not run" and not lines), None)

    @property
    def before(self) -> list[str]:
        """What is run before it."""
        return [what for kind, _, what in self.notes if kind == "before"]

    @property
    def interrupted_after(self) -> str | None:
        """What its last command has printed when it is interrupted; None: it ends by itself."""
        return next((what for kind, _, what in self.notes if kind == "Ctrl-C after"), None)

    @property
    def code(self) -> int:
        """With which it ends."""
        default = EXIT_INTERRUPTED if self.interrupted_after else 0
        return next((int(what) for kind, _, what in self.notes if kind == "ends with"), default)

    @cached_property
    def session(self) -> list[tuple[str, str]]:
        """Its commands, without comments, with the output that is shown below each of them."""
        found: list[tuple[str, str]] = []
        if re.search(r"^\$ ", self.text, re.MULTILINE):
            for line in self.text.splitlines(keepends=True):
                if line.startswith("$ "):
                    found.append((_without_comment(line[2:].rstrip()), ""))
                else:
                    found[-1] = found[-1][0], found[-1][1] + line
            return found
        for line in re.sub(r" *\\\n *", " ", self.text).splitlines():
            if command := _without_comment(line):
                found.append((command, ""))
        return found

    @property
    def commands(self) -> list[str]:
        """Of its session, without the output."""
        return [command for command, _ in self.session]

    def typed(self, queue: bool) -> list[tuple[str, str]]:
        """The commands of its session that are run: those for Slurm, or the others."""
        return [(c, shown) for c, shown in self.session if not self.why_not(c) and bool(_QUEUE.match(c)) == queue]

    def why_not(self, command: str) -> str | None:
        """Why a command of it is not run; None: it is."""
        partly = (why for kind, lines, why in self.notes if kind == "not run" and lines and re.search(lines, command))
        return self.skipped or next(partly, None)


def _without_comment(line: str) -> str:
    found = re.match(r"((?:'[^']*'|\"[^\"]*\"|[^'\"#]|(?<=\S)#)*)(?:(?:^|(?<=\s))#.*)?$", line)
    return (found[1] if found else line).rstrip()


def pages() -> list[Path]:
    """All pages that people read."""
    found = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("examples/**/*.md")]
    return sorted(path for path in found if path.name not in (*GENERATED, "CHANGELOG.md"))


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page in their order, without outputs, which belong to the commands before them.

    ValueError: a note stands before none, or an output after no commands.
    """
    found: list[Block] = []
    for block in _blocks_of(page):
        if block.language != "text":
            found.append(block)
        elif found and found[-1].language == "bash" and found[-1].printed is None and not block.notes:
            found[-1].printed = block.text
        else:
            raise ValueError(f"{block}: a fence with text is the output of the commands before it, and there are none")
    return found


def _blocks_of(page: Path) -> Iterator[Block]:
    """All of them; an indented one ends with a paragraph."""
    lines, notes, number = page.read_text().splitlines(), list[tuple[str, str, str]](), 0
    while number < len(lines):
        line, begun = lines[number], number
        if line.startswith("<!--"):
            while "-->" not in lines[number]:
                number += 1
            number += 1
            if note := _NOTE.fullmatch("\n".join(lines[begun:number])):
                notes.append((note[1], note[2] or "", note[3]))
            continue
        if fence := re.match(r"( *)```+\{?(\w*)", line):
            while not lines[number := number + 1].strip().startswith("```"):
                pass
            text = "".join(f"{inside[len(fence[1]) :]}\n" for inside in lines[begun + 1 : number])
            language = fence[2] or _language_of(text)
        elif line.startswith("    ") and (begun == 0 or not lines[begun - 1].strip()):
            while number + 1 < len(lines) and lines[number + 1].startswith("    "):
                number += 1
            text = "".join(f"{inside[4:]}\n" for inside in lines[begun : number + 1])
            language = _language_of(text)
            if language == "python":  # a blank line within it
                while number + 2 < len(lines) and not lines[number + 1] and lines[number + 2].startswith("    "):
                    begun_again, number = number + 1, number + 2
                    while number + 1 < len(lines) and lines[number + 1].startswith("    "):
                        number += 1
                    text += "".join(f"{inside[4:]}\n" for inside in lines[begun_again : number + 1])
        else:
            if line.strip() and notes:
                raise ValueError(f"{page}:{begun + 1}: a note stands before text, and not before a block")
            number += 1
            continue
        yield Block(
            page, begun + 1, {"sh": "bash", "shell": "bash", "console": "bash"}.get(language, language), text, notes
        )
        notes, number = [], number + 1


def _language_of(text: str) -> str:
    first = text.removeprefix("$ ").split("\n")[0]
    words = [word for word in first.split() if not re.match(r"[A-Z_]+=", word)]
    if words and PROGRAM.fullmatch(words[0]):
        return "bash"
    if re.match(r"(import|from|def|class) ", first):
        return "python"
    if re.match(r"[a-z_]+: ", first) and re.match(r"[a-z_]+: *[\[{\"\d]", first):
        return "yaml"
    return ""


def is_whole(code: str) -> bool:
    """Whether Python code can run as it is: it uses no name that it does not bind, import or find built in. Pure."""
    defined = set(dir(builtins)) | {"__name__", "__file__"}
    tree = ast.parse(code)
    if any(
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and node.value.value is ...
        for node in ast.walk(tree)
    ):
        return False
    top = symtable.symtable(code, "page", "exec")
    defined |= {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    defined |= {child.get_name() for child in top.get_children()}
    asked = {
        symbol.get_name()
        for table in _tables(top)
        for symbol in table.get_symbols()
        if symbol.is_global() or table is top
    }
    return asked <= defined


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def calls_of(command: str) -> Iterator[list[str]]:
    """The arguments with which a line of shell calls hpc-train, itself or through a script of slurm/. Pure."""
    try:
        lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
        lexer.whitespace_split, lexer.commenters = True, ""
        words = list(lexer)
    except ValueError:
        return
    ends = [n for n, word in enumerate(words) if word in ("|", "&&", "||", ";", "&", ">", ">>", "│")] + [len(words)]
    for number, word in enumerate(words):
        rest = words[number + 1 : next(end for end in ends if end > number)]
        if word == "hpc-train" or (word == "hpc_train" and words[number - 1] == "-m"):
            yield rest
        elif re.search(r"slurm/(train|evaluate)\.sh$", word) and rest:
            yield [Path(word).stem, *rest]


def parse(arguments: list[str]) -> None:
    """Parses a command's arguments as hpc-train does, and runs nothing. ValueError: it would refuse them."""
    from hpc_train.cli.app import app

    command: Any = typer.main.get_command(app)
    context, name, rest = None, "hpc-train", arguments
    try:
        while True:
            context = command.make_context(name, list(rest), parent=context)
            if not hasattr(command, "resolve_command"):
                return
            name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
    except typer.Exit:  # --help, --version
        return
    except Exception as error:
        if not hasattr(error, "format_message"):  # of click, or of typer's copy of it
            raise
        raise ValueError(f"hpc-train {shlex.join(arguments)}: {error.format_message()}") from None


def readme_files() -> dict[str, str]:
    """The files that the README has a newcomer write: train.py, make_data.py and job.yaml."""
    found = (block for block in blocks_of(REPOSITORY / "README.md") if block.file)
    return {block.file or "": block.text.partition("\n")[2] for block in found}


def newcomer(folder: Path) -> dict[str, str]:
    """The environment of somebody who types a page's commands in `folder`, where `python` begins in a fork."""
    programs = folder / "programs"
    programs.mkdir()
    for name, words in (("python", []), ("hpc-train", ["-m", "hpc_train"])):
        script = f'#!/bin/sh\nexec {shlex.join(forked(words, environment()))} "$@"\n'
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    activate = folder / ".venv/bin/activate"
    activate.parent.mkdir(parents=True)
    activate.write_text(f'export PATH="{programs}:{BIN}:$PATH"\n')
    return {"HPC_TRAIN_BACKEND": "local", "XDG_STATE_HOME": str(folder / "state"), **forks(environment())}


def is_output(printed: str, shown: str) -> bool:
    """Whether `printed` is what a page shows, where `…` is any text, and a line `…` any lines.

    Tables' columns are as wide as what is in them: so several blanks are like two, those at a line's ends none. Pure.
    """
    lines = []
    for line in map(_narrow, shown.splitlines()):
        words = r"[^\n]*?".join(re.escape(part) for part in line.split("…"))
        lines.append(r"(?:[^\n]*\n)*?" if line == "…" else f"{words}\n")
    return re.fullmatch("".join(lines), "".join(f"{_narrow(line)}\n" for line in printed.splitlines())) is not None


def _narrow(line: str) -> str:
    return re.sub(" {2,}", "  ", line.strip())


def alike(line: str, shown: str) -> bool:
    """Whether two lines have the same words, but for blanks and the name of the queue."""
    return line.replace("local job", "Slurm job").split() == shown.split()


class Reader:
    """Somebody who types what a page shows, in a copy of the checkout, after the README; the tier BASIC is one rank.

    Args:
        folder: Where; it is made.
        trained: The folder of the one who has trained the README's job, whose runs/mine this one has, too.
        env: What the commands' environment has beside that of `newcomer`.
    """

    def __init__(self, folder: Path, trained: Path | None = None, **env: str) -> None:
        folder.mkdir()
        self._checkout = folder / "checkout"
        for name in ("examples", "slurm", "benchmarks"):
            shutil.copytree(
                REPOSITORY / name, self._checkout / name, ignore=shutil.ignore_patterns("__pycache__", "data")
            )
        for name, text in readme_files().items():
            (self._checkout / name).write_text(text)
        if trained is not None:
            for name in ("data", "runs"):
                shutil.copytree(trained / name, self._checkout / name)
        tiers = folder / "tiers.yaml"
        tiers.write_text("tiers:\n  BASIC: {ranks_per_node: 1, cores_per_rank: 1, time: '01:00:00'}\n")
        self._env = {**newcomer(folder), "TESTS": str(REPOSITORY / "tests"), "HPC_TRAIN_TIERS": str(tiers), **env}
        self._cwd, self._exported, self._at = folder / "cwd", folder / "exported", folder / "at"
        self._printed = folder / "printed"
        self._cwd.write_text(str(self._checkout))
        self._exported.write_text(f"source {folder}/.venv/bin/activate\n")

    @classmethod
    def trained(cls, folder: Path) -> Path:
        """The folder of somebody who has trained the README's job on one rank, as runs/mine; it is made."""
        cls(folder).type(["python make_data.py", "hpc-train shard data/ mine.npz --split", "hpc-train train job.yaml"])
        return folder / "checkout"

    def write(self, name: str, text: str) -> None:
        """Writes a file that a page shows."""
        path = Path(self._cwd.read_text()) / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)

    def type(self, commands: Sequence[str], code: int = 0, interrupted_after: str | None = None) -> str:
        """Types commands one after the other; the next ones find their folder and variables. Returns what is printed.

        With `interrupted_after`, types Ctrl-C once that is printed.

        AssertionError, with the command: one ends with a code other than 0; the last one, other than `code`.
        """
        said = "\n".join(f"printf %s {shlex.quote(command)} >{self._at}\n{command}" for command in commands)
        kept = f"trap 'code=$?; export -p >{self._exported}; printf %s \"$PWD\" >{self._cwd}; exit $code' EXIT"
        script = f"source {self._exported}\ncd {shlex.quote(self._cwd.read_text())}\n{kept}\nset -e\n{said}\n"
        command = ["bash", "-c", f"exec >{self._printed} 2>&1\n{script}"]
        self._printed.write_text("")
        if interrupted_after is None:
            ended = run_program(command, self._checkout, **self._env).returncode
        else:
            ended = self._interrupted(command, interrupted_after)
        last, printed = self._at.read_text(), self._printed.read_text()
        assert ended == code and last == commands[-1], f"{last}\nended with {ended}\n{printed}"
        return printed

    def _interrupted(self, command: Sequence[str], after: str) -> int:
        """Runs a command that is interrupted, with all its processes, once it has printed `after`; its exit code."""
        with subprocess.Popen(
            command, cwd=self._checkout, env=environment(**self._env), start_new_session=True
        ) as process:
            try:
                wait_for(
                    lambda: after in self._printed.read_text() or process.poll() is not None, self._printed.read_text
                )
                os.killpg(process.pid, signal.SIGINT)
                return process.wait(LIMIT_SECS)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def outputs(self) -> str:
        """What is in the files that Slurm's jobs print into."""
        return "\n".join(path.read_text() for path in sorted(self._checkout.glob("*.out")))
