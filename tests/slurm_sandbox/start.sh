#!/usr/bin/env bash
# Starts a real Slurm cluster (munged, slurmctld, N slurmds) on this one host.
#   eval "$(bash start.sh)"     # exports SLURM_SANDBOX, SLURM_CONF; messages go to stderr
# Needs root. Idempotent: a sandbox that is up is reused, nodes of it that died are started again.
# Each node is a UTS + PID + mount namespace: `hostname` says nodeN, a node can be crashed
# (kill -9 of the pid in run/nodeN.pid), and nothing that a job leaves behind outlives its node.
# SLURM_SANDBOX_NET=loopback (default): everything listens on 127.0.0.1, all nodes share its ports.
# SLURM_SANDBOX_NET=netns: each node also has its own network namespace and address, on a bridge
#   that exists only inside the sandbox; the clients (sbatch, ...) then enter it by the shims in
#   $SLURM_SANDBOX/bin, which the printed lines put first on PATH.
# All state is in $SLURM_SANDBOX.
set -euo pipefail

: "${SLURM_SANDBOX:=$(mktemp -d "${TMPDIR:-/tmp}/slurm.XXXXXX")}"
N_NODES=${SLURM_SANDBOX_NODES:-4}
CPUS=${SLURM_SANDBOX_CPUS:-8}                  # per node; more than the host has is fine
GPUS=${SLURM_SANDBOX_GPUS:-2}                  # per node; fake (each a second /dev/null)
MEM_MB=${SLURM_SANDBOX_MEM_MB:-65536}          # per node; never enforced, only accepted
CRED_EXPIRE=${SLURM_SANDBOX_CRED_EXPIRE:-10}   # also how long a requeued job waits (+1 s); 5 at least
NODE_TIMEOUT=${SLURM_SANDBOX_NODE_TIMEOUT:-30} # a crashed node is DOWN after 1 to 2 times this
NET=${SLURM_SANDBOX_NET:-loopback}
PREFIX=${SLURM_SANDBOX_PREFIX:-10.77.0}        # netns only: ctl is .1, node1 .11, ..., login .254
WAIT_S=${SLURM_SANDBOX_WAIT_S:-60}
PORT0=${SLURM_SANDBOX_PORT:-}                  # first of N_NODES+1 ports; default: a free block

say() { echo "start.sh: $*" >&2; }
die() { say "$*"; [ -z "${started:-}" ] || bash "$STOP" "$S" 9>&- >&2; exit 1; }
[ "$(id -u)" = 0 ] || die "needs root"
[ "$N_NODES" -ge 1 ] && [ "$N_NODES" -le 200 ] || die "SLURM_SANDBOX_NODES must be 1 to 200"

