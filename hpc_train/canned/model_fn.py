"""The model function of all canned estimators, which any process can import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpc_train.canned.arguments import Canned, from_plain
from hpc_train.errors import UserError

if TYPE_CHECKING:
    import keras


def canned_model(params: Mapping[str, Any]) -> keras.Model:
    """The compiled model of the canned estimator that `params` describe, as its class has written them.

    Raises:
        UserError: They describe none, or name what cannot be made here.
    """
    from hpc_train.canned.model import compiled

    canned = from_plain(params)
    if not isinstance(canned, Canned):
        raise UserError("params: they describe no canned estimator; make it by ht.DNNClassifier or its like")
    return compiled(canned)
