"""Which files of a folder are its code, as Git sees it, and how they are copied."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from hpc_train import git as module
from hpc_train.errors import UserError
from hpc_train.jobs.snapshot import code_files
from hpc_train.jobs.snapshot.snapshot import DEFAULT_MAX_BYTES, LeftOut, check_outside, copy_snapshot, plan_snapshot

GIT_ENV = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="no git")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty one, in no repository."""
    (tmp_path / "proj").mkdir()
    return tmp_path / "proj"


def write(folder: Path, *paths: str, text: str = "x") -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, env=GIT_ENV, capture_output=True, check=True, timeout=600)
    return os.fsdecode(done.stdout)


def seen_by_git(folder: Path) -> list[str]:
    """What Git does not ignore, relative to `folder`."""
    listed = git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return sorted({path for path in listed.split("\0") if path})


def planned(folder: Path, always: Sequence[Path] = ()) -> list[str]:
    return list(plan_snapshot(folder, DEFAULT_MAX_BYTES, always).files)


def left_out(folder: Path) -> dict[str, str]:
    return {one.path: one.why for one in plan_snapshot(folder, DEFAULT_MAX_BYTES).left_out}


@contextmanager
def not_root() -> Iterator[Path]:
    """A folder of a user whom permissions hold back."""
    top = Path(tempfile.mkdtemp())
    root = os.geteuid() == 0
    try:
        if root:
            os.chown(top, 65534, 65534)
            os.seteuid(65534)
        yield top
    finally:
        if root:
            os.seteuid(0)
        subprocess.run(["chmod", "-R", "u+rwx", top], check=True)
        shutil.rmtree(top)


# -- what Git ignores --

TREE = (
    *("train.py", "job.yaml", "a.log", "keep.log", "build/out.o", "build/keep.o", "src/build/out.o", "src/a.log"),
    *("src/keep.log", "src/deep/keep.log", "src/deep/b.log", "data/x/y/z.bin", "data/x/z.bin", "data/z.bin"),
    *("docs/a b.txt", "docs/Größe.md", "docs/x.txt"),
)
IGNORES = [
    {"": "*.log\n!keep.log"},
    {"": "!keep.log\n*.log"},
    {"": "/a.log\n/build"},
    {"": "build/\n!build/keep.o"},
    {"": "build/*\n!build/keep.o"},
    {"": "train.py/\njob.yaml/"},
    {"": "src/build\n/src/*.log"},
    {"": "data/**/z.bin"},
    {"": "data/x/**"},
    {"": "*\n!*/\n!*.py"},
    {"": "/*\n!/src/\n/src/*\n!/src/deep"},
    {"": "*.log", "src": "!*.log", "src/deep": "b.log"},
    {"": "src", "src": "!a.log"},
    {"src": "/a.log\ndeep/keep.log", "data": "x/\n/z.bin"},
    {"": "a b.txt\nGröße.md\n[!a]*.log"},
    {"": "[z-a].log\nkeep.log\\\n\n!\n*.o\r\n"},
    {"": "\ufeff*.log"},
]


@needs_git
@pytest.mark.parametrize("ignores", IGNORES)
@pytest.mark.parametrize("repository", [True, False])
def test_files_are_those_that_git_sees(folder: Path, ignores: dict[str, str], repository: bool) -> None:
    """Also where the .gitignore files are read without Git, outside of repositories."""
    git(folder, "init", "-q")
    write(folder, *TREE)
    for place, text in ignores.items():
        (folder / place / ".gitignore").write_bytes(text.encode())
    expected = seen_by_git(folder)
    if not repository:
        shutil.rmtree(folder / ".git")

    assert planned(folder) == expected


@needs_git
def test_where_git_refuses_the_gitignore_files_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(folder, "init", "-q")
    write(folder, "sub/train.py", "sub/a.log", "sub/keep.log")
    (folder / ".gitignore").write_text("*.log")
    (folder / "sub/.gitignore").write_text("!keep.log")
    asked = plan_snapshot(folder / "sub")
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # as a repository of another user
    refused = plan_snapshot(folder / "sub")

    assert asked.files == refused.files == (".gitignore", "keep.log", "train.py")
    assert asked.rules.note is None
    assert "Git was not asked" in str(refused.rules.note) and "dubious ownership" in str(refused.rules.note)
    assert (refused.commit, refused.dirty) == (None, None)


