"""Whatever a job-dir's files and this machine's queue hold: a value or an error that is documented, soon, in place."""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from hpc_train.checkpoint.format import Snapshot, write_checkpoint
from hpc_train.checkpoint.manager import CheckpointManager
from hpc_train.checkpoint.manifest import DamagedError, FormatError, _own_digest, read_manifest, write_manifest
from hpc_train.checkpoint.names import Retention
from hpc_train.data.hdf5.data_file import HDF5_ERRORS
from hpc_train.data.sampling.sampler import DataOrder, DataProgress
from hpc_train.errors import UserError
from hpc_train.jobdir.folder_identity import FolderIdentity
from hpc_train.jobdir.job_dir import JobDir
from hpc_train.jobs.inspect import inspect_jobs
from hpc_train.jobs.record.job_dirs import number_of
from hpc_train.jobs.record.status import job_status, read_record
from hpc_train.jobs.record.submission import job_command
from hpc_train.jobs.schedulers.local.queue import LocalQueue, Ticket, queue_folder
from hpc_train.jobs.tables import description, job_table
from hpc_train.report.compare import markdown
from hpc_train.report.page import report_page
from hpc_train.telemetry.status import mark_ended, mark_exit_code
from tests.hostile.fuzz import (
    CHANGES,
    NUMBERS,
    TEXTS,
    VALUES,
    changed,
    count,
    file_of,
    in_a_child,
    like,
    record,
    text_of,
    within_limits,
)
from tests.support import SOAK, examples
from tests.unit.jobs.submissions import a_submission


