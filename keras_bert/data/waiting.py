"""How long a data set keeps its user waiting, and how long it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf


class Waiting:
    """Counts the seconds for which the training step has waited for its batches.

    ```python
    waiting = Waiting()
    model.fit(waiting.watch(batches), ...)
    waiting.seconds
    ```

    Batches pass through Python on their way, at about half a millisecond each. The data set's own
    threads go on behind it, with deterministic ops too: those would stop at a clock within.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """The same batches, watched."""

        def timed() -> Iterator[Any]:
            iterator = iter(batches)
            while True:
                asked = time.perf_counter()
                batch = next(iterator, None)
                self.seconds += time.perf_counter() - asked
                if batch is None:
                    return
                yield batch

        watched = tf.data.Dataset.from_generator(timed, output_signature=batches.element_spec)
        return watched.apply(tf.data.experimental.assert_cardinality(batches.cardinality()))


def counted(batches: tf.data.Dataset) -> tf.data.Dataset:
    """The same batches, whose number is known: they're counted once if need be.

    Keras takes an unknown number for one more than it is from the second evaluation on.
    """
    if int(batches.cardinality()) != tf.data.UNKNOWN_CARDINALITY:
        return batches
    number = sum(1 for _ in batches)
    return batches.apply(tf.data.experimental.assert_cardinality(number))
