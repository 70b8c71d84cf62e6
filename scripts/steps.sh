# Sourced by check.sh and test.sh: `step NAME COMMAND...` runs a command under a heading with the time since the start.
# A failure does not stop the script, so that one run shows all that is wrong; `verdict` at the end fails for it.
# Set up by the Makefile: BIN (the virtual environment's bin).

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# cargo finds its subcommands there.
export PATH=$BIN:$PATH
failed=()

step() {
  local name=$1 began=$SECONDS
  shift
  printf '\n── %s  (at %d:%02d)\n' "$name" $((SECONDS / 60)) $((SECONDS % 60))
  if "$@"; then
    printf '── %s: %d s\n' "$name" $((SECONDS - began))
  else
    printf '── %s FAILED after %d s: %s\n' "$name" $((SECONDS - began)) "$*"
    failed+=("$name")
  fi
}

verdict() {
  printf '\n── %d:%02d in all' $((SECONDS / 60)) $((SECONDS % 60))
  if ((${#failed[@]})); then
    printf '; FAILED:'
    printf ' [%s]' "${failed[@]}"
    printf '\n'
    exit 1
  fi
  printf ', everything passed\n'
}
