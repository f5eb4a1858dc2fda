"""What an update computes: tokens, model FLOPs, and the share of the hardware's peak."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any

import keras

# Dense bfloat16 (V100, T4: float16) FLOP/s of a device, from the makers' data sheets. A TPU's
# device is what TensorFlow and JAX call a replica: half a chip of v2 and v3, a chip since.
PEAKS = {
    "tpu v2": 22.5e12,
    "tpu v3": 61.5e12,
    "tpu v4": 275e12,
    "tpu v5 lite": 197e12,
    "tpu v5e": 197e12,
    "tpu v5p": 459e12,
    "tpu v5": 459e12,
    "tpu v6 lite": 918e12,
    "tpu v6e": 918e12,
    "b200": 2250e12,
    "h200": 989e12,
    "h100 pcie": 756e12,
    "h100": 989e12,
    "l40s": 362e12,
    "l4": 121e12,
    "a100": 312e12,
    "a10": 125e12,
    "v100": 125e12,
    "t4": 65e12,
}


@dataclasses.dataclass(frozen=True)
class Throughput:
    """What each update of a phase computes.

    Attributes:
        tokens: Positions of a global batch, padding included.
        flops: Model FLOPs, such as those of `pretraining_flops`.
        peak: FLOP/s of all devices together in 16-bit floats; None: not known.
    """

    tokens: int
    flops: float
    peak: float | None

    def columns(self, updates_per_second: float) -> dict[str, float]:
        """`tokens_per_second`, `gflops_per_second` and, with a peak, `flops_utilisation`."""
        flops = self.flops * updates_per_second
        columns = {
            "tokens_per_second": round(self.tokens * updates_per_second, 1),
            "gflops_per_second": round(flops / 1e9, 2),
        }
        if self.peak is not None:
            columns["flops_utilisation"] = round(flops / self.peak, 4)
        return columns

    def text(self, updates_per_second: float) -> str:
        """The same for a progress bar: "12,300 tokens/s  45 % of peak"."""
        columns = self.columns(updates_per_second)
        work = f"{columns['gflops_per_second']:,.0f} GFLOP/s"
        if "flops_utilisation" in columns:
            work = f"{columns['flops_utilisation']:.0%} of peak"
        return f"{columns['tokens_per_second']:,.0f} tokens/s  {work}"


def pretraining_throughput(
    config: Any, batch_size: int, length: int, masked: int, replicas: int = 1
) -> Throughput:
    """What an update of `tasks.pretraining` computes on the devices that are in use."""
    peak = peak_flops(device_name())
    return Throughput(
        tokens=batch_size * length,
        flops=pretraining_flops(config, batch_size, length, masked),
        peak=None if peak is None else peak * replicas,
    )


def pretraining_flops(config: Any, batch_size: int, length: int, masked: int) -> float:
    """Model FLOPs of one update: those of the matrix products, forward and backward.

    With a multiplication and an addition for each pair, a block costs 2 (4 D^2 + 2 D F) a token
    for its kernels and 4 T D for queries with keys and probabilities with values; the
    masked-LM head 2 (D^2 + D V) a masked position; pooler and next sentence 2 (D^2 + 2 D) a
    row. The backward pass costs twice the forward. Lookups, norms, activations and what
    recomputation repeats don't count (Chowdhery et al., 2022, appendix B).

    Args:
        config: A `BertConfig` or its like: D `hidden_dim`, F `intermediate_dim`, V.
        batch_size: Rows of the global batch.
        length: T.
        masked: M, positions of a row that the head predicts.
    """
    width, inner = config.hidden_dim, config.intermediate_dim
    token = 2 * (4 * width**2 + 2 * width * inner) + 4 * length * width
    head = 2 * (width**2 + width * config.vocabulary_size)
    pooled = 2 * (width**2 + 2 * width)
    forward = length * config.num_layers * token + masked * head + pooled
    return 3.0 * batch_size * forward


def peak_flops(name: str) -> float | None:
    """FLOP/s of a device in 16-bit floats by its maker's name; None where it isn't in the table."""
    words = name.lower().replace("-", " ").replace("_", " ").split()
    for known, peak in PEAKS.items():
        if set(known.split()) <= set(words):
            return peak
    return None


def device_name() -> str:
    """The maker's name of the first accelerator in use; empty on a CPU."""
    # The backend is there already: it's not for this file to import.
    backend: Any = sys.modules[keras.backend.backend()]
    if keras.backend.backend() == "jax":
        kind = backend.devices()[0].device_kind
        return "" if kind == "cpu" else kind
    if keras.backend.backend() == "torch":
        return backend.cuda.get_device_name() if backend.cuda.is_available() else ""
    if backend.config.list_logical_devices("TPU"):
        return "tpu " + os.environ.get("TPU_ACCELERATOR_TYPE", "").replace("litepod", "e")
    gpus = backend.config.list_physical_devices("GPU")
    details = backend.config.experimental.get_device_details(gpus[0]) if gpus else {}
    return details.get("device_name", "")