def tries(number: int) -> settings:
    """Of a random test that tries so many examples in CI, where they are always the same."""
    return settings(
        max_examples=examples(number),
        derandomize=SOAK == 1,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


STATUS: dict[str, Any] = {
    "state": "failed", "step": 3, "max_steps": 20, "loss": 0.5, "examples_per_sec": 10.0, "secs_left": 3.0,
    "input_wait": 0.1, "evaluation": {"step": 3, "loss": 0.5, "accuracy": 0.25}, "evaluations": {"eval": {"loss": 0.5}},
    "evaluation_lag": {"steps": 2, "secs": 1.5}, "exports": ["/x/export/1"],
    "export_errors": [{"exporter": "final", "step": 3, "error": "no"}],
    "stopped_early": {"step": 3, "reason": "no better"}, "report": "/x/report.html",
    "error": {"rank": 1, "message": "it failed", "signal": "SIGKILL", "lines": ["one", "two"]}, "exit_code": 1,
    "job_id": "7", "requeues": 1, "restarts": 2, "ranks": 2, "host": "h", "pid": 4, "process_start": 5, "boot_id": "b",
    "started": 1.7e9, "updated": 1.7e9, "folder": {"device": 1, "inode": 2, "host": "h", "boot_id": "b"},
    "program": False, "staleness": {"mean": 1.0, "max": 2}, "steps_by_rank": [1, 2],
}  # fmt: skip
CANCELLED = {"token": "0123456789abcdef", "time": 1.7e9, "by": "me"}
SETTINGS = st.builds(
    "{}={}".format,
    st.sampled_from(["resources", "resources.environment", "resources.environment.A", "resources.nodes", "run.a"]),
    st.one_of(
        TEXTS, st.sampled_from(["[" * 3000, "{A: '***'}", "{environment: {A: '***'}}", "{1: 2, ~: .nan}", "&a [*a]"])
    ),
)
SUBMISSION = asdict(a_submission(kind="model", settings=("train.max_steps=5",), args=("-m", "x"), submitted=1.7e9))
SUBMISSION["resources"]["environment"] = {"A": "***"}
SUBMISSION["code"] = {"files": 3, "git": "abc"}
SUBMISSION["folder"] = {"device": 1, "inode": 2, "host": "h", "boot_id": "b"}
SECRETS = st.one_of(
    st.binary(max_size=40),
    st.lists(st.builds("export {}={}\n".format, TEXTS, TEXTS), max_size=3).map(
        lambda lines: "".join(lines).encode(errors="surrogatepass")
    ),
)
TICKET: dict[str, Any] = {**asdict(Ticket(7, 7, "/x/a", 1, 0, 1, 0, "6", 1.7e9, 1.8e9)), "devices": [0, 1]}
JSON_FILES = {
    "environment.json": {
        "hpc_train": "1", "python": "3", "packages": {"keras": "3"}, "mpi": "x", "platform": "p", "commit": "c",
        "ranks": [{"rank": 0, "role": "worker", "host": "h", "cores": 2, "device": "cpu", "shards": 2}],
        "environment": {"A": "b"},
    },
    "early_stop.json": {"step": 3, "reason": "no better", "rule": {"metric": "loss"}},
    "warm_start.json": {"from": "/x", "variables": ["a", "b"]},
}  # fmt: skip
JOB = {
    "name": "tiny", "data": {"train": {"batch_size": 16}}, "train": {"max_steps": 20},
    "run": {"strategy": "sync", "parameter_servers": 1, "best_metric": "loss", "best_mode": "min"},
    "eval": {"exporters": {"best": {"metric": "loss", "mode": "min"}}}, "evals": {"more": {"exporters": {}}},
}  # fmt: skip
RECORDS: list[dict[str, Any]] = [
    {"kind": "start", "step": 0, "time": 1.7e9, "ranks": 2, "reason": "x"},
    {"kind": "train", "step": 10, "time": 1.7e9, "loss": 0.5, "examples_per_sec": 10.0, "learning_rate": 0.1,
     "input_wait": 0.1, "secs": 1.0, "by_rank": {"compute": [0.5, 0.5], "input": [0.1, 0.2], "staleness": [1, 2]},
     "staleness_mean": 1.0, "staleness_max": 2, "staleness": {"1": 3, "2": 4}},
    {"kind": "eval", "step": 10, "time": 1.7e9, "loss": 0.4, "accuracy": 0.5, "secs": 1.0, "lag_steps": 1,
     "lag_secs": 1.0, "checkpoint_time": 1.7e9, "what": "x", "last": True},
    {"kind": "eval_more", "step": 10, "time": 1.7e9, "auc": 0.5},
    {"kind": "checkpoint", "step": 10, "time": 1.7e9, "secs": 0.5, "bytes": 1000},
    {"kind": "export", "step": 10, "time": 1.7e9, "exporter": "final", "path": "/x/1"},
    {"kind": "export_failed", "step": 10, "time": 1.7e9, "exporter": "final", "error": "no"},
    {"kind": "end", "step": 20, "time": 1.7e9, "state": "failed", "reason": "x"},
]  # fmt: skip
LINE = st.sampled_from(RECORDS).flatmap(
    lambda base: st.one_of(st.just(text_of(base)), record(base).map(text_of), file_of(base))
)
MANIFEST: dict[str, Any] = {
    "format": 3, "step": 10, "time": 1.7e9, "world_size": 2, "bytes": 100, "piece_bytes": 8 << 20, "sha256": ["ab" * 32]
}  # fmt: skip
BEST = {"metric": "loss", "mode": "min", "value": 0.5, "step": 10}


class Place:
    """A job-dir, this machine's queue, and a folder with what nothing may touch."""

    def __init__(self, folder: Path) -> None:
        self.runs, self.outside, self.queue = folder / "runs", folder / "outside", queue_folder(os.environ, folder)
        self.job_dir = self.runs / "a"
        for made in (self.job_dir, self.outside / "folder", self.queue):
            made.mkdir(parents=True)
        self.queue.chmod(0o700)
        (self.outside / "victim.json").write_text('{"state": "succeeded"}')
        os.mkfifo(self.outside / "fifo")
        self.folder = asdict(FolderIdentity.of(self.job_dir))

    def write(self, files: dict[str, bytes | None]) -> None:
        """Puts these files alone into the job-dir."""
        for path in self.job_dir.iterdir():
            path.unlink()
        for name, data in files.items():
            if data is not None:
                (self.job_dir / name).write_bytes(data)

    @contextmanager
    def tickets(self, tickets: list[tuple[bytes, bool]], counter: bytes | None = None) -> Iterator[None]:
        """Puts these tickets alone into the queue; whether a runner that lives holds the lock of each."""
        for path in self.queue.iterdir():
            path.unlink()
        if counter is not None:
            (self.queue / "next.json").write_bytes(counter)
        with ExitStack() as stack:
            for number, (data, held) in enumerate(tickets):
                path = self.queue / f"ticket-{number:08d}.json"
                path.write_bytes(data)
                if held:
                    fcntl.flock(stack.enter_context(path.open("rb")), fcntl.LOCK_EX)
            yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("place")
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setattr("hpc_train.jobs.schedulers.local.queue.READ_AGAIN_SECS", 0.0)
        patch.chdir(folder)
        yield Place(folder)


def show(job_dirs: list[Path]) -> None:
    """What `hpc-train list` and `describe` do, on the screen and for programs."""
    found = inspect_jobs(job_dirs)
    console = Console(file=io.StringIO(), width=80)
    console.print(job_table(found, 80))
    for status in found:
        console.print(description(status))
        json.dumps(asdict(status), allow_nan=False)
    console.file.getvalue().encode()


@tries(150)
@given(
    status=st.none() | file_of(STATUS),
    submission=st.none() | st.just(SUBMISSION) | record(SUBMISSION) | VALUES,
    given_settings=st.none() | st.lists(SETTINGS, max_size=2),
    mine=st.booleans(),
    secrets=st.none() | SECRETS,
    cancelled=st.none() | file_of(CANCELLED),
    ticket=st.none() | file_of(TICKET),
)
def test_a_job_is_listed_whatever_its_records_hold(
    place: Place,
    status: bytes | None,
    submission: Any,
    given_settings: list[str] | None,
    mine: bool,
    secrets: bytes | None,
    cancelled: bytes | None,
    ticket: bytes | None,
) -> None:
    if isinstance(submission, dict):
        submission = submission | ({"settings": given_settings} if given_settings else {})
        submission |= {"folder": place.folder} if mine else {}
    files = {"status.json": status, "secrets.sh": secrets, "cancelled.json": cancelled}
    place.write({**files, "submission.json": None if submission is None else text_of(submission)})
    with place.tickets([] if ticket is None else [(ticket, True)]), within_limits("records", place.outside):
        show([place.job_dir])
        number_of(place.job_dir)
        found = read_record(place.job_dir).submission
        if found is not None:
            job_command(place.job_dir, found)
            found.save(place.job_dir)  # as when it is submitted again
            assert read_record(place.job_dir).submission is not None
        mark_ended(place.job_dir, 1, None, "x")
        mark_exit_code(place.job_dir, 3)
        show([place.job_dir])


@tries(100)
@given(
    st.lists(st.tuples(file_of(TICKET), st.booleans()), max_size=4),
    st.none() | st.one_of(NUMBERS, TEXTS, VALUES).map(text_of) | st.binary(max_size=30),
)
def test_the_queue_goes_on_whatever_lies_in_its_folder(
    place: Place, tickets: list[tuple[bytes, bool]], counter: bytes | None
) -> None:
    queue = LocalQueue(place.queue, 2, 1)
    place.write({"submission.json": text_of({**SUBMISSION, "folder": place.folder})})
    before = read_record(place.job_dir)
    assert before.submission is not None
    with place.tickets(tickets, counter), within_limits("queue", place.outside):
        with suppress(UserError):
            for ticket in queue.tickets():
                queue.job_dir_of(str(ticket.number))
            seen = queue.seen(before.submission, before.submission.host)
            status = job_status(before, "local", seen, 1.7e9)
            json.dumps(asdict(status), allow_nan=False)
            Console(file=io.StringIO(), width=80).print(job_table([status], 80), description(status))
        with suppress(UserError):
            known = {ticket.number for ticket in queue.tickets()}
            ticket, file = queue.enter(place.job_dir, 1, None)
            assert ticket.number not in known
            assert ticket in queue.tickets()
            queue.try_start(file, ticket, None)
            queue.leave(file, queue.go_back(file, ticket))


@tries(25)
@given(
    lines=st.lists(LINE, max_size=30),
    status=st.none() | file_of(STATUS),
    job=st.none() | file_of(JOB),
    more=st.fixed_dictionaries({}, optional={name: file_of(base) for name, base in JSON_FILES.items()}),
    drawn=st.sampled_from([True, *[False] * 4]),
)
def test_there_is_a_history_and_a_report_of_whatever_was_recorded(
    place: Place, lines: list[bytes], status: bytes | None, job: bytes | None, more: dict[str, bytes], drawn: bool
) -> None:
    place.write({"metrics.jsonl": b"\n".join(lines), "status.json": status, "job.yaml": job, **more})
    with within_limits("history", place.outside):
        found = JobDir(place.job_dir)
        history = found.history()
        found.evaluations(3)
        found.evaluation_of(1.7e9, "eval", only_last=True)
        markdown([history, history]).encode()
        if drawn:
            report_page(history).encode("ascii")


def checkpoint(folder: Path) -> Path:
    """A small whole checkpoint of step 10 in `folder`."""
    model = {"dense/kernel": np.ones((4, 3), np.float32), "dense/bias": np.zeros(3), "empty": np.zeros((0, 3))}
    optimizer = {"adam/iteration": np.array(10), "adam/momentum": np.full((4, 3), 0.5, np.float32)}
    rng = {"python": np.full((2, 5), 7, np.uint32)}
    progress, order = DataProgress(10, 640, ((0, 64),)), DataOrder(7, "global", 1000, "ab12")
    step = folder / "step-00000010"
    step.mkdir(parents=True)
    write_checkpoint(
        step, Snapshot(model, optimizer, progress, order, 2, 1.7e9, rng, 1, dict(BEST), {"params.rate": "1"})
    )
    return step


KNOWN = (DamagedError, FormatError, OSError)


@tries(150)
@given(
    manifest=file_of(MANIFEST)
    | record(MANIFEST)
    | st.fixed_dictionaries({name: like(v) for name, v in MANIFEST.items()}),
    best=st.none() | file_of(BEST),
    name=st.sampled_from(["step-00000010", "step-0000000010", "step-" + "9" * 249, "step-\u0667" * 1 + "\u0667" * 7]),
)
def test_a_checkpoint_is_whole_or_not_whatever_its_manifest_says(
    place: Place, manifest: bytes | dict[str, Any], best: bytes | None, name: str
) -> None:
    folder = place.runs.parent / "manifests"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / name).mkdir(parents=True)
    (folder / name / "state.h5").write_bytes(b"\0" * 100)
    if isinstance(manifest, dict):
        with suppress(RecursionError, ValueError):
            manifest = {**manifest, "manifest_sha256": _own_digest(json.loads(text_of(manifest)))}
        manifest = text_of(manifest)
    (folder / name / "manifest.json").write_bytes(manifest)
    if best is not None:
        (folder / "best.json").write_bytes(best)
    manager = CheckpointManager(folder, Retention(1, 1.0))
    with within_limits("manifests", place.outside):
        found = manager.best()
        assert found is None or not np.isnan(found.value)
        manager.set_aside(), manager.latest_step()
        with suppress(*KNOWN):
            manager.find_whole()
        for step in manager.steps():
            for digests in (False, True):
                with suppress(*KNOWN):
                    manager.check(step, digests)
        with suppress(*KNOWN):
            manager.thin_out()


