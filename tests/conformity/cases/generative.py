"""Models that generate; what they would draw at random comes with each row, so that runs can be compared."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.conformity.cases import rows
from tests.conformity.cases.case import Case

SIZE = 8
LATENT = 4


def encoder(outputs: int, name: str):
    return keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 1)),
            layers.Conv2D(4, 3, strides=2, padding="same"),
            layers.LeakyReLU(0.2),
            layers.Flatten(),
            layers.Dense(outputs),
        ],
        name=name,
    )


def decoder(inputs: int, name: str):
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            layers.Dense(SIZE * SIZE),
            layers.LeakyReLU(0.2),
            layers.Reshape((SIZE // 2, SIZE // 2, 4)),
            layers.Conv2DTranspose(1, 4, strides=2, padding="same", activation="sigmoid"),
        ],
        name=name,
    )


def autoencoder(params):
    inputs = keras.Input((SIZE, SIZE, 1))
    model = keras.Model(inputs, decoder(LATENT, "decoder")(encoder(LATENT, "encoder")(inputs)))
    model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy")
    return model


def themselves(rng, count):
    x = rows.shares(rng, count, SIZE, SIZE, 1)
    return x, x


class VariationalAutoencoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = encoder(2 * LATENT, "encoder")
        self.decoder = decoder(LATENT, "decoder")
        self.total = keras.metrics.Mean(name="loss")
        self.reconstruction = keras.metrics.Mean(name="reconstruction_loss")
        self.divergence = keras.metrics.Mean(name="kl_loss")

    @property
    def metrics(self):
        return [self.total, self.reconstruction, self.divergence]

    def encode(self, x):
        mean, log_variance = ops.split(self.encoder(x["image"]), 2, axis=-1)
        return mean, log_variance, mean + ops.exp(0.5 * log_variance) * x["noise"]

    def call(self, x):
        return self.decoder(self.encode(x)[2])

    def losses_of(self, x):
        mean, log_variance, code = self.encode(x)
        errors = keras.losses.binary_crossentropy(x["image"], self.decoder(code))
        divergence = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
        return ops.mean(ops.sum(errors, (1, 2))), ops.mean(ops.sum(divergence, 1))

    def track(self, reconstruction, divergence):
        self.total.update_state(reconstruction + divergence)
        self.reconstruction.update_state(reconstruction)
        self.divergence.update_state(divergence)
        return {metric.name: metric.result() for metric in self.metrics}

    def train_step(self, data):
        x, *_ = data
        with tf.GradientTape() as tape:
            reconstruction, divergence = self.losses_of(x)
            loss = reconstruction + divergence
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights, strict=True)
        )
        return self.track(reconstruction, divergence)

    def test_step(self, data):
        x, *_ = data
        return self.track(*self.losses_of(x))


def variational_autoencoder(params):
    model = VariationalAutoencoder()
    model.compile(keras.optimizers.Adam(1e-2))
    return model


def noisy_images(latent: int = LATENT):
    def data(rng, count):
        x = {"image": rows.shares(rng, count, SIZE, SIZE, 1), "noise": rows.numbers(rng, count, latent)}
        return x, rows.classes(x["image"], 3)

    return data


class Sampling(layers.Layer):
    """A code of mean, logarithm of the variance and noise; how far it is from noise alone is a loss of each row."""

    def call(self, inputs):
        mean, log_variance, noise = inputs
        divergence = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
        self.add_loss(0.1 * ops.sum(divergence, 1))
        return mean + ops.exp(0.5 * log_variance) * noise

    def compute_output_shape(self, shapes):
        return shapes[0]


def functional_vae(params):
    image, noise = keras.Input((SIZE, SIZE, 1), name="image"), keras.Input((LATENT,), name="noise")
    hidden = encoder(8, "encoder")(image)
    code = Sampling()([layers.Dense(LATENT)(hidden), layers.Dense(LATENT)(hidden), noise])
    model = keras.Model({"image": image, "noise": noise}, decoder(LATENT, "decoder")(code))
    model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy")
    return model


def noisy_images_again(rng, count):
    x, _ = noisy_images()(rng, count)
    return x, x["image"]


class GAN(keras.Model):
    """A generator and a discriminator, each with its own optimizer."""

    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
        self.d_loss = keras.metrics.Mean(name="d_loss")
        self.g_loss = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer, loss_fn=None):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    @property
    def metrics(self):
        return [self.d_loss, self.g_loss]


class DCGAN(GAN):
    def train_step(self, data):
        x, *_ = data
        count = ops.shape(x["noise"])[0]
        ones, zeros = ops.ones((count, 1)), ops.zeros((count, 1))
        both = ops.concatenate([self.generator(x["noise"]), x["image"]], 0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(ops.concatenate([ones, zeros], 0), self.discriminator(both))
        gradients = tape.gradient(d_loss, self.discriminator.trainable_weights)
        self.d_optimizer.apply_gradients(zip(gradients, self.discriminator.trainable_weights, strict=True))
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(zeros, self.discriminator(self.generator(x["noise"])))
        gradients = tape.gradient(g_loss, self.generator.trainable_weights)
        self.g_optimizer.apply_gradients(zip(gradients, self.generator.trainable_weights, strict=True))
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}


def dcgan(params):
    model = DCGAN(encoder(1, "discriminator"), decoder(LATENT, "generator"))
    model.compile(
        keras.optimizers.Adam(1e-3), keras.optimizers.Adam(2e-3), keras.losses.BinaryCrossentropy(from_logits=True)
    )
    return model


class WGAN(GAN):
    """Wasserstein GAN with a penalty for gradients; the discriminator learns twice in each step."""

    turns = 2

    def penalty(self, real, fake, mixing):
        mixed = real + mixing * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(mixed)
            scores = self.discriminator(mixed, training=True)
        gradients = tape.gradient(scores, mixed)
        return ops.mean(ops.square(ops.sqrt(ops.sum(ops.square(gradients), (1, 2, 3)) + 1e-12) - 1))

    def train_step(self, data):
        x, *_ = data
        for turn in range(self.turns):
            with tf.GradientTape() as tape:
                fake = self.generator(x["noise"][:, turn], training=True)
                real_score = ops.mean(self.discriminator(x["image"], training=True))
                fake_score = ops.mean(self.discriminator(fake, training=True))
                penalty = self.penalty(x["image"], fake, x["mixing"][:, turn])
                d_loss = fake_score - real_score + 10 * penalty
            gradients = tape.gradient(d_loss, self.discriminator.trainable_variables)
            self.d_optimizer.apply_gradients(zip(gradients, self.discriminator.trainable_variables, strict=True))
        with tf.GradientTape() as tape:
            fake = self.generator(x["noise"][:, self.turns], training=True)
            g_loss = -ops.mean(self.discriminator(fake, training=True))
        gradients = tape.gradient(g_loss, self.generator.trainable_variables)
        self.g_optimizer.apply_gradients(zip(gradients, self.generator.trainable_variables, strict=True))
        return {"d_loss": d_loss, "g_loss": g_loss}


def wgan(params):
    model = WGAN(encoder(1, "discriminator"), decoder(LATENT, "generator"))
    model.compile(
        keras.optimizers.Adam(2e-3, beta_1=0.5, beta_2=0.9), keras.optimizers.Adam(2e-3, beta_1=0.5, beta_2=0.9)
    )
    return model


def noise_of_turns(rng, count):
    x = {
        "image": rows.shares(rng, count, SIZE, SIZE, 1),
        "noise": rows.numbers(rng, count, WGAN.turns + 1, LATENT),
        "mixing": rows.shares(rng, count, WGAN.turns, 1, 1, 1),
    }
    return x, np.zeros(count, "float32")


class ConditionalGAN(DCGAN):
    """Both parts also see the class; calling it generates."""

    def call(self, x):
        return self.generator(ops.concatenate([x["noise"], x["kind"]], -1))

    def train_step(self, data):
        x, *_ = data
        planes = ops.ones((1, SIZE, SIZE, 1)) * x["kind"][:, None, None]
        with tf.GradientTape() as tape:
            fake = self.discriminator(ops.concatenate([self(x), planes], -1))
            real = self.discriminator(ops.concatenate([x["image"], planes], -1))
            d_loss = self.loss_fn(ops.zeros_like(fake), fake) + self.loss_fn(ops.ones_like(real), real)
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        with tf.GradientTape() as tape:
            fake = self.discriminator(ops.concatenate([self(x), planes], -1))
            g_loss = self.loss_fn(ops.ones_like(fake), fake)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {metric.name: metric.result() for metric in self.metrics}


def conditional_gan(params):
    discriminator = keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 4)),
            layers.Conv2D(4, 3, strides=2),
            layers.LeakyReLU(0.2),
            layers.GlobalMaxPooling2D(),
            layers.Dense(1),
        ]
    )
    model = ConditionalGAN(discriminator, decoder(LATENT + 3, "generator"))
    model.compile(
        keras.optimizers.Adam(3e-3), keras.optimizers.RMSprop(3e-3), keras.losses.BinaryCrossentropy(from_logits=True)
    )
    return model


def kinds_of_images(rng, count):
    x, y = noisy_images()(rng, count)
    return {**x, "kind": rows.one_hot(y, 3)}, y


def translator(name: str):
    return keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 1)),
            layers.Conv2D(4, 3, padding="same"),
            layers.GroupNormalization(-1),
            layers.ReLU(),
            layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
        ],
        name=name,
    )


class CycleGAN(keras.Model):
    """Two generators and two discriminators, which one tape sees, with four optimizers."""

    def __init__(self):
        super().__init__()
        self.to_zebra, self.to_horse = translator("to_zebra"), translator("to_horse")
        self.zebras, self.horses = encoder(1, "zebras"), encoder(1, "horses")

    def compile(self, optimizers):
        super().compile()
        self.optimizers = optimizers

    def call(self, x):
        return {"zebra": self.to_zebra(x["horse"]), "horse": self.to_horse(x["zebra"])}

    def train_step(self, data):
        x, *_ = data
        horse, zebra = x["horse"], x["zebra"]
        square, absolute = keras.losses.MeanSquaredError(), keras.losses.MeanAbsoluteError()
        with tf.GradientTape(persistent=True) as tape:
            fake_zebra, fake_horse = self.to_zebra(horse, training=True), self.to_horse(zebra, training=True)
            cycle = absolute(horse, self.to_horse(fake_zebra, training=True))
            cycle += absolute(zebra, self.to_zebra(fake_horse, training=True))
            zebra_score, horse_score = self.zebras(fake_zebra), self.horses(fake_horse)
            real_zebra, real_horse = self.zebras(zebra), self.horses(horse)
            losses = {
                "to_zebra": square(ops.ones_like(zebra_score), zebra_score) + 10 * cycle,
                "to_horse": square(ops.ones_like(horse_score), horse_score) + 10 * cycle,
                "zebras": square(ops.ones_like(real_zebra), real_zebra) + square(zebra_score * 0, zebra_score),
                "horses": square(ops.ones_like(real_horse), real_horse) + square(horse_score * 0, horse_score),
            }
        for name, loss in losses.items():
            weights = getattr(self, name).trainable_variables
            self.optimizers[name].apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {f"{name}_loss": loss for name, loss in losses.items()}


def cycle_gan(params):
    model = CycleGAN()
    names = ("to_zebra", "to_horse", "zebras", "horses")
    model.compile({name: keras.optimizers.Adam(2e-3, beta_1=0.5) for name in names})
    return model


def animals(rng, count):
    x = {"horse": rows.shares(rng, count, SIZE, SIZE, 1), "zebra": rows.shares(rng, count, SIZE, SIZE, 1) ** 2}
    return x, np.zeros(count, "float32")


class Diffusion(keras.Model):
    """Learns what noise was added; a second network follows the first as a moving mean, and is the one used."""

    momentum = 0.9

    def __init__(self):
        super().__init__()
        self.network = self.denoiser()
        self.slow_network = self.denoiser()
        self.slow_network.set_weights(self.network.get_weights())
        self.slow_network.trainable = False
        self.noise_loss = keras.metrics.Mean(name="noise_loss")
        self.image_loss = keras.metrics.Mean(name="image_loss")

    @staticmethod
    def denoiser():
        image, variance = keras.Input((SIZE, SIZE, 1)), keras.Input((1, 1, 1))
        embedded = layers.UpSampling2D(SIZE)(ops.sin(variance * np.array([1, 4, 16, 64], "float32")))
        x = layers.Concatenate()([layers.Conv2D(4, 1)(image), embedded])
        x = layers.Conv2D(8, 3, padding="same", activation="swish")(x)
        return keras.Model([image, variance], layers.Conv2D(1, 3, padding="same")(x))

    @property
    def metrics(self):
        return [self.noise_loss, self.image_loss]

    def denoise(self, network, x):
        angle = 0.1 + x["time"] * 1.4
        signal, noise = ops.cos(angle), ops.sin(angle)
        noisy = signal * x["image"] + noise * x["noise"]
        found = network([noisy, noise**2])
        return found, (noisy - noise * found) / signal

    def call(self, x):
        return self.denoise(self.slow_network, x)[1]

    def track(self, x, noise, image):
        self.noise_loss.update_state(self.loss(x["noise"], noise))
        self.image_loss.update_state(self.loss(x["image"], image))
        return {metric.name: metric.result() for metric in self.metrics}

    def train_step(self, data):
        x, *_ = data
        with tf.GradientTape() as tape:
            noise, image = self.denoise(self.network, x)
            loss = self.loss(x["noise"], noise)
        gradients = tape.gradient(loss, self.network.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
        for weight, slow in zip(self.network.weights, self.slow_network.weights, strict=True):
            slow.assign(self.momentum * slow + (1 - self.momentum) * weight)
        return self.track(x, noise, image)

    def test_step(self, data):
        x, *_ = data
        return self.track(x, *self.denoise(self.slow_network, x))


def diffusion(params):
    model = Diffusion()
    model.compile(keras.optimizers.AdamW(1e-2, weight_decay=1e-4), keras.losses.MeanAbsoluteError())
    return model


def noisy_times(rng, count):
    x = {
        "image": rows.shares(rng, count, SIZE, SIZE, 1),
        "noise": rows.numbers(rng, count, SIZE, SIZE, 1),
        "time": rows.shares(rng, count, 1, 1, 1),
    }
    return x, np.zeros(count, "float32")


class Quantizer(layers.Layer):
    """The nearest of a few vectors; gradients pass it as if it were not there."""

    def __init__(self, count: int, width: int, **options):
        super().__init__(**options)
        self.vectors = self.add_weight(shape=(count, width), initializer="uniform", name="vectors")

    def call(self, x):
        distances = ops.sum(ops.square(x[..., None, :] - self.vectors), -1)
        nearest = ops.take(self.vectors, ops.argmin(distances, -1), axis=0)
        self.add_loss(0.25 * ops.mean(ops.square(ops.stop_gradient(nearest) - x)))
        self.add_loss(ops.mean(ops.square(nearest - ops.stop_gradient(x))))
        return x + ops.stop_gradient(nearest - x)


class VectorQuantized(keras.Model):
    def __init__(self):
        super().__init__()
        image = keras.Input((SIZE, SIZE, 1))
        x = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")(image)
        x = Quantizer(6, 4, name="quantizer")(x)
        self.network = keras.Model(image, layers.Conv2DTranspose(1, 4, strides=2, padding="same")(x))
        self.total = keras.metrics.Mean(name="loss")
        self.quantization = keras.metrics.Mean(name="vq_loss")

    @property
    def metrics(self):
        return [self.total, self.quantization]

    def call(self, x):
        return self.network(x)

    def train_step(self, data):
        x, *_ = data
        with tf.GradientTape() as tape:
            errors = ops.mean(ops.square(x - self.network(x))) / 0.08
            loss = errors + sum(self.network.losses)
        weights = self.network.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.total.update_state(loss)
        self.quantization.update_state(sum(self.network.losses))
        return {"loss": self.total.result(), "vq_loss": self.quantization.result()}


def vq_vae(params):
    model = VectorQuantized()
    model.compile(keras.optimizers.Adam(1e-2))
    return model


class Flow(keras.Model):
    """Real NVP: what is likely under it is seen from the density of noise and from how each layer scales."""

    def __init__(self):
        super().__init__()
        self.parts = []
        for _ in range(3):
            inputs = keras.Input((2,))
            x = layers.Dense(8, activation="relu")(inputs)
            scale = layers.Dense(2, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.01))(x)
            self.parts.append(keras.Model(inputs, [scale, layers.Dense(2)(x)]))
        self.masks = [np.array(mask, "float32") for mask in ((0, 1), (1, 0), (0, 1))]
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, x):
        scaled = 0.0
        for mask, part in zip(self.masks, self.parts, strict=True):
            scale, shift = part(x * mask)
            scale, shift = scale * (1 - mask), shift * (1 - mask)
            x = (x - shift) * ops.exp(-scale)
            scaled -= ops.sum(scale, 1)
        return x, scaled

    def log_loss(self, x):
        code, scaled = self(x)
        density = -0.5 * ops.sum(ops.square(code), 1) - np.log(2 * np.pi)
        return -ops.mean(density + scaled)

    def train_step(self, data):
        x, *_ = data
        with tf.GradientTape() as tape:
            loss = self.log_loss(x)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def test_step(self, data):
        self.tracker.update_state(self.log_loss(data[0]))
        return {"loss": self.tracker.result()}


def flow(params):
    model = Flow()
    model.compile(keras.optimizers.Adam(1e-2))
    return model


def moons(rng, count):
    angle, side = rng.uniform(0, np.pi, count), rng.integers(0, 2, count)
    x = np.stack([np.cos(angle) * (1 - 2 * side) + side, np.sin(angle) * (1 - 2 * side) + side / 2], 1)
    return x.astype("float32"), side.astype("int32")


class CausalConvolution(layers.Layer):
    """Sees only the pixels above and to the left."""

    def __init__(self, kind: str, **options):
        super().__init__()
        self.kind, self.convolution = kind, layers.Conv2D(**options)

    def build(self, shape):
        self.convolution.build(shape)
        height, width, *_ = self.convolution.kernel.shape
        mask = np.zeros(self.convolution.kernel.shape, "float32")
        mask[: height // 2] = 1
        mask[height // 2, : width // 2 + (self.kind == "b")] = 1
        self.mask = mask

    def call(self, x):
        self.convolution.kernel.assign(self.convolution.kernel * self.mask)
        return self.convolution(x)

    def compute_output_shape(self, shape):
        return self.convolution.compute_output_shape(shape)


def pixel_cnn(params):
    inputs = keras.Input((SIZE, SIZE, 1))
    x = CausalConvolution("a", filters=6, kernel_size=5, padding="same", activation="relu")(inputs)
    x = layers.Add()([x, CausalConvolution("b", filters=6, kernel_size=3, padding="same", activation="relu")(x)])
    model = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(x))
    model.compile(keras.optimizers.RMSprop(5e-3), "binary_crossentropy")
    return model


def black_and_white(rng, count):
    x = (rows.shares(rng, count, SIZE, SIZE, 1) < 0.5).astype("float32")
    return x, x


class MaskedAutoencoder(keras.Model):
    """Fills in pixels that it does not see; only those count."""

    def __init__(self):
        super().__init__()
        self.network = keras.Sequential(
            [keras.Input((16, 2)), layers.Dense(8, activation="relu"), layers.Flatten(), layers.Dense(16)]
        )

    def call(self, x):
        return self.network(ops.stack([x["pixels"] * x["seen"], x["seen"]], -1))

    def train_step(self, data):
        x, y, *_ = data
        with tf.GradientTape() as tape:
            hidden = 1 - x["seen"]
            errors = ops.square(self(x, training=True) - y) * hidden
            loss = ops.mean(ops.sum(errors, 1) / ops.sum(hidden, 1))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def masked_autoencoder(params):
    model = MaskedAutoencoder()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9))
    return model


def half_seen(rng, count):
    x = {"pixels": rows.shares(rng, count, 16), "seen": (rows.shares(rng, count, 16) < 0.5).astype("float32")}
    x["seen"][:, 0] = 0
    return x, x["pixels"]


def stepping(name, build, data, **rest):
    """A case whose model has a train_step of its own."""
    return Case(name, build, data, own_train_step=True, asynchronous=False, **rest)


CASES = (
    Case("autoencoder", autoencoder, themselves, note="x is y; models in a model"),
    stepping("variational_autoencoder", variational_autoencoder, noisy_images(), note="three metrics, own test_step"),
    Case("functional_vae", functional_vae, noisy_images_again, note="add_loss of a number a row: Keras adds them up"),
    stepping("dcgan", dcgan, noisy_images(), exports=False, note="two optimizers, no call()"),
    stepping("wgan", wgan, noise_of_turns, exports=False, note="gradient penalty; the discriminator learns twice"),
    stepping("conditional_gan", conditional_gan, kinds_of_images, note="two optimizers, optimizer.apply"),
    stepping("cycle_gan", cycle_gan, animals, note="four optimizers in a dict, one persistent tape"),
    stepping("diffusion", diffusion, noisy_times, note="own moving mean of a network; own test_step"),
    stepping("vq_vae", vq_vae, themselves, note="add_loss of a layer, straight-through gradients"),
    stepping("flow", flow, moons, note="Real NVP; regularizers that its own step leaves out"),
    Case("pixel_cnn", pixel_cnn, black_and_white, note="a kernel that call() itself assigns"),
    stepping("masked_autoencoder", masked_autoencoder, half_seen, note="each row divided by its own hidden pixels"),
)
