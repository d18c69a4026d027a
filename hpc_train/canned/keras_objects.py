"""Objects of Keras as plain data, and made again from it. Keras is imported for objects alone, not for their names."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from hpc_train.arguments import not_allowed
from hpc_train.errors import UserError
from hpc_train.lazy import keras

Kind = Literal["optimizers", "initializers"]


def serialized(where: str, argument: str, given: Any, kind: Kind) -> dict[str, Any]:
    """An object of Keras's module `kind`, or the name of its class, as Keras serialises it.

    Raises:
        UserError: It is none, or has a part that is no data, such as a function.
    """
    one = kind.removesuffix("s")
    allowed = f"an {one} of Keras, as keras.{kind}.{'Adam(0.01)' if kind == 'optimizers' else 'Zeros()'}, or its name"
    if isinstance(given, Mapping):
        if not isinstance(given.get("class_name"), str) or not isinstance(given.get("config"), Mapping):
            raise not_allowed(where, argument, given, allowed)
        return dict(given)
    if isinstance(given, str):
        if not given.isidentifier():
            raise not_allowed(where, argument, given, allowed)
        return {"class_name": given, "config": {}}
    base = getattr(getattr(sys.modules.get("keras"), kind, None), one.capitalize(), ())  # without it, there is none
    if not isinstance(given, base):
        raise not_allowed(where, argument, given, allowed)
    way = f"{where}: {argument}: {type(given).__name__} is not all data"
    try:
        found = keras.saving.serialize_keras_object(given)
        plain = json.loads(json.dumps(found))
    except (TypeError, ValueError):
        raise UserError(f"{way}; give numbers, and for a learning rate that changes a schedule of Keras") from None
    if getattr(given, "_exclude_from_weight_decay", None):
        raise UserError(f"{way}: exclude_from_weight_decay; give it weight_decay=None")
    if re.search(r'"class_name": "(function|__lambda__)"', json.dumps(plain)):
        raise UserError(f"{way}, it has a function; for a learning rate that changes give a schedule of Keras")
    config = {name: value for name, value in plain["config"].items() if name != "name"}  # Keras counts in names
    if isinstance(rate := config.get("learning_rate"), float):
        config["learning_rate"] = float(str(np.float32(rate)))  # 0.001, not what float32 makes of it
    return {**plain, "config": config}


def deserialized(where: str, config: Mapping[str, Any], kind: Kind) -> Any:
    """What `serialized` has described, made anew. For when Keras is there.

    Raises:
        UserError: Keras knows no such class.
    """
    try:
        return getattr(keras, kind).deserialize(dict(config))
    except (TypeError, ValueError, ImportError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{where}: {config.get('class_name')}: Keras makes no {kind.removesuffix('s')} of it: {first[:300]}; a "
            "class of your own needs @keras.saving.register_keras_serializable() in the model's program"
        ) from None
