"""Writes a tiny random Llama model as a Hugging Face directory: see crossdock.models.tiny."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from crossdock.models.catalog import DTYPES
from crossdock.models.tiny import TinyLlama, write_tiny_llama


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="where to write the model; created")
    for field in dataclasses.fields(TinyLlama):
        flag = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(flag, action="store_true", default=field.default, help=" ")
        else:
            choices = DTYPES if field.name == "dtype" else None
            kind = type(field.default)
            parser.add_argument(flag, type=kind, default=field.default, choices=choices, help=" ")
    arguments = vars(parser.parse_args())
    directory = arguments.pop("directory")
    try:
        spec = TinyLlama(**arguments)
    except ValueError as error:
        parser.error(str(error))
    print(write_tiny_llama(directory, spec))


if __name__ == "__main__":
    main()
