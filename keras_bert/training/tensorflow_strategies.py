"""TensorFlow's strategies, each with a plain sentence where its hardware isn't there."""

from __future__ import annotations

import json
import os

import tensorflow as tf

from keras_bert.errors import InputError


def one() -> tf.distribute.Strategy:
    """TensorFlow's default: the first GPU, or the CPU."""
    return tf.distribute.get_strategy()


def mirrored() -> tf.distribute.Strategy:
    """A replica on every GPU, or on every logical CPU where there's more than one."""
    devices = tf.config.list_logical_devices("GPU")
    if not devices:
        devices = tf.config.list_logical_devices("CPU")
        if len(devices) < 2:
            raise InputError(
                "strategy 'mirrored' needs GPUs, and TensorFlow sees none here: check "
                "`nvidia-smi` and that tensorflow[and-cuda] is installed, or take 'one'."
            )
    return tf.distribute.MirroredStrategy([device.name for device in devices])


def multiworker() -> tf.distribute.Strategy:
    """A replica on every GPU (or the CPU) of the hosts that TF_CONFIG lists."""
    try:
        described = json.loads(os.environ.get("TF_CONFIG", ""))
        described["cluster"][described["task"]["type"]][described["task"]["index"]]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise InputError(
            "strategy 'multiworker' needs the environment variable TF_CONFIG on every host, such "
            'as {"cluster": {"worker": ["host0:12345", "host1:12345"]}, '
            '"task": {"type": "worker", "index": 0}}. Received: '
            f"TF_CONFIG={os.environ.get('TF_CONFIG')!r}."
        ) from error
    return tf.distribute.MultiWorkerMirroredStrategy()


def tpu(tpu: str | None) -> tf.distribute.Strategy:
    """A replica on every core of a TPU."""
    name = tpu or "local"
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect(name)
        return tf.distribute.TPUStrategy(resolver)
    except Exception as error:  # it raises whatever its RPCs and its metadata server raise
        # TensorFlow's first line may be no more than "Graph execution error:".
        lines = [line for line in str(error).splitlines() if line and not line.endswith(":")]
        raise InputError(
            f"strategy 'tpu' found no TPU {name!r}: run on a TPU VM with tensorflow-tpu "
            f"installed, or give the TPU's name. TensorFlow says: {lines[0] if lines else error}"
        ) from error
