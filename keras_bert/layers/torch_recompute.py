"""Recomputation on torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint


def checkpoint(function: Callable[..., tuple[Any, ...]], *arrays: Any) -> tuple[Any, ...]:
    """Calls `function(*arrays)`, of which the backward pass keeps `arrays` alone.

    Keras's dropout draws from torch's own generator, whose state torch keeps for the second call.
    """
    return torch.utils.checkpoint.checkpoint(function, *arrays, use_reentrant=False)