@needs_git
def test_nothing_that_the_repository_names_is_run(folder: Path) -> None:
    """Somebody hands over a folder with a repository in it."""
    git(folder, "init", "-q")
    write(folder, "train.py", "other.py", ".gitattributes", text="*.py filter=evil diff=evil\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "x")
    ran = folder.parent / "ran"
    (folder.parent / "evil").write_text(f'#!/bin/sh\necho "$0 $*" >> {ran}\n')
    (folder.parent / "evil").chmod(0o700)
    evil = str(folder.parent / "evil")
    for key in (
        "core.fsmonitor",
        "core.sshCommand",
        "core.pager",
        "core.editor",
        "diff.external",
        "diff.evil.textconv",
    ):
        git(folder, "config", key, evil)
    for key in ("filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "remote.origin.uploadpack"):
        git(folder, "config", key, evil)
    git(folder, "config", "filter.evil.required", "true")
    (folder / "hooks").mkdir()
    for hook in ("fsmonitor-watchman", "post-index-change", "post-checkout", "reference-transaction"):
        shutil.copy(evil, folder / ".git/hooks" / hook)
        shutil.copy(evil, folder / "hooks" / hook)
    git(folder, "config", "core.hooksPath", "hooks")
    for name in ("train.py", "other.py"):
        os.utime(folder / name, (1, 1))  # Git has to look into it
    ran.unlink(missing_ok=True)

    plan = plan_snapshot(folder)

    assert "train.py" in plan.files
    assert plan.dirty is True, "hooks/ is new"
    assert not ran.exists(), ran.read_text()
    subprocess.run(["git", "status"], cwd=folder, env=GIT_ENV, capture_output=True, check=False, timeout=600)
    assert ran.exists(), "the test would find out"


@needs_git
def test_what_is_tracked_through_a_link_is_not_taken(folder: Path) -> None:
    git(folder, "init", "-q")
    write(folder, "sub/a.py", "train.py")
    git(folder, "add", ".")
    (folder.parent / "elsewhere").mkdir()
    (folder.parent / "elsewhere/a.py").write_text("secret")
    shutil.rmtree(folder / "sub")
    (folder / "sub").symlink_to(folder.parent / "elsewhere")

    assert planned(folder) == ["train.py"]


@needs_git
def test_other_repositories_inside_are_part_of_it(folder: Path) -> None:
    """With what they ignore themselves: one that Git knows as a submodule, and one that is just there."""
    git(folder, "init", "-q")
    for inner in ("module", "deep/loose"):
        (folder / inner).mkdir(parents=True)
        git(folder / inner, "init", "-q")
        write(folder / inner, "lib.py", "a.log", "sub/b.py")
        (folder / inner / ".gitignore").write_text("*.log")
        git(folder / inner, "add", ".")
        git(folder / inner, "commit", "-q", "-m", "x")
    git(folder, "add", "module")
    write(folder, "train.py")

    inside = [".gitignore", "lib.py", "sub/b.py"]
    assert planned(folder) == [*(f"deep/loose/{p}" for p in inside), *(f"module/{p}" for p in inside), "train.py"]


@needs_git
def test_files_that_were_removed_are_no_part_of_it(folder: Path) -> None:
    git(folder, "init", "-q")
    write(folder, "train.py", "gone.py", "folder/gone.py")
    git(folder, "add", ".")
    (folder / "gone.py").unlink()
    shutil.rmtree(folder / "folder")

    assert planned(folder) == ["train.py"]


def test_without_a_repository_patterns_above_the_folder_do_not_count(folder: Path) -> None:
    write(folder, "job.yaml", "a.log", "sub/b.log")
    (folder.parent / ".gitignore").write_text("job.yaml\n*.log")
    (folder / "sub/.gitignore").write_text("*.log")

    assert planned(folder) == ["a.log", "job.yaml", "sub/.gitignore"]


def test_a_folder_that_its_repository_ignores_has_its_own_patterns_alone(folder: Path) -> None:
    (folder.parent / ".git").mkdir()
    (folder.parent / ".gitignore").write_text("/proj/\n*.py")
    write(folder, "train.py", "a.log", ".gitignore", text="*.log\n")

    assert planned(folder) == [".gitignore", "train.py"]


def test_gitignore_that_is_no_plain_file_says_nothing(folder: Path) -> None:
    write(folder, "a.log", "elsewhere", "one/b.log", "two/c.log", text="*.log")
    (folder / ".gitignore").symlink_to("elsewhere")
    (folder / "one/.gitignore").mkdir()
    os.mkfifo(folder / "two/.gitignore")

    assert planned(folder) == [".gitignore", "a.log", "elsewhere", "one/b.log", "two/c.log"]


# -- what is left out or taken whatever .gitignore says --


def test_caches_environments_and_job_dirs_are_left_out(folder: Path) -> None:
    write(folder, ".git/config", "__pycache__/a.pyc", "b.pyc", ".venv/x", "venv/pyvenv.cfg", "venv/y", "runs/j/z")
    write(folder, "old/job_1/submission.json", "old/job_1/code/train.py", "old/notes", "sub/__pycache__/c.txt")
    write(folder, "sub/runs/kept.py", "sub/venv/kept.py", "submission.json", "runs.py")
    (folder / ".gitignore").write_text("!*.pyc\n!.venv\n!runs\n")

    assert planned(folder) == [
        ".gitignore", "old/notes", "runs.py", "sub/runs/kept.py", "sub/venv/kept.py", "submission.json"
    ]  # fmt: skip


def test_what_the_job_names_is_always_there(folder: Path) -> None:
    write(folder, "job.yaml", "models/net.py", "models/other.py", "runs/x.py", ".gitignore", text="*\n")
    (folder.parent / "link").symlink_to("proj")
    always = [Path("job.yaml"), folder / "models/../models/net.py", folder.parent / "link/runs/x.py"]

    assert planned(folder, always) == ["job.yaml", "models/net.py", "runs/x.py"]
    assert planned(folder.parent / "link", [folder.parent / "link/job.yaml"]) == ["job.yaml"]


@pytest.mark.parametrize("path", ["gone.py", "sub", "../other.py", "/etc/hostname"])
def test_what_the_job_names_must_be_a_file_in_the_folder(folder: Path, path: str) -> None:
    write(folder, "sub/a.py", "../other.py")

    with pytest.raises(UserError, match=f"{Path(path).name}: (is not a file|lies outside .*proj)"):
        planned(folder, [Path(path)])


@needs_git
def test_tracked_files_are_part_of_it_although_ignored(folder: Path) -> None:
    git(folder, "init", "-q")
    write(folder, "train.py", "data/vocabulary.json", "data/big.json", "b.pyc", ".gitignore", text="data/\n")
    git(folder, "add", "-f", "train.py", "data/vocabulary.json", "b.pyc")

    assert planned(folder) == [".gitignore", "data/vocabulary.json", "train.py"]


# -- links and what is no file --


def test_a_link_to_a_file_becomes_its_content(folder: Path) -> None:
    write(folder, "real.py", "../shared.py", text="content")
    (folder / "inside.py").symlink_to("real.py")
    (folder / "outside.py").symlink_to("../shared.py")
    plan = plan_snapshot(folder)
    copy_snapshot(plan, folder.parent / "code")

    assert plan.files == ("inside.py", "outside.py", "real.py")
    assert plan.bytes == 3 * len("content")
    for path in plan.files:
        assert not (folder.parent / "code" / path).is_symlink()
        assert (folder.parent / "code" / path).read_text() == "content"


def test_links_to_folders_are_followed_where_they_stay_inside(folder: Path) -> None:
    write(folder, "lib/a.py", "lib/sub/b.py", "deep/one/c.py", "../elsewhere/d.py", "../project/e.py", "data/big")
    (folder / ".gitignore").write_text("/data\nignored/\n")
    links = {
        "alias": "lib", "out": "../elsewhere", "beside": "../project", "self": ".", "up": "..", "gone": "nowhere",
        "lib/sub/back": "..", "deep/one/two": "../../lib", "lib/loop": "../deep", "round": "round", "train": "data",
        "ignored": "../elsewhere",
    }  # fmt: skip
    for link, target in links.items():
        (folder / link).symlink_to(target)

    assert planned(folder) == [
        ".gitignore", "alias/a.py", "alias/loop/one/c.py", "alias/sub/b.py", "deep/one/c.py", "deep/one/two/a.py",
        "deep/one/two/sub/b.py", "lib/a.py", "lib/loop/one/c.py", "lib/sub/b.py",
    ]  # fmt: skip
    assert left_out(folder) == {
        "out": f"a link to a folder outside: {folder.parent}/elsewhere",
        "beside": f"a link to a folder outside: {folder.parent}/project",
        "up": f"a link to a folder outside: {folder.parent}",
        "self": f"a link to a folder that it is in: {folder}",
        "lib/sub/back": f"a link to a folder that it is in: {folder}/lib",
        "alias/sub/back": f"a link to a folder that it is in: {folder}/lib",
        "deep/one/two/sub/back": f"a link to a folder that it is in: {folder}/lib",
        "alias/loop/one/two": f"a link to a folder that it is in: {folder}/lib",
        "lib/loop/one/two": f"a link to a folder that it is in: {folder}/lib",
        "deep/one/two/loop": f"a link to a folder that it is in: {folder}/deep",
        "train": f"a link to a folder that is ignored: {folder}/data",
        "gone": "a link to what is not there or cannot be read",
        "round": "a link to what is not there or cannot be read",
    }


def test_special_files_are_left_out_and_not_opened(folder: Path) -> None:
    write(folder, "train.py")
    os.mkfifo(folder / "pipe")
    (folder / "to_pipe").symlink_to("pipe")
    (folder / "null").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
        plan = plan_snapshot(folder)

    assert plan.files == ("train.py",)
    assert plan.left_out == (
        LeftOut("null", "a link to a socket, FIFO or device"),
        LeftOut("pipe", "a socket, FIFO or device"),
        LeftOut("socket", "a socket, FIFO or device"),
        LeftOut("to_pipe", "a link to a socket, FIFO or device"),
    )
    assert copy_snapshot(plan, folder.parent / "code").files == 1


def test_unreadable_folders_and_gitignores_are_named() -> None:
    with not_root() as folder:
        write(folder, "sub/a.py", ".gitignore")
        (folder / ".gitignore").chmod(0)
        with pytest.raises(UserError, match=r"/\.gitignore: cannot be read: Permission denied"):
            plan_snapshot(folder)
        (folder / ".gitignore").unlink()
        (folder / "sub").chmod(0)
        with pytest.raises(UserError, match="/sub: cannot be read: Permission denied; make it readable"):
            plan_snapshot(folder)
        (folder / ".gitignore").write_text("sub\n")

        assert planned(folder) == [".gitignore"]


def test_a_folder_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(UserError, match="/gone: cannot be read: No such file"):
        plan_snapshot(folder / "gone")


# -- limits --


def test_over_the_size_limit_the_largest_are_named(folder: Path) -> None:
    for path, count in {"data/deep/a.h5": 5000, "data/small": 10, "m.bin": 900, "lib/x": 300, "lib/y": 310}.items():
        write(folder, path, text="x" * count)
    write(folder, "train.py", "util.py", "p.py", "q.py")
    write(folder, "runs/not_counted", text="x" * 9000)

    assert plan_snapshot(folder, 6524).bytes == 6524
    with pytest.raises(UserError) as error:
        plan_snapshot(folder, 6523)
    assert str(error.value) == (
        f"{folder}: the code to be copied into the job-dir is 9 files of together 6.5 kB, and at most 6.5 kB may be; "
        "most is in data/deep/a.h5 (5.0 kB), m.bin (900 B), lib/ (610 B), p.py (1 B), q.py (1 B). Add what is not "
        f"code to {folder}/.gitignore; name data by their path instead of keeping them with the code; or allow more "
        "with --max-code-size"
    )


def test_counting_stops_soon_after_too_many_files(folder: Path) -> None:
    for part in range(20):
        (folder / f"data/{part}").mkdir(parents=True)
        for number in range(100):
            (folder / f"data/{part}/{number}").touch()
    with pytest.raises(UserError, match=r"is more than 150 files, and at most 150 may be; most is in data/ \(151\)\."):
        plan_snapshot(folder, max_files=150)

    assert len(plan_snapshot(folder, max_files=2000).files) == 2000


def test_ignored_files_are_counted_too_at_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, *(f"data/{number}" for number in range(30)), ".gitignore", text="data/*")
    monkeypatch.setattr(code_files, "MAX_SEEN", 20)

    with pytest.raises(UserError, match="holds more than 20 files and folders, ignored ones included"):
        plan_snapshot(folder)
    (folder / ".gitignore").write_text("data/")
    assert planned(folder) == [".gitignore"]


def test_links_that_multiply_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for level in range(30):  # 2 ** 30 ways to the last
        (folder / f"{level}").mkdir()
        for name in ("a", "b"):
            (folder / f"{level}/{name}").symlink_to(f"../{level + 1}")
    (folder / "30").mkdir()
    monkeypatch.setattr(code_files, "MAX_SEEN", 5000)

    with pytest.raises(UserError, match="holds more than 5,000 files"):
        plan_snapshot(folder)


# -- Git's commit --


@needs_git
def test_commit_and_whether_the_folder_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sub/proj"
    write(folder, "train.py", "../other.py")
    git(tmp_path, "init", "-q")

    def state() -> tuple[str | None, bool | None]:
        plan = plan_snapshot(folder)
        return plan.commit, plan.dirty

    assert state() == (None, None)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "x")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert state() == (commit, False)
    write(folder, "../other.py", text="changed")
    write(folder, "runs/j/submission.json", "__pycache__/a.pyc")
    assert state() == (commit, False)
    write(folder, "new/Größe.py")
    assert state() == (commit, True)
    shutil.rmtree(folder / "new")
    write(folder, "train.py", text="changed")
    assert state() == (commit, True)
    (tmp_path / ".gitignore").write_text("proj/")
    git(tmp_path, "checkout", "-q", ".")
    assert state() == (commit, True)


