"""Models of tokens, with masks of what is padding."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

from tests.conformity.cases import rows
from tests.conformity.cases.case import Case

LENGTH = 10
WORDS = 20
VOCABULARY = ["good", "schön", "kind", "bad", "übel", "dull", "映画", "plot"]

logits_loss = keras.losses.SparseCategoricalCrossentropy


class TokensAndPositions(layers.Layer):
    """Embeds tokens and their places; 0 is padding."""

    def __init__(self, words: int, length: int, width: int, **options):
        super().__init__(**options)
        self.tokens = layers.Embedding(words, width, mask_zero=True)
        self.places = layers.Embedding(length, width)

    def build(self, shape):
        self.tokens.build(shape)
        self.places.build((shape[-1],))

    def call(self, x):
        return self.tokens(x) + self.places(ops.arange(ops.shape(x)[-1]))

    def compute_mask(self, x, mask=None):
        return self.tokens.compute_mask(x)


class Block(layers.Layer):
    """A block of a Transformer; hands the mask on, which MultiHeadAttention takes off its inputs."""

    def __init__(self, causal: bool = False, width: int = 8, **options):
        super().__init__(**options)
        self.supports_masking = True
        self.causal = causal
        self.attention = layers.MultiHeadAttention(2, width // 2)
        self.first, self.second = layers.Dense(2 * width, activation="relu"), layers.Dense(width)
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]

    def build(self, shape):
        self.attention.build(shape, shape)
        self.first.build(shape)
        self.second.build((*shape[:-1], 2 * shape[-1]))
        for norm in self.norms:
            norm.build(shape)

    def call(self, x):
        x = self.norms[0](x + self.attention(x, x, use_causal_mask=self.causal))
        return self.norms[1](x + self.second(self.first(x)))

    def compute_output_shape(self, shape):
        return shape


def transformer_classifier(params):
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = Block()(TokensAndPositions(WORDS, LENGTH, 8)(inputs))
    x = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, layers.Dense(2, activation="softmax")(x))
    model.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def masked_lstm(params):
    inputs = keras.Input((LENGTH, 3))
    x = layers.Masking()(inputs)
    x = layers.LSTM(6)(x)
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model


def padded_series(rng, count):
    x = rows.numbers(rng, count, LENGTH, 3)
    ends = rows.lengths(rng, count, LENGTH)
    x[np.arange(LENGTH) >= ends[:, None]] = 0
    return x, (x.sum((1, 2)) / ends).astype("float32")[:, None]


def masked_mean(y_true, y_pred):
    """Mean over the tokens of all rows that are no padding."""
    losses = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
    kept = ops.cast(ops.not_equal(y_true, 0), losses.dtype)
    return ops.sum(losses * kept) / ops.sum(kept)


def token_accuracy(y_true, y_pred):
    return ops.cast(ops.equal(ops.argmax(y_pred, -1), ops.cast(y_true, "int64")), "float32")


def translator(params):
    source = keras.Input((LENGTH,), dtype="int32", name="source")
    target = keras.Input((LENGTH,), dtype="int32", name="target")
    encoded, state = layers.GRU(8, return_sequences=True, return_state=True)(
        layers.Embedding(WORDS, 8, mask_zero=True)(source)
    )
    decoded = layers.GRU(8, return_sequences=True)(
        layers.Embedding(WORDS, 8, mask_zero=True)(target), initial_state=state
    )
    attended = layers.Attention()([decoded, encoded])
    x = layers.Concatenate()([decoded, attended])
    model = keras.Model({"source": source, "target": target}, layers.Dense(WORDS)(x))
    model.compile(keras.optimizers.Adam(1e-2), masked_mean, metrics=[token_accuracy])
    return model


def translations(rng, count):
    source = rows.padded(rng, count, LENGTH, WORDS)
    target = rows.padded(rng, count, LENGTH, WORDS)
    return {"source": source, "target": target}, rows.shifted(target)


def transformer_translator(params):
    source = keras.Input((LENGTH,), dtype="int32", name="source")
    target = keras.Input((LENGTH,), dtype="int32", name="target")
    encoded = Block()(TokensAndPositions(WORDS, LENGTH, 8)(source))
    x = Block(causal=True)(TokensAndPositions(WORDS, LENGTH, 8)(target))
    x = layers.LayerNormalization()(layers.MultiHeadAttention(2, 4)(x, encoded))
    model = keras.Model([source, target], layers.Dense(WORDS)(x))
    model.compile(
        keras.optimizers.RMSprop(1e-2), logits_loss(from_logits=True, ignore_class=0), weighted_metrics=["accuracy"]
    )
    return model


def language_model(params):
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = TokensAndPositions(WORDS, LENGTH, 8)(inputs)
    for _ in range(2):
        x = Block(causal=True)(x)
    model = keras.Model(inputs, layers.Dense(WORDS)(x))
    model.compile(keras.optimizers.Adam(1e-2), logits_loss(from_logits=True), metrics=["accuracy"])
    return model


def next_tokens(rng, count):
    x = rows.padded(rng, count, LENGTH, WORDS)
    return x, rows.shifted(x)


def masked_language_model(params):
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS + 1, 8)(inputs)
    x = Block()(x)
    model = keras.Model(inputs, layers.Dense(WORDS, activation="softmax")(x))
    model.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    return model


def hidden_tokens(rng, count):
    """Sentences with some tokens hidden; only those have a weight."""
    y = rows.tokens(rng, count, LENGTH, WORDS)
    hidden = rng.uniform(size=y.shape) < 0.25
    return np.where(hidden, WORDS, y).astype("int32"), y, hidden.astype("float32")


def text_cnn(params):
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, 6)(inputs)
    branches = [layers.GlobalMaxPooling1D()(layers.Conv1D(4, width, activation="relu")(x)) for width in (2, 3)]
    x = layers.Concatenate()(branches)
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
    model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy", metrics=["accuracy"])
    return model


def bag_of_words(optimizer):
    """Of a function that makes an optimizer; few words, so that most come several times in a batch."""

    def build(params):
        model = keras.Sequential(
            [
                keras.Input((LENGTH,), dtype="int32"),
                layers.Embedding(8, 6),
                layers.GlobalAveragePooling1D(),
                layers.Dense(2, activation="softmax"),
            ]
        )
        model.compile(optimizer(), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    return build


def tied_language_model(params):
    inputs = keras.Input((LENGTH,), dtype="int32")
    embedding = layers.ReversibleEmbedding(WORDS, 8, mask_zero=True)
    x = layers.LSTM(8, return_sequences=True)(embedding(inputs))
    model = keras.Model(inputs, embedding(x, reverse=True))
    model.compile(keras.optimizers.Adam(1e-2), logits_loss(from_logits=True))
    return model


def span_extraction(params):
    question = keras.Input((4,), dtype="int32", name="question")
    context = keras.Input((LENGTH,), dtype="int32", name="context")
    embedding = layers.Embedding(WORDS, 8)
    asked = layers.GlobalAveragePooling1D()(embedding(question))
    x = layers.Concatenate()([embedding(context), layers.RepeatVector(LENGTH)(asked)])
    x = layers.Bidirectional(layers.GRU(6, return_sequences=True))(x)
    start = layers.Softmax(name="start")(layers.Flatten()(layers.Dense(1)(x)))
    end = layers.Softmax(name="end")(layers.Flatten()(layers.Dense(1)(x)))
    model = keras.Model({"question": question, "context": context}, {"start": start, "end": end})
    model.compile(
        keras.optimizers.Adam(1e-2),
        {"start": "sparse_categorical_crossentropy", "end": "sparse_categorical_crossentropy"},
        metrics={"start": ["accuracy"], "end": ["accuracy"]},
    )
    return model


def spans(rng, count):
    x = {"question": rows.tokens(rng, count, 4, WORDS), "context": rows.tokens(rng, count, LENGTH, WORDS)}
    start = rng.integers(0, LENGTH // 2, count).astype("int32")
    return x, {"start": start, "end": (start + rng.integers(1, LENGTH // 2, count)).astype("int32")}


def skip_gram(params):
    """Negative sampling: the word's vector times those of one neighbour and of three other words."""
    word = keras.Input((1,), dtype="int32", name="word")
    others = keras.Input((4,), dtype="int32", name="others")
    dots = layers.Dot((2, 2))([layers.Embedding(WORDS, 6)(word), layers.Embedding(WORDS, 6)(others)])
    model = keras.Model({"word": word, "others": others}, layers.Flatten()(dots))
    model.compile(keras.optimizers.Adam(1e-2), keras.losses.CategoricalCrossentropy(from_logits=True))
    return model


