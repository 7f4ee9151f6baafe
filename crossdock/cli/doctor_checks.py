"""What crossdock needs of a machine: one function a subject, each returning what it found.

The functions read the machine and change nothing. `root` is where /proc, /sys and /dev lie.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from crossdock import models
from crossdock.cli.doctor_rdma import check_mtus, check_port, check_source, check_usable
from crossdock.cli.finding import Finding
from crossdock.errors import CrossdockError
from crossdock.fabric.devices import list_ports
from crossdock.models import ModelError

ROOT = Path("/")

_GIB = 1 << 30
# Two small slabs and the rings of four services; a larger model wants more.
_SHM_BYTES_MIN = _GIB
_MEMORY_BYTES_MIN = 2 * _GIB
_PYTHON_MIN = (3, 11)
_UCX_VERSION_MIN = (1, 13)
_LISTING_S = 30


def check_python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < _PYTHON_MIN:
        return Finding("Python", "missing", found, "install Python 3.11 or newer")
    return Finding("Python", "ok", found)


def check_native_module() -> Finding:
    try:
        module = import_module("crossdock._native")
    except ImportError as error:
        return Finding("native module", "missing", str(error), "run `make build`")
    return Finding("native module", "ok", str(module.__file__))


def check_engine() -> Finding:
    try:
        # The module stands on the native one, whose absence is a finding too.
        from crossdock.engine.process import engine_path

        path = engine_path()
    except (CrossdockError, ImportError) as error:
        return Finding("engine", "missing", str(error), "run `make build`")
    return Finding("engine", "ok", str(path))


def check_ucx() -> Iterator[Finding]:
    install = "install it: apt-get install libucx0 (Debian, Ubuntu), or `ucx` elsewhere"
    try:
        library = ctypes.CDLL("libucp.so.0")
    except OSError:
        yield Finding("UCX", "missing", "libucp.so.0 is not found", install)
        return
    library.ucp_get_version_string.restype = ctypes.c_char_p
    found = library.ucp_get_version_string().decode()
    if tuple(map(int, found.split(".")[:2])) < _UCX_VERSION_MIN:
        needed = ".".join(map(str, _UCX_VERSION_MIN))
        yield Finding("UCX", "missing", f"{found}, at least {needed} is needed", install)
    else:
        yield Finding("UCX", "ok", found)
    yield _check_transports()


def _check_transports() -> Finding:
    program = shutil.which("ucx_info")
    if program is None:
        remedy = "ucx_info lists them: apt-get install ucx-utils"
        return Finding("UCX transports", "note", "not listed", remedy)
    try:
        listed = subprocess.run(
            [program, "-d"], capture_output=True, text=True, timeout=_LISTING_S, check=False
        ).stdout
    except subprocess.TimeoutExpired:
        # Where UCX cannot lock the memory of a device's queue it tries again without end.
        fact = f"ucx_info did not end within {_LISTING_S} s"
        return Finding(
            "UCX transports", "note", fact, "raise the limit of locked memory, see below"
        )
    found = sorted(set(re.findall(r"Transport: (\S+)", listed)))
    lacking = {"posix", "tcp"} - set(found)
    if lacking:
        fact = f"{', '.join(found)}; without {', '.join(sorted(lacking))}"
        return Finding("UCX transports", "missing", fact, "install the distribution's UCX")
    return Finding("UCX transports", "ok", ", ".join(found))


def check_shared_memory(root: Path = ROOT) -> Finding:
    path = root / "dev/shm"
    if not path.is_dir():
        remedy = "mount a tmpfs there: engines and fronts talk through it"
        return Finding("shared memory", "missing", f"no {path}", remedy)
    usage = shutil.disk_usage(path)
    fact = f"{path} has {usage.free / _GIB:.1f} GiB free of {usage.total / _GIB:.1f}"
    if usage.free < _SHM_BYTES_MIN:
        remedy = f"mount -o remount,size=2g {path}, or in containers --shm-size=2g; --kv-memory"
        return Finding("shared memory", "note", fact, f"{remedy} says how much a slab takes")
    return Finding("shared memory", "ok", fact)


def check_locked_memory(has_rdma: bool) -> Finding:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY:
        return Finding("locked memory", "ok", "unlimited")
    fact = f"{limit >> 10} KiB"
    if not has_rdma:
        return Finding("locked memory", "ok", f"{fact}; only RDMA locks memory")
    remedy = "raise it: ulimit -l unlimited, LimitMEMLOCK=infinity in a unit"
    return Finding("locked memory", "missing", f"{fact}; RDMA must lock the slab", remedy)


def check_cpu(root: Path = ROOT) -> Iterator[Finding]:
    text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    flags = set(match[1].split() if (match := re.search(r"^flags\s*:(.*)$", text, re.M)) else ())
    useful = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16")
    found = ", ".join(flag for flag in useful if flag in flags) or "none of " + ", ".join(useful)
    if {"avx2", "fma"} <= flags:
        yield Finding("CPU features", "ok", found)
    else:
        yield Finding("CPU features", "note", found, "the scalar kernels are used, and are slow")
    num_cores = len(os.sched_getaffinity(0))
    if num_cores < 2:
        remedy = "prefill and decode share it and slow each other"
        yield Finding("cores", "note", str(num_cores), remedy)
    else:
        yield Finding("cores", "ok", str(num_cores))


def check_memory(root: Path = ROOT) -> Iterator[Finding]:
    text = (root / "proc/meminfo").read_text(encoding="utf-8")
    sizes = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+)", text, re.M)}
    available = sizes.get("MemAvailable", 0) << 10
    fact = f"{available / _GIB:.1f} GiB available of {(sizes.get('MemTotal', 0) << 10) / _GIB:.1f}"
    if available < _MEMORY_BYTES_MIN:
        remedy = "weights are shared among engines, slabs are not: lower --kv-memory"
        yield Finding("memory", "note", fact, remedy)
    else:
        yield Finding("memory", "ok", fact)
    num_pages = sizes.get("HugePages_Total", 0)
    if num_pages:
        free = sizes.get("HugePages_Free", 0)
        yield Finding("huge pages", "ok", f"{free} free of {num_pages}")
    else:
        remedy = "optional: sysctl vm.nr_hugepages=512 gives a slab of 1 GiB fewer TLB misses"
        yield Finding("huge pages", "note", "none reserved", remedy)


def check_rdma(device: str, gid_index: int | None, root: Path = ROOT) -> Iterator[Finding]:
    """The ports, and what `device` and `gid_index`, where they are given, would make of them."""
    ports = list_ports(root)
    for port in ports:
        chosen = device in ("", port.name, port.device)
        yield check_port(port, gid_index if chosen else None)
    yield from check_usable(ports, device, gid_index)
    yield from check_source(ports)
    yield from check_mtus(ports)
    yield check_locked_memory(has_rdma=bool(ports))


def check_models() -> Finding:
    name = models.DEFAULT_MODEL
    try:
        return Finding("default model", "ok", str(models.resolve(name)))
    except ModelError as error:
        free = shutil.disk_usage(_existing(models.cache_directory())).free / _GIB
        fact = f"{error}; {free:.1f} GiB free there"
        return Finding("default model", "note", fact, "`crossdock up` fetches it as well")


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


def check_all(rdma_device: str = "", gid_index: int | None = None) -> Iterator[Finding]:
    """Every check, in the order in which a fleet needs things."""
    yield check_python()
    yield check_native_module()
    yield check_engine()
    yield from check_ucx()
    yield check_shared_memory()
    yield from check_cpu()
    yield from check_memory()
    yield from check_rdma(rdma_device, gid_index)
    yield check_models()
