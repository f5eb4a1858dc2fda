"""Learning rates as functions of the number of updates made."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_bert")
class WarmupLinear(keras.optimizers.schedules.LearningRateSchedule):
    """From 0 up to the peak in a straight line, then down to 0 in another.

    Args:
        peak_learning_rate: The rate at the end of the warm-up.
        warmup_updates: Updates of the climb; 0 starts at the peak.
        total_updates: Updates in all; from there on the rate is 0.

    Raises:
        ValueError: `warmup_updates` is negative or greater than `total_updates`.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), appendix A.2.
    """

    def __init__(self, peak_learning_rate: float, warmup_updates: int, total_updates: int) -> None:
        super().__init__()
        if not 0 <= warmup_updates <= total_updates:
            raise ValueError(
                "`warmup_updates` must be between 0 and `total_updates`. Received: "
                f"warmup_updates={warmup_updates}, total_updates={total_updates}."
            )
        self.peak_learning_rate = peak_learning_rate
        self.warmup_updates = warmup_updates
        self.total_updates = total_updates

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32")
        climb = step / max(self.warmup_updates, 1)
        # Where the warm-up takes all updates there's no descent, only the 0 behind its end.
        descent = (self.total_updates - step) / max(self.total_updates - self.warmup_updates, 1)
        share = ops.where(step < self.warmup_updates, climb, ops.maximum(descent, 0.0))
        return self.peak_learning_rate * share

    def get_config(self) -> dict[str, Any]:
        return {
            "peak_learning_rate": self.peak_learning_rate,
            "warmup_updates": self.warmup_updates,
            "total_updates": self.total_updates,
        }
