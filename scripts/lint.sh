# Sourced: every check that runs no test.

lint() {
  step "rustfmt" cargo fmt --all -- --check
  step "clippy" cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
  step "unused dependencies" cargo shear
  step "licences and sources of dependencies" cargo deny --offline --log-level error check bans licenses sources
  step "sizes, private names, names of files, minimal Rust" "$BIN/python" scripts/check_tree.py
  step "ruff" "$BIN/ruff" check --quiet
  step "ruff format" "$BIN/ruff" format --check --quiet
  step "mypy" "$BIN/mypy"
  step "stubtest" env MYPYPATH=python "$BIN/python" -m mypy.stubtest headrace._native --mypy-config-file pyproject.toml
}
