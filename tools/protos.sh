#!/bin/sh
# Generates crossdock/api from protos/, with the generators in the virtual environment's folder
# $1. With --check it changes nothing, and fails when what is committed differs.
set -eu

bin=$1
generate() {
  PATH="$bin:$PATH" "$bin/python" -m grpc_tools.protoc -Iprotos \
    --python_out="$1" --grpc_python_out="$1" --mypy_out="quiet:$1" --mypy_grpc_out="quiet:$1" \
    protos/crossdock/api/v1/*.proto
}

if [ "${2:-}" != --check ]; then
  generate .
  exit 0
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
generate "$out"
for file in "$out"/crossdock/api/v1/* crossdock/api/v1/*_pb2*.py*; do
  name=crossdock/api/v1/${file##*/}
  git diff --no-index --stat --exit-code "$out/$name" "$name" || {
    echo "protos: crossdock/api differs from protos/; run: make protos" >&2
    exit 1
  }
done
