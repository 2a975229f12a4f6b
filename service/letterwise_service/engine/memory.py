"""How much memory this process may still take. Reads the system; knows nothing of models."""

from __future__ import annotations

import resource
import sys
from pathlib import Path, PurePosixPath

from .backend import mx

_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_MEMINFO = Path("/proc/meminfo")
_STATM = Path("/proc/self/statm")


def available_bytes() -> int | None:
    """The least that the machine, the container's limit and the process's own leave; None if none is known."""
    if sys.platform == "darwin" or mx.default_device() != mx.Device(mx.cpu):
        return _device_bytes()
    amounts = (_free_bytes(_MEMINFO), _groups_bytes(_CGROUP, _OWN_GROUPS), _address_bytes(_STATM))
    known = [amount for amount in amounts if amount is not None]
    return min(known) if known else None


def _device_bytes() -> int | None:
    info = mx.device_info()
    size = info.get("max_recommended_working_set_size") or info.get("memory_size")
    return int(size) - mx.get_active_memory() if size else None


def _free_bytes(meminfo: Path) -> int | None:
    for line in _lines(meminfo):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _groups_bytes(root: Path, own: Path) -> int | None:
    """The least that the process's control group and those around it leave; `own` lists its groups, v2 or v1."""
    names = {row[2] for line in _lines(own) if len(row := line.split(":", 2)) == 3 and row[1] in ("", "memory")}
    groups = {PurePosixPath("/")}.union(*({PurePosixPath(name), *PurePosixPath(name).parents} for name in names))
    left = [_cgroup_bytes(root, str(group).lstrip("/")) for group in groups if ".." not in group.parts]
    return min((amount for amount in left if amount is not None), default=None)


def _cgroup_bytes(root: Path, group: str = "") -> int | None:
    """What the limit of one control group leaves, pages of files that can be dropped not counted. v2, then v1."""
    layouts = (
        (root / group, "memory.max", "memory.current", "inactive_file"),
        (root / "memory" / group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    for folder, limit, used, droppable in layouts:
        limits, usage = _lines(folder / limit), _lines(folder / used)
        if limits and usage and limits[0].isdigit():
            rows = dict(line.split()[:2] for line in _lines(folder / "memory.stat") if " " in line)
            return int(limits[0]) - int(usage[0]) + int(rows.get(droppable, 0))
    return None


def _address_bytes(statm: Path) -> int | None:
    """What the limit of the process's address space leaves (`ulimit -v`)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = _lines(statm)
    if limit == resource.RLIM_INFINITY or not pages:
        return None
    return limit - int(pages[0].split()[0]) * resource.getpagesize()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
