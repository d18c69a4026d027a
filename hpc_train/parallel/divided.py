"""What divided layers have in common: weights of which each rank of the model axis holds a part."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

import keras

from hpc_train.distributed.building import warn_of_whole
from hpc_train.distributed.collectives import cut
from hpc_train.distributed.mesh import Mesh
from hpc_train.distributed.placement import placement
from hpc_train.distributed.share import Share, set_share
from hpc_train.distributed.tensor_parallel import reduced
from hpc_train.errors import UserError, did_you_mean

MOST_SAID = 500
_ADDS_UP = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)


def shortened(error: Exception) -> str:
    """The first line of what Keras says of an argument."""
    return (str(error).splitlines() or [type(error).__name__])[0][:MOST_SAID]


def of_arguments(kind: type, given: Mapping[str, Any], error: Exception) -> UserError:
    """The mistake in the arguments `given` to a layer, of which Keras's classes have raised `error`."""
    known = {name for one in kind.__mro__ for name in inspect.signature(one.__init__).parameters}  # type: ignore[misc]
    if (unknown := next((name for name in given if name not in known), None)) is None:
        return UserError(f"{kind.__name__}: {shortened(error)}")  # Keras's own words, of a value that it does not take
    own = [name for name in inspect.signature(kind).parameters if name != "kwargs"]
    base = next(one.__name__ for one in kind.__mro__ if one.__module__.startswith("keras."))
    hint = f"{did_you_mean(unknown, known)}allowed: {', '.join(own)}, and others of keras.layers.{base}"
    return UserError(f"{kind.__name__}: {unknown}: unknown argument; {hint}")


class Divided(keras.layers.Layer):  # type: ignore[misc]
    """For a class that has a layer of Keras as its other base, whose weights `cut_along` names.

    A weight is drawn whole by its initializer, as the layer of Keras draws it, and this rank's part is kept: the same
    numbers to the bit, at the price of the memory of one whole weight for a moment. Ranks have to draw alike.

    Attributes:
        cut_along: The axis along which each weight is cut, by name; those that are not in it are whole on all ranks.
        even: Whether all parts must be of one width.
        width_called: What a user calls the width that is cut.
        mesh: The ranks among which it is divided; None: this rank holds the whole layer.
    """

    cut_along: ClassVar[Mapping[str, int]] = {}
    even: ClassVar[bool] = True
    width_called: ClassVar[str] = "a width"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        try:
            super().__init__(*args, **kwargs)
        except UserError:
            raise
        except Exception as error:
            raise of_arguments(type(self), kwargs, error) from None
        mesh = placement()
        self.mesh: Mesh | None = mesh if mesh is not None and mesh.model > 1 else None
        if self.mesh is None:
            warn_of_whole(f"{self.name!r} (ht.parallel.{type(self).__name__})")

    def add_weight(self, *args: Any, **kwargs: Any) -> Any:
        """As Keras's, of this rank's part."""
        name, axis = kwargs.get("name"), self.cut_along.get(str(kwargs.get("name")))
        if self.mesh is None or axis is None:
            return super().add_weight(*args, **kwargs)
        whole = tuple(kwargs.pop("shape"))
        share = self._share(whole, axis)
        initializer = keras.initializers.get(kwargs.pop("initializer"))
        regularizer, constraint = kwargs.pop("regularizer", None), kwargs.pop("constraint", None)

        def drawn(shape: Any, dtype: Any = None, **more: Any) -> Any:
            place = (*[slice(None)] * axis, slice(share.start, share.stop))
            try:
                values = keras.ops.convert_to_tensor(initializer(whole, dtype=dtype, **more))
            except Exception as error:  # Keras's own words, or TensorFlow's
                raise self.refusal(
                    f"the initializer of {name}, {type(initializer).__name__}, gives nothing of the shape "
                    f"{list(whole)}: {shortened(error)}"
                ) from None
            if tuple(values.shape) != whole:
                raise self.refusal(
                    f"the initializer of {name}, {type(initializer).__name__}, gives the shape {list(values.shape)}, "
                    f"but {name} has {list(whole)}"
                )
            return values[place]

        variable = super().add_weight(
            *args,
            shape=share.box,
            initializer=drawn,
            regularizer=self._of_the_whole(regularizer, f"{name}_regularizer"),
            constraint=self._within_parts(constraint, axis, len(whole), f"{name}_constraint"),
            **kwargs,
        )
        set_share(variable, share, "data")
        return variable

    def _share(self, whole: tuple[int, ...], axis: int) -> Share:
        assert self.mesh is not None
        self.check_width(whole[axis], self.width_called)
        widths = cut(whole[axis], self.mesh.model)
        start = sum(widths[: self.mesh.model_index])
        return Share(whole, axis, start, start + widths[self.mesh.model_index])

    def check_width(self, width: int, what: str) -> None:
        """UserError where so many cannot be divided among the ranks."""
        ranks = self.mesh.model if self.mesh is not None else 1
        if width >= ranks and (width % ranks == 0 or not self.even):
            return
        below, above = width // ranks * ranks, -(-width // ranks) * ranks
        least = f"{below} or {above}" if below else f"{above}"
        allowed = f"a multiple of {ranks}, such as {least}" if self.even else f"at least {ranks}"
        raise self.refusal(
            f"{what} of {width} cannot be divided among the {ranks} ranks of the model axis (run.mesh); take {allowed}"
            ", or another mesh"
        )

    def refusal(self, text: str) -> UserError:
        """What is said of this layer."""
        return UserError(f"layer {self.name!r} ({type(self).__name__}): {text}")

    def _of_the_whole(self, regularizer: Any, argument: str) -> Any:
        """The regularizer's term of the whole weight, counted once, from its parts."""
        found = keras.regularizers.get(regularizer)
        if found is not None and type(found) not in _ADDS_UP:
            raise self.refusal(
                f"{argument} {type(found).__name__} may need the whole weight, of which each rank holds a part "
                "(run.mesh); take L1, L2 or L1L2, or keras.layers"
            )
        return found and (lambda weight: reduced(found(weight)))

    def _within_parts(self, constraint: Any, axis: int, rank: int, argument: str) -> Any:
        """The constraint, which sees all that it looks at together within a part."""
        found = keras.constraints.get(constraint)
        if found is None or type(found) is keras.constraints.NonNeg:
            return found
        if (along := getattr(found, "axis", None)) is not None:
            axes = {a % rank for a in (along if isinstance(along, list | tuple) else [along])}
            if axis not in axes:
                return found
        raise self.refusal(
            f"{argument} {type(found).__name__} looks at numbers of which each rank holds a part (run.mesh cuts axis "
            f"{axis}); take one along another axis, or keras.layers"
        )

    def whole_only(self, **given: Any) -> None:
        """UserError where an argument is given that only a layer that is whole can have."""
        for name, value in given.items():
            if self.mesh is not None and value is not None:
                raise self.refusal(
                    f"{name} is for layers that are whole on each rank, but run.mesh divides this one; leave it out, "
                    "or take the layer of keras.layers"
                )

    def enable_lora(self, *args: Any, **kwargs: Any) -> Any:
        """As Keras's; refused where the layer is divided."""
        self.whole_only(lora_rank=True)
        return super().enable_lora(*args, **kwargs)

    def quantize(self, *args: Any, **kwargs: Any) -> Any:
        """As Keras's; refused where the layer is divided."""
        self.whole_only(quantize=True)
        return super().quantize(*args, **kwargs)
