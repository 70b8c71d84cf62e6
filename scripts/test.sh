#!/usr/bin/env bash
# make test: all lints and all tests; what CI runs.
source "$(dirname "$0")/steps.sh"
source scripts/lint.sh

lint
step "cargo test" cargo test --workspace --locked --quiet
step "loom" env RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p headrace-pool -p headrace-fabric --test loom --locked --quiet
# Most tests wait for something: three at a time keep two cores busy.
step "pytest" "$BIN/pytest" -m "not soak" -n 3 --dist loadfile
verdict
