"""`python -m keras_bert doctor`: what to paste into a bug report, and why training is slow."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import re
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import keras_bert
from keras_bert import machine
from keras_bert.busy import busy

BACKENDS = ("tensorflow", "jax", "torch")
# Distributions whose versions are always told, and those that are told where they're installed.
EXPECTED = ("keras", "numpy", "tensorflow", "tensorflow-text", "keras-hub", "jax", "torch")
PACKAGES = (
    *EXPECTED,
    *("tensorflow-cpu", "tensorflow-tpu", "libtpu", "tf-keras", "keras-bert"),
)
# What changes where and how fast a backend computes.
VARIABLES = (
    *("KERAS_BACKEND", "KERAS_HOME", "TF_USE_LEGACY_KERAS", "CUDA_VISIBLE_DEVICES"),
    *("JAX_PLATFORMS", "XLA_FLAGS", "TF_XLA_FLAGS", "TF_ENABLE_ONEDNN_OPTS"),
    *("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"),
)
PAYS = 1.2  # times float32's rate: less is lost again to what isn't a matrix product


@dataclasses.dataclass(frozen=True)
class Args:
    """What's installed, what doesn't go together, and how fast this machine trains.

    Exit code 0: nothing is wrong. 1: something is, and a sentence says what to do.
    """

    json: bool = False
    """Print one JSON object in place of a table."""


@dataclasses.dataclass(frozen=True)
class SpeedCheck:
    """The training step that's timed: a new two-class classifier on made-up full sequences.

    Attributes:
        size: One of `BertConfig.of_size`.
        batch_size: B.
        length: T.
        seconds: For all that's measured, compiling not counted.
    """

    size: str = "mini"
    batch_size: int = 32
    length: int = 128
    seconds: float = 10.0


def main(args: Args, check: SpeedCheck = SpeedCheck()) -> NoReturn:
    """Prints the report and ends the process: with 0 if nothing's wrong, else with 1."""
    report = examine(check)
    if args.json:
        print(json.dumps(report, ensure_ascii=False))
    else:
        show(report)
    sys.exit(1 if report["problems"] else 0)


def examine(check: SpeedCheck) -> dict[str, Any]:
    """All that the doctor finds, by name.

    The backend is imported only where its packages go together, as the process may not survive
    it otherwise; `accelerators` and `speed` are None then.
    """
    versions = {name: version_of(name) for name in PACKAGES}
    backend, source = chosen_backend(os.environ)
    problems = package_problems(versions, os.environ)
    problems += backend_problems(backend, source)
    report: dict[str, Any] = {
        "versions": {
            "keras_bert": keras_bert.__version__,
            "python": platform.python_version(),
            **{name: x for name, x in versions.items() if x or name in EXPECTED},
        },
        "system": platform.platform(),
        "backend": {"name": backend, "from": source},
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "cpu": {
            "name": machine.cpu_name(),
            "cores": machine.cores(),
            "flags": machine.cpu_flags(),
            "memory_gib": gib(machine.total_memory()),
            "available_gib": gib(machine.available_memory()),
        },
        "accelerators": None,
        "speed": None,
    }
    if not problems:
        try:
            with busy(f"Measuring matrix products and a training step on {backend}"):
                report |= measured(check)
        except Exception as error:  # a doctor reports what others die of
            told = str(error).strip().split("\n")[0].rstrip(".")
            advice = "Free the device's memory if that's short; otherwise report it."
            if isinstance(error, (ImportError, OSError)):  # a library is missing
                advice = (
                    "Install it in a new environment: "
                    f"`pip install 'keras3-bert[{backend}]'`; if that fails, too, report it."
                )
            name = type(error).__name__
            problems.append(f"Training on {backend} fails with {name}: {told}. {advice}")
        if report["accelerators"] == [] and unseen_gpu(os.environ):
            problems.append(unseen_gpu_advice(backend))
    return report | {"problems": problems}


