# Takes the wire between the two devices down, or up again, with what the kernel forgets meanwhile:
# `sh link.sh down|up`.
set -e
if [ "$1" = down ]; then
  exec ip link set veth0 down
fi
ip link set veth0 up
ip route replace 10.9.0.2 dev veth0 src 10.9.0.1 table 100
ip route replace 10.9.0.1 dev veth1 src 10.9.0.2 table 101
# Addresses of one's own are not answered for on the wire.
ip neighbour replace 10.9.0.2 lladdr 02:00:00:00:00:02 dev veth0 nud permanent
ip neighbour replace 10.9.0.1 lladdr 02:00:00:00:00:01 dev veth1 nud permanent
