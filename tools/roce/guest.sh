# The guest's one session: two Soft-RoCE devices on a veth pair, the suite on them, power off.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
export PYTHONDONTWRITEBYTECODE=1 LC_ALL=C.UTF-8 CROSSDOCK_TEST_LINK=/mnt/roce/link.sh
hostname roce
ulimit -l unlimited
ulimit -n 4096

# rxe0 on veth0 (10.9.0.1), rxe1 on veth1 (10.9.0.2), in one network namespace: rules of routing put
# the packets on the wire, which between addresses of one machine would stay inside it.
make_devices() {
  ip link set lo up
  ip link add veth0 address 02:00:00:00:00:01 mtu 4200 type veth \
    peer name veth1 address 02:00:00:00:00:02 mtu 4200 || return
  local i
  for i in 0 1; do
    echo 1 >/proc/sys/net/ipv4/conf/veth$i/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/veth$i/rp_filter
    ip address add 10.9.0.$((i + 1))/24 dev veth$i
    ip link set veth$i up
    # The local table, which comes after the rules below, still takes in what arrives on a veth.
    ip rule add pref 1$i iif veth$i lookup local
  done
  echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
  ip rule add pref 20 from 10.9.0.1 to 10.9.0.2 lookup 100
  ip rule add pref 21 from 10.9.0.2 to 10.9.0.1 lookup 101
  ip rule add pref 22 to 10.9.0.2 oif veth0 lookup 100
  ip rule add pref 23 to 10.9.0.1 oif veth1 lookup 101
  ip rule add pref 30 lookup local
  ip rule del pref 0
  sh "$CROSSDOCK_TEST_LINK" up
  rdma link add rxe0 type rxe netdev veth0 && rdma link add rxe1 type rxe netdev veth1
}

echo "roce: guest up after $(cut -d' ' -f1 /proc/uptime) s"
if make_devices; then
  bash /mnt/roce/command.sh </dev/null
  echo $? >/mnt/roce/status
else
  echo "roce: cannot make the Soft-RoCE devices"
fi
sync
echo o >/proc/sysrq-trigger
sleep 60
