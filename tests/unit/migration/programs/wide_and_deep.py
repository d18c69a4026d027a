"""A canned estimator, wide and deep, on a table of people."""

import argparse

import tensorflow as tf
from tensorflow import feature_column as fc

COLUMNS = ["age", "hours", "job", "school", "income"]


def build_columns():
    """Wide and deep columns."""
    return wide, deep


age = fc.numeric_column("age")
hours = fc.numeric_column("hours", dtype=tf.float32)
ages = fc.bucketized_column(age, boundaries=[18, 25, 35, 50, 65])
job = fc.categorical_column_with_hash_bucket("job", hash_bucket_size=100)
school = fc.categorical_column_with_vocabulary_list("school", ["none", "primary", "Universität"])
wide = [ages, job, tf.feature_column.crossed_column(["job", "school"], hash_bucket_size=1000)]
deep = [age, hours, fc.indicator_column(school), fc.embedding_column(job, dimension=8)]


def input_fn(path, batch_size, epochs):
    """Rows of a CSV file."""
    dataset = tf.data.TextLineDataset(path).map(lambda row: tf.io.decode_csv(row, [[0.0], [0.0], [""], [""], [0]]))
    return dataset.repeat(epochs).batch(batch_size)


def main():
    """Trains, with the best and the last export."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir", required=True)
    parser.add_argument("--train-batch-size", type=int, default=40, dest="train_batch_size")
    parser.add_argument("--l1", type=float, default=0.5)
    args, _ = parser.parse_known_args()
    model = tf.estimator.DNNLinearCombinedClassifier(
        model_dir=args.job_dir,
        linear_feature_columns=wide,
        linear_optimizer=tf.keras.optimizers.Ftrl(0.1, l1_regularization_strength=args.l1),
        dnn_feature_columns=deep,
        dnn_hidden_units=[100, 50],
        dnn_optimizer="Adagrad",
        n_classes=2,
        config=tf.estimator.RunConfig(keep_checkpoint_max=3),
    )
    spec = tf.feature_column.make_parse_example_spec(deep)
    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)
    exporters = [
        tf.estimator.BestExporter(name="best", serving_input_receiver_fn=receiver, exports_to_keep=2),
        tf.estimator.FinalExporter("final", receiver),
    ]
    early = tf.estimator.experimental.stop_if_no_decrease_hook(model, "loss", max_steps_without_decrease=2000)
    tf.estimator.train_and_evaluate(
        model,
        tf.estimator.TrainSpec(
            lambda: input_fn("train.csv", args.train_batch_size, None), max_steps=5000, hooks=[early]
        ),
        tf.estimator.EvalSpec(
            lambda: input_fn("test.csv", 100, 1), steps=None, exporters=exporters, start_delay_secs=10, throttle_secs=60
        ),
    )


if __name__ == "__main__":
    main()
