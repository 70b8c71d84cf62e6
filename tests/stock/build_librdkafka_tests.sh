#!/usr/bin/env bash
# build_librdkafka_tests.sh FOLDER: builds librdkafka's own tests in FOLDER, where benches/peers/librdkafka/build.sh has
# left its sources. Some of them read JSON with RapidJSON, whose headers come out of the source of python-rapidjson,
# which pip fetches; nothing of it is kept here.
set -euo pipefail

target=$1
rapidjson=python-rapidjson==1.25
cd "$target"
{
  rm -rf rapidjson && mkdir rapidjson
  "${BIN:+$BIN/}python" -m pip download --disable-pip-version-check --no-deps --no-binary :all: --dest rapidjson "$rapidjson"
  tar -xzf rapidjson/*.tar.gz -C rapidjson --strip-components 2 --wildcards '*/rapidjson/include'
  export CPPFLAGS="-I$target/zstd -I$target/rapidjson/include -DWITH_RAPIDJSON=1"
  make -j"$(nproc)" -C source/src-cpp librdkafka++.a
  make -j"$(nproc)" -C source/tests test-runner
} >tests.log 2>&1 || { tail -20 tests.log >&2; exit 1; }
cp source/tests/test-runner .
