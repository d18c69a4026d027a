"""Which of Horovod's names there are, and what is said of the others and of arguments: without TensorFlow."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import hpc_train.horovod as hvd
from hpc_train.errors import UserError
from hpc_train.horovod import names, settings
from hpc_train.horovod.compression import check_compression
from hpc_train.horovod.settings import Op
from tests.support import LIMIT_SECS, environment

HOROVOD = """
import horovod.tensorflow, horovod.tensorflow.keras
from hpc_train.horovod import names
from hpc_train.horovod.settings import Op

for module, offered in ((horovod.tensorflow, names.TENSORFLOW), (horovod.tensorflow.keras, names.KERAS)):
    public = {name for name in dir(module) if not name.startswith("_")} - set(offered) - set(names.NOT_OFFERED)
    print(" ".join(sorted(public)))
print([int(getattr(horovod.tensorflow, op.name)) == op for op in Op])
"""
IMPORTS = {
    "Distribution", "K", "annotations", "check_extension", "check_num_rank_power_of_2", "compression", "functions",
    "gpu_available", "gradient_aggregation", "gradient_aggregation_eager", "handle_average_backwards_compatibility",
    "inspect", "is_version_greater_equal_than", "keras", "mpi_ops", "os", "refs_to_vars", "split_list",
    "sync_batch_norm", "tf", "util", "vars_to_refs", "version", "warnings",
}  # fmt: skip
"""What Horovod's modules have imported."""


def test_each_name_of_horovod_is_offered_or_its_way_on_is_said() -> None:
    command = [sys.executable, "-c", HOROVOD]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=LIMIT_SECS)
    assert done.returncode == 0, done.stderr
    of_tensorflow, of_keras, ops = done.stdout.splitlines()
    assert set(of_tensorflow.split()) <= IMPORTS
    assert set(of_keras.split()) <= IMPORTS
    assert ops == str([True] * len(Op))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("elastic", "save on rank 0, and start again on any number of ranks"),
        ("ProcessSet", "all ranks take part"),
        ("start_timeline", "HOROVOD_TIMELINE"),
        ("BestModelCheckpoint", "save_best_only=True"),
        ("allreduced", "did you mean `allreduce`"),
        ("something", "offered: Adasum, Average"),
    ],
)
def test_a_name_that_is_not_offered_is_an_attribute_error_with_the_way_on(name: str, said: str) -> None:
    with pytest.raises(AttributeError, match=rf"^hpc_train\.horovod\.{name} is not offered; ") as error:
        getattr(hvd, name)
    assert said in str(error.value)


def test_the_modules_have_the_names_of_those_they_stand_for() -> None:
    assert "DistributedGradientTape" in names.TENSORFLOW
    with pytest.raises(AttributeError, match=r"it is in hpc_train\.horovod\.tensorflow"):
        names.looked_up("hpc_train.horovod.keras", "DistributedGradientTape", names.KERAS)
    assert set(dir(hvd)) == {*names.TENSORFLOW, *names.KERAS} == set(hvd.__all__)
    assert names.looked_up("hpc_train.horovod", "Sum", names.TENSORFLOW) is Op.Sum
    program = "import hpc_train.horovod.tensorflow as a, hpc_train.horovod.tensorflow.keras as b, sys; a.Sum; "
    program += "print(sorted({'tensorflow', 'keras', 'mpi4py', 'horovod'} & set(sys.modules)))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=LIMIT_SECS)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"device_dense": "/gpu:0"}, "device_dense: '/gpu:0' has no effect here: Horovod chooses the device"),
        ({"device_sparse": "cpu"}, "device_sparse"),
        ({"process_set": [0]}, "all ranks take part"),
        ({"session": 1}, "no sessions"),
        ({"use_locking": True}, "Keras 3 has no such option"),
    ],
)
def test_arguments_without_an_effect_are_refused_by_name(given: dict[str, Any], said: str) -> None:
    settings.refuse_unused("hvd.allreduce", device_dense="", device_sparse="", process_set=None, use_locking=False)
    with pytest.raises(UserError) as error:
        settings.refuse_unused("hvd.allreduce", **given)
    assert str(error.value).startswith("hvd.allreduce: ") and said in str(error.value)