def test_without_git_there_is_no_commit(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(folder, "train.py")
    (folder / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))

    assert (plan_snapshot(folder).commit, plan_snapshot(folder).dirty) == (None, None)


def test_git_that_hangs_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(folder, "train.py")
    (folder / ".git").mkdir()
    (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 3600\n")
    (tmp_path / "git").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(module, "GIT_TIMEOUT_SECS", 0.2)
    began = time.monotonic()

    assert plan_snapshot(folder).commit is None
    assert time.monotonic() - began < 3600


# -- the job-dir --


@pytest.mark.parametrize("repository", [True, False])
def test_job_dir_outside_or_in_what_is_left_out(folder: Path, repository: bool) -> None:
    if repository:
        git(folder, "init", "-q")
    (folder / ".gitignore").write_text("/out\n*_job/\n")
    (folder.parent / "scratch").mkdir()
    (folder / "linked").symlink_to(folder.parent / "scratch")
    rules = plan_snapshot(folder).rules

    for place in ("../runs/j", "../project", "runs/j", "out/deep/j", "my_job", "linked/j", "sub/a_job/x", ".."):
        check_outside(folder, folder / place, rules)
        check_outside(folder, folder / place)
    for place in (":(top)out", "[o]ut", "sub/out"):
        with pytest.raises(UserError, match="lies inside"):
            check_outside(folder, folder / place, rules)


@pytest.mark.parametrize("place", ["jobs/j", "outer", "sub/runs/j", "to/../jobs/j", "../alias/jobs/j"])
def test_job_dir_inside_is_refused(folder: Path, place: str) -> None:
    (folder / "to").mkdir()
    (folder / ".gitignore").write_text("/out\n")
    (folder.parent / "alias").symlink_to("proj")
    inside = (folder / place).resolve().relative_to(folder)

    with pytest.raises(UserError) as error:
        check_outside(folder, folder / place)
    assert str(error.value) == (
        f"{folder / place}: the job-dir lies inside {folder}, the code that is copied into it; give --root or "
        f"--job-dir outside of that, or add /{inside}/ or a folder that it is in to {folder}/.gitignore"
    )


def test_job_dir_that_is_the_folder_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)

    with pytest.raises(UserError, match=r"--job-dir outside of that$"):
        check_outside(Path(), folder)


