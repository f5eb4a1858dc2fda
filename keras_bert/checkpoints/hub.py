"""Checkpoints by the names that hubs give them.

    hf://owner/name             Hugging Face; hf://owner/name@revision is a branch, tag or commit
    kaggle://owner/model/framework/variation      Kaggle; /version after it is one of its versions

What's downloaded stays in the hub's own cache (HF_HOME, KAGGLEHUB_CACHE) and is a folder like
any other. Of Hugging Face's, only the files that a reader of this package opens are asked for.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Callable

from keras_bert import remote
from keras_bert.errors import InputError

# The files of each format. Digits, not "*", which would match the files of subfolders too.
NUMBER = "[0-9]" * 5
TEXTS = (
    *("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.txt", "bert_config.json", "task.json", "preprocessor.json", "metadata.json"),
    "assets/tokenizer/vocabulary.txt",
)
WEIGHTS = (
    *("model.safetensors", "model.safetensors.index.json"),
    f"model-{NUMBER}-of-{NUMBER}.safetensors",
    *("weights.h5", "model.weights.h5", "task.weights.h5"),
)
# Asked for only where there's none of the above: a pickle, and TensorFlow 1's three files.
OLDER_WEIGHTS = (
    "pytorch_model.bin",
    *("checkpoint", "bert_model.ckpt", "bert_model.ckpt.index", "bert_model.ckpt.meta"),
    f"bert_model.ckpt.data-{NUMBER}-of-{NUMBER}",
)
ELSEWHERE = "or download it on another machine and give its folder"


def local_folder(name: str | os.PathLike[str]) -> pathlib.Path:
    """The folder itself; of a hub's name, or a path such as `gs://`, that of what it names.

    Raises:
        InputError: the name is no hub's or badly formed; the hub's package is missing; the hub
            can't be reached, or doesn't have or doesn't give what's named.
    """
    scheme, found, rest = os.fspath(name).partition("://")
    if not found:
        return pathlib.Path(name)
    if scheme not in HUBS:
        return pathlib.Path(remote.local(os.fspath(name)))
    return pathlib.Path(HUBS[scheme](rest))


def _hugging_face(name: str) -> str:
    matched = re.fullmatch(r"([\w.-]+/[\w.-]+)(?:@(.+))?", name)
    if not matched:
        raise InputError(f"hf://{name} must be like hf://owner/name or hf://owner/name@revision.")
    repository, revision = matched.groups()
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise InputError(
            f"hf://{name} needs a package: `pip install 'keras3-bert[huggingface]'`, {ELSEWHERE}."
        ) from None
    try:
        folder = snapshot_download(repository, revision=revision, allow_patterns=[*TEXTS, *WEIGHTS])
        if not any((pathlib.Path(folder) / file).is_file() for file in WEIGHTS):
            snapshot_download(repository, revision=revision, allow_patterns=[*OLDER_WEIGHTS])
    except errors.GatedRepoError:
        reason = (
            f"is given to those who accept its terms: do so at https://huggingface.co/{repository}"
            ", then log in with `hf auth login`"
        )
    except errors.RepositoryNotFoundError:
        reason = (
            "doesn't exist or is private: check the spelling, or log in with `hf auth login` (or "
            "HF_TOKEN)"
        )
    except errors.RevisionNotFoundError:
        reason = f"has no revision {revision}: look it up at https://huggingface.co/{repository}"
    except errors.HFValidationError as error:
        reason = f"isn't a name of Hugging Face: {error}"
    except errors.LocalEntryNotFoundError as error:
        cause = _first_line(error.__cause__ or error)
        reason = (
            f"can't be reached ({cause}) and isn't whole in the cache: go online, without "
            f"HF_HUB_OFFLINE, set HF_HOME to a cache that has it, {ELSEWHERE}"
        )
    except Exception as error:  # its own, or of the HTTP library that its version uses
        reason = f"couldn't be downloaded ({_first_line(error)}): try again, {ELSEWHERE}"
    else:
        return folder
    raise InputError(f"hf://{name} {reason}.")


def _kaggle(name: str) -> str:
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+){3}(/\d+)?", name):
        raise InputError(
            f"kaggle://{name} must be like kaggle://keras/bert/keras/bert_base_en, with or "
            "without /version."
        )
    try:
        import kagglehub
        import requests
    except ImportError:
        raise InputError(
            f"kaggle://{name} needs a package: `pip install kagglehub`, {ELSEWHERE}."
        ) from None
    try:
        return kagglehub.model_download(name)
    except requests.HTTPError as error:
        status = 0 if error.response is None else error.response.status_code
        reason = {
            401: "asks for a login: get a token at https://www.kaggle.com/settings",
            403: "is private, or its terms must be accepted on its page: do so, then log in with "
            "`kagglehub.login()`",
            404: "doesn't exist: check the spelling and the version",
        }.get(status, f"couldn't be downloaded ({_first_line(error)}): try again, {ELSEWHERE}")
    except (requests.ConnectionError, requests.Timeout) as error:
        reason = (
            f"can't be reached ({type(error).__name__}): go online, give the /version of a copy in "
            f"KAGGLEHUB_CACHE, {ELSEWHERE}"
        )
    except Exception as error:  # kagglehub's own derive from nothing narrower
        reason = f"couldn't be downloaded ({_first_line(error)}): try again, {ELSEWHERE}"
    raise InputError(f"kaggle://{name} {reason}.")


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).split("\n")[0].rstrip(".")


HUBS: dict[str, Callable[[str], str]] = {"hf": _hugging_face, "kaggle": _kaggle}
