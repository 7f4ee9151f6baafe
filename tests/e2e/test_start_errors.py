"""Services that cannot start say why in one line, exit with 1 or 2, and leave no process behind."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import KV_MEMORY

# A cold start of Python on a loaded machine takes seconds; a service that hangs takes for ever.
WAIT_S = 120.0
MARK = "CROSSDOCK_TEST_MARK"
DECODE = "127.0.0.1:1"


@dataclass(frozen=True)
class Failed:
    """A service that did not start."""

    code: int
    error: str  # All of stderr but its log lines.


def fail(role: str, *arguments: str, environ: Mapping[str, str] | None = None) -> Failed:
    """Runs a service to its end; fails when it serves, when it hangs, or leaves a process."""
    mark = uuid.uuid4().hex
    child = subprocess.Popen(
        [sys.executable, "-m", f"services.{role}", *arguments],
        env={**os.environ, **(environ or {}), MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = child.communicate(timeout=WAIT_S)
    finally:
        child.kill()
    assert out == "", "it says that it serves"
    assert "Traceback" not in err, err
    deadline_s = time.monotonic() + WAIT_S
    while list(marked(mark)):  # An engine that ends with its front takes its time.
        assert time.monotonic() < deadline_s, "it left a process behind"
        time.sleep(0.05)
    lines = [line for line in err.splitlines() if not line.startswith("{")]
    return Failed(child.returncode, "\n".join(lines))


def marked(mark: str) -> Iterator[int]:
    """Processes that inherited the environment of the child."""
    wanted = f"{MARK}={mark}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                yield int(process.name)
        except OSError:
            continue  # Ended meanwhile, or not ours to read.


def expect(failed: Failed, code: int, *words: str) -> None:
    """One line of error, which has all of the words."""
    assert failed.code == code, failed.error
    assert len(failed.error.splitlines()) == 1, failed.error
    missing = [word for word in words if word not in failed.error]
    assert not missing, f"{missing} not in: {failed.error}"


@pytest.fixture
def broken(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of the model, to be broken."""
    return Path(shutil.copytree(tiny_model, tmp_path / "broken"))


def edit_config(model: Path, **changes: Any) -> None:
    path = model / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, **changes}), encoding="utf-8")