def version_of(distribution: str) -> str | None:
    """The installed version, from its metadata; None if there's none."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def chosen_backend(environment: Mapping[str, str]) -> tuple[str, str]:
    """The backend that Keras is going to take, and what says so, found as Keras finds it."""
    if environment.get("KERAS_BACKEND"):
        return environment["KERAS_BACKEND"], "KERAS_BACKEND"
    home = pathlib.Path.home()
    usual = (home if os.access(home, os.W_OK) else pathlib.Path("/tmp")) / ".keras"  # noqa: S108
    path = pathlib.Path(environment.get("KERAS_HOME", usual)).expanduser() / "keras.json"
    try:
        named = json.loads(path.read_text(encoding="utf-8")).get("backend")
    except (OSError, ValueError, AttributeError):
        named = None
    return (named, str(path)) if isinstance(named, str) else ("tensorflow", "Keras's default")


def package_problems(
    versions: Mapping[str, str | None], environment: Mapping[str, str]
) -> list[str]:
    """A sentence for each pair of packages that's known not to work, with what to do.

    Args:
        versions: Of `PACKAGES`, None where one isn't installed.
        environment: `os.environ`.
    """
    problems = []
    there = {name: numbers(version) for name, version in versions.items() if version}
    if "keras-bert" in there:
        problems.append(
            "The distribution keras-bert is another project with the same import name: run "
            "`pip uninstall keras-bert keras3-bert`, then `pip install keras3-bert`."
        )
    if "keras" in there and there["keras"] < (3, 15):
        problems.append(
            f"keras {versions['keras']} is too old: run `pip install -U 'keras>=3.15'`."
        )
    flavours = [x for x in ("tensorflow", "tensorflow-cpu", "tensorflow-tpu") if x in there]
    if len(flavours) > 1:
        wanted = "tpu" if "tensorflow-tpu" in flavours else "tensorflow"
        problems.append(
            f"{' and '.join(flavours)} overwrite each other's files: run `pip uninstall "
            f"{' '.join(flavours)}`, then `pip install 'keras3-bert[{wanted}]'`."
        )
    elif flavours and "tensorflow-text" in there:
        minor = there[flavours[0]][:2]
        if there["tensorflow-text"][:2] != minor:
            problems.append(
                f"tensorflow-text {versions['tensorflow-text']} doesn't load beside {flavours[0]} "
                f"{versions[flavours[0]]}: run `pip install --no-deps "
                f"'tensorflow-text=={minor[0]}.{minor[1]}.*'`, or uninstall it."
            )
    if there.get("tensorflow-tpu", ())[:2] == (2, 20) and there.get("libtpu", ()) >= (0, 0, 31):
        problems.append(
            f"libtpu {versions['libtpu']} is too new for tensorflow-tpu 2.20, which may abort at "
            "import: run `pip install 'libtpu>=0.0.14,<0.0.31'`."
        )
    legacy = environment.get("TF_USE_LEGACY_KERAS") in ("true", "True", "1")
    if legacy and "tf-keras" in there:
        problems.append(
            "TF_USE_LEGACY_KERAS makes `tf.keras` Keras 2, whose layers and optimizers don't go "
            "with Keras 3's models: unset it."
        )
    return problems


def backend_problems(backend: str, source: str) -> list[str]:
    """A sentence if the backend isn't one of ours or isn't installed."""
    there = [name for name in BACKENDS if importlib.util.find_spec(name)]
    if backend in there:
        return []
    if backend not in BACKENDS:
        wrong = f"The backend {backend} (from {source}) isn't one that keras_bert trains on"
    else:
        wrong = f"The backend {backend} (from {source}) isn't installed"
    if there:
        return [f"{wrong}: set the environment variable KERAS_BACKEND to {' or '.join(there)}."]
    wanted = backend if backend in BACKENDS else "tensorflow"
    return [f"{wrong}: run `pip install 'keras3-bert[{wanted}]'`."]


def unseen_gpu(environment: Mapping[str, str]) -> bool:
    """Whether there's an NVIDIA GPU that nobody has hidden on purpose."""
    hidden = environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    on_cpu = environment.get("JAX_PLATFORMS") == "cpu"
    return os.path.exists("/dev/nvidia0") and not hidden and not on_cpu


def unseen_gpu_advice(backend: str) -> str:
    """What to install for the backend to see it."""
    package = {
        "tensorflow": "`pip install 'tensorflow[and-cuda]'`",
        "jax": "`pip install 'jax[cuda12]'`",
        "torch": "torch's CUDA wheel, see https://pytorch.org/get-started",
    }[backend]
    return f"This machine has an NVIDIA GPU that {backend} doesn't see: install {package}."


