#!/bin/sh
# Starts a fleet of four services, asks it $2, says where the time went, stops the fleet. $1 is
# the virtual environment's bin folder.
set -eu

crossdock=$1/crossdock
name=demo-$$
"$crossdock" up --detach --name "$name" >/dev/null
end() {
  "$crossdock" down --name "$name" &&
    rm -rf "${XDG_RUNTIME_DIR:-$HOME/.cache}/crossdock/fleets/$name"
}
trap end EXIT
trap 'exit 130' INT TERM
echo
echo "> $2"
"$crossdock" chat "$2" --name "$name" --temperature 0 --timings
