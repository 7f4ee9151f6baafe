#!/bin/sh
# Checks the system packages that the native build needs. As root on Debian or Ubuntu it installs
# what is missing; elsewhere it names the exact command, or what to look for.
set -eu

packages="g++ cmake ninja-build ccache pkg-config make git
  libucx-dev libsodium-dev libxxhash-dev nlohmann-json3-dev libgtest-dev
  python3-venv python3-dev ca-certificates"
python=${PYTHON:-python3}

if ! command -v dpkg-query >/dev/null 2>&1; then
  missing=""
  for tool in g++ cmake ninja pkg-config; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
  done
  if command -v pkg-config >/dev/null 2>&1; then
    for library in ucx libsodium libxxhash; do
      pkg-config --exists "$library" || missing="$missing $library(headers)"
    done
  fi
  [ -z "$missing" ] && exit 0
  echo "setup: missing on this system:$missing" >&2
  echo "setup: install them with your package manager (the Debian names:" $packages")" >&2
  exit 1
fi

has_headers='
import pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").is_file())'
missing=""
for package in $packages; do
  # A Python that came another way brings its own ensurepip and headers.
  case "$package" in
    python3-venv) "$python" -c 'import ensurepip' 2>/dev/null && continue ;;
    python3-dev) "$python" -c "$has_headers" 2>/dev/null && continue ;;
  esac
  state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] && continue
  # A tool that came another way is as good.
  case "$package" in
    g++ | cmake | ccache | pkg-config | make | git)
      command -v "$package" >/dev/null 2>&1 && continue ;;
    ninja-build) command -v ninja >/dev/null 2>&1 && continue ;;
  esac
  missing="$missing $package"
done
[ -z "$missing" ] && exit 0

if [ "$(id -u)" = 0 ]; then
  echo "setup: installing$missing"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q
  # shellcheck disable=SC2086
  apt-get install -q -y --no-install-recommends $missing
else
  echo "setup: system packages are missing; run:" >&2
  echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends$missing" >&2
  exit 1
fi