# -- copying --


def test_a_copy_has_content_times_and_executable_bits(folder: Path) -> None:
    write(folder, "train.py", "a/b/run.sh", text="content")
    (folder / "a/b/run.sh").chmod(0o6777)
    (folder / "train.py").chmod(0o446)
    os.utime(folder / "a/b/run.sh", ns=(10**18, 10**18 + 7))
    name = os.fsdecode(b"latin-\xe9.py")
    write(folder, name)
    (folder / os.fsdecode(b"gone-\xe9")).symlink_to("nowhere")
    (folder / "empty").mkdir()
    code = folder.parent / "code"
    snapshot = copy_snapshot(plan_snapshot(folder), code)

    assert (snapshot.files, snapshot.bytes) == (3, 15)
    assert json.loads(json.dumps(asdict(snapshot)))["left_out"] == [
        {"path": "gone-\\xe9", "why": "a link to what is not there or cannot be read"}
    ]
    assert sorted(os.listdir(code)) == ["a", name, "train.py"]
    script = (code / "a/b/run.sh").stat()
    assert (code / "a/b/run.sh").read_text() == "content"
    assert (stat.S_IMODE(script.st_mode), script.st_mtime_ns) == (0o755, 10**18 + 7)
    assert stat.S_IMODE((code / "train.py").stat().st_mode) == 0o444
    assert [stat.S_IMODE((code / path).stat().st_mode) for path in ("", "a", "a/b")] == [0o700] * 3
    (folder / "train.py").chmod(0o600)
    write(folder, "train.py", text="edited")
    assert (code / "train.py").read_text() == "content"


