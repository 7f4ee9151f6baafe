"""What serving a model in one type or another costs: size, weights that change, perplexity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

from crossdock import _native as native
from crossdock.models.errors import ModelError
from crossdock.models.packed import WeightDtype, packed_directory
from crossdock.models.perplexity import WINDOW_BLOCKS, measure_perplexity


@dataclass(frozen=True, slots=True)
class Conversion:
    """A model's weights in one type."""

    dtype: str  # As served: what "auto" came to.
    num_weights: int  # In matrices; norms and biases are few.
    num_exact: int  # Equal to the checkpoint's to the bit.
    memory_bytes: int
    disk_bytes: int  # Kept for the next start; 0: made from the checkpoint each time.
    perplexity: float | None  # None: not measured.

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.memory_bytes / self.num_weights


def convert(
    directory: Path, dtype: WeightDtype, token_ids: Sequence[int], num_threads: int
) -> Conversion:
    """Quantises into the cache and measures; without two tokens, no perplexity.

    Raises ModelError where the model cannot be served so.
    """
    cache = str(packed_directory())
    try:
        report = native.report_weights(
            str(directory), weight_dtype=dtype, cache_directory=cache, num_threads=num_threads
        )
        perplexity = None
        if len(token_ids) > 1:
            executor = native.Executor.load(
                str(directory),
                num_blocks=WINDOW_BLOCKS,
                weight_dtype=dtype,
                num_threads=num_threads,
                cache_directory=cache,
            )
            perplexity = measure_perplexity(executor, token_ids).value
    except native.StatusError as error:
        raise ModelError(error.args[1]) from error
    return Conversion(
        dtype=report.dtype,
        num_weights=report.num_weights,
        num_exact=report.num_exact,
        memory_bytes=report.memory_bytes,
        disk_bytes=Path(report.file).stat().st_size if report.file else 0,
        perplexity=perplexity,
    )


def held_out_text(directory: Path) -> str:
    """A text to measure on: the model's own heldout.txt, else the documentation of Python's
    topics, which comes with every interpreter (PSF licence) and differs between its versions.
    """
    own = directory / "heldout.txt"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    return "\n\n".join(topics[name] for name in sorted(topics))