mkdir -p "$SLURM_SANDBOX"
SLURM_SANDBOX=$(cd "$SLURM_SANDBOX" && pwd -P)
S=$SLURM_SANDBOX
[ ${#S} -le 80 ] || die "SLURM_SANDBOX is too long a path for unix sockets: $S"
export SLURM_CONF=$S/etc/slurm.conf
STOP=$(dirname "$(readlink -f "$0")")/stop.sh
exec 9>"$S/.lock"; flock -w 180 9 || die "another start.sh holds $S/.lock"
t0=$(date +%s.%N)

# ---- packages -------------------------------------------------------------------------------
need=()
for c in munged:munge slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client; do
  command -v "${c%%:*}" >/dev/null || need+=("${c##*:}")
done
[ "$NET" != netns ] || command -v ip >/dev/null || need+=(iproute2)
if [ ${#need[@]} -gt 0 ]; then
  say "installing ${need[*]}"
  policy=/usr/sbin/policy-rc.d made=
  [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy; chmod 755 $policy; made=1; } # no service start
  rc=0
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 \
      install -y -qq --no-install-recommends "${need[@]}"; } >"$S/apt.log" 2>&1 9>&- </dev/null || rc=$?
  [ -z "$made" ] || rm -f $policy
  [ $rc = 0 ] || { tail -5 "$S/apt.log" >&2; die "apt-get failed (see $S/apt.log)"; }
fi

# ---- helpers --------------------------------------------------------------------------------
alive() { # name: does the pid in run/name.pid still belong to this sandbox? (a zombie does not)
  local p; p=$(cat "$S/run/$1.pid" 2>/dev/null) && [ -n "$p" ] &&
    tr '\0' ' ' <"/proc/$p/cmdline" | grep -qF "$S/"
} 2>/dev/null
inner() { # name: pid, seen from here, of the first process of its namespace
  local p=; for _ in $(seq 100); do
    p=$(cat "/proc/$(cat "$S/run/$1.pid")/task/"*/children 2>/dev/null) && p=${p%% *} && [ -n "$p" ] && break; sleep 0.05
  done; [ -n "$p" ] && echo "$p"
}
client() { if [ "$NET" = netns ]; then "$S/login" "$@"; else "$@"; fi; }
nodes_up() { client timeout 10 sinfo -h -N -o '%N %t' 2>/dev/null | awk '$2=="idle"||$2=="mix"||$2=="alloc"||$2=="comp"{n++} END{print n+0}'; }
# $1 name, rest: command. The pid kept is that of unshare, outside: SIGKILL to it kills all inside.
contained() {
  local name=$1; shift
  local ns=(--pid --mount-proc); [ "$name" != login ] || ns=()
  [ "$NET" != netns ] || ns+=(--net)
  env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
      SLURM_SANDBOX="$S" SLURM_CONF="$SLURM_CONF" \
    setsid unshare --uts --mount --propagation slave --fork --kill-child ${ns[@]+"${ns[@]}"} \
      bash "$S/etc/init.sh" "$name" "$@" >>"$S/log/$name.out" 2>&1 </dev/null 9>&- &
  echo $! >"$S/run/$name.pid"
  disown
  if [ "$NET" = netns ] && [ "$name" != login ]; then # a cable from the node to the bridge in login
    nsenter -t "$(inner login)" -n bash -c 'ip link del "v$0" 2>/dev/null
      ip link add "v$0" type veth peer name eth0 netns "$1" && ip link set "v$0" master br0 up' "$name" "$(inner "$name")" 9>&-
  fi
}
start_node() { mkdir -p "$S/spool/$1"; contained "$1" slurmd -D -N "$1"; }

# ---- already there? -------------------------------------------------------------------------
fresh=1
if [ -s "$S/etc/params" ] && alive munged && alive ctl; then
  . "$S/etc/params" # N_NODES, NET, PORT0 ... as it was started
  if [ "$NET" != netns ] || alive login; then fresh=; fi
fi
if [ -n "$fresh" ]; then
  if compgen -G "$S/run/*.pid" >/dev/null; then
    say "clearing what is left of an earlier start"; bash "$STOP" "$S" 9>&- >&2
  fi

  # ---- files --------------------------------------------------------------------------------
  mkdir -p "$S"/{etc,run,log,state,munge,dev,spool}
  chmod 755 "$S" "$S"/{etc,run,log,munge,dev,spool}; chmod 700 "$S/state"
  [ -s "$S/munge/munge.key" ] || ( umask 077; head -c 128 /dev/urandom >"$S/munge/munge.key" )

  if [ -z "$PORT0" ]; then
    for PORT0 in $(seq 26817 20 28817); do
      free=1
      for p in $(seq "$PORT0" $((PORT0 + N_NODES))); do
        if [ "$NET" = loopback ] && (exec 3<>/dev/tcp/127.0.0.1/"$p") 2>/dev/null; then free=; break; fi
      done
      [ -z "$free" ] || break
    done
  fi
  printf '%s=%q\n' N_NODES "$N_NODES" CPUS "$CPUS" GPUS "$GPUS" NET "$NET" PREFIX "$PREFIX" PORT0 "$PORT0" >"$S/etc/params"

  range() { [ "$1" = "$2" ] && echo "${3:-}$1" || echo "${3:-}[$1-$2]"; }
  nodes=$(range 1 "$N_NODES" node)
  case $NET in
    loopback) ctl=127.0.0.1 addrs=127.0.0.1 ports=$(range $((PORT0 + 1)) $((PORT0 + N_NODES))) ;;
    netns) ctl=$PREFIX.1 addrs=$(range 11 $((10 + N_NODES)) "$PREFIX.") ports=$((PORT0 + 1)) ;;
    *) die "SLURM_SANDBOX_NET must be loopback or netns" ;;
  esac
  at() { if [ "$NET" = netns ]; then echo "$PREFIX.$1 $2"; else echo "127.0.0.1 $2"; fi; }
  { at 1 ctl; at 254 login; for i in $(seq "$N_NODES"); do at $((10 + i)) "node$i"; done; } >"$S/etc/hosts"
  for g in $(seq 0 $((GPUS - 1))); do
    [ -e "$S/dev/fakegpu$g" ] || mknod "$S/dev/fakegpu$g" c 1 3 2>/dev/null || : >"$S/dev/fakegpu$g"
  done

  cat >"$S/etc/slurm.conf" <<CONF
