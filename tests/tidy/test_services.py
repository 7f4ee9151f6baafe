"""Where protobuf types, the environment and the command line may be touched."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.tidy import exceptions
from tests.tidy.sources import read, tracked, written_by_hand

# Proto types are translated at the edges: a servicer, a client, the plumbing of rpc, and the
# command line's own views of the public API.
_EDGES = re.compile(r"^(servicer|client|translation)(_\w+)?\.py$|_(servicer|client|grpc)\.py$")
_EDGE_FOLDERS = (
    "crossdock/api/",
    "crossdock/rpc/",
    "crossdock/cli/",
    "crossdock/telemetry/",
    "tests/",
    "bench/",
)
_ENVIRONMENT = {"environ", "getenv", "argv"}
_PRODUCT = ("crossdock/", "services/")


def _product(*suffixes: str) -> list[str]:
    return [path for path in written_by_hand(*suffixes) if path.startswith(_PRODUCT)]


def test_proto_types_stay_at_the_edges() -> None:
    inside = [
        path
        for path in _product(".py")
        if re.search(r"\b\w+_pb2(_grpc)?\b", read(path))
        and not path.startswith(_EDGE_FOLDERS)
        and not _EDGES.search(Path(path).name)
    ]
    assert not inside


def test_only_composition_roots_read_the_environment() -> None:
    readers = [
        f"{path}:{node.lineno}"
        for path in _product(".py")
        if Path(path).name not in ("__main__.py", "config.py")
        and path not in exceptions.READS_ENVIRONMENT
        for node in ast.walk(ast.parse(read(path)))
        if isinstance(node, ast.Attribute) and node.attr in _ENVIRONMENT
    ]
    assert not readers


def test_exceptions_exist() -> None:
    assert set(exceptions.READS_ENVIRONMENT) <= set(tracked())


def test_nothing_unpickles() -> None:
    pickling = [
        path
        for path in _product(".py")
        for node in ast.walk(ast.parse(read(path)))
        if isinstance(node, ast.Import | ast.ImportFrom)
        and "pickle" in {getattr(node, "module", None) or "", *(alias.name for alias in node.names)}
    ]
    assert not pickling
