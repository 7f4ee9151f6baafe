"""Runs one command in the emulated guest, streams what it prints, and ends with its status."""

from __future__ import annotations

import io
import selectors
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tools.roce import preload
from tools.roce.image import EMULATOR, CannotBootError, Image

# Measured: 25 s on an idle core, three times that beside other work.
_BOOT_S = 180
_READY = "roce: guest up"
_MEMORY = "3G"


def run(image: Image, command: Sequence[str], work: Path, folder: Path, bound_s: float) -> int:
    """Boots the guest and runs `command` there in `folder`, which it sees as the host does.

    `work` is the one folder that both may write; the guest has it as /mnt/roce. Raises where the
    guest does not come up; a command that exceeds the bound counts as failed.
    """
    work.mkdir(parents=True, exist_ok=True)
    status = work / "status"
    status.unlink(missing_ok=True)
    for name in ("guest.sh", "link.sh"):
        shutil.copy(Path(__file__).with_name(name), work)
    script = f"cd {shlex.quote(str(folder))} || exit\nexec {shlex.join(command)}\n"
    (work / "command.sh").write_text(script, encoding="utf-8")
    initrd = image.initrd.read_bytes()
    (work / "initrd").write_bytes(initrd + bytes(-len(initrd) % 4) + preload.archive(folder))
    guest = subprocess.Popen(
        _emulator(image, work),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        last = _stream(guest, bound_s)
    finally:
        guest.kill()
        guest.wait()
    if not status.is_file():
        if last is None:
            raise CannotBootError(f"the guest did not come up within {_BOOT_S} s")
        print(f"roce: the guest ended before its command did; last line: {last}")
        return 1
    return int(status.read_text(encoding="utf-8"))


def _emulator(image: Image, work: Path) -> list[str]:
    # A /dev/kvm that exists may still not work, so emulation is asked for by name.
    command = [EMULATOR, *("-machine", "q35"), *("-accel", "tcg,thread=multi"), *("-cpu", "max")]
    command += [*("-smp", "2"), *("-m", _MEMORY), "-nodefaults", "-no-reboot"]
    command += [*("-display", "none"), *("-monitor", "none"), *("-serial", "stdio")]
    command += [*("-kernel", str(image.kernel)), *("-initrd", str(work / "initrd"))]
    quick = "console=ttyS0 quiet mitigations=off nokaslr panic=-1 clocksource=hpet"
    command += ["-append", quick, "-device", "virtio-rng-pci"]
    shares = (
        ("host", Path("/"), ",readonly=on,multidevs=remap"),
        ("packages", image.packages, ",readonly=on"),
        ("work", work, ""),
    )
    for tag, path, options in shares:
        source = f"local,id={tag},path={path},security_model=none{options}"
        command += ["-fsdev", source, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    return command


def _stream(guest: subprocess.Popen[bytes], bound_s: float) -> str | None:
    """Prints the guest's lines until it ends or a bound is exceeded.

    Returns the last of them, or None when the guest never came up.
    """
    start = time.monotonic()
    last = None
    assert isinstance(guest.stdout, io.BufferedReader)
    with selectors.DefaultSelector() as selector:
        selector.register(guest.stdout, selectors.EVENT_READ)
        partial = b""
        while True:
            deadline = start + _BOOT_S + (0 if last is None else bound_s)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                if last is not None:
                    print(f"roce: the command took longer than {bound_s:.0f} s")
                return last
            received = guest.stdout.read1(65_536)
            if not received:
                return last
            *lines, partial = (partial + received).split(b"\n")
            for line in lines:
                text = line.decode(errors="replace").rstrip("\r")
                if last is not None or text.startswith(_READY):
                    last = text
                print(text, flush=True)
