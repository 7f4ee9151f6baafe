#!/bin/sh
# Makes the virtual environment $1 with the dependencies of pyproject.toml and of its extras
# named after it. Only what is missing is fetched.
set -eu

venv=$1
shift
python=${PYTHON:-python3}
if ! command -v "$python" >/dev/null 2>&1; then
  echo "setup: no $python; install Python 3.11 or newer, or name one: make setup PYTHON=..." >&2
  exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "setup: $("$python" -V) is too old; crossdock needs 3.11 or newer:" >&2
  echo "  make setup PYTHON=python3.11" >&2
  exit 1
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"

list=$(mktemp)
trap 'rm -f "$list"' EXIT
"$venv/bin/python" - "$@" >"$list" <<'EOF'
import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    config = tomllib.load(file)
wanted = config["build-system"]["requires"] + config["project"]["dependencies"]
for extra in sys.argv[1:]:
    wanted += config["project"]["optional-dependencies"][extra]
print("\n".join(wanted))
EOF
"$venv/bin/python" -m pip install -qq --disable-pip-version-check -r "$list"
