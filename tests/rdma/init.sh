#!/bin/busybox sh
# The first process of the guest: the machine's files read-only below ours, a Soft-RoCE device, then one job after another.
# A job is a script in the shared folder; its name comes over the second serial line and its exit status goes back there.
B=/bin/busybox
$B mount -t devtmpfs dev /dev
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
echo 3 > /proc/sys/kernel/printk
for word in $($B cat /proc/cmdline); do
  case $word in headrace.seconds=*) seconds=${word#*=} ;; esac
done
# Nobody may be left who would stop it.
($B sleep "${seconds:-600}"; $B poweroff -f) &

load() {
  while read -r module; do
    [ -d "/sys/module/$module" ] || $B insmod "/modules/$module.ko" || echo "cannot load $module"
  done < "/modules/$1"
}
share() { $B mount -t 9p -o "$3,trans=virtio,version=9p2000.L,msize=262144" "$1" "$2"; }

load root
share host /host ro,cache=loose
share packages /packages ro,cache=loose
$B mount -t tmpfs -o mode=755 tmpfs /top
$B mkdir /top/upper /top/work
$B mount -t overlay -o lowerdir=/packages:/host,upperdir=/top/upper,workdir=/top/work overlay /whole
for kind in devtmpfs:dev proc:proc sysfs:sys tmpfs:run; do
  $B mkdir -p "/whole/${kind#*:}"
  $B mount -t "${kind%:*}" "${kind%:*}" "/whole/${kind#*:}"
done
$B mkdir -p /whole/dev/pts /whole/dev/shm /whole/guest /whole/jobs
$B mount -t devpts devpts /whole/dev/pts
$B mount -t tmpfs -o mode=1777 tmpfs /whole/dev/shm
$B mount -o bind / /whole/guest
share jobs /whole/jobs rw,cache=none

load rxe
$B ip link set lo up
$B ip link add dummy0 type dummy 2> /dev/null  # some kernels make it with the module
$B ip link set dummy0 arp on up  # so that a neighbour who is not there is looked for, as on a real network
$B ip addr add 10.99.0.1/24 dev dummy0
$B chroot /whole /usr/bin/rdma link add rxe0 type rxe netdev dummy0 || echo "no rxe0"

# What a job may ask of us, since the modules are here.
cat > /whole/run/load <<'LOAD'
#!/guest/bin/busybox sh
while read -r module; do
  [ -d "/sys/module/$module" ] || /guest/bin/busybox insmod "/guest/modules/$module.ko" || exit 1
done < "/guest/modules/$1"
LOAD
$B chmod +x /whole/run/load

line=/dev/ttyS1
$B stty -F $line raw -echo
exec 4<> $line
echo ready >&4
while read -r job <&4; do
  [ "$job" = off ] && break
  $B chroot /whole /usr/bin/env -i HOME=/tmp PATH=/usr/sbin:/usr/bin:/sbin:/bin:/guest/bin \
    /guest/bin/busybox sh "/jobs/$job" > "/whole/jobs/$job.out" 2>&1 < /dev/null
  echo "$job $?" >&4
done
$B poweroff -f