def neighbours(rng, count):
    x = {"word": rows.tokens(rng, count, 1, WORDS), "others": rows.tokens(rng, count, 4, WORDS)}
    return x, rows.one_hot(np.zeros(count, "int32"), 4)


def sequence_tagger(params):
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, 8, mask_zero=True)(inputs)
    x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(x)
    model = keras.Model(inputs, layers.TimeDistributed(layers.Dense(3, activation="softmax"))(x))
    model.compile(
        keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(ignore_class=-1),
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    return model


def tags(rng, count):
    x = rows.padded(rng, count, LENGTH, WORDS)
    y = (x % 3).astype("int32")
    y[rng.uniform(size=y.shape) < 0.2] = -1  # nobody tagged these
    return x, y


def hierarchical_text(params):
    """Sentences of words, a document of sentences."""
    sentence = keras.Input((5,), dtype="int32")
    encoder = keras.Model(sentence, layers.GRU(6)(layers.Embedding(WORDS, 6, mask_zero=True)(sentence)))
    document = keras.Input((3, 5), dtype="int32")
    x = layers.GRU(6)(layers.TimeDistributed(encoder)(document))
    model = keras.Model(document, layers.Dense(2, activation="softmax")(x))
    model.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy")
    return model


def documents(rng, count):
    x = rows.padded(rng, count * 3, 5, WORDS).reshape(count, 3, 5)
    return x, (x[:, 0, 0] % 2).astype("int32")


def attention_over_pairs(params):
    """Which words of one sentence matter, given another: masks of query and of key, both by hand."""
    question = keras.Input((4,), dtype="int32", name="question")
    answer = keras.Input((LENGTH,), dtype="int32", name="answer")
    embedding = layers.Embedding(WORDS, 8)
    mask = ops.logical_and(ops.not_equal(question, 0)[:, :, None], ops.not_equal(answer, 0)[:, None, :])
    x = layers.MultiHeadAttention(2, 4)(embedding(question), embedding(answer), attention_mask=mask)
    x = layers.GlobalMaxPooling1D()(x)
    model = keras.Model({"question": question, "answer": answer}, layers.Dense(1, activation="sigmoid")(x))
    model.compile(keras.optimizers.Adam(1e-2), "binary_crossentropy", metrics=["accuracy"])
    return model


def answered(rng, count):
    x = {"question": rows.padded(rng, count, 4, WORDS), "answer": rows.padded(rng, count, LENGTH, WORDS)}
    return x, (x["question"][:, :1] > WORDS // 2).astype("int32")


def grouped_attention(params):
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, 8)(inputs)
    attended = layers.GroupQueryAttention(head_dim=4, num_query_heads=4, num_key_value_heads=2)(x, x, x)
    x = layers.RMSNormalization()(layers.Add()([x, attended]))
    gate = layers.Dense(12, activation="silu", use_bias=False)(x)
    hidden = layers.Multiply()([gate, layers.Dense(12, use_bias=False)(x)])
    x = layers.Add()([x, layers.Dense(8, use_bias=False)(hidden)])
    model = keras.Model(inputs, layers.Dense(2)(layers.GlobalAveragePooling1D()(x)))
    model.compile(keras.optimizers.AdamW(1e-2), logits_loss(from_logits=True), metrics=["accuracy"])
    return model


def fourier_mixing(params):
    """Tokens mixed by a discrete Fourier transform, as a product with fixed matrices."""
    angles = 2 * np.pi * np.outer(np.arange(LENGTH), np.arange(LENGTH)) / LENGTH
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, 8)(inputs)
    mixed = ops.einsum("st,btc->bsc", np.cos(angles).astype("float32"), x)
    x = layers.LayerNormalization()(layers.Add()([x, mixed]))
    x = layers.EinsumDense("btc,cd->btd", (None, 6), activation="gelu")(x)
    model = keras.Model(inputs, layers.Dense(2, activation="softmax")(layers.GlobalAveragePooling1D()(x)))
    model.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy")
    return model


