"""What computes each number of its outputs from the one number of each input in its place, whatever lies beside it."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

_OPERATIONS = """
    Absolute Arccos Arccosh Arcsin Arcsinh Arctan Arctanh Cast Cbrt Ceil Celu Clip Copy Cos Cosh Deg2rad Elu Erf Erfc
    Erfinv Exp Exp2 Expm1 Floor Gelu HardShrink HardSigmoid HardSilu HardTanh Isfinite Isinf Isnan LeakyRelu Log Log10
    Log1p Log2 LogSigmoid LogicalNot NanToNum Negative OnesLike Rad2deg Reciprocal Relu Relu6 Round Rsqrt SaturateCast
    Selu Sigmoid Sign Silu Sin Sinc Sinh SoftShrink Softplus Softsign SparsePlus SparseSigmoid Sqrt Square Squareplus
    StopGradient Tan Tanh TanhShrink Threshold Trunc ZerosLike
    Add Arctan2 Divide DivideNoNan Equal Fmax Fmin FloorDivide Fmod Greater GreaterEqual Hypot Less LessEqual Logaddexp
    Logaddexp2 LogicalAnd LogicalOr LogicalXor Maximum Minimum Mod Multiply NotEqual Power Subtract TrueDivide Where
"""
"""Classes of keras.ops: of one input, and of several."""
_LAYERS = "Activation Add Average ELU Identity LeakyReLU Maximum Minimum Multiply ReLU Subtract"
"""Of keras.layers."""


def is_elementwise(operation: Any) -> bool:
    """Whether a layer or an operation of a Keras graph does so; what is not known to, does not."""
    kind = type(operation)
    if isinstance(operation, keras.layers.Layer):
        known = kind.__name__ in _LAYERS.split() and kind is getattr(keras.layers, kind.__name__)
        return known and (kind is not keras.layers.Activation or is_elementwise_function(operation.activation))
    return kind.__module__.startswith("keras.src.ops.") and kind.__name__ in _OPERATIONS.split()


def is_elementwise_function(function: Any) -> bool:
    """The same of an activation, which may be a function of the user's: it is tried out on a part of some rows."""
    if isinstance(function, keras.layers.Layer):
        return is_elementwise(function)
    rows = np.linspace(-3.0, 3.0, 8).reshape(2, 4)
    try:
        with tf.init_scope():
            whole, part = (
                np.asarray(keras.ops.cast(function(keras.ops.convert_to_tensor(x, keras.config.floatx())), "float64"))
                for x in (rows, rows[:, 2:])
            )
    except Exception:  # whatever the function raises
        return False
    return whole.shape == rows.shape and np.allclose(whole[:, 2:], part, equal_nan=True)
