"""Writes a tiny random model as a Hugging Face directory: see tests.tiny_models.directory."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from crossdock.models.catalog import DTYPES
from tests.tiny_models.directory import PRESETS, TinyModel, write_tiny_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="where to write the model; created")
    parser.add_argument(
        "--architecture", choices=PRESETS, default="llama", help="whose preset the flags change"
    )
    for field in dataclasses.fields(TinyModel):
        flag = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction)
        elif isinstance(field.default, int | float) or field.name == "dtype":
            choices = DTYPES if field.name == "dtype" else None
            parser.add_argument(flag, type=type(field.default), choices=choices)
    arguments = {
        key: value for key, value in vars(parser.parse_args()).items() if value is not None
    }
    directory, preset = arguments.pop("directory"), PRESETS[arguments.pop("architecture")]
    try:
        spec = dataclasses.replace(preset, **arguments)
    except ValueError as error:
        parser.error(str(error))
    print(write_tiny_model(directory, spec))


if __name__ == "__main__":
    main()
