#!/usr/bin/env bash
# make test: all lints and all tests; what CI runs.
source "$(dirname "$0")/steps.sh"
source scripts/lint.sh

lint
# Without the examples, which clippy has looked at: to link each of them takes as long as a crate's tests.
step "cargo nextest" cargo nextest run --workspace --lib --bins --tests --locked
step "cargo test, examples in the docs" cargo test --workspace --doc --locked --quiet
step "loom" env RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p headrace-pool -p headrace-fabric -p headrace-link --test loom --locked --quiet
# Most tests wait for something, so that four at a time keep two cores busy. Those that do not wait run in two processes of
# lower priority (tests/together.py): consumers of the others would miss their heartbeats.
step "pytest" "$BIN/pytest" -m "not (spark or soak)" -n 4 --dist loadfile --no-loadscope-reorder \
  --durations 25 --durations-min 5
# By themselves: Spark gives a Python worker ten seconds to come up, whatever else the machine has to do.
step "pytest, Spark" "$BIN/pytest" -m "spark and not soak" -n 2 --dist loadfile --no-loadscope-reorder \
  --durations 25 --durations-min 5
verdict
