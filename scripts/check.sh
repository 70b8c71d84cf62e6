#!/usr/bin/env bash
# make check: all lints and the quick tests, for the moments between two edits.
source "$(dirname "$0")/steps.sh"
source scripts/lint.sh

lint
# wire's other tests hold it against Kafka's jars; net's open sockets and wait.
step "cargo test, the sans-IO crates" cargo test --locked --quiet \
  -p headrace-columns -p headrace-log -p headrace-broker -p headrace-client
step "cargo test, wire" cargo test --locked --quiet -p headrace-wire --lib --test bounded_memory --test errors_fresh \
  --test message_files --test round_trip
step "simulation, a few seeds" env HEADRACE_SIM_SEEDS=1000 cargo test --locked --quiet -p headrace-sim
step "pytest, quick" "$BIN/pytest" -q -n 2 --dist loadfile -m "not (kafka or spark or slow or soak)"
verdict
