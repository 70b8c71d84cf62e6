#!/usr/bin/env bash
# make test: all lints and all tests; what CI runs.
source "$(dirname "$0")/steps.sh"
source scripts/lint.sh

lint
step "cargo test" cargo test --workspace --locked --quiet
step "loom" env RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p headrace-pool -p headrace-fabric --test loom --locked --quiet
# Most tests wait for something, so two at a time take little more than half as long. Three at a time starve some of the
# processor: consumers miss their heartbeats.
step "pytest" "$BIN/pytest" -m "not soak" -n 2 --dist loadfile --no-loadscope-reorder
verdict
