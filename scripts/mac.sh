#!/usr/bin/env bash
# make mac: the native module compiles for macOS on Apple silicon, where records go over TCP alone. It is checked and not
# linked: that would take Apple's SDK. Some crates have C, which zig (from PyPI) compiles.
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-apple-darwin
tools=$PWD/target/mac
mkdir -p "$tools"
printf '#!/bin/sh\nexec "%s" -m ziglang cc -target aarch64-macos "$@"\n' "$BIN/python" > "$tools/cc"
printf '#!/bin/sh\nexec "%s" -m ziglang ar "$@"\n' "$BIN/python" > "$tools/ar"
chmod +x "$tools/cc" "$tools/ar"
rustup --quiet target add "$target"
# Else the crate cc adds flags of Apple's own compiler, and asks Xcode for some of them.
CC_aarch64_apple_darwin=$tools/cc AR_aarch64_apple_darwin=$tools/ar CRATE_CC_NO_DEFAULTS=1 PYO3_NO_PYTHON=1 \
  cargo check --locked --quiet --package headrace-python --target "$target"
echo "headrace-python compiles for $target"