def test_only_the_first_left_out_are_noted(folder: Path) -> None:
    for number in range(30):
        (folder / f"{number:02}").symlink_to("nowhere")
    plan = plan_snapshot(folder)

    assert len(plan.left_out) == 30
    assert [one.path for one in copy_snapshot(plan, folder.parent / "code").left_out] == [f"{n:02}" for n in range(20)]


def refused(folder: Path, change: str, max_bytes: int = DEFAULT_MAX_BYTES) -> str:
    """What copying says after `change`, a line of shell in `folder`; and nothing is left of the copy."""
    plan = plan_snapshot(folder, max_bytes)
    subprocess.run(["sh", "-ec", change], cwd=folder, check=True)
    before = sorted(os.listdir(folder.parent))
    with pytest.raises(UserError) as error:
        copy_snapshot(plan, folder.parent / "code")
    assert sorted(os.listdir(folder.parent)) == before
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rm b.py", "b.py: has vanished while the code was copied"),
        ("rm -r sub; touch sub", "sub/c.py: has vanished while the code was copied"),
        ("rm b.py; mkfifo b.py", "b.py: cannot be read: is a FIFO, not a regular file"),
        ("rm b.py; mkdir b.py", "b.py: cannot be read: is a folder, not a regular file"),
        ("rm b.py; ln -s b.py b.py", "b.py: cannot be read: Too many levels of symbolic links"),
        ("rm b.py; ln -s /proc/self/mem b.py", "b.py: cannot be read: Input/output error; make it readable"),
        ("rm b.py; ln -s /dev/zero b.py", "b.py: cannot be read: is a device, not a regular file"),
        ("mkdir -p ../code", "code: already there"),
        ("ln -s nowhere ../code", "code: already there"),
    ],
)
def test_what_changed_since_it_was_planned_is_an_error(folder: Path, change: str, message: str) -> None:
    write(folder, "a.py", "b.py", "sub/c.py")

    assert message in refused(folder, change)


