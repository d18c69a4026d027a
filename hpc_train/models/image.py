"""The model of images: a backbone with the preprocessing that it was made for, and a dense layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_train.config.builtin_model import ImageModel
from hpc_train.errors import UserError
from hpc_train.lazy import keras
from hpc_train.models.heads import BinaryHead, ClassesHead, Head

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of red, green and blue from 0 to 1, as keras.applications has them."""
IMAGENET_BGR = (103.939, 116.779, 123.68)
"""The means of blue, green and red from 0 to 255, as Caffe had them."""


def _as_stored(images: Any) -> Any:
    return images


def _to_one(images: Any) -> Any:
    return keras.layers.Rescaling(1 / 255)(images)


def _around_zero(images: Any) -> Any:
    return keras.layers.Rescaling(1 / 127.5, -1.0)(images)


def _by_channel(images: Any) -> Any:
    """From 0 to 1, less the mean of ImageNet's channel, by its standard deviation; of images in color."""
    if images.shape[-1] != 3:
        return _around_zero(images)
    scale = [1 / (255 * std) for std in IMAGENET_STD]
    offset = [-mean / std for mean, std in zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)]
    return keras.layers.Rescaling(scale, offset)(images)


def _as_caffe(images: Any) -> Any:
    """Blue, green, red, less the mean of ImageNet's channel; of images in color."""
    if images.shape[-1] != 3:
        return _around_zero(images)
    return keras.layers.Rescaling(1.0, [-mean for mean in IMAGENET_BGR])(keras.ops.flip(images, axis=-1))


def _small(include_top: bool, weights: str | None, input_shape: tuple[int, int, int]) -> keras.Model:
    """Four convolutions, two of which halve the image."""
    inputs = hidden = keras.Input(input_shape)
    for width, stride in ((32, 1), (64, 2), (64, 1), (128, 2)):
        hidden = keras.layers.Conv2D(width, 3, stride, "same", use_bias=False)(hidden)
        hidden = keras.layers.Activation("relu")(keras.layers.BatchNormalization()(hidden))
    return keras.Model(inputs, hidden, name="small")


@dataclass(frozen=True)
class _Backbone:
    """One of keras.applications by its name there; `scaled`: what it wants of images with values from 0 to 255."""

    name: str
    scaled: Callable[[Any], Any]
    least: int = 32


_BACKBONES = {
    "small": _Backbone("", _to_one, 4),
    "convnext_tiny": _Backbone("ConvNeXtTiny", _as_stored),
    "densenet121": _Backbone("DenseNet121", _by_channel),
    "efficientnet_v2_b0": _Backbone("EfficientNetV2B0", _as_stored),
    "efficientnet_v2_s": _Backbone("EfficientNetV2S", _as_stored),
    "mobilenet_v2": _Backbone("MobileNetV2", _around_zero),
    "mobilenet_v3_small": _Backbone("MobileNetV3Small", _as_stored),
    "resnet50": _Backbone("ResNet50", _as_caffe),
    "resnet50_v2": _Backbone("ResNet50V2", _around_zero),
    "vgg16": _Backbone("VGG16", _as_caffe),
    "xception": _Backbone("Xception", _around_zero, 71),
}


def image_model(settings: ImageModel) -> tuple[keras.Model, Head]:
    """The model that `settings` describe; not compiled. It takes uint8 `[rows, height, width, channels]`.

    Raises:
        UserError: The images are too small for the backbone, or its weights cannot be read.
    """
    backbone = _BACKBONES[settings.backbone]
    if min(settings.shape[:2]) < backbone.least:
        raise UserError(
            f"backbone {settings.backbone} wants images of {backbone.least} x {backbone.least} at least; shape is "
            f"{list(settings.shape)}"
        )
    inputs = keras.Input(settings.shape, dtype="uint8", name="image")
    images = backbone.scaled(keras.ops.cast(inputs, "float32"))
    made = getattr(keras.applications, backbone.name) if backbone.name else _small
    layers = made(include_top=False, weights=None, input_shape=settings.shape)
    if settings.weights is not None:
        _load(layers, settings.weights, settings.backbone)
    layers.trainable = settings.train_backbone
    hidden = layers(images) if settings.train_backbone else layers(images, training=False)
    pooled = keras.layers.GlobalAveragePooling2D()(hidden)
    if settings.dropout:
        pooled = keras.layers.Dropout(settings.dropout)(pooled)
    head: Head = BinaryHead() if settings.classes == 2 else ClassesHead(settings.classes)
    return keras.Model(inputs, head.outputs(head.logits(pooled)), name="image_model"), head


def _load(layers: keras.Model, path: Path, name: str) -> None:
    if not path.is_file():
        raise UserError(f"weights: there is no file {path}; weights are never downloaded")
    try:
        layers.load_weights(path)
    except (OSError, ValueError, KeyError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"weights: {path}: are no weights of {name} without its top: {first}") from None