few_words = rows.sentences(vocabulary=8)


def reviews(rng, count):
    """Texts of one to six words, a word each, and whether the first word is among the first half of all words."""
    first = rng.integers(0, len(VOCABULARY), count)
    more = [rng.choice(VOCABULARY, length) for length in rng.integers(0, 6, count)]
    texts = [" ".join([VOCABULARY[word], *rest]) for word, rest in zip(first, more, strict=True)]
    kinds = rng.choice(["film", "Buch", "映画", "?"], count)
    return {"text": np.array(texts), "kind": kinds}, (first < len(VOCABULARY) // 2).astype("int64")


def vectorized_text(params):
    text, kind = (keras.Input((), dtype="string", name=name) for name in ("text", "kind"))
    tokens = layers.TextVectorization(vocabulary=VOCABULARY, output_sequence_length=6)(text)
    words = layers.GlobalAveragePooling1D()(layers.Embedding(len(VOCABULARY) + 2, 6, mask_zero=True)(tokens))
    kinds = layers.Embedding(4, 3)(layers.StringLookup(vocabulary=["film", "Buch", "映画"])(kind))
    buckets = layers.CategoryEncoding(5, output_mode="one_hot")(layers.Hashing(5)(kind))
    output = layers.Dense(2)(layers.Concatenate()([words, kinds, buckets]))
    model = keras.Model({"text": text, "kind": kind}, output)
    model.compile(keras.optimizers.Adam(1e-2), logits_loss(from_logits=True), metrics=["accuracy"])
    return model


def words_counted(params):
    text = keras.Input((), dtype="string")
    counts = layers.TextVectorization(vocabulary=VOCABULARY, output_mode="count")(text)
    model = keras.Model(text, layers.Dense(2)(counts))
    model.compile(keras.optimizers.SGD(0.5), logits_loss(from_logits=True), metrics=["accuracy"])
    return model


CASES = (
    Case("transformer_classifier", transformer_classifier, rows.sentences(), note="mask of an Embedding up to pooling"),
    Case("masked_lstm", masked_lstm, padded_series, note="Masking"),
    Case("translator", translator, translations, note="seq2seq; loss by hand, divided by tokens that are no padding"),
    Case(
        "transformer_translator",
        transformer_translator,
        lambda rng, count: ((pair := translations(rng, count))[0], pair[1]),
        note="encoder and decoder, a list of inputs; both a mask and ignore_class",
    ),
    Case("language_model", language_model, next_tokens, note="causal; the mask of the Embedding reaches the loss"),
    Case("masked_language_model", masked_language_model, hidden_tokens, note="weights of 0 or 1 a token"),
    Case("text_cnn", text_cnn, rows.sentences(), note="Conv1D of several widths"),
    Case(
        "embedding_adam",
        bag_of_words(lambda: keras.optimizers.Adam(1e-2)),
        few_words,
        note="repeated tokens",
    ),
    Case("embedding_rmsprop", bag_of_words(lambda: keras.optimizers.RMSprop(1e-2)), few_words, note="repeated tokens"),
    Case("embedding_sgd", bag_of_words(lambda: keras.optimizers.SGD(0.5)), few_words, note="repeated tokens"),
    Case(
        "embedding_clipnorm",
        bag_of_words(lambda: keras.optimizers.SGD(1.0, clipnorm=0.01)),
        few_words,
        note="norm of a gradient with repeated rows",
    ),
    Case(
        "embedding_global_clipnorm",
        bag_of_words(lambda: keras.optimizers.Adam(1e-2, global_clipnorm=0.01)),
        few_words,
        note="norm of all gradients, one with repeated rows",
    ),
    Case("tied_language_model", tied_language_model, next_tokens, note="one matrix to embed and to predict"),
    Case("span_extraction", span_extraction, spans, note="dicts of two inputs and of two outputs"),
    Case("skip_gram", skip_gram, neighbours, note="negative sampling"),
    Case("sequence_tagger", sequence_tagger, tags, note="mask_zero and ignore_class, different tokens"),
    Case("hierarchical_text", hierarchical_text, documents, note="TimeDistributed model"),
    Case("attention_over_pairs", attention_over_pairs, answered, note="attention_mask of two inputs"),
    Case("grouped_attention", grouped_attention, rows.sentences(), note="GroupQueryAttention, RMSNormalization"),
    Case("fourier_mixing", fourier_mixing, rows.sentences(), note="EinsumDense, constants in the graph"),
    Case("vectorized_text", vectorized_text, reviews, note="TextVectorization, StringLookup, Hashing of strings"),
    Case(
        "words_counted",
        words_counted,
        lambda rng, count: ((found := reviews(rng, count))[0]["text"], found[1]),
        note="counts of the words of a text",
    ),
)