ClusterName=sandbox
SlurmctldHost=ctl($ctl)
SlurmctldPort=$PORT0
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$S/munge/socket,cred_expire=$CRED_EXPIRE
StateSaveLocation=$S/state
SlurmdSpoolDir=$S/spool/%n
SlurmctldPidFile=$S/run/slurmctld.inner
SlurmdPidFile=$S/run/%n.inner
SlurmctldLogFile=$S/log/slurmctld.log
SlurmdLogFile=$S/log/%n.log
SlurmctldDebug=info
SlurmdDebug=info
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$S/log/jobcomp.txt
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
PriorityType=priority/basic
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
MinJobAge=3600
KillWait=3
CompleteWait=0
InactiveLimit=0
SlurmctldTimeout=30
SlurmdTimeout=$NODE_TIMEOUT
$([ "$GPUS" = 0 ] || echo GresTypes=gpu)
NodeName=$nodes NodeAddr=$addrs Port=$ports CPUs=$CPUS Boards=1 SocketsPerBoard=1 CoresPerSocket=$CPUS ThreadsPerCore=1 RealMemory=$MEM_MB $([ "$GPUS" = 0 ] || echo "Gres=gpu:$GPUS") State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=gpu Nodes=$nodes Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO PriorityTier=2 PreemptMode=OFF
PartitionName=spare Nodes=$nodes MaxTime=INFINITE State=UP OverSubscribe=NO PriorityTier=1 GraceTime=60
CONF
  { echo "AutoDetect=off"; [ "$GPUS" = 0 ] || echo "NodeName=$nodes Name=gpu File=$S/dev/$(range 0 $((GPUS - 1)) fakegpu)"; } >"$S/etc/gres.conf"
  printf 'CgroupPlugin=cgroup/v1\nConstrainDevices=no\n' >"$S/etc/cgroup.conf"

  # First process of each namespace: sets name and address, starts the daemon, reaps what jobs leave.
  cat >"$S/etc/init.sh" <<'INIT'
#!/bin/bash
. "$SLURM_SANDBOX/etc/params"
name=$1; shift
hostname "$name" || exit 1
mine=$SLURM_SANDBOX/spool/$name.hosts
if [ "$NET" = netns ]; then
  { echo "127.0.0.1 localhost"; cat "$SLURM_SANDBOX/etc/hosts"; } >"$mine"
  addr=$(awk -v n="$name" '$2==n{print $1}' "$SLURM_SANDBOX/etc/hosts")
  ip link set lo up
  if [ "$name" = login ]; then dev=br0; ip link add br0 type bridge || exit 1; else dev=eth0; fi
  for _ in $(seq 200); do ip link show dev $dev >/dev/null 2>&1 && break; sleep 0.05; done
  ip addr add "$addr/24" dev $dev && ip link set $dev up || exit 1
else
  { echo "127.0.0.1 $name localhost"; cat "$SLURM_SANDBOX/etc/hosts"; } >"$mine"
fi
mount --bind "$mine" /etc/hosts || exit 1
"$@" & pid=$!
trap 'kill -TERM $pid 2>/dev/null' TERM
while kill -0 $pid 2>/dev/null; do wait $pid; done
INIT

  # login CMD...: runs CMD on the "login host", where node1.. resolve (and, with netns, answer).
  cat >"$S/login" <<'LOGIN'
