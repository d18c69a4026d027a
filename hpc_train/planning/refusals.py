"""Why the ways to divide a job are not possible for its model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from pydantic import ValidationError

from hpc_train.config.run_config import RunConfig, RunOptions
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.optimizer_pieces import OPTION
from hpc_train.distributed.optimizer_trials import refuse_uncuttable
from hpc_train.distributed.optimizer_variables import refuse_loss_scale
from hpc_train.errors import UserError
from hpc_train.lazy import keras
from hpc_train.model.own_steps import has_own_train_step
from hpc_train.parallel.checks import check_layers
from hpc_train.planning.holdings import Choice
from hpc_train.strategies.asynchronous.strategy import check_model
from hpc_train.strategies.synchronous.strategy import check_steps

Run = TypeVar("Run", bound=RunOptions)


@dataclass(frozen=True)
class Refusals:
    """Why a model cannot be trained on all ranks alike, with a dedicated chief, sharded, and by parameter servers.

    None where it can.
    """

    trained: str | None = None
    dedicated: str | None = None
    sharded: str | None = None
    served: str | None = None

    def of(self, choice: Choice) -> str | None:
        """What is against one way; None: nothing."""
        if choice.servers:
            return self.served
        return (self.dedicated if choice.idle else self.trained) or (self.sharded if choice.shard_optimizer else None)


def refusals_of(model: keras.Model, config: RunConfig, run: RunOptions, mesh: Mesh) -> Refusals:
    """Those of a model that is built for a mesh.

    Args:
        config: With what the model was built. run: what the job file has.
    """
    own_step = has_own_train_step(model)

    def trained(chief: Literal["train", "dedicated"]) -> None:
        check_layers(model, RunConfig(model_dir=None, chief=chief), mesh.model, own_step)
        check_steps(model, run, mesh.size, uneven=False, optimizer=model.optimizer)

    def sharded() -> None:
        if not own_step:
            refuse_uncuttable(model.optimizer, model.trainable_variables, OPTION, "leave shard_optimizer out")

    def served() -> None:
        _check_asynchronous(run)
        check_model(model)
        refuse_loss_scale(model.optimizer)
        check_layers(model, _asynchronous(config), 1, own_step=False)

    return Refusals(
        _refused(lambda: trained("train")), _refused(lambda: trained("dedicated")), _refused(sharded), _refused(served)
    )


def _refused(check: Callable[[], None]) -> str | None:
    try:
        check()
    except UserError as error:
        return str(error)
    return None


def _check_asynchronous(run: RunOptions) -> None:
    """UserError where a key of `run` is for synchronous jobs alone, but for those that divide them."""
    try:
        _asynchronous(run)
    except ValidationError as error:
        raise UserError(f"run: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None


def _asynchronous(run: Run) -> Run:
    return replace(run, strategy="async", chief="train", shard_optimizer=False, mesh=None)
