"""Dense layers whose kernel is divided by its columns, or by its rows."""

from __future__ import annotations

from typing import Any, ClassVar

import keras

from hpc_train.arguments import check_type, checked_arguments
from hpc_train.distributed.tensor_parallel import entered, gathered, part_of, reduced
from hpc_train.parallel.divided import Divided
from hpc_train.parallel.elementwise import is_elementwise_function


@checked_arguments
@keras.saving.register_keras_serializable(package="hpc_train")
class ColumnDense(Divided, keras.layers.Dense):  # type: ignore[misc]
    """keras.layers.Dense whose units are divided among the ranks of the model axis.

    Each rank computes its units of all rows, and keeps kernel and bias of these alone. A RowDense behind it takes them
    as they are: the two together exchange one activation forward and one gradient backward (arXiv:1909.08053).

    Args:
        units, activation, use_bias: As those of keras.layers.Dense. The model axis divides `units`.
        gather_output: Bring the units of all ranks together on each; for what comes behind that is whole.
        Others as those of keras.layers.Dense. Regularizers may be L1, L2 and L1L2, constraints NonNeg and those along
            an axis that is not cut.

    Raises:
        UserError: In a job with run.mesh, where the layer cannot be divided.
    """

    cut_along: ClassVar[dict[str, int]] = {"kernel": 1, "bias": 0}

    def __init__(
        self,
        units: int,
        activation: Any = None,
        use_bias: bool = True,
        gather_output: bool = False,
        **kwargs: Any,
    ) -> None:
        check_type("ColumnDense", "gather_output", gather_output, bool, "True or False")
        super().__init__(units, activation, use_bias, **kwargs)
        self.gather_output = gather_output
        self.whole_only(lora_rank=self.lora_rank, quantization_config=self.quantization_config)
        if self.mesh is not None:
            self.check_width(units, "units")
        if self.mesh is not None and not gather_output:
            self.whole_only(activity_regularizer=self.activity_regularizer)
            if self.activation is not None and not is_elementwise_function(self.activation):
                kind = getattr(self.activation, "__name__", type(self.activation).__name__)
                raise self.refusal(
                    f"activation {kind} looks at all units, of which each rank has a part "
                    "(run.mesh); set gather_output=True"
                )

    def call(self, inputs: Any, training: Any = None) -> Any:
        """This rank's units of `inputs`, which are whole; all units where they are gathered."""
        if self.mesh is None:
            return super().call(inputs, training=training)
        units = keras.ops.matmul(entered(inputs)[0], self.kernel)
        if self.bias is not None:
            units = keras.ops.add(units, self.bias)
        if self.gather_output:
            units = gathered(units, -1, self.mesh)
        return units if self.activation is None else self.activation(units)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Of what this rank has."""
        parts = self.mesh.model if self.mesh is not None and not self.gather_output else 1
        return (*input_shape[:-1], self.units // parts)

    def get_config(self) -> dict[str, Any]:
        """What the layer is made from."""
        return {**super().get_config(), "gather_output": self.gather_output}


@checked_arguments
@keras.saving.register_keras_serializable(package="hpc_train")
class RowDense(Divided, keras.layers.Dense):  # type: ignore[misc]
    """keras.layers.Dense whose inputs are divided among the ranks of the model axis; see ColumnDense.

    Each rank keeps the rows of the kernel for its part of the inputs. What these give is added up over ranks; then the
    bias is added, which is whole on all. The outputs are whole on all ranks.

    Args:
        units, activation, use_bias: As those of keras.layers.Dense. The model axis divides the inputs' last dimension.
        input_is_parallel: Whether the inputs are divided, as a ColumnDense leaves them; False: they are whole.
        Others as ColumnDense.

    Raises:
        UserError: As ColumnDense.
    """

    cut_along: ClassVar[dict[str, int]] = {"kernel": 0}

    def __init__(
        self,
        units: int,
        activation: Any = None,
        use_bias: bool = True,
        input_is_parallel: bool = True,
        **kwargs: Any,
    ) -> None:
        check_type("RowDense", "input_is_parallel", input_is_parallel, bool, "True or False")
        super().__init__(units, activation, use_bias, **kwargs)
        self.input_is_parallel = input_is_parallel
        self.whole_only(lora_rank=self.lora_rank, quantization_config=self.quantization_config)

    def build(self, input_shape: Any) -> None:
        """Creates this rank's rows of the kernel, and the whole bias."""
        width = input_shape[-1]
        if self.mesh is None or width is None:
            super().build(input_shape)
            return
        whole = width * self.mesh.model if self.input_is_parallel else width
        self.check_width(whole, "inputs")
        super().build((*input_shape[:-1], whole))
        self.input_spec = keras.layers.InputSpec(min_ndim=2, axes={-1: width})

    def call(self, inputs: Any, training: Any = None) -> Any:
        """The outputs, whole on all ranks."""
        if self.mesh is None:
            return super().call(inputs, training=training)
        own = inputs if self.input_is_parallel else part_of(inputs, -1, self.mesh)
        outputs = reduced(keras.ops.matmul(own, self.kernel))
        if self.bias is not None:
            outputs = keras.ops.add(outputs, self.bias)
        return outputs if self.activation is None else self.activation(outputs)

    def get_config(self) -> dict[str, Any]:
        """What the layer is made from."""
        return {**super().get_config(), "input_is_parallel": self.input_is_parallel}
