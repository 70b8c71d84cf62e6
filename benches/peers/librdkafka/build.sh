#!/usr/bin/env bash
# build.sh FOLDER: builds librdkafka's C performance tool into FOLDER. The sources are those that the crate rdkafka-sys
# carries; cargo fetches and checks them, nothing of them is kept here.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
target=$1
sources=$(cargo metadata --manifest-path "$here/Cargo.toml" --locked --format-version 1 |
  "${PYTHON:-python3}" -c 'import json, pathlib, sys
packages = json.load(sys.stdin)["packages"]
print(next(pathlib.Path(p["manifest_path"]).parent / "librdkafka" for p in packages if p["name"] == "rdkafka-sys"))')

rm -rf "$target"
mkdir -p "$target"
cp -r "$sources" "$target/source"
cd "$target/source"
chmod -R u+w .
{
  ./configure --disable-ssl --disable-gssapi --disable-curl --disable-lz4-ext --disable-zstd
  make -j"$(nproc)" -C src librdkafka.a
  make -C examples rdkafka_performance
} >"$target/build.log" 2>&1 || { tail -20 "$target/build.log" >&2; exit 1; }
cp examples/rdkafka_performance "$target/"