def edit_weights(model: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Edits the header of the weights; the bytes of the tensors stay."""
    path = model / "model.safetensors"
    raw = path.read_bytes()
    (size,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + size])
    edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size :])


TENSOR = "model.layers.1.self_attn.q_proj.weight"


def cut(model: Path, keep_bytes: int) -> None:
    os.truncate(model / "model.safetensors", keep_bytes)


def wrong_shape(header: dict[str, Any]) -> None:
    rows, columns = header[TENSOR]["shape"]
    header[TENSOR]["shape"] = [2 * rows, columns // 2]


def beyond_the_file(header: dict[str, Any]) -> None:
    begin, end = header[TENSOR]["data_offsets"]
    header[TENSOR]["data_offsets"] = [begin + (1 << 40), end + (1 << 40)]


def another_type(header: dict[str, Any]) -> None:
    header[TENSOR]["dtype"] = "F8_E4M3"


def renamed(header: dict[str, Any]) -> None:
    header["another.weight"] = header.pop(TENSOR)


def write(name: str, content: bytes) -> Callable[[Path], None]:
    def apply(model: Path) -> None:
        (model / name).write_bytes(content)

    return apply


def remove(name: str) -> Callable[[Path], None]:
    return lambda model: (model / name).unlink()


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda model: edit_config(model, **changes)


def weights(edit: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    return lambda model: edit_weights(model, edit)


BROKEN_MODELS: dict[str, tuple[Callable[[Path], None], Sequence[str]]] = {
    "no config": (remove("config.json"), ["config.json"]),
    "empty config": (write("config.json", b""), ["config.json"]),
    "broken config": (write("config.json", b'{"hidden_size": '), ["config.json"]),
    "config that is a list": (write("config.json", b"[]"), ["config.json"]),
    "config that is not UTF-8": (write("config.json", b'{"model_type": "\xff"}'), ["config.json"]),
    "another architecture": (
        config(architectures=["GPT2LMHeadModel"], model_type="gpt2"),
        ["GPT2LMHeadModel", "LlamaForCausalLM"],
    ),
    "a number of the wrong type": (config(num_hidden_layers="two"), ["num_hidden_layers"]),
    "no layers": (config(num_hidden_layers=0), ["num_hidden_layers"]),
    "negative heads": (config(num_attention_heads=-4), ["num_attention_heads"]),
    "heads that do not divide": (config(num_key_value_heads=3), ["num_key_value_heads"]),
    "more layers than there are": (config(num_hidden_layers=3), ["model.layers.2"]),
    "absurd layers": (config(num_hidden_layers=10**12), ["num_hidden_layers"]),
    "another width": (config(intermediate_size=100), ["mlp", "shape"]),
    "no weights": (remove("model.safetensors"), ["model.safetensors"]),
    "empty weights": (write("model.safetensors", b""), ["model.safetensors"]),
    "weights cut in the header": (lambda model: cut(model, 100), ["model.safetensors"]),
    "weights cut in a tensor": (lambda model: cut(model, 200_000), ["model.safetensors"]),
    "a header of 2^63 bytes": (
        write("model.safetensors", b"\0" * 7 + b"\x80" + b"{}"),
        ["model.safetensors"],
    ),
    "a wrong shape": (weights(wrong_shape), [TENSOR, "shape"]),
    "a tensor beyond the file": (weights(beyond_the_file), ["model.safetensors", "promises"]),
    "a missing tensor": (weights(renamed), [TENSOR]),
    "another type": (weights(another_type), [TENSOR]),
}


@pytest.mark.parametrize("name", BROKEN_MODELS)
def test_a_broken_model_is_named(name: str, broken: Path) -> None:
    damage, words = BROKEN_MODELS[name]
    damage(broken)
    failed = fail("decode", "--model", str(broken), "--kv-memory", KV_MEMORY)
    expect(failed, 1, "crossdock decode: ", *words)


BROKEN_TOKENIZERS = {
    "no tokenizer": (remove("tokenizer.json"), "tokenizer.json"),
    "broken tokenizer": (write("tokenizer.json", b"{"), "tokenizer.json"),
    "broken chat template": (
        write("tokenizer_config.json", b'{"chat_template": "{% for"}'),
        "chat template",
    ),
}


@pytest.mark.parametrize("name", BROKEN_TOKENIZERS)
def test_a_broken_tokenizer_is_named(name: str, broken: Path) -> None:
    damage, word = BROKEN_TOKENIZERS[name]
    damage(broken)
    failed = fail("router", "--model", str(broken), "--decode", DECODE)
    expect(failed, 1, "crossdock router: ", word)


@pytest.mark.parametrize("role", ["prefill", "router"])
def test_a_missing_model_is_named(role: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing")
    more = ["--decode", DECODE] if role == "router" else []
    expect(fail(role, "--model", missing, *more), 1, f"crossdock {role}: ", missing, "model fetch")


@pytest.mark.parametrize(
    ("role", "flag"),
    [
        ("prefill", "--port"),
        ("decode", "--port"),
        ("kvstore", "--port"),
        ("router", "--port"),
        ("router", "--http-port"),
        ("prefill", "--metrics-port"),
        ("decode", "--metrics-port"),
        ("kvstore", "--metrics-port"),
        ("router", "--metrics-port"),
    ],
)
def test_a_port_in_use_is_named(role: str, flag: str, tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = {
            "prefill": ["--model", str(tiny_model), "--kv-memory", KV_MEMORY],
            "decode": ["--model", str(tiny_model), "--kv-memory", KV_MEMORY],
            "kvstore": ["--memory", "1MiB"],
            "router": ["--model", str(tiny_model), "--decode", DECODE],
        }
        failed = fail(role, *arguments[role], flag, port)
    expect(failed, 1, f"crossdock {role}: cannot listen on 127.0.0.1:{port}", flag)


def test_too_little_memory_is_named(tiny_model: Path) -> None:
    beyond = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + (1 << 30)
    model = ["--model", str(tiny_model)]
    failed = fail("decode", *model, "--kv-memory", str(beyond))
    expect(failed, 1, "crossdock decode: ", str(beyond), "bytes left")
    failed = fail("kvstore", "--memory", str(beyond))
    expect(failed, 1, "crossdock kvstore: ", str(beyond), "bytes left")
    # Blocks of the tiny model have 16 KiB.
    failed = fail("prefill", *model, "--kv-memory", "17KiB")
    expect(failed, 1, "crossdock prefill: ", "kv_memory", "17408", "at least 2")


BAD_ARGUMENTS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "a transport": (["--transport", "pigeon"], ["--transport", "'tcp'"]),
    "weights": (["--weight-dtype", "int5"], ["--weight-dtype", "'auto'", "'int8'", "'int4'"]),
    "a type": (["--kv-dtype", "f8"], ["--kv-dtype", "'bf16'"]),
    "a size": (["--kv-memory", "much"], ["--kv-memory"]),
    "a negative size": (["--kv-memory=-1"], ["--kv-memory"]),
    "a port": (["--port", "99999"], ["--port", "65535"]),
    "a number": (["--threads", "some"], ["--threads", "integer"]),
    "a budget": (["--token-budget", "1"], ["--token-budget", "32"]),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_a_bad_argument_is_named(name: str, tiny_model: Path) -> None:
    arguments, words = BAD_ARGUMENTS[name]
    failed = fail("decode", "--model", str(tiny_model), *arguments)
    expect(failed, 2, "crossdock-decode: ", *words)


def test_an_unknown_flag_is_named(tiny_model: Path) -> None:
    failed = fail("decode", "--model", str(tiny_model), "--nonsense", "1")
    assert failed.code == 2
    assert "--nonsense" in failed.error.splitlines()[-1]  # After the usage.


@pytest.mark.parametrize("role", ["prefill", "decode", "kvstore"])
def test_a_machine_without_ucx_is_told_so(role: str, tiny_model: Path, tmp_path: Path) -> None:
    # The loader takes the first file of that name, and can make nothing of it.
    (tmp_path / "libucp.so.0").write_bytes(b"")
    model = [] if role == "kvstore" else ["--model", str(tiny_model)]
    failed = fail(role, *model, environ={"LD_LIBRARY_PATH": str(tmp_path)})
    expect(failed, 1, f"crossdock {role}: ", "libucp.so.0", "crossdock doctor")


def test_an_engine_that_does_not_load_is_told(tiny_model: Path, tmp_path: Path) -> None:
    said = "crossdock-engine: error while loading shared libraries: libucp.so.0: no such file"
    program = tmp_path / "engine"
    program.write_text(f'#!/bin/sh\necho "{said}" >&2\nexit 127\n')
    program.chmod(0o755)
    failed = fail("decode", "--model", str(tiny_model), environ={"CROSSDOCK_ENGINE": str(program)})
    expect(failed, 1, "crossdock decode: ", "exit code 127", said, "crossdock doctor")


def test_a_missing_engine_is_told(tiny_model: Path, tmp_path: Path) -> None:
    missing = str(tmp_path / "no-engine")
    model = ["--model", str(tiny_model)]
    failed = fail("decode", *model, environ={"CROSSDOCK_ENGINE": missing})
    expect(failed, 1, "crossdock decode: ", missing, "CROSSDOCK_ENGINE")
