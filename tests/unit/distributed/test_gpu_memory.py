"""What MPI in the memory of GPUs asks of CUDA's driver, whose place a stand-in takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mpi4py
import pytest
import tensorflow as tf

from hpc_train.distributed import gpu_memory
from hpc_train.errors import UserError


class Driver:
    """Notes what is asked; `fails`: the function that answers with code 201. current: the thread's context."""

    def __init__(self, fails: str = "") -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.current: int | None = None
        self._fails = fails

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = self.current
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        context._obj.value = 7
        self.asked.append(("cuDevicePrimaryCtxRetain", device.value))
        return 201 if self._fails == "cuDevicePrimaryCtxRetain" else 0

    def __getattr__(self, name: str) -> Any:
        def function(*arguments: Any) -> int:
            self.asked.append((name, *(a if isinstance(a, int) else getattr(a, "value", None) for a in arguments)))
            return 201 if name == self._fails else 0

        return function


@pytest.fixture(autouse=True)
def third_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only GPU that TensorFlow may use is the third of those that CUDA sees."""
    gpus = [SimpleNamespace(name="/physical_device:GPU:2")]
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus)
    gpu_memory._primary_context.cache_clear()


def test_a_thread_enters_the_primary_context_of_the_gpu_that_tensorflow_uses(monkeypatch) -> None:
    driver = Driver()
    monkeypatch.setattr(gpu_memory, "_driver", lambda: driver)
    for _ in range(2):
        gpu_memory._enter_context("/job:localhost/replica:0/task:0/device:GPU:0")
    names = [name for name, *_ in driver.asked]
    assert names == ["cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuCtxSetCurrent"]
    assert driver.asked[0][-1] == 2
    assert driver.asked[-1] == ("cuCtxSetCurrent", 7)

    driver.current = 9
    gpu_memory._enter_context("/device:GPU:0")
    assert len(driver.asked) == 4, "a thread that has a context keeps it"
    gpu_memory._enter_context("/device:CPU:1")
    assert len(driver.asked) == 4, "what stands in for a GPU has no context"


@pytest.mark.parametrize("function", ["cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"])
def test_what_the_driver_refuses_is_told(function: str, monkeypatch) -> None:
    driver = Driver(function)
    monkeypatch.setattr(gpu_memory, "_driver", lambda: driver)
    with pytest.raises(UserError, match=rf"mpi-gpu: CUDA's {function} failed with code 201; take run.allreduce: mpi"):
        gpu_memory._enter_context("/device:GPU:0")


def test_without_a_driver_it_is_refused(monkeypatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    gpu_memory._driver.cache_clear()
    monkeypatch.setattr(gpu_memory.ctypes, "CDLL", missing)
    with pytest.raises(UserError, match="driver cannot be loaded: libcuda"):
        gpu_memory._enter_context("/device:GPU:0")


def test_memory_of_a_gpu_is_given_as_such(monkeypatch) -> None:
    monkeypatch.setattr(tf.experimental.dlpack, "to_dlpack", lambda tensor: "capsule")
    memory = gpu_memory._Memory(SimpleNamespace(backing_device="/job:localhost/replica:0/task:0/device:GPU:0"))
    assert memory.__dlpack_device__() == (2, 0)
    assert memory.__dlpack__(stream=-1) == "capsule"
    with pytest.raises(TypeError):
        memory.__dlpack__(max_version=(1, 0))  # by which mpi4py knows that it gets the older kind


@pytest.mark.parametrize(
    ("built", "switched_on", "takes"),
    [(1, True, True), (1, False, False), (0, True, False), (1, None, True), (None, None, False)],
)
def test_an_mpi_takes_such_memory_where_it_was_built_for_it_and_is_switched_on(
    built: int | None, switched_on: bool | None, takes: bool, monkeypatch
) -> None:
    class Flag:
        @staticmethod
        def in_dll(library: object, name: str) -> SimpleNamespace:
            if switched_on is None:
                raise ValueError(f"undefined symbol: {name}")
            return SimpleNamespace(value=switched_on)

    library = SimpleNamespace(**({} if built is None else {"MPIX_Query_cuda_support": lambda: built}))
    monkeypatch.setattr(mpi4py, "MPI", SimpleNamespace(__file__="MPI.so"), raising=False)
    monkeypatch.setattr(gpu_memory.ctypes, "CDLL", lambda path: library)
    monkeypatch.setattr(gpu_memory.ctypes, "c_bool", Flag)
    assert gpu_memory.takes_gpu_memory() is takes
