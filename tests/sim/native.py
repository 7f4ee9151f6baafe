"""Finds the module of the simulated world, which is built beside the native tests."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

_NAME = "tests.sim.crossdock_sim"
_BUILD = Path(__file__).parents[2] / "build"


def _find() -> Path:
    """CROSSDOCK_SIM names a build folder; else the one of `make build`."""
    folder = Path(os.environ.get("CROSSDOCK_SIM", _BUILD / "python"))
    found = sorted(folder.rglob("crossdock_sim*.so"))
    if not found:
        raise ImportError(f"no crossdock_sim*.so below {folder}: run `make test-native` first")
    return found[0]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location(_NAME, _find())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from tests.sim import crossdock_sim as crossdock_sim
else:
    crossdock_sim = sys.modules.get(_NAME) or _load()
