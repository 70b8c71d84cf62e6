#!/usr/bin/env bash
# make wheel: wheels for these targets of Rust, and the source archive, in dist/; what this machine can run is tried.
# Usage: wheel.sh TARGET...   such as x86_64-unknown-linux-gnu. zig (from PyPI) is the C compiler and linker, so that the
# wheels of one machine run on others: glibc 2.28 or musl 1.2 and newer.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$BIN:$PATH"
mkdir -p dist
trap 'rm -f python/headrace/licences-of-crates.txt' EXIT
rm -f dist/headrace-*
for target in "$@"; do
  case $target in
    *-linux-gnu) tag=manylinux_2_28 ;;
    *-linux-musl) tag=musllinux_1_2 ;;
    *-windows-*) echo "headrace does not run on Windows: use it in WSL 2, with the wheel for Linux" >&2; exit 1 ;;
    *) echo "no wheel is made for $target: there are those for Linux, with glibc (-gnu) and musl (-musl)" >&2; exit 1 ;;
  esac
  echo "── wheel for $target"
  rustup --quiet target add "$target"
  python scripts/licences.py "$target" > python/headrace/licences-of-crates.txt
  maturin build --quiet --release --locked --zig --target "$target" --compatibility "$tag" --out dist
done
echo "── source archive"
maturin sdist --out dist >/dev/null
python scripts/wheel_check.py dist