SECRET = 1234.5
Odd = Callable[[h5py.File], object]


def replaced(name: str, **given: Any) -> Odd:
    """The dataset `name` made anew, with its attributes."""

    def odd(file: h5py.File) -> None:
        attributes = dict(file[name].attrs)
        del file[name]
        file.create_dataset(name, **given).attrs.update(attributes)

    return odd


def linked(name: str, link: object) -> Odd:
    def odd(file: h5py.File) -> None:
        del file[name]
        file[name] = link

    return odd


def virtual(path: str) -> Odd:
    def odd(file: h5py.File) -> None:
        layout = h5py.VirtualLayout((4, 3), np.float32)
        layout[:] = h5py.VirtualSource(path, "model/dense.kernel", shape=(4, 3))
        attributes = dict(file["model/dense.kernel"].attrs)
        del file["model/dense.kernel"]
        file.create_virtual_dataset("model/dense.kernel", layout).attrs.update(attributes)

    return odd


def attribute(place: str, name: str, value: Any) -> Odd:
    return lambda file: file[place].attrs.__setitem__(name, value)


OUT = "../../../outside"
OUTSIDE, FIFO = f"{OUT}/outside.h5", f"{OUT}/fifo"
KERNEL = "model/dense.kernel"
PLACES = ["model", "optimizer", "rng", "data", KERNEL, "model/dense.bias", "optimizer/adam.iteration", "rng/python"]
ODD: list[Odd] = [
    *(linked(name, h5py.ExternalLink(file, f"/{name}")) for name in PLACES for file in (OUTSIDE, FIFO)),
    *(linked(name, h5py.SoftLink(to)) for name in PLACES for to in ("/", f"/{name}", "/data", "/model", "/nowhere")),
    *(linked(name, np.dtype("f4")) for name in PLACES),
    *(linked(name, np.float32(1)) for name in PLACES),
    *(virtual(file) for file in (OUTSIDE, ".", FIFO)),
    *(replaced(KERNEL, shape=(4, 3), dtype="f4", external=[(f"{OUT}/{file}", 0, 48)]) for file in ("raw", "fifo")),
    *(replaced(KERNEL, shape=shape, dtype="f4") for shape in ((1 << 40,), (1 << 31, 1 << 20), (1,) * 32, (0, 1 << 60))),
    *(replaced(KERNEL, shape=(1 << 40,), dtype="f4", chunks=(1 << 20,), compression=c) for c in (None, "gzip")),
    *(replaced(KERNEL, shape=(4, 3), dtype="f4", fillvalue=SECRET), replaced(KERNEL, data=h5py.Empty("f4"))),
    *(
        replaced(KERNEL, shape=(2,), dtype=dtype)
        for dtype in (
            "S7", h5py.string_dtype(), h5py.vlen_dtype("f8"), h5py.ref_dtype, h5py.regionref_dtype, "f2", "c16", "?",
            [("a", "f4"), ("b", "S3")], np.dtype(("f4", (7, 3))), h5py.enum_dtype({"a": 1}), "V9", ">f8", "u8",
        )
    ),
]  # fmt: skip
ATTRIBUTES = [
    *(
        ("/", name)
        for name in ("format", "step", "world_size", "time", "fingerprint", "tf_random_seed", "best", "settings")
    ),
    *(("data", name) for name in ("rows_read", "sizes", "seed", "shuffle", "rows", "shards")),
    *((name, which) for name in PLACES[4:] for which in ("path", "dtype", "index")),
]
ATTRIBUTE_VALUES = st.one_of(
    st.sampled_from([-1, 0, 1 << 62, 1.5, float("nan"), float("inf"), -1e308, "", "x" * 5000, "\x1b[2J", b"\xff\xfe"]),
    st.sampled_from(
        ["[" * 5000, "[1]", "7", "null", '{"metric": 1}', '{"a": ' * 300, json.dumps(BEST), "NaN", "9" * 5000]
    ),
    st.sampled_from([np.zeros((3, 2)), np.full((2, 2), np.nan), np.zeros((0, 2), "i8"), np.zeros(7), np.arange(6000)]),
    st.sampled_from(["generic", "bfloat16", "float8_e4m3fn", "finfo", "__name__", "float64", "object", "int4", "O"]),
    st.sampled_from([h5py.Empty("f4"), np.array(["a", "b"], object), np.True_, 1 + 2j, np.zeros(2, "f4,S3"), "global"]),
)
STRUCTURES = st.lists(
    st.sampled_from(ODD) | st.builds(lambda at, v: attribute(*at, v), st.sampled_from(ATTRIBUTES), ATTRIBUTE_VALUES),
    min_size=1,
    max_size=3,
)


