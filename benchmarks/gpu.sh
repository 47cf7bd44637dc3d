#!/usr/bin/env bash
# Latency and throughput of the router's graphs on a GPU, beside torch and the paper's T4. About ten
# minutes, of which installing takes half:
#
#   benchmarks/gpu.sh
#
# The machine needs an NVIDIA driver, Python 3.11 or newer with `venv`, and a package index; the
# packages bring CUDA. Options for `benchmarks/router_latency.py` may follow. On a machine without a
# GPU, with an environment that is installed already, this tests the script:
#
#   DEVICE=cpu ENVIRONMENT=.venv benchmarks/gpu.sh --batches 1 --tokens 64 --cell-s 1
set -euo pipefail
cd "$(dirname "$0")/.."
device=${DEVICE:-cuda}
environment=${ENVIRONMENT:-/tmp/switchcraft-gpu}
out=${OUT:-runs/router_latency-$device.json}

if [ ! -x "$environment/bin/python" ]; then
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet -e '.[train]'
  # `onnxruntime` and `onnxruntime-gpu` share a folder, so only one of them may be there.
  "$environment/bin/pip" uninstall --quiet --yes onnxruntime
  "$environment/bin/pip" install --quiet -e '.[gpu]'
fi
if [ "$device" = cuda ]; then
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv
fi
PYTHONPATH=.:training "$environment/bin/python" benchmarks/router_latency.py \
  --device "$device" --student --cell-s 2 --out "$out" "$@"
