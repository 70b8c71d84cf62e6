#!/usr/bin/env bash
# make check: all lints and the quick tests, for the moments between two edits.
source "$(dirname "$0")/steps.sh"
source scripts/lint.sh

lint
step "cargo test (the sans-IO crates)" cargo test --workspace --exclude headrace-net --exclude headrace-python --locked --quiet
step "pytest, quick" "$BIN/pytest" -q -m "not (kafka or spark or slow or soak)"
verdict