@pytest.fixture(scope="module")
def whole(place: Place) -> Path:
    """A checkpoint to be changed, and a file beside the job that has the same and belongs to somebody else."""
    step = checkpoint(place.runs.parent / "whole")
    shutil.copy(step / "state.h5", place.outside / "outside.h5")
    with h5py.File(place.outside / "outside.h5", "a") as file:
        for name in PLACES[4:]:
            file[name][...] = SECRET
        file["data"].attrs["rows_read"] = int(SECRET)
    (place.outside / "raw").write_bytes(np.full(12, SECRET, np.float32).tobytes())
    return step


def loaded(step: Path) -> str:
    """What is wrong with how a checkpoint with a correct manifest is read; "" for nothing."""
    manager = CheckpointManager(step.parent, Retention())
    try:
        manager.find_whole()
        manager.check(10, True)
        found = manager.load(10)
        manager.progress(10)
    except KNOWN as error:
        return "" if len(str(error)) < 2000 else f"{len(str(error))} characters: {str(error)[:100]}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:500]
    arrays = [*found.model.values(), *found.optimizer.values(), *found.rng.values()]
    if any(array.dtype.kind in "fiu" and (array == int(SECRET)).any() for array in arrays) or any(
        array.dtype.kind == "f" and (array == SECRET).any() for array in arrays
    ):
        return "it holds values of a file of somebody else's"
    if found.progress.rows_read == int(SECRET):
        return "it holds attributes of a file of somebody else's"
    plain = {"order": (found.order is None or all(isinstance(v, int | str) for v in asdict(found.order).values()))}
    plain["settings"] = found.settings is None or all(isinstance(text, str) for text in found.settings.values())
    plain["best"] = found.best is None or found.best.keys() == BEST.keys()
    wrong = [name for name, sound in plain.items() if not sound]
    return f"{wrong}: {found.order} {found.best}" if wrong else ""


