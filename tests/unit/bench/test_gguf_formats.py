from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.gguf_formats import convert
from crossdock.models.errors import ModelFetchError

# Values that Q8_0 holds: a scale of 1/8 times integers, each block of 32 with its largest, 127.
MATRIX = (np.resize(np.arange(-127, 128, 7), (4, 64)) / 8).astype(np.float32)
MATRIX[:, ::32] = 127 / 8
NORM = np.linspace(0.5, 1.5, 64, dtype=np.float32)


def _source(path: Path) -> Path:
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_token_list(["a", "b", "c", "d"])
    writer.add_file_type(3)
    kind = GGMLQuantizationType.Q8_0
    writer.add_tensor("token_embd.weight", quantize(MATRIX, kind), raw_dtype=kind)
    writer.add_tensor("output_norm.weight", NORM)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(("name", "file_type"), [("f32", 0), ("bf16", 32), ("q8_0", 7)])
def test_a_file_in_another_format_has_the_same_values(
    tmp_path: Path, name: str, file_type: int
) -> None:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    convert(_source(tmp_path / "source.gguf"), tmp_path / "out.gguf", name)
    reader = GGUFReader(str(tmp_path / "out.gguf"))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    matrix, norm = tensors["token_embd.weight"], tensors["output_norm.weight"]
    assert matrix.tensor_type.name == name.upper()
    assert norm.tensor_type.name == "F32"
    assert np.array_equal(dequantize(matrix.data, matrix.tensor_type), MATRIX)
    assert np.array_equal(norm.data, NORM)
    assert reader.fields["general.file_type"].contents() == file_type
    assert reader.fields["tokenizer.ggml.tokens"].contents() == ["a", "b", "c", "d"]
    assert reader.fields["llama.block_count"].contents() == 1


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFetchError, match="'q9' is none of"):
        convert(tmp_path / "source.gguf", tmp_path / "out.gguf", "q9")