#!/bin/bash
S=$(cd "$(dirname "$(readlink -f "$0")")" && pwd -P)
. "$S/etc/params"
export SLURM_SANDBOX=$S SLURM_CONF=$S/etc/slurm.conf PWD0=$PWD
if [ "$NET" = netns ]; then
  p=$(cat "/proc/$(cat "$S/run/login.pid")/task/"*/children) || exit 1
  exec nsenter -t "${p%% *}" --net --uts --mount bash -c 'cd "$PWD0" || exit 1; unset PWD0; exec "$@"' login "$@"
fi
exec unshare --uts --mount --propagation slave bash -c 'hostname login && mount --bind "$SLURM_SANDBOX/etc/hosts" /etc/hosts && unset PWD0 && exec "$@"' login "$@"
LOGIN
  # in netns mode only the shims can reach the daemons
  mkdir -p "$S/bin"
  cat >"$S/bin/sbatch" <<SHIM
#!/bin/bash
# not for a job (whose PATH came along), another cluster, or a sandbox that is down
read -r h </proc/sys/kernel/hostname
if grep -q " \$h\$" "$S/etc/hosts" || [ ! -s "$S/run/login.pid" ] || [ "\${SLURM_CONF:-$SLURM_CONF}" != "$SLURM_CONF" ]; then
  exec "/usr/bin/\${0##*/}" "\$@"
fi
exec "$S/login" "/usr/bin/\${0##*/}" "\$@"
SHIM
  chmod 755 "$S/login" "$S/bin/sbatch"
  for c in srun salloc scancel scontrol squeue sinfo sattach sbcast sprio sstat sacct strigger; do ln -sf sbatch "$S/bin/$c"; done

  started=1 # from here on a failure stops what was started
  # ---- daemons ------------------------------------------------------------------------------
  setsid munged --foreground --force --socket="$S/munge/socket" --key-file="$S/munge/munge.key" \
    --pid-file="$S/munge/pid" --log-file="$S/log/munged.log" --seed-file="$S/munge/seed" --num-threads=2 \
    >>"$S/log/munged.out" 2>&1 </dev/null 9>&- &
  echo $! >"$S/run/munged.pid"; disown
  for _ in $(seq 200); do [ -S "$S/munge/socket" ] && break; sleep 0.05; done
  [ -S "$S/munge/socket" ] || { tail -5 "$S/log/munged.out" >&2; die "munged did not start"; }
  if [ "$NET" = netns ]; then
    contained login sleep infinity
    for _ in $(seq 200); do nsenter -t "$(inner login)" -n ip link show up dev br0 2>/dev/null | grep -q br0 && break; sleep 0.05; done
  fi
  contained ctl slurmctld -D -i
fi
for i in $(seq "$N_NODES"); do
  alive "node$i" && continue
  if [ "$fresh" != 1 ]; then # slurmctld would otherwise not notice that the node lost its jobs
    say "starting node$i again"; fresh=2
    client timeout 10 scontrol update NodeName="node$i" State=DOWN Reason="node died" 2>/dev/null || :
  fi
  start_node "node$i"
done

# ---- wait -----------------------------------------------------------------------------------
deadline=$(($(date +%s) + WAIT_S))
until up=$(nodes_up) && [ "$up" -ge "$N_NODES" ]; do
  for p in munged ctl $(seq -f 'node%g' "$N_NODES"); do
    alive "$p" || { tail -5 "$S/log/$p.out" >&2; die "$p died (see $S/log)"; }
  done
  [ "$(date +%s)" -lt "$deadline" ] || { client timeout 10 sinfo -N -l >&2 || :; die "only $up of $N_NODES nodes up after ${WAIT_S}s (see $S/log)"; }
  sleep 0.2
done
say "$([ -n "$fresh" ] && echo "up after $(date +%s.%N | awk -v t="$t0" '{printf "%.1f", $1-t}') s" || echo "already up") in $S: $N_NODES nodes, $CPUS CPUs and $GPUS fake GPUs each, $NET, ports from $PORT0"
{
  printf 'export SLURM_SANDBOX=%q SLURM_CONF=%q\n' "$S" "$SLURM_CONF"
  [ "$NET" != netns ] || printf 'case ":$PATH:" in *:%q:*) ;; *) export PATH=%q:"$PATH" ;; esac\n' "$S/bin" "$S/bin"
} | tee "$S/env.sh"
