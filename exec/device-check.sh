#!/usr/bin/env bash
# Checks and measures one NVIDIA GPU, and trains on it, on a machine without network, in under eight minutes.
#
#   exec/device-check.sh prepare           here: builds what is carried, into target/device-check (at most 64 MiB)
#   target/device-check/device-check.sh    there: runs it; results as files in $OUT (default: device-check-results)
#   exec/device-check.sh emulated          here: the same on the emulated machine, at tiny sizes, to see that it works
#
# There it needs: NVIDIA's driver, NVRTC and cuBLAS (a CUDA toolkit, or the Python packages that PyTorch brings).
# With PyTorch, the same layers are timed there too. It has not run on a GPU yet: no number of the project comes from it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

suite_of() { # path of the unit tests of exec
    cargo test --release -p trainyard-exec --lib --no-run --message-format=json 2>/dev/null |
        sed -n 's/.*"executable":"\([^"]*trainyard_exec[^"]*\)".*/\1/p' | tail -n 1
}

prepare() {
    cd "$here/.."
    local out=target/device-check
    rm -rf "$out"
    mkdir -p "$out"
    cargo build --release -p trainyard-exec --example device_check
    cargo build --release -p trainyard-cli
    local built
    built=$(suite_of)
    [ -x "$built" ] || { echo "the unit tests of exec are not there"; exit 1; }
    cp "$built" "$out/suite"
    cp "$(dirname "$built")/../examples/device_check" "$out/device_check"
    cp "$(dirname "$built")/../trainyard" "$out/trainyard"
    strip "$out/suite" "$out/device_check" "$out/trainyard"
    cp "$here/device-check.sh" "$here/device-check.py" "$out/"
    local bytes
    bytes=$(du -sb "$out" | cut -f 1)
    echo "$out: $bytes bytes"
    [ "$bytes" -le $((64 << 20)) ] || { echo "more than 64 MiB"; exit 1; }
}

# The folders in which Python packages hold CUDA's libraries, and those of a toolkit.
library_path() {
    local packages
    packages=$(python3 -c 'import nvidia
for path in nvidia.__path__: print(path)' 2>/dev/null || true)
    for folder in $packages; do
        printf '%s:' "$folder"/*/lib
    done
    printf '/usr/local/cuda/lib64:%s' "${LD_LIBRARY_PATH:-}"
}

# Two ranks on one GPU train what they train on the CPU, in FP32 and BF16: losses of 20 iterations.
train() {
    local out=$1 model='name = "llama-6m"' sequence=256 precision
    if [ -n "${2:-}" ]; then
        model='name = "tiny", hidden = 16, layers = 2, heads = 2, ffn = 32, vocabulary = 256, norm = "rms-norm"'
        model="$model, norm_epsilon = 1e-5, positions = { rope = { theta = 1e4 } }, mlp = \"swi-glu\", tied_head = true"
        sequence=16
    fi
    for precision in fp32 bf16; do
        local scenario=$out/training-$precision.toml
        cat >"$scenario" <<TOML
name = "device-check-$precision"
seed = 1
model = { $model }

[cluster]
nodes = "1 x cpu-2"

[training]
sequence_length = $sequence
global_batch = 4
iterations = 20
precision = "$precision"
optimizer = { learning_rate = 3e-3, warmup_iterations = 5 }

[plan]
data = 2
zero = 1
microbatch_size = 1
TOML
        timeout 100 "$here/trainyard" run "$scenario" --device cuda --ranks-per-gpu 2 --json "$out/cuda-$precision.json" -q
        timeout 100 "$here/trainyard" run "$scenario" --device cpu --json "$out/cpu-$precision.json" -q
    done
    python3 - "$out" <<'PYTHON'
import json, sys

for precision, most in ("fp32", 1e-4), ("bf16", 1e-2):
    cuda, cpu = (json.load(open(f"{sys.argv[1]}/{device}-{precision}.json")) for device in ("cuda", "cpu"))
    apart = max(abs(a - b) / b for a, b in zip(cuda["loss"], cpu["loss"], strict=True))
    words = f"training in {precision} on {cuda['devices']}: {cuda['loss'][0]:.4f} -> {cuda['loss'][-1]:.4f}, "
    print(words + f"losses at most {apart:.1e} from the CPU's; {cuda['iteration_ms']:.2f} ms an iteration, CPU {cpu['iteration_ms']:.2f} ms")
    assert len(cuda["loss"]) == 20 and cuda["loss"][-1] < 0.95 * cuda["loss"][0], cuda["loss"]
    assert apart <= most, (cuda["loss"], cpu["loss"])
PYTHON
}

check() {
    local out=${OUT:-device-check-results} tiny=${1:-} failed=0
    mkdir -p "$out"
    if [ -z "$tiny" ]; then
        LD_LIBRARY_PATH=$(library_path)
        export LD_LIBRARY_PATH
        nvidia-smi -q >"$out/nvidia-smi.txt" 2>&1 || true
    fi
    # Every operation against the CPU's kernels, in FP32 and BF16.
    timeout 150 "$here/suite" --ignored --exact --nocapture cuda::tests::emulated::operations_on_a_gpu \
        >"$out/conformance.txt" 2>&1 || failed=1
    if [ "$failed" = 0 ] && grep -q '1 passed' "$out/conformance.txt"; then
        echo "conformance: passed"
    else
        echo "conformance: FAILED, see $out/conformance.txt"
        failed=1
    fi
    timeout 120 "$here/device_check" "$out" $tiny || { echo "measurements: FAILED"; failed=1; }
    timeout 100 "$here/trainyard" doctor >"$out/doctor.txt" || true
    train "$out" $tiny || { echo "training: FAILED"; failed=1; }
    local python=${TRAINYARD_TORCH_PYTHON:-python3}
    if "$python" -c 'import torch' 2>/dev/null; then
        timeout 80 "$python" "$here/device-check.py" "$out" $tiny || { echo "comparison with PyTorch: FAILED"; failed=1; }
    else
        echo "comparison with PyTorch: SKIP, there is none"
    fi
    exit "$failed"
}

emulated() {
    cd "$here/.."
    prepare
    local machine built
    built=$(suite_of)
    machine=$(dirname "$built")/emulated-gpu
    # The tests build the machine.
    "$built" --exact cuda::tests::emulated::a_missing_wait_is_seen >/dev/null
    [ -e "$machine/whole/libcuda.so" ] || { echo "SKIP: the emulated machine is not there (c++ builds it)"; exit 0; }
    export LD_LIBRARY_PATH=$machine/whole
    export MACHINE_SHIM=$here/kernels/shim MACHINE_BUILDS=$machine/builds
    export OUT=${OUT:-target/device-check/results} TRAINYARD_CASES=1
    # The promises that every backend keeps, of ranks that share a GPU and of ranks that NCCL joins.
    MACHINE_DEVICES=8 \
        cargo test --release -p trainyard-conformance --test backends -- cuda:: cuda_joined:: on_gpus --nocapture --test-threads=1 2>&1 |
        tee target/device-check-suite.log
    ! grep -q 'SKIP ' target/device-check-suite.log || { echo "no GPU is emulated"; exit 1; }
    here=$PWD/target/device-check
    check --tiny
}

case ${1:-check} in
prepare) prepare ;;
emulated) emulated ;;
check) check ;;
*) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
