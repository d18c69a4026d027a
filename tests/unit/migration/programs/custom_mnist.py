"""A model function of one's own: a convolutional network for digits, in the style of TensorFlow 1.15."""

import numpy as np
import tensorflow.compat.v1 as tf

tf.logging.set_verbosity(tf.logging.INFO)
tf.app.flags.DEFINE_string("model_dir", "/tmp/digits", "Where checkpoints go.")
tf.app.flags.DEFINE_float("learning_rate", 1e-3, "Of Adam.")
tf.app.flags.DEFINE_integer("batch_size", 100, "Rows of a step.")
tf.app.flags.DEFINE_integer("train_steps", 20 * 1000, "When it ends.")
tf.app.flags.DEFINE_float("dropout", 0.4, "Of the dense layer.")
FLAGS = tf.app.flags.FLAGS
CLASSES = 10


def cnn_model_fn(features, labels, mode):
    """Logits of ten digits."""
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    image = tf.reshape(features["image"], [-1, 28, 28, 1])
    net = tf.layers.conv2d(image, 8, [5, 5], padding="same", activation=tf.nn.relu)
    net = tf.layers.max_pooling2d(inputs=net, pool_size=[2, 2], strides=2)
    net = tf.layers.flatten(net)
    net = tf.layers.dense(inputs=net, units=32, activation=tf.nn.relu)
    net = tf.layers.dropout(net, rate=FLAGS.dropout, training=is_training)
    logits = tf.layers.dense(net, units=CLASSES)
    predictions = {"classes": tf.argmax(logits, axis=1), "scores": tf.nn.softmax(logits)}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode=mode, predictions=predictions)
    loss = tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
    if is_training:
        optimizer = tf.train.AdamOptimizer(learning_rate=FLAGS.learning_rate)
        train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
        tf.summary.scalar("loss", loss)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)
    metrics = {"accuracy": tf.metrics.accuracy(labels=labels, predictions=predictions["classes"])}
    return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)


def main(_):
    """Trains and evaluates."""
    images = np.zeros([1000, 784], "float32")
    digits = np.zeros([1000], "int32")
    config = tf.estimator.RunConfig(
        model_dir=FLAGS.model_dir, save_checkpoints_steps=500, session_config=tf.ConfigProto(), tf_random_seed=7
    )
    classifier = tf.estimator.Estimator(model_fn=cnn_model_fn, config=config)
    train_input_fn = tf.estimator.inputs.numpy_input_fn(
        {"image": images}, y=digits, batch_size=FLAGS.batch_size, num_epochs=None, shuffle=True
    )
    eval_input_fn = tf.estimator.inputs.numpy_input_fn({"image": images}, digits, num_epochs=1, shuffle=False)
    hook = tf.train.LoggingTensorHook({"scores": "softmax"}, every_n_iter=50)
    classifier.train(train_input_fn, steps=FLAGS.train_steps, hooks=[hook])
    print(classifier.evaluate(input_fn=eval_input_fn))
    print(next(classifier.predict(eval_input_fn)))


if __name__ == "__main__":
    tf.app.run()
