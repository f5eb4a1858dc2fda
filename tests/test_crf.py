"""The conditional random field against every sequence of tags, one by one."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
from keras import ops

import keras_bert
from keras_bert.layers.crf import Crf, CrfLoss, viterbi

B, T, C = 4, 7, 3
# Two chains in a row: [CLS] a a ##x [SEP] [CLS] a; one; one that ends in padding; no word at all.
MARKS = np.array([
    [-2, 1, 0, -1, -2, 2, 0],
    [-2, 0, 1, 2, 1, 2, 0],
    [-2, 2, -1, 0, -1, -1, -1],
    [-2, -1, -1, -1, -1, -1, -1],
], "int32")  # fmt: skip


@pytest.fixture
def potentials():
    rng = np.random.default_rng(0)
    layer = Crf()
    layer.build((None, None, C))
    layer.transitions.assign(rng.normal(size=(C + 1, C)).astype("float32"))
    return ops.convert_to_numpy(layer(rng.normal(size=(B, T, C)).astype("float32")))


def chains(row):
    """The positions of each chain's words."""
    found = [[]]
    for t, mark in enumerate(row):
        if mark == -2:
            found.append([])
        elif mark >= 0:
            found[-1].append(t)
    return [chain for chain in found if chain]


def score(potential, chain, tags):
    rows = [0, *(tag + 1 for tag in tags)]
    return sum(float(potential[t, row, tag]) for t, row, tag in zip(chain, rows, tags))


def all_scores(potential, chain):
    return {tags: score(potential, chain, tags)
            for tags in itertools.product(range(C), repeat=len(chain))}  # fmt: skip


def test_loss_is_that_of_every_sequence(potentials):
    shares = ops.convert_to_numpy(CrfLoss(reduction=None).call(MARKS, potentials))
    assert (shares[MARKS < 0] == 0).all()
    for b in range(B):
        for chain in chains(MARKS[b]):
            scores = all_scores(potentials[b], chain)
            log_sum = np.log(sum(np.exp(value) for value in scores.values()))
            true = scores[tuple(MARKS[b, chain].tolist())]
            assert shares[b, chain].sum() == pytest.approx(log_sum - true, abs=1e-5)


def test_viterbi_finds_the_best_sequence(potentials):
    paths = ops.convert_to_numpy(viterbi(potentials, MARKS))
    assert paths.shape == (B, T)
    for b in range(B):
        for chain in chains(MARKS[b]):
            scores = all_scores(potentials[b], chain)
            assert tuple(paths[b, chain].tolist()) == max(scores, key=scores.get)


def test_it_learns_that_tags_alternate():
    """Logits say nothing; the transitions learn it, in `fit`, beside words of weight 0."""
    x = keras.Input((None, C))
    model = keras_bert.training.Model(x, {"labels": Crf(name="labels")(x)})
    model.compile(keras.optimizers.Adam(0.3), CrfLoss())
    labels = np.tile(np.array([-2, 0, 1, -1, 0, 1, 0, -1], "int32"), (8, 1))
    weights = (labels >= 0).astype("float32")
    logits = np.zeros((8, 8, C), "float32")
    history = model.fit(logits, {"labels": labels}, sample_weight={"labels": weights}, epochs=30,
                        batch_size=8, verbose=0)  # fmt: skip
    assert history.history["loss"][0] == pytest.approx(np.log(C), abs=1e-5)  # a word
    assert history.history["loss"][-1] < 0.1
    path = ops.convert_to_numpy(viterbi(model.predict(logits, verbose=0)["labels"], labels))
    np.testing.assert_array_equal(path[labels >= 0], labels[labels >= 0])
    again = keras.Model.from_config(model.get_config())
    assert [w.path.split("/")[-1] for w in again.weights] == ["transitions"]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a SavedModel is TensorFlow's")
def test_in_an_exported_graph(potentials, tmp_path):
    import tensorflow as tf

    module = tf.Module()
    specs = [tf.TensorSpec((None, None, C + 1, C)), tf.TensorSpec((None, None), tf.int32)]
    module.best = tf.function(viterbi, input_signature=specs)
    tf.saved_model.save(module, str(tmp_path))
    paths = tf.saved_model.load(str(tmp_path)).best(potentials, MARKS).numpy()
    np.testing.assert_array_equal(paths, ops.convert_to_numpy(viterbi(potentials, MARKS)))
