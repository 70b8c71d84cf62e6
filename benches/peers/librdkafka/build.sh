#!/usr/bin/env bash
# build.sh FOLDER: builds librdkafka's C performance tool into FOLDER, with zstd. The sources are those that the crates
# rdkafka-sys and zstd-sys carry; cargo fetches and checks them, nothing of them is kept here.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
target=$1
metadata=$(cargo metadata --manifest-path "$here/Cargo.toml" --locked --format-version 1)

# carried CRATE FOLDER: where the crate has that folder of sources.
carried() {
  "${PYTHON:-python3}" -c 'import json, pathlib, sys
name, folder = sys.argv[1:]
packages = json.load(sys.stdin)["packages"]
print(next(pathlib.Path(p["manifest_path"]).parent / folder for p in packages if p["name"] == name))' "$@" <<<"$metadata"
}

rm -rf "$target"
mkdir -p "$target"
cp -r "$(carried rdkafka-sys librdkafka)" "$target/source"
cp -r "$(carried zstd-sys zstd/lib)" "$target/zstd"
cd "$target/source"
chmod -R u+w .
{
  (cd ../zstd && cc -O3 -c common/*.c compress/*.c decompress/*.c decompress/*.S && ar rcs libzstd.a ./*.o)
  CPPFLAGS="-I$target/zstd" LDFLAGS="-L$target/zstd" \
    ./configure --disable-ssl --disable-gssapi --disable-curl --disable-lz4-ext
  make -j"$(nproc)" -C src librdkafka.a
  make -C examples rdkafka_performance
} >"$target/build.log" 2>&1 || { tail -20 "$target/build.log" >&2; exit 1; }
cp examples/rdkafka_performance "$target/"