def measured(check: SpeedCheck) -> dict[str, Any]:
    """Imports the backend and measures: `accelerators` and `speed` of the report."""
    from keras_bert import speed
    from keras_bert.models import BertConfig, bert
    from keras_bert.tasks import text_classifier
    from keras_bert.training import AdamW

    rates = {
        dtype: speed.matrix_product_rate(dtype, 0.1 * check.seconds)
        for dtype in ("float32", "bfloat16")
    }
    config = BertConfig.of_size(check.size)
    model = text_classifier(bert(config), 2)
    model.compile(AdamW(1e-4), speed.losses(model))
    rows, length = check.batch_size, check.length
    batch = speed.made_up_batch(model, config.vocabulary_size, rows, length)
    pace = speed.training_pace(
        model, lambda updates: (batch for _ in range(updates)), 0.8 * check.seconds
    )
    throughput = speed.throughput(model, config, rows, length, rates["float32"])
    return {
        "accelerators": speed.accelerators(),
        "speed": {
            "matrix_gflops_per_second": {
                dtype: round(rate / 1e9, 2) for dtype, rate in rates.items()
            },
            "bfloat16_pays": rates["bfloat16"] > PAYS * rates["float32"],
            "compiled_by_xla": speed.compiled_by_xla(model),
            "step": f"{config.num_layers} x {config.hidden_dim}, batch {rows} x {length}, float32",
            "updates": pace.updates,
            **throughput.columns(pace.per_second),
        },
    }


def show(report: Mapping[str, Any]) -> None:
    """Prints the report as a table, or as plain lines where there's no terminal or no rich."""
    rows = described(report)
    if sys.stdout.isatty() and importlib.util.find_spec("rich"):
        from rich import console, table, text

        grid = table.Table(show_header=False)
        for name, value in rows:
            grid.add_row(name, text.Text(value, "bold red" if name == "problem" else ""))
        console.Console().print(grid)
        return
    for name, value in rows:
        print(f"{name:20}{value}")


def described(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The report's lines, each a name and a text."""
    rows = [(name, x or "not installed") for name, x in report["versions"].items()]
    rows += [("system", report["system"])]
    rows += [("backend", f"{report['backend']['name']}, from {report['backend']['from']}")]
    rows += [(name, value) for name, value in report["variables"].items()]
    cpu = report["cpu"]
    memory = f"{cpu['memory_gib']} GiB, {cpu['available_gib']} of them available"
    rows += [("CPU", f"{cpu['name']}, {cpu['cores']} cores"), ("memory", memory)]
    rows += [("CPU flags", " ".join(cpu["flags"]) or "not known")]
    if report["accelerators"] is not None:
        rows += [("accelerators", ", ".join(report["accelerators"]) or "none: the CPU trains")]
    speed = report["speed"]
    if speed is None:
        rows += [("speed", "not measured: put right what's wrong first")]
    else:
        rates = speed["matrix_gflops_per_second"]
        pays = "pays here" if speed["bfloat16_pays"] else "doesn't pay here"
        rows += [
            *((f"matrices, {dtype}", f"{rate:,.0f} GFLOP/s") for dtype, rate in rates.items()),
            ("mixed_bfloat16", pays),
            ("XLA", f"{'compiles' if speed['compiled_by_xla'] else 'left out of'} the step"),
            ("training step", speed["step"]),
            ("", f"{speed['tokens_per_second']:,.0f} tokens/s"),
            ("", f"{speed['gflops_per_second']:,.0f} GFLOP/s"),
            ("", f"{speed['flops_utilisation']:.0%} of the rate of matrices in float32"),
        ]
    found = [("problem", sentence) for sentence in report["problems"]]
    return rows + (found or [("problems", "none known")])


def numbers(version: str) -> tuple[int, ...]:
    """The first three numbers of a version: "2.21.0rc1" -> (2, 21, 0)."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def gib(size: int | None) -> float | None:
    """Bytes in GiB, to a tenth."""
    return None if size is None else round(size / 2**30, 1)
