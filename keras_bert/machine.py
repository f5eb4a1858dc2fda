"""The machine: its processor, its cores, its memory and how much of that is left."""

from __future__ import annotations

import os
import pathlib
import platform
import sys

# What makes matrix products fast, by Linux's names for it: x86-64, then ARM.
FLAGS = (
    *("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni"),
    *("amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
    *("asimdhp", "sve", "bf16", "i8mm", "sme"),
)
# A container's limit, what it has used of it, and of that the files that are read again if need
# be, by the version of Linux's cgroups: folder, two files, and a line of memory.stat.
LIMITS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    (
        *("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
        "total_inactive_file",
    ),
)


def cpu_name() -> str:
    """The processor's name, or its family where the system doesn't tell."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def cpu_flags() -> list[str]:
    """Those of `FLAGS` that the processor has; none where the system isn't Linux."""
    info = _cpuinfo()
    found = (info.get("flags") or info.get("Features") or "").split()
    return [flag for flag in FLAGS if flag in found]


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def total_memory() -> int | None:
    """Bytes of the machine's memory; None where the system doesn't tell."""
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def available_memory() -> int | None:
    """Bytes that can still be taken: Linux's own estimate, within a container's limit.

    Elsewhere it's all of the machine's memory, or None where that isn't known.
    """
    meminfo = _pairs("/proc/meminfo")
    if "MemAvailable" not in meminfo:
        return total_memory()
    left = [1024 * int(meminfo["MemAvailable"].split()[0])]
    for folder, *files, cached in LIMITS:
        limit, used = (_read(f"{folder}/{name}") for name in files)
        if limit.isdecimal() and used.isdecimal():
            stat = _pairs(f"{folder}/memory.stat", " ")
            left.append(int(limit) - int(used) + int(stat.get(cached, 0)))
    return min(left)


def peak_memory() -> int | None:
    """Most bytes of memory that this process has held so far; None on Windows."""
    # Not `getrusage` where there's another way: it begins at what the parent process held.
    peak = _pairs("/proc/self/status").get("VmHWM")
    if peak:
        return 1024 * int(peak.split()[0])
    if sys.platform == "win32":
        return None
    import resource

    peak_of_process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak_of_process if sys.platform == "darwin" else 1024 * peak_of_process


def _cpuinfo() -> dict[str, str]:
    """Of the first core; the others are taken to be the same."""
    return _pairs("/proc/cpuinfo")


def _pairs(path: str, separator: str = ":") -> dict[str, str]:
    """The lines `name: value` of a file up to the first blank one; none if it isn't there."""
    lines = _read(path).partition("\n\n")[0].split("\n")
    pairs = (line.partition(separator) for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _read(path: str) -> str:
    try:
        return pathlib.Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