@tries(8)
@given(st.lists(CHANGES | STRUCTURES, min_size=20, max_size=40))
def test_a_checkpoint_is_loaded_or_refused_whatever_its_state_holds(
    place: Place, whole: Path, batch: list[Any]
) -> None:
    folder, paths = place.runs.parent / "states", []
    shutil.rmtree(folder, ignore_errors=True)
    data = (whole / "state.h5").read_bytes()
    for number, changes in enumerate(batch):
        step = folder / f"{number}/step-00000010"
        step.mkdir(parents=True)
        (step / "state.h5").write_bytes(data if callable(changes[0]) else changed(data, changes))
        if callable(changes[0]):
            for odd in changes:
                with h5py.File(step / "state.h5", "a") as file, suppress(*HDF5_ERRORS, AttributeError):
                    odd(file)  # unless one before has removed what it changes
        write_manifest(step, 10, 1.7e9, 2)
        paths.append(step)
    count("states", len(batch) - 1)
    with within_limits("states", place.outside):
        wrong = in_a_child(paths, loaded, limited=True)
        assert not wrong, wrong
    shutil.rmtree(folder)


def endless_heap(step: Path) -> None:
    changes = [("zero", 50815, 7162, 2), ("zero", 772790, 612, 2), ("splice", 1156, 1823, 4)]
    (step / "state.h5").write_bytes(changed((step / "state.h5").read_bytes(), changes))


