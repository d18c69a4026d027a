"""The model function of a built-in model."""

from __future__ import annotations

from dataclasses import dataclass

from hpc_train.config.builtin_model import BuiltinModel, ImageModel
from hpc_train.lazy import keras
from hpc_train.models.image import image_model
from hpc_train.models.optimizer import optimizer_of
from hpc_train.models.tabular import tabular_model


@dataclass(frozen=True)
class BuiltinModelFunction:
    """A model function without arguments, which builds and compiles the model that `settings` describe.

    Raises:
        UserError: When it is called: the schema lacks what the model needs.
    """

    settings: BuiltinModel

    def __post_init__(self) -> None:
        object.__setattr__(self, "__qualname__", f"builtin {self.settings.builtin}")  # what messages call it

    def __call__(self) -> keras.Model:
        settings = self.settings
        made, head = image_model(settings) if isinstance(settings, ImageModel) else tabular_model(settings)
        made.compile(
            optimizer_of(settings),
            head.loss(),
            loss_weights=None if head.loss_weight == 1 else [head.loss_weight],
            metrics=head.metrics(),
        )
        return made
