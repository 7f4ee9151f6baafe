"""Imports that stand on the native module: where it cannot be loaded, the process says so and ends.

It links libraries of the system, UCX above all, and a machine that lacks one must not answer with
a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_PACKAGE, _NAME = "crossdock", "_native"


@contextmanager
def requires_native(role: str) -> Iterator[None]:
    """Around a service's imports. Exit code 1 and one line when the native module is missing."""
    try:
        yield
    except ImportError as error:
        if not _is_of_native(error):
            raise
        why = " ".join(str(error).split())
        print(
            f"crossdock {role}: the native module cannot be loaded: {why}; run `crossdock doctor` "
            "to see what this machine lacks",
            file=sys.stderr,
        )
        sys.exit(1)


def _is_of_native(error: ImportError) -> bool:
    """The loader names a module that does not load; of one that is absent, the package is named."""
    if error.name == _PACKAGE:
        return f"'{_NAME}'" in str(error)
    return error.name in (_NAME, f"{_PACKAGE}.{_NAME}")
