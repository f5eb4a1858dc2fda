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
        google_compat: Whether the descent is that of Google's code, whose line starts at the
            peak at update 0: where the climb ends, the rate drops by the share
            `warmup_updates / total_updates` of the peak.

    Raises:
        ValueError: `warmup_updates` is negative or greater than `total_updates`.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), appendix A.2.
        - `google_compat`: `create_optimizer` of
          [google-research/bert](https://github.com/google-research/bert), optimization.py.
    """

    def __init__(
        self,
        peak_learning_rate: float,
        warmup_updates: int,
        total_updates: int,
        google_compat: bool = False,
    ) -> None:
        super().__init__()
        if not 0 <= warmup_updates <= total_updates:
            raise ValueError(
                "`warmup_updates` must be between 0 and `total_updates`. Received: "
                f"warmup_updates={warmup_updates}, total_updates={total_updates}."
            )
        self.peak_learning_rate = peak_learning_rate
        self.warmup_updates = warmup_updates
        self.total_updates = total_updates
        self.google_compat = google_compat

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32")
        up = climb(step, self.warmup_updates)
        share = ops.where(step < self.warmup_updates, up, self._descent(step))
        return self.peak_learning_rate * share

    def _descent(self, step: Any) -> Any:
        """The share of the descent's updates that is left."""
        start = 0 if self.google_compat else self.warmup_updates
        # Where the warm-up takes all updates there's no descent, only the 0 behind its end.
        return ops.maximum((self.total_updates - step) / max(self.total_updates - start, 1), 0.0)

    def get_config(self) -> dict[str, Any]:
        return {
            "peak_learning_rate": self.peak_learning_rate,
            "warmup_updates": self.warmup_updates,
            "total_updates": self.total_updates,
            "google_compat": self.google_compat,
        }


@keras.saving.register_keras_serializable("keras_bert")
class WarmupPolynomial(WarmupLinear):
    """From 0 up to the peak in a straight line, then down to 0 along a power of one.

    After the climb the rate is peak * (what is left / length of the descent)^power: a power
    above 1 falls fast and lands softly, one below 1 stays high and falls late, as the 0.5 of
    NVIDIA's pretraining with LAMB does.

    Args:
        peak_learning_rate: The rate at the end of the warm-up.
        warmup_updates: Updates of the climb; 0 starts at the peak.
        total_updates: Updates in all; from there on the rate is 0.
        power: Of the descent, positive.
        google_compat: As for `WarmupLinear`.

    Raises:
        ValueError: `warmup_updates` is negative or greater than `total_updates`, or `power`
            isn't positive.
    """

    def __init__(
        self,
        peak_learning_rate: float,
        warmup_updates: int,
        total_updates: int,
        power: float,
        google_compat: bool = False,
    ) -> None:
        super().__init__(peak_learning_rate, warmup_updates, total_updates, google_compat)
        if not power > 0:
            raise ValueError(f"`power` must be positive. Received: power={power}.")
        self.power = power

    def _descent(self, step: Any) -> Any:
        return ops.power(super()._descent(step), self.power)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"power": self.power}


@keras.saving.register_keras_serializable("keras_bert")
class WarmupConstant(keras.optimizers.schedules.LearningRateSchedule):
    """From 0 up to the peak in a straight line, and the peak from there on.

    Args:
        peak_learning_rate: The rate at the end of the warm-up.
        warmup_updates: Updates of the climb; 0 starts at the peak.

    Raises:
        ValueError: `warmup_updates` is negative.
    """

    def __init__(self, peak_learning_rate: float, warmup_updates: int) -> None:
        super().__init__()
        if warmup_updates < 0:
            raise ValueError(
                f"`warmup_updates` must not be negative. Received: warmup_updates={warmup_updates}."
            )
        self.peak_learning_rate = peak_learning_rate
        self.warmup_updates = warmup_updates

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32")
        share = ops.where(step < self.warmup_updates, climb(step, self.warmup_updates), 1.0)
        return self.peak_learning_rate * share

    def get_config(self) -> dict[str, Any]:
        return {
            "peak_learning_rate": self.peak_learning_rate,
            "warmup_updates": self.warmup_updates,
        }


def climb(step: Any, warmup_updates: int) -> Any:
    """The share of the warm-up that is done."""
    return step / max(warmup_updates, 1)
