r"""Compile one pretraining step for a TPU on a host that has none; say what it would take there.

    pip install "jax==0.10.2" "libtpu==0.0.52"
    KERAS_BACKEND=jax python benchmarks/tpu_step.py --size base --length 128 --tpu v5e \
        --batch-size 32 --output step.json

`tpu_compile.py` runs this over many cases. The step is that of `recipes/pretrain.py` under
`mixed_bfloat16`: dropout, both losses and their accuracies, gradients, clipping, AdamW.

- On JAX it's the whole program: `Model.train_step` over a mesh of all devices of the topology,
  the batch split and the weights on every device, so with the exchange of the gradients.
- On TensorFlow it's one replica's share: `Model.train_step` lowered by `tf.function` to
  StableHLO and compiled for one device of the topology, without the exchange. `tf.function`
  here lowers as for a CPU; where that differs from its way to a TPU, in the generator of the
  dropout's bits, the program is made the TPU's.

A step that doesn't fit the device's memory is a result ("fits": false). Whatever else the
compiler refuses, such as an operation that a TPU doesn't have, is an error that names it.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import pathlib
import re
import tempfile
import time
from importlib import metadata
from typing import Any, Literal

# To be set before libtpu is loaded: it'd look for the machine's TPU, and for who else uses it.
os.environ.update(TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1", JAX_PLATFORMS="cpu")

import jax
import keras
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import keras_bert
from keras_bert import recipe
from keras_bert.files import write_json

# The smallest slice of each kind. A device is a core on v3 and a chip on the others, where v4
# needs to be told that its chip's two cores are to work as one.
TOPOLOGIES: dict[str, dict[str, str]] = {
    "v3": {"topology_name": "v3:2x2"},
    "v4": {"topology_name": "v4:2x2x1", "chip_config_name": "megacore"},
    "v5e": {"topology_name": "v5e:2x2"},
    "v6e": {"topology_name": "v6e:2x2"},
}
# Masked positions of an example by its length: 15 % of the tokens, rounded up.
MASKED = {128: 20, 512: 77}
VERSIONS = ("jax", "libtpu", "keras", keras.backend.backend())


@dataclasses.dataclass(frozen=True)
class Args:
    """Compile one pretraining step for a TPU on a host that has none."""

    output: str
    """JSON file of the result."""
    size: str = "base"
    """The encoder's size."""
    length: Literal[128, 512] = 128
    """Tokens of an example."""
    tpu: Literal["v3", "v4", "v5e", "v6e"] = "v5e"
    """Generation of the TPU."""
    batch_size: int = 32
    """Examples a device."""
    accumulate: int = 1
    """Micro-batches of an update."""
    recompute: bool = False
    """Whether the blocks compute their activations twice in place of keeping them."""


def main(args: Args) -> dict[str, Any]:
    devices = topologies.get_topology_desc(platform="tpu", **TOPOLOGIES[args.tpu]).devices
    backend = keras.backend.backend()
    compile_step = {"jax": compile_jax, "tensorflow": compile_tensorflow}[backend]
    result = dataclasses.asdict(args) | {
        "backend": backend,
        "device": devices[0].device_kind,
        "devices": len(devices) if backend == "jax" else 1,
    }
    try:
        result |= {"fits": True} | compile_step(args, devices)
    except jax.errors.JaxRuntimeError as error:
        if "CompileTimeHbmOom" not in str(error):
            raise
        result |= {"fits": False, "message": str(error).splitlines()[0]}
    write_json(args.output, result)
    return result