def long_value(step: Path) -> None:
    with h5py.File(step / "state.h5", "a") as file:
        attribute("/", "time", "[" * 5000)(file)


def long_texts(step: Path) -> None:
    """Each text of a variable says that it takes 4 GiB."""
    data = bytearray((step / "state.h5").read_bytes())
    heaps = {struct.pack("<Q", at) for at in range(len(data)) if data[at : at + 5] == b"GCOL\x01"}
    places = [at for at in range(4, len(data), 4) if bytes(data[at : at + 8]) in heaps]
    assert len(places) >= 13  # two of each of 6 variables, and the best
    for at in places:
        data[at - 4 : at] = b"\xff" * 4
    (step / "state.h5").write_bytes(data)


@pytest.mark.parametrize("change", [endless_heap, long_value, long_texts])
def test_a_state_that_was_once_read_for_ever_quoted_at_length_or_allocated(
    place: Place, whole: Path, change: Callable[[Path], None]
) -> None:
    step = place.runs.parent / "found/step-00000010"
    shutil.rmtree(step.parent, ignore_errors=True)
    shutil.copytree(whole, step)
    change(step)
    (step / "manifest.json").unlink()
    write_manifest(step, 10, 1.7e9, 2)
    assert not (wrong := in_a_child([step], loaded, limited=True)), wrong


@pytest.mark.parametrize("number", ["Infinity", "NaN", "1e300", "-1"])
def test_a_ticket_with_a_time_that_is_none_is_no_ticket(place: Place, number: str) -> None:
    text = json.dumps({**TICKET, "limit": None}).replace('"limit": null', f'"limit": {number}').encode()
    with place.tickets([(text, True)]):
        assert LocalQueue(place.queue, 2).tickets() == []


@pytest.mark.parametrize("value", ["{},", "1.5,"])
def test_a_manifest_of_millions_of_values_is_refused_in_little_memory(place: Place, tmp_path: Path, value: str) -> None:
    (tmp_path / "manifest.json").write_text('{"a": [' + value * ((60 << 20) // len(value)) + "1]}")
    with within_limits("manifests", place.outside), pytest.raises(DamagedError, match="cannot be understood"):
        read_manifest(tmp_path)


def test_settings_that_take_long_to_parse_are_no_submission(place: Place) -> None:
    long = ["resources.environment=[" + "1," * 19_000 + "1]"] * 100
    place.write({"submission.json": text_of({**SUBMISSION, "settings": long})})
    with within_limits("records", place.outside):
        assert read_record(place.job_dir).unreadable


def test_sizes_whose_product_is_no_number_stop_no_report(place: Place) -> None:
    place.write({"status.json": b'{"ranks": 1e308}', "job.yaml": text_of(JOB)})
    assert markdown([JobDir(place.job_dir).history()])


def test_the_best_of_a_step_that_is_none_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "best.json").write_bytes(text_of({**BEST, "step": 10**308}))
    assert CheckpointManager(tmp_path, Retention()).best() is None
