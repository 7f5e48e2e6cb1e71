#!/usr/bin/env bash
# Stops the sandbox in $1 or $SLURM_SANDBOX: only processes whose pids start.sh wrote to its
# run/ folder, each checked against its command line, and (through --kill-child) what runs in their
# namespaces. The folder is kept, for its logs and so that a later start finds its jobs again,
# unless SLURM_SANDBOX_RM=1.
set -uo pipefail
S=${1:-${SLURM_SANDBOX:?stop.sh: SLURM_SANDBOX is not set}}
S=$(cd "$S" 2>/dev/null && pwd -P) || { echo "stop.sh: no such sandbox" >&2; exit 0; }
[ -f "$S/etc/init.sh" ] || { echo "stop.sh: $S is no sandbox of start.sh" >&2; exit 1; }
export SLURM_CONF=$S/etc/slurm.conf

ours() { tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline" | grep -qF "$S/"; } 2>/dev/null
gone() { for _ in $(seq "$2"); do ours "$1" || return 0; sleep 0.1; done; return 1; }
client() { if [ -s "$S/run/login.pid" ]; then timeout 10 "$S/login" "$@"; else timeout 10 "$@"; fi; }

shopt -s nullglob
# jobs first, so that they end as cancelled jobs do; what then still runs goes with its namespace
if [ -s "$S/run/ctl.pid" ] && ours "$(cat "$S/run/ctl.pid")"; then
  jobs=$(client squeue -h -o %A 2>/dev/null | sort -u)
  if [ -n "$jobs" ]; then
    client scancel --quiet $jobs >/dev/null 2>&1
    for _ in $(seq 25); do [ -z "$(client squeue -h 2>/dev/null)" ] && break; sleep 0.2; done
  fi
fi
order=("$S"/run/node*.pid "$S"/run/ctl.pid "$S"/run/munged.pid "$S"/run/login.pid)
for f in "${order[@]}"; do
  [ -s "$f" ] || continue
  pid=$(cat "$f"); ours "$pid" || continue
  case $f in
    */munged.pid) kill -TERM "$pid" 2>/dev/null ;;
    *) for c in $(cat "/proc/$pid/task/$pid/children" 2>/dev/null); do kill -TERM "$c" 2>/dev/null; done ;; # init.sh hands it on
  esac
done
for f in "${order[@]}"; do
  [ -s "$f" ] || continue
  pid=$(cat "$f")
  gone "$pid" 50 || { kill -KILL "$pid" 2>/dev/null; gone "$pid" 20 || echo "stop.sh: $pid ($(basename "$f" .pid)) does not end" >&2; }
  rm -f "$f"
done
rm -f "$S"/run/*.inner "$S/munge/socket" "$S/munge/socket.lock" "$S/munge/pid"
echo "stop.sh: stopped $S" >&2
[ "${SLURM_SANDBOX_RM:-0}" != 1 ] || rm -rf -- "$S"
