"""Where a model trains: one device, several GPUs, several hosts, a TPU."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any

import keras

from keras_bert.errors import InputError

STRATEGIES = ("one", "mirrored", "multiworker", "tpu")


class OneDevice:
    """The strategy of JAX and torch, which have none of TensorFlow's: nothing is distributed."""

    num_replicas_in_sync = 1

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """Where a model is built: anywhere."""
        return contextlib.nullcontext()


def strategy(name: str = "one", tpu: str | None = None) -> Any:
    """A strategy in whose `scope()` a model is built, loaded and compiled.

    ```python
    strategy = keras_bert.training.strategy("mirrored")
    with strategy.scope():
        model = keras_bert.tasks.text_classifier(keras_bert.bert(config), 2)
        model.compile(keras_bert.training.AdamW(3e-5), loss)
    model.fit(dataset)
    ```

    Args:
        name: "one" device; "mirrored": all GPUs of this host; "multiworker": the hosts that the
            environment variable TF_CONFIG lists; "tpu".
        tpu: The TPU's name or address; None: "local", as on a TPU VM.

    Returns:
        A `tf.distribute.Strategy`; under JAX and torch something with `scope()`.

    Raises:
        ValueError: there's no such name.
        InputError: the hardware isn't there, or the backend has no such strategy.
    """
    if name not in STRATEGIES:
        raise ValueError(f"`name` must be one of {', '.join(STRATEGIES)}. Received: name={name!r}.")
    if keras.backend.backend() == "tensorflow":
        made_by = importlib.import_module("keras_bert.training.tensorflow_strategies")
        return getattr(made_by, name)(**({"tpu": tpu} if name == "tpu" else {}))
    if name != "one":
        raise InputError(
            f"strategy {name!r} is TensorFlow's: set KERAS_BACKEND=tensorflow, or, on JAX, call "
            "keras.distribution.set_distribution(keras.distribution.DataParallel()) first."
        )
    return OneDevice()


def describe_batch(strategy: Any, batch_size: int, accumulate: int = 1) -> str:
    """One line on how a global batch is cut up, to be printed before training.

    Raises:
        InputError: the batch can't be cut into equal micro-batches.
    """
    replicas = strategy.num_replicas_in_sync
    if batch_size % (replicas * accumulate):
        raise InputError(
            f"a batch of {batch_size} can't be cut into {replicas} replicas x {accumulate} "
            f"micro-batches: give a multiple of {replicas * accumulate}."
        )
    each = batch_size // replicas
    line = f"global batch {batch_size} = {replicas} replica{'s' * (replicas > 1)} x {each}"
    return line + (f", in {accumulate} micro-batches of {each // accumulate}" * (accumulate > 1))


def model_parallel(model_devices: int) -> keras.distribution.ModelParallel:
    """A layout for JAX that splits every block over some devices, and the batch over the rest.

    Heads and the inner dimension of the feed-forward layers are split, so that a block needs
    two sums over its devices, one for attention and one for the feed-forward layers; the
    token table is split by D. Call it before a model is built:

    ```python
    keras.distribution.set_distribution(keras_bert.training.model_parallel(2))
    ```

    Args:
        model_devices: Devices that share a block; it must divide the number of devices, of
            heads, D and F.

    References:
        - [Shoeybi et al., 2019](https://arxiv.org/abs/1909.08053), section 3.
    """
    if keras.backend.backend() != "jax":
        raise InputError("model_parallel is for JAX: set KERAS_BACKEND=jax.")
    devices = keras.distribution.list_devices()
    if not 1 <= model_devices <= len(devices) or len(devices) % model_devices:
        raise ValueError(
            f"`model_devices` must divide the number of devices, {len(devices)}. "
            f"Received: model_devices={model_devices}."
        )
    mesh = keras.distribution.DeviceMesh(
        (len(devices) // model_devices, model_devices), ("batch", "model"), devices
    )
    layouts = keras.distribution.LayoutMap(mesh)
    # The last axis of a kernel is its output.
    layouts["token_embedding/embeddings"] = (None, "model")
    layouts[r"block_\d+/attention/(query|key|value)/kernel"] = (None, "model")
    layouts[r"block_\d+/attention/(query|key|value)/bias"] = ("model",)
    layouts[r"block_\d+/attention/projection/kernel"] = ("model", None)
    layouts[r"block_\d+/intermediate/kernel"] = (None, "model")
    layouts[r"block_\d+/intermediate/bias"] = ("model",)
    layouts[r"block_\d+/projection/kernel"] = ("model", None)
    return keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")


def deterministic_ops() -> None:
    """Has the backend choose operations that give the same bits each time, for this process.

    JAX's are so on a CPU and a TPU; on a GPU, XLA_FLAGS must say
    `--xla_gpu_deterministic_ops=true` before it's imported.
    """
    backend: Any = sys.modules[keras.backend.backend()]
    if keras.backend.backend() == "tensorflow":
        backend.config.experimental.enable_op_determinism()
    elif keras.backend.backend() == "torch":
        backend.use_deterministic_algorithms(True, warn_only=True)
