"""The updates of a run: how many are done, and which belong to which length of examples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import keras

from keras_bert.errors import InputError

PAPERS = {128: 0.9, 512: 0.1}
"""Devlin et al., 2018, appendix A.2: length 128 for 90 % of the updates, 512 for the rest."""


def updates_done(model: keras.Model) -> int:
    """The number of updates that the compiled model's optimizer has made."""
    # `int(variable)` alone doesn't read a variable that a TensorFlow strategy mirrors.
    return int(keras.ops.convert_to_numpy(model.optimizer.iterations))


@dataclasses.dataclass(frozen=True)
class Phase:
    """The updates from `start` to `end`, on examples of `length` tokens.

    `first_epoch` counts the epochs of the phases before: an epoch never spans two of them.
    """

    length: int
    start: int
    end: int
    first_epoch: int


def plan_phases(text: str, lengths: Sequence[int], updates: int, every: int) -> list[Phase]:
    """Cuts a run into phases.

    Args:
        text: "128:0.9,512:0.1", lengths and their shares of the updates, in order. Empty: the
            only length; of 128 and 512, the paper's shares.
        lengths: Of the data there is.
        updates: Of the whole run.
        every: Updates of an epoch; the last of a phase may be shorter.

    Raises:
        InputError: the text can't be read, the shares don't add up to 1, a phase would get no
            update, or lengths are missing, twice there or left over.
    """
    for length in lengths:
        if lengths.count(length) > 1:
            raise InputError(f"--data has two folders of examples of length {length}: give one.")
    shares = _shares(text) if text else _usual_shares(lengths)
    for length in shares.keys() - set(lengths):
        raise InputError(
            f"--phases wants examples of length {length}, and --data has {_listed(lengths)}: add "
            f"a folder made with --max-sequence-length {length}."
        )
    for length in set(lengths) - shares.keys():
        raise InputError(
            f"--data has a folder of examples of length {length}, for which --phases has no "
            "share: leave the folder out, or give it one."
        )
    phases, start, share_before, epochs = [], 0, 0.0, 0
    for length, share in shares.items():
        share_before += share
        end = round(share_before * updates)
        if end == start:
            raise InputError(
                f"the phase {length}:{share:g} gets none of the {updates} updates: give more "
                "--steps or a larger share."
            )
        phases.append(Phase(length, start, end, epochs))
        epochs += math.ceil((end - start) / every)
        start = end
    return phases


def fits(phase: Phase, done: int, every: int) -> Iterator[tuple[int, int, int, int]]:
    """The calls of `fit` that bring a run from update `done` to the phase's end.

    They are the rest of an epoch that was begun, the whole epochs, and a shorter last one.

    Yields:
        (updates done before, `initial_epoch`, `epochs`, `steps_per_epoch`).
    """
    while done < phase.end:
        epoch, into = divmod(done - phase.start, every)
        steps = min(every - into, phase.end - done)
        count = (phase.end - done) // every if steps == every else 1
        first = phase.first_epoch + epoch
        yield done, first, first + count, steps
        done += count * steps


def _shares(text: str) -> dict[int, float]:
    shares: dict[int, float] = {}
    for part in text.split(","):
        length, colon, share = part.strip().partition(":")
        try:
            if not colon or int(length) in shares or not 0 < float(share) <= 1:
                raise ValueError
            shares[int(length)] = float(share)
        except ValueError as error:
            raise InputError(
                "--phases must be lengths and shares of the updates, such as 128:0.9,512:0.1, "
                f"each length once. Received: {text!r}."
            ) from error
    if abs(sum(shares.values()) - 1) > 1e-6:
        raise InputError(
            f"the shares of --phases must add up to 1. Received: {text!r}, which makes "
            f"{sum(shares.values()):g}."
        )
    return shares


def _usual_shares(lengths: Sequence[int]) -> dict[int, float]:
    if len(lengths) == 1:
        return {lengths[0]: 1.0}
    if set(lengths) == PAPERS.keys():
        return PAPERS
    raise InputError(
        f"--data has folders of lengths {_listed(lengths)}: say which share of the updates each "
        f"gets, such as --phases {lengths[0]}:0.9,{lengths[1]}:0.1."
    )


def _listed(lengths: Sequence[int]) -> str:
    return ", ".join(map(str, lengths))