def compile_jax(args: Args, devices: list[Any]) -> dict[str, Any]:
    """Compiles the step over a mesh of `devices`, data-parallel."""
    mesh = Mesh(np.array(devices), ("batch",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    split = NamedSharding(mesh, PartitionSpec("batch"))
    data = example_batch(args, args.batch_size * len(devices))
    model = pretraining_model(args, data)
    state = [
        [variable.value for variable in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
    ]

    def described(arrays: Any, sharding: NamedSharding) -> Any:
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), arrays
        )

    # As Keras's trainer compiles it: the old state's memory is the new one's.
    step = jax.jit(model.train_step, donate_argnums=0, out_shardings=everywhere)
    lowered = step.lower(tuple(described(state, everywhere)), described(data, split))
    del model, state
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        # The compiler's own text: `as_text` can't read all that a newer compiler makes for a v6e.
        options: dict[str, str | bool] = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
        start = time.monotonic()
        compiled = lowered.compile(compiler_options=options)
        seconds = time.monotonic() - start
        [path] = pathlib.Path(folder).glob("*.after_optimizations.txt")
        all_reduces = len(re.findall(r" all-reduce(?:-start)?\(", path.read_text("utf-8")))
    memory, costs = compiled.memory_analysis(), compiled.cost_analysis()
    return figures(memory, costs, seconds) | {"all_reduces": all_reduces}


def compile_tensorflow(args: Args, devices: list[Any]) -> dict[str, Any]:
    """Compiles a replica's step for the first of `devices`."""
    program = lower_tensorflow(args)
    gc.collect()
    # JAX has no public way to compile a module that it didn't make: hence the pinned version.
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import hlo

    with mlir.make_ir_context():
        module = ir.Module.parse(program)
        erase_copies(module, ir)
        draw_as_on_tpu(module, ir, hlo)
        device = devices[0]
        options = compiler.get_compile_options(
            num_replicas=1, num_partitions=1, device_assignment=np.array([[device.id]])
        )
        start = time.monotonic()
        compiled = compiler.backend_compile_and_load(
            device.client, module, xla_client.DeviceList((device,)), options, []
        )
        seconds = time.monotonic() - start
    return figures(compiled.get_compiled_memory_stats(), compiled.cost_analysis(), seconds)


def lower_tensorflow(args: Args) -> bytes:
    """The step as StableHLO; an operation that XLA doesn't know is an error that names it."""
    import tensorflow as tf
    from keras.src.backend.tensorflow import random
    from tensorflow.python.ops import gen_stateless_random_ops_v2

    gen_stateless_random_ops_v2.stateless_random_get_key_counter = key_and_counter
    # Keras takes a remainder of 64 bits, which leaves such a seed as it is and which XLA writes
    # out in 9,000 scalar operations a draw: most of what the compiler would have to simplify.
    random._cast_seed = lambda seed: tf.cast(seed, "int32")
    data = example_batch(args, args.batch_size)
    model = pretraining_model(args, data)
    step = tf.function(model.train_step, jit_compile=True)
    lower = step.experimental_get_compiler_ir(keras.tree.map_structure(tf.constant, data))
    return lower(stage="stablehlo_serialized")


def key_and_counter(seed: Any, name: str | None = None) -> tuple[Any, Any]:
    """What TensorFlow's operation of this name makes of a seed on a TPU; on a CPU it scrambles.

    See `GetKeyCounter` in tf2xla's `stateless_random_ops_v2.cc`.
    """
    import tensorflow as tf

    low, high = tf.unstack(tf.cast(tf.cast(seed, tf.uint32), tf.uint64))
    key = low | tf.bitwise.left_shift(high, tf.constant(32, tf.uint64))
    return key[None], tf.zeros(2, tf.uint64)


def erase_copies(module: Any, ir: Any) -> None:
    """Takes out `mhlo.copy`, which copies nothing that matters and isn't StableHLO."""
    for copy in operations(module, ir, "mhlo.copy"):
        copy.results[0].replace_all_uses_with(copy.operands[0])
        copy.erase()


def draw_as_on_tpu(module: Any, ir: Any, hlo: Any) -> None:
    """Has the bits of dropout drawn by the TPU's own generator, in place of Philox.

    Keras's dropout leaves the choice of the algorithm to the device (`alg="auto_select"`).
    tf2xla takes Philox on CPUs and GPUs, with a state (key, 2 counters), and XLA's default on
    TPUs, with a state (key, counter): `DefaultRngAlgForDeviceType` and `GetCounterSize`.
    """
    for draw in operations(module, ir, "stablehlo.rng_bit_generator"):
        with ir.InsertionPoint(draw), draw.location:
            state = hlo.slice(draw.operands[0], [0], [2], [1])
            default = hlo.RngAlgorithmAttr.get("DEFAULT")
            _, bits = hlo.rng_bit_generator(state.type, draw.results[1].type, default, state)
        draw.results[0].replace_all_uses_with(draw.operands[0])  # no draw goes on from another
        draw.results[1].replace_all_uses_with(bits)
        draw.erase()


def operations(module: Any, ir: Any, name: str) -> list[Any]:
    """Those of this name, at any depth."""
    found = []

    def visit(operation: Any) -> Any:
        if operation.name == name:
            found.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def pretraining_model(args: Args, data: Any) -> keras.Model:
    """The model and optimizer of `recipes/pretrain.py`, all of their variables made."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    encoder = keras_bert.bert(keras_bert.BertConfig.of_size(args.size))
    model = keras_bert.tasks.pretraining(encoder)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras_bert.training.AdamW(keras_bert.training.WarmupLinear(1e-4, 10_000, 1_000_000)),
        {"masked_lm": loss, "next_sentence": loss},
        weighted_metrics={"masked_lm": ["accuracy"], "next_sentence": ["accuracy"]},
        accumulate=args.accumulate,
    )
    if args.recompute:
        keras_bert.training.recompute(model)
    model._symbolic_build(data_batch=data)  # what `fit` does with its first batch
    return model


def example_batch(args: Args, rows: int) -> tuple[dict[str, np.ndarray], ...]:
    """(inputs, labels, weights) as `keras_bert.data.pretraining` gives them, all zeros."""
    masked = MASKED[args.length]
    names = ("token_ids", "segment_ids", "padding_mask")
    inputs = {name: np.zeros((rows, args.length), np.int32) for name in names}
    inputs["mask_positions"] = np.zeros((rows, masked), np.int32)
    shapes = {"masked_lm": (rows, masked), "next_sentence": (rows,)}
    labels = {name: np.zeros(shape, np.int32) for name, shape in shapes.items()}
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return inputs, labels, weights


def figures(memory: Any, costs: Any, seconds: float) -> dict[str, Any]:
    """What a compiled program takes on one device: bytes, operations, seconds to compile."""
    parts = {
        "argument_bytes": memory.argument_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "aliased_bytes": memory.alias_size_in_bytes,
    }
    taken = parts["argument_bytes"] + parts["temporary_bytes"]
    return {
        "hbm_bytes": taken + parts["output_bytes"] - parts["aliased_bytes"],
        **parts,
        "flops": costs["flops"],
        "accessed_bytes": costs["bytes accessed"],
        "compile_seconds": round(seconds, 1),
        "versions": {name: metadata.version(name) for name in VERSIONS},
    }


if __name__ == "__main__":
    recipe.run(main, Args)