def test_a_file_that_grows_is_bounded(folder: Path) -> None:
    write(folder, "a.py", "b.log", "c.py", text="123")

    assert "b.log: has grown while the code was copied" in refused(folder, "truncate -s 8G b.log", max_bytes=1000)
    write(folder, "b.log", text="123")
    plan = plan_snapshot(folder, 100)
    write(folder, "b.log", text="x" * 94)
    assert copy_snapshot(plan, folder.parent / "code").bytes == 100


def test_an_unreadable_file_is_named() -> None:
    with not_root() as top:
        write(top, "proj/a.py", "proj/secret.py")

        assert "secret.py: cannot be read: Permission denied; make it readable" in refused(
            top / "proj", "chmod 0 secret.py"
        )


def test_where_it_cannot_be_written_that_is_said() -> None:
    with not_root() as top:
        write(top, "proj/a.py", "job/x")
        (top / "job").chmod(0o500)
        plan = plan_snapshot(top / "proj")

        with pytest.raises(UserError, match="/job/code: cannot be written: Permission denied"):
            copy_snapshot(plan, top / "job/code")
        with pytest.raises(UserError, match="/gone/code: cannot be written: No such file"):
            copy_snapshot(plan, top / "gone/code")


def test_an_interrupted_copy_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "a.py", "b.py")
    plan = plan_snapshot(folder)
    monkeypatch.setattr(os, "utime", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))

    with pytest.raises(KeyboardInterrupt):
        copy_snapshot(plan, folder.parent / "code")
    assert os.listdir(folder.parent) == ["proj"]


def test_data_are_no_code(tmp_path: Path) -> None:
    """Shards that a job file names are read where they are, however large."""
    folder = tmp_path / "code"
    (folder / "data").mkdir(parents=True)
    (folder / "model.py").write_text("x")
    (folder / "data/train-0.h5").write_bytes(bytes(5000))
    (folder / "data/notes.txt").write_text("kept")

    plan = plan_snapshot(folder, max_bytes=1000, data=[folder / "data/train-0.h5", tmp_path / "elsewhere.h5"])

    assert plan.files == ("data/notes.txt", "model.py")
