"""The rivals' loops do the same work as this package's step, and clusters of processes end as they should."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import LIMIT_SECS, REPOSITORY

sys.path.insert(0, str(REPOSITORY / "benchmarks"))  # before tests/, which has a support.py, too

from peers.clusters import run_cluster, tf_configs
from peers.models import CNN, LARGE, MLP, PARAMETERS, build_model, make_rows, row_shape

BATCHES, BATCH = 6, 16


def batches(model: str) -> tuple[np.ndarray, np.ndarray]:
    x, y = make_rows(BATCHES * BATCH, seed=5)
    return x.reshape(BATCHES, BATCH, *row_shape(model)), y.reshape(BATCHES, BATCH)


def same_start(model: str, weights: list[np.ndarray]):
    built = build_model({"model": model})
    built.set_weights(weights)
    return built


@pytest.mark.parametrize("model", [MLP, CNN])
def test_our_step_the_loop_by_hand_and_fit_make_the_same_weights(model: str):
    from peers.rivals import KerasFit, dataset_of, plain_loop

    from hpc_train.distributed.allreduce import GradientAllreduce
    from hpc_train.distributed.collectives import OneRank
    from hpc_train.engine.step_report import Flags
    from hpc_train.engine.train_step import make_train_step

    x, y = batches(model)
    weights = build_model({"model": model}).get_weights()
    ours, by_hand, fitted = (same_start(model, weights) for _ in range(3))
    ours.optimizer.build(ours.trainable_variables)
    step = make_train_step(ours, GradientAllreduce(OneRank()), [], undo=False)
    losses = [step(batch, Flags())().loss for batch in dataset_of(x, y).take(BATCHES)]
    loop, fit = plain_loop(by_hand, dataset_of(x, y)), KerasFit(fitted, dataset_of(x, y))
    assert loop.run(2, BATCHES - 2).secs > 0
    assert fit.run(2, BATCHES - 3).secs > 0  # and one step more, which is not timed
    for own, other, third in zip(ours.get_weights(), by_hand.get_weights(), fitted.get_weights(), strict=True):
        np.testing.assert_allclose(own, other, rtol=0, atol=1e-6)
        np.testing.assert_allclose(own, third, rtol=0, atol=1e-6)
    assert any(np.abs(own - before).max() > 1e-3 for own, before in zip(ours.get_weights(), weights, strict=True))
    assert loop.losses[0] == pytest.approx(losses[0], rel=1e-4)
    assert not fitted.jit_compile


def test_the_models_have_as_many_parameters_as_their_names_say():
    for model, parameters in PARAMETERS.items():
        assert build_model({"model": model}).count_params() == pytest.approx(parameters, rel=0.05)
    assert PARAMETERS[LARGE] >= 16e6


kinds = st.dictionaries(st.sampled_from(["ps", "chief", "worker"]), st.integers(1, 4), min_size=1)


@given(kinds)
def test_every_task_of_a_cluster_knows_all_and_itself(kinds):
    configs = {task: json.loads(config) for task, config in tf_configs(kinds).items()}
    assert len(configs) == sum(kinds.values())
    clusters = [config["cluster"] for config in configs.values()]
    assert all(cluster == clusters[0] for cluster in clusters)
    addresses = [address for found in clusters[0].values() for address in found]
    assert len(addresses) == len(set(addresses)) == sum(kinds.values())
    given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert given <= 10_000 or all(int(address.split(":")[1]) < given for address in addresses), "nobody is given them"
    for (kind, index), config in configs.items():
        assert config["task"] == {"type": kind, "index": index}


PROGRAM = (
    "import json, os, sys, time; task = json.loads(os.environ['TF_CONFIG'])['task']['type']; "
    "open(task + '.pid', 'w').write(str(os.getpid())); "
)


def none_runs(folder: Path) -> bool:
    pids = [int(path.read_text()) for path in folder.glob("*.pid")]
    assert pids
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_cluster_ends_with_those_that_are_awaited(tmp_path: Path):
    program = PROGRAM + "print(task, flush=True); time.sleep(3600 if task == 'ps' else 1)"
    run_cluster({"ps": 1, "chief": 1}, ["-c", program], tmp_path, LIMIT_SECS, "chief")
    assert none_runs(tmp_path)
    assert (tmp_path / "chief-0.log").read_text() == "chief\n"


@pytest.mark.parametrize(
    ("what", "limit", "told"),
    [
        (
            "time.sleep(1); sys.exit('no luck') if task == 'ps' else time.sleep(3600)",
            LIMIT_SECS,
            "(?s)ps 0: code 1.*no luck",
        ),
        ("time.sleep(3600)", 3, "chief 0: still running after 3 s"),
    ],
)
def test_a_cluster_that_fails_or_takes_too_long_is_ended_and_told(tmp_path: Path, what: str, limit: float, told: str):
    with pytest.raises(RuntimeError, match=told):
        run_cluster({"ps": 1, "chief": 1}, ["-c", PROGRAM + what], tmp_path, limit, "chief")
    assert none_runs(tmp_path)
