"""What the guest boots: a Debian kernel, a small initrd, and packages laid over the host's root.

Everything is fetched with apt, unpacked into a cache folder and never installed on the host. Only
the emulator has to be installed.
"""

from __future__ import annotations

import gzip
import lzma
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.roce.cpio import Archive

# The cloud image of Debian's kernel has neither rdma_rxe nor 9p.
KERNEL = "linux-image-amd64"
# iproute2 makes the devices, libucx0 drives them, pyverbs writes beside it.
PACKAGES = ("busybox-static", "iproute2", "ibverbs-providers", "libucx0", "python3-pyverbs")
# rdma_rxe computes its packets' checksums by crc32_generic, and fails to load where it is missing.
MODULES = (
    *("virtio_pci", "9p", "9pnet_virtio", "overlay", "virtio-rng"),
    *("crc32_generic", "crc32-pclmul", "ib_uverbs", "rdma_ucm", "rdma_rxe", "veth"),
)
EMULATOR = "qemu-system-x86_64"
_EMULATOR_PACKAGE = "qemu-system-x86"
_APT_S = 600


class CannotBootError(Exception):
    """The guest cannot be started here; the message is one line that says why."""


@dataclass(frozen=True, slots=True)
class Image:
    """Files that the emulator takes."""

    kernel: Path
    initrd: Path
    packages: Path  # A folder that is laid over the root.


def prepare(cache: Path, init: Path) -> Image:
    """Fetches what is missing; `init` is the program that the initrd starts."""
    if shutil.which("apt-get") is None:
        raise CannotBootError("the guest is made of Debian packages, and there is no apt-get here")
    _install_emulator()
    cache.mkdir(parents=True, exist_ok=True)
    image = Image(cache / "vmlinux", cache / "initrd.gz", cache / "packages")
    wanted = " ".join((KERNEL, *PACKAGES, *MODULES)) + "\n" + init.read_text(encoding="utf-8")
    stamp = cache / "made-of"
    if not (stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted):
        stamp.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            _make(image, init, Path(scratch))
        stamp.write_text(wanted, encoding="utf-8")
    return image


def _install_emulator() -> None:
    if shutil.which(EMULATOR) is not None:
        return
    if os.geteuid() != 0:
        raise CannotBootError(f"no {EMULATOR}; run: sudo apt-get install {_EMULATOR_PACKAGE}")
    _update()
    _run(["apt-get", "install", "-qq", "-y", "--no-install-recommends", _EMULATOR_PACKAGE])


def _make(image: Image, init: Path, scratch: Path) -> None:
    kernel_package = _dependency(KERNEL)
    archives = _download([kernel_package, *_missing(PACKAGES)], scratch)
    shutil.rmtree(image.packages, ignore_errors=True)
    image.packages.mkdir()
    for archive in archives:
        is_kernel = archive.name.startswith(f"{kernel_package}_")
        target = scratch / "kernel" if is_kernel else image.packages
        _run(["dpkg-deb", "--extract", str(archive), str(target)])
    _merge_usr(image.packages)
    image.kernel.write_bytes(_uncompressed_kernel(scratch / "kernel"))
    busybox = (image.packages / "usr/bin/busybox").read_bytes()
    initrd = _initrd(init.read_bytes(), busybox, _with_dependencies(scratch / "kernel", MODULES))
    image.initrd.write_bytes(gzip.compress(initrd, compresslevel=1))


# ---- packages ------------------------------------------------------------------------------------


def _run(command: Sequence[str], cwd: Path | None = None) -> str:
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environ,
            capture_output=True,
            text=True,
            timeout=_APT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBootError(f"{' '.join(command[:2])}: {error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise CannotBootError(f"{' '.join(command[:2])} failed: {last}")
    return done.stdout


def _update() -> None:
    if os.geteuid() == 0:
        _run(["apt-get", "update", "-qq"])


def _dependency(package: str) -> str:
    """The package of the kernel itself, on which the one without a version depends."""
    pattern = re.compile(r"^\s*Depends: (linux-image-\d\S*)$", re.M)
    listed = _run(["apt-cache", "depends", package])
    if not pattern.search(listed):
        _update()
        listed = _run(["apt-cache", "depends", package])
    found = pattern.search(listed)
    if found is None:
        raise CannotBootError(f"apt knows no {package}; run: apt-get update")
    return found[1]


def _missing(packages: Iterable[str]) -> list[str]:
    """The packages, and of what they depend on whatever this machine lacks."""
    flags = [f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks")]
    flags += ["--no-replaces", "--no-enhances"]
    listed = _run(["apt-cache", "depends", "--recurse", *flags, *packages])
    closure = set(re.findall(r"^([a-z0-9][\w.+-]*)$", listed, re.M))
    status = _run(["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n"])
    installed = set(re.findall(r"^(\S+) installed$", status, re.M))
    return sorted((closure - installed) | set(packages))


def _download(packages: Sequence[str], folder: Path) -> list[Path]:
    try:
        _run(["apt-get", "download", "-q", *packages], cwd=folder)
    except CannotBootError:
        # The index is older than what the mirror still has.
        _update()
        _run(["apt-get", "download", "-q", *packages], cwd=folder)
    return sorted(folder.glob("*.deb"))


def _merge_usr(folder: Path) -> None:
    """A real /lib in the layer would hide the root's link to /usr/lib."""
    for name in ("bin", "sbin", "lib", "lib64"):
        if (folder / name).is_dir() and not (folder / name).is_symlink():
            shutil.copytree(folder / name, folder / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(folder / name)


# ---- kernel and initrd ---------------------------------------------------------------------------


def _uncompressed_kernel(folder: Path) -> bytes:
    """The ELF file within vmlinuz. It boots by PVH and spares the guest seconds of unpacking."""
    compressed = next((folder / "boot").glob("vmlinuz-*")).read_bytes()
    start = -1
    while (start := compressed.find(b"\xfd7zXZ\0", start + 1)) >= 0:
        try:
            kernel = lzma.LZMADecompressor().decompress(compressed[start:])
        except lzma.LZMAError:
            continue
        if kernel.startswith(b"\x7fELF"):
            return kernel
    raise CannotBootError("the kernel's image holds no xz-compressed vmlinux")


def _with_dependencies(folder: Path, names: Iterable[str]) -> list[Path]:
    """The modules' files in an order in which they can be loaded."""
    files = {_canonical(path.stem): path for path in folder.rglob("*.ko")}
    ordered: dict[str, Path] = {}

    def add(name: str) -> None:
        path = files.get(_canonical(name))
        if path is None:
            raise CannotBootError(f"the kernel has no module {name}")
        found = re.search(rb"\0depends=([^\0]*)\0", path.read_bytes())
        for dependency in (found[1].decode() if found else "").split(","):
            if dependency and dependency not in ordered:
                add(dependency)
        ordered[_canonical(name)] = path

    for name in names:
        add(name)
    return list(ordered.values())


def _canonical(module: str) -> str:
    return module.replace("-", "_")


def _initrd(init: bytes, busybox: bytes, modules: Sequence[Path]) -> bytes:
    archive = Archive()
    for name in ("bin", "modules", "proc", "sys", "dev", "host", "packages", "changes", "root"):
        archive.add_folder(name)
    archive.add_file("bin/busybox", busybox, executable=True)
    archive.add_file("init", init, executable=True)
    for index, path in enumerate(modules):
        archive.add_file(f"modules/{index:03d}-{path.name}", path.read_bytes())
    return archive.finish()
