"""Native modules include what they link, and link what the design allows."""

from __future__ import annotations

import re

from tests.tidy import exceptions
from tests.tidy.sources import read, tracked

# The direction of the core: a module may use these, itself and nothing else.
ALLOWED: dict[str, set[str]] = {
    "sys": set(),
    "blocks": {"sys"},
    "prefix": {"blocks", "sys"},
    "sched": {"prefix", "blocks", "sys"},
    "kernels": {"sys"},
    "model": {"kernels", "blocks", "sys"},
    "handoff": {"sys"},
    "transfer": {"sys"},
    "tiers": {"sys"},
    "engine": {"sched", "prefix", "blocks", "model", "kernels", "handoff", "transfer", "tiers"}
    | {"sys"},
}
# Headers that hold plain types only, usable without linking their module. The handoff protocol
# names blocks by id and layouts by fingerprint, and touches neither pool nor bytes.
TYPES_ONLY = {("handoff", "blocks/kv_layout.h")}

_INCLUDE = re.compile(r'^\s*#\s*include\s*"crossdock/(\w+)/([^"]+)"', re.MULTILINE)
_MODULE = re.compile(r"crossdock_module\((\w+)(.*?)\)", re.DOTALL)


def _links() -> dict[str, set[str]]:
    """Per module, the modules that its CMake target names."""
    found: dict[str, set[str]] = {}
    for path in tracked():
        if re.fullmatch(r"native/src/\w+/CMakeLists.txt", path):
            for name, arguments in _MODULE.findall(read(path)):
                found[name] = set(re.findall(r"\bcrossdock_(\w+)", arguments))
    return found


def _module_of(path: str) -> str | None:
    match = re.fullmatch(r"native/(?:src|include/crossdock)/(\w+)/.*\.(?:h|cpp)", path)
    return match[1] if match else None


def _includes() -> list[tuple[str, str, str, str]]:
    """(path, its module, the module it includes from, the header)."""
    return [
        (path, module, target, header)
        for path in tracked()
        if (module := _module_of(path)) is not None
        for target, header in _INCLUDE.findall(read(path))
        if target != module
    ]


def _closure(links: dict[str, set[str]], module: str) -> set[str]:
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        for link in links.get(waiting.pop(), set()) - reached:
            reached.add(link)
            waiting.append(link)
    return reached


def test_links_follow_the_design() -> None:
    links = _links()
    assert set(links) <= set(ALLOWED)
    wrong = {name: extra for name, used in links.items() if (extra := used - ALLOWED[name])}
    assert not wrong


def test_includes_follow_the_links() -> None:
    links = _links()
    wrong = [
        f"{path} includes crossdock/{target}/{header}, but crossdock_{module} does not link it"
        for path, module, target, header in _includes()
        if module in links
        and target not in _closure(links, module)
        and (module, f"{target}/{header}") not in TYPES_ONLY
    ]
    assert not wrong


def test_links_are_used() -> None:
    used = {(module, target) for _, module, target, _ in _includes()}
    unused = [
        f"crossdock_{module} links crossdock_{link} without an include"
        for module, names in _links().items()
        for link in names
        if (module, link) not in used
    ]
    assert not unused


_SYSTEM_HEADER = re.compile(r"^\s*#\s*include\s*<(sys/\w+|fcntl|unistd|poll|signal)\.h>", re.M)
_UCX_HEADER = re.compile(r"^\s*#\s*include\s*<(ucp|uct|ucs)/", re.M)


def test_only_sys_calls_the_system() -> None:
    callers = {
        path
        for path in tracked()
        if _module_of(path) not in (None, "sys") and _SYSTEM_HEADER.search(read(path))
    }
    assert not callers - set(exceptions.CALLS_SYSTEM)
    assert not set(exceptions.CALLS_SYSTEM) - callers, "the list only shrinks"


def test_only_transfer_knows_ucx() -> None:
    assert not [
        path
        for path in tracked()
        if _module_of(path) not in (None, "transfer") and _UCX_HEADER.search(read(path))
    ]
