"""How weights start."""

from __future__ import annotations

import keras


def truncated_normal(standard_deviation: float) -> keras.initializers.Initializer:
    """BERT's initializer of every kernel and embedding: a normal cut at two deviations."""
    return keras.initializers.TruncatedNormal(stddev=standard_deviation)