def test_operations() -> None:
    assert settings.op_of("f", None) is settings.op_of("f", None, average=True) is Op.Average
    assert settings.op_of("f", None, average=False) is settings.op_of("f", 1) is Op.Sum
    for op, allowed, average, said in (
        (Op.Sum, settings.EVERY_OP, True, "give op alone"),
        (9, settings.EVERY_OP, None, "allowed: hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min"),
        ("Sum", settings.EVERY_OP, None, "'Sum' is not allowed"),
        (Op.Max, settings.OF_OPTIMIZERS, None, "allowed: hvd.Average, hvd.Sum"),
    ):
        with pytest.raises(UserError, match=r"^f: ") as error:
            settings.op_of("f", op, allowed, average)
        assert said in str(error.value)
    assert settings.root_of("f", 2, 3) == 2
    for root in (3, -1, True, "0", 1.0):
        with pytest.raises(UserError, match="a rank from 0 to 2"):
            settings.root_of("f", root, 3)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("factor", [1, 0.5, 4.0])
def test_predividing_splits_the_average(factor: float, ranks: int) -> None:
    before, after = settings.predivide_factors("f", factor, Op.Average, ranks)
    assert before == 1 / factor
    assert before * after == pytest.approx(float(Fraction(1, ranks)))
    assert settings.predivide_factors("f", 1, Op.Sum, ranks) == (1, 1)


@pytest.mark.parametrize(("factor", "op"), [(2.0, Op.Sum), (0, Op.Average), (-1, Op.Average), ("2", Op.Average)])
def test_predividing_is_refused(factor: Any, op: Op) -> None:
    with pytest.raises(UserError, match=r"^f: gradient_predivide_factor: "):
        settings.predivide_factors("f", factor, op, 2)


def test_groups() -> None:
    assert settings.groups_of("f", None) is None
    assert settings.groups_of("f", None, 3) == settings.groups_of("f", 3, 5) == 3
    assert settings.groups_of("f", [("a",), ["b", "c"]]) == [["a"], ["b", "c"]]
    for groups in (0, -1, True, "ab", ["ab"], 1.5):
        with pytest.raises(UserError, match=r"^f: groups: .*a list of lists of variables"):
            settings.groups_of("f", groups)
    assert settings.split(5, 2) == [[0, 1], [2, 3, 4]]
    assert settings.split(2, 4) == [[0], [1]]
    assert settings.split(0, 2) == []


def test_what_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^f: compression: .*hvd\.Compression\.none"):
        check_compression("f", "fp16")
    assert check_compression("f", hvd.Compression.fp16) is hvd.Compression.fp16
    with pytest.raises(UserError, match=r"^hvd\.init: comm: all ranks"):
        hvd.init([0, 1])
    with pytest.raises(UserError, match=r"^hvd\.size: hvd\.init\(\) comes first"):
        hvd.size()
    assert not hvd.is_initialized()


def test_metrics_that_not_all_ranks_have() -> None:
    assert settings.different([{"loss": 1.0}, {"loss": 2.0}]) == ""
    assert settings.different([{"loss": 1.0, "val_loss": 1.0}, {"loss": 2.0}, {}]) == (
        "rank 1 has no val_loss; rank 2 has no loss, val_loss"
    )


@pytest.mark.parametrize("ranks", [1, 4])
def test_the_warm_up_begins_with_a_rank_s_part_and_ends_with_all(ranks: int) -> None:
    assert settings.warm_up_share(0, 5, ranks) == 1 / ranks
    assert settings.warm_up_share(2.5, 5, ranks) == pytest.approx((1 + 1 / ranks) / 2)
    assert settings.warm_up_share(5, 5, ranks) == 1
