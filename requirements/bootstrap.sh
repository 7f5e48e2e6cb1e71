#!/usr/bin/env bash
# Makes .venv from the pinned requirements. Safe to call before every command: a second call returns at once.
#
#   requirements/bootstrap.sh            engine chosen by the machine: gpu where nvidia-smi answers, else cpu
#   ENGINE=cpu requirements/bootstrap.sh
#   PYTHON=/path/to/python3.12 requirements/bootstrap.sh
set -Eeuo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
VENV=.venv
STAMP=$VENV/.setup-stamp

say() { printf 'setup: %s\n' "$*"; }

is_python_3_12() { # A shim may exist and fail, so the interpreter has to run and must be able to make an environment.
    "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info[:2] != (3, 12))' >/dev/null 2>&1
}

python_candidates() { # best first, one a line
    echo "${PYTHON:-}"
    echo python3.12
    echo python3
    if command -v pyenv >/dev/null 2>&1; then
        ls -d "$(pyenv root)"/versions/3.12.*/bin/python 2>/dev/null | sort -rV
    fi
    if command -v uv >/dev/null 2>&1; then uv python find 3.12 2>/dev/null; fi
    ls /usr/local/bin/python3.12 /usr/bin/python3.12 /opt/*/bin/python3.12 2>/dev/null
}

find_python() {
    local candidate
    while read -r candidate; do
        if [ -n "$candidate" ] && is_python_3_12 "$candidate"; then
            command -v "$candidate"
            return 0
        fi
    done < <(python_candidates || true)
    return 1
}

explain_missing_python() {
    cat >&2 <<'TEXT'
setup: no working Python 3.12 with venv was found (megatron-core needs 3.12).
Tried: $PYTHON, python3.12, python3, pyenv's versions, uv, /usr/local/bin, /usr/bin, /opt/*/bin.
Install one, then run this again:
  Ubuntu 24.04 or Debian 13+   sudo apt install python3.12 python3.12-venv
  pyenv                        pyenv install 3.12
  uv                           uv python install 3.12
  elsewhere                    PYTHON=/path/to/python3.12 make setup
TEXT
}

choose_engine() {
    if [ -n "${ENGINE:-}" ]; then
        echo "$ENGINE"
    elif command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1; then
        echo gpu
    else
        echo cpu
    fi
}

fingerprint() { # changes whenever something that decides the environment's content does
    {
        echo "$1"
        pwd
        cat requirements/*.txt requirements/bootstrap.sh setup.py pyproject.toml
    } | cksum
}

pip_install() { "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@"; }

# Runs a long command with a line every 20 seconds, so that nobody takes it for stuck.
with_heartbeat() {
    local status=0 heart
    while sleep 20 >/dev/null 2>&1; do say "    still at it: $SECONDS s, $(du -sh "$VENV" | cut -f1) installed"; done &
    heart=$!
    "$@" || status=$?
    kill "$heart" 2>/dev/null || true
    wait "$heart" 2>/dev/null || true
    return "$status"
}

explain_failed_install() {
    cat >&2 <<TEXT
setup: installing failed; pip's message is above.
  - It needs about 6 GB on $(pwd) ($(df -h --output=avail . | tail -n 1 | tr -d ' ') free) and access to a Python package index.
  - Only Linux on x86-64 or ARM64 is supported: here $(uname -s) on $(uname -m).
  - Start afresh with: rm -rf $VENV && make setup
TEXT
}

engine=$(choose_engine)
case $engine in
    cpu | gpu) ;;
    *)
        echo "setup: ENGINE=$engine is unknown; use cpu or gpu" >&2
        exit 2
        ;;
esac
wanted=$(fingerprint "$engine")
if [ -f "$STAMP" ] && [ "$(cat "$STAMP")" = "$wanted" ] && [ -x "$VENV/bin/python" ]; then
    exit 0
fi

if ! { [ -x "$VENV/bin/python" ] && is_python_3_12 "$VENV/bin/python"; }; then
    python=$(find_python) || { explain_missing_python; exit 1; }
    say "making $VENV with $python ($("$python" --version))"
    rm -rf "$VENV"
    "$python" -m venv "$VENV"
fi
rm -f "$STAMP"
trap 'explain_failed_install' ERR

started=$SECONDS
constraints=(--constraint requirements/constraints.txt)
say "1/4 build tools"
pip_install --requirement requirements/build.txt
say "2/4 torch, Megatron-Core, Hydra, the engine's dependencies, test tools (minutes; about 5 GB the first time)"
with_heartbeat pip_install "${constraints[@]}" --requirement requirements/base.txt --requirement "requirements/$engine.txt" \
    --requirement requirements/wandb.txt --requirement requirements/gguf.txt --requirement requirements/dev.txt
if [ "$engine" = cpu ]; then
    say "3/4 vLLM for CPU"
    pip_install --no-deps --requirement requirements/cpu-engine.txt
else
    say "3/4 vLLM for GPU came with its dependencies"
fi
say "4/4 megatron_rl itself, editable"
PYTHONWARNINGS=ignore pip_install --no-deps --no-build-isolation --editable .
printf '%s\n' "$wanted" >"$STAMP"
say "done in $((SECONDS - started)) s: $VENV ($engine engine). Next: make demo, or $VENV/bin/megatron-rl --help"
