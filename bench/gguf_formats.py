"""The default model in the weight formats of llama.cpp, so that both programs run one model.

The GGUF file that the default model comes from has its matrices in Q4_1 and its embedding in
Q8_0; crossdock's weights are those, dequantised. Every other format here is made from the
dequantised values: f32 keeps them exactly, the rest rounds them.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any, Final

from crossdock.models import cache_directory
from crossdock.models.catalog import CATALOG, DEFAULT_MODEL
from crossdock.models.errors import ModelFetchError
from crossdock.models.fetching import fetch_source

# The source's own format: it is used as it is.
SOURCE_FORMAT: Final = "q4_1"
# llama.cpp's number of a file whose matrices are mostly of the format (general.file_type).
_FILE_TYPES: Final = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 7, "bf16": 32}


def gguf_directory() -> Path:
    """Where the files are kept: beside the models, in crossdock's part of the user's cache."""
    return cache_directory().parent / "gguf"


def gguf_file(weight_format: str) -> Path:
    """The default model in that format; fetched and converted when it is not there yet."""
    folder = gguf_directory()
    target = folder / f"{DEFAULT_MODEL}.{weight_format}.gguf"
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=folder) as work:
        staged = Path(work) / target.name
        if weight_format == SOURCE_FORMAT:
            staged = fetch_source(CATALOG[DEFAULT_MODEL], Path(work))
        else:
            convert(gguf_file(SOURCE_FORMAT), staged, weight_format)
        with contextlib.closing(os.fdopen(os.open(staged, os.O_RDONLY))) as file:
            os.fsync(file.fileno())
        staged.rename(target)
    return target


def convert(source: Path, target: Path, weight_format: str) -> None:
    """Writes `source` with its matrices in another format; norms stay f32, metadata is kept."""
    if weight_format not in _FILE_TYPES:
        raise ModelFetchError(f"{weight_format!r} is none of {', '.join(_FILE_TYPES)}")
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
    from gguf.quants import dequantize, quantize

    reader = GGUFReader(str(source))
    writer = GGUFWriter(str(target), "llama")
    _copy_fields(reader, writer)
    writer.add_file_type(_FILE_TYPES[weight_format])
    kind = GGMLQuantizationType[weight_format.upper()]
    for tensor in reader.tensors:
        # The reader's arrays have the slowest dimension first; the writer wants them so.
        values = dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_fields(reader: Any, writer: Any) -> None:
    from gguf import GGUFValueType

    for name, field in reader.fields.items():
        # What the writer states itself.
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=element)
