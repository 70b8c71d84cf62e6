#!/usr/bin/env bash
# make test: all lints and all tests; what CI runs.
source "$(dirname "$0")/steps.sh"
source scripts/lint.sh

lint
# Without the examples, which clippy has looked at: to link each of them takes as long as a crate's tests.
step "cargo nextest" cargo nextest run --workspace --lib --bins --tests --locked
step "cargo test, examples in the docs" cargo test --workspace --doc --locked --quiet
step "loom" env RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p headrace-pool -p headrace-fabric -p headrace-link --test loom --locked --quiet
# Most tests wait for something, so two at a time take little more than half as long. Three at a time starve some of the
# processor: consumers miss their heartbeats.
step "pytest" "$BIN/pytest" -m "not soak" -n 2 --dist loadfile --no-loadscope-reorder \
  --durations 25 --durations-min 5
verdict
