#!/bin/sh
# Counts instructions of deterministic workloads and compares them with instruction-counts.toml; --update rewrites it.
# Needs valgrind.
set -eu
cd "$(dirname "$0")/.."
exec cargo run --release --quiet -p trainyard-benches --bin instruction_counts -- "$@"
