#!/usr/bin/env bash
# make check: all lints and the quick tests, for the moments between two edits.
source "$(dirname "$0")/steps.sh"
source scripts/lint.sh

lint
# Without wire's tests against Kafka's jars, and those of net and fabric, which open sockets and wait.
step "cargo nextest, the sans-IO crates and a few seeds" env HEADRACE_SIM_SEEDS=200 cargo nextest run --workspace \
  --lib --tests --locked --filterset \
  "not (package(headrace-net) | package(headrace-fabric) | test(/^(against_java|schema_against_jar)::/))"
step "pytest, quick" "$BIN/pytest" -q -n 4 --dist loadfile --no-loadscope-reorder -m "not (kafka or spark or slow or soak)"
verdict
