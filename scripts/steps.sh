# Sourced by check.sh and test.sh: `step NAME COMMAND...` runs a command under a heading with the time since the start,
# and stops the script at the first failure, naming the step.
# Set up by the Makefile: BIN (the virtual environment's bin).

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

step() {
  local name=$1 began=$SECONDS
  shift
  printf '\n── %s  (at %d:%02d)\n' "$name" $((SECONDS / 60)) $((SECONDS % 60))
  if ! "$@"; then
    printf '\n── %s FAILED after %d s: %s\n' "$name" $((SECONDS - began)) "$*" >&2
    exit 1
  fi
  printf '── %s: %d s\n' "$name" $((SECONDS - began))
}
