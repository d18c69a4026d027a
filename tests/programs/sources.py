"""Small files of all the formats that docs/shards.md names, in the working folder: images [28, 28] and their labels."""

import csv
import gzip
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

random = np.random.default_rng(0)
images = random.integers(0, 256, (60, 28, 28), np.uint8)
labels = random.integers(0, 10, 60, np.uint8)
flat = images.reshape(60, -1)

np.savez("train.npz", image=images, label=labels)
np.savez("mnist.npz", x_train=images[:50], y_train=labels[:50], x_test=images[50:], y_test=labels[50:])
for name, array in (("images-idx3", images), ("labels-idx1", labels)):
    head = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    with gzip.open(f"train-{name}-ubyte.gz", "wb") as file:
        file.write(head + array.tobytes())
for part in range(2):
    np.save(f"images-{part}.npy", images[30 * part : 30 * (part + 1)])
    rows = slice(30 * part, 30 * (part + 1))
    table = {
        "image": pa.FixedSizeListArray.from_arrays(flat[rows].ravel(), 784),
        "label": labels[rows],
        "id": np.arange(30),
    }
    pq.write_table(pa.table(table), f"part-{part}.parquet")
with open("labels.csv", "w") as file:
    csv.writer(file).writerows([["label"], *([int(label)] for label in labels)])
for part in range(2):
    with open(f"part-{part}.csv", "w") as file:
        csv.writer(file).writerows([["label", "price"], *([int(label), part] for label in labels)])
with open("mnist.csv", "w") as file:
    csv.writer(file).writerow(["label", *(f"pixel{n}" for n in range(784))])
    csv.writer(file).writerows([[int(label), *map(int, row)] for label, row in zip(labels, flat, strict=True)])
with tf.io.TFRecordWriter("train.tfrecord") as writer:
    for image, label in zip(flat, labels, strict=True):
        features = {
            "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        writer.write(example.SerializeToString())
Path("rows.csv").write_text(
    "\n".join(",".join(map(str, [*row[:4], label])) for row, label in zip(flat, labels, strict=True))
)
