#!/usr/bin/env bash
# The router on a GPU: canary requests, latency and a gateway with a DistilBERT-sized artifact
# (benchmarks/gpu.py), then graphs in ONNX Runtime beside torch and the paper's T4
# (benchmarks/router_latency.py). Writes Markdown and JSON to runs/gpu for benchmarks/DETAILS.md. About
# ten minutes, of which installing takes half:
#
#   benchmarks/gpu.sh
#
# The machine needs an NVIDIA driver. Without a model hub: weights are random. Packages come from
#
# - the Python that PYTHON names, if it is set: it has torch with CUDA, onnxruntime-gpu and this
#   project's packages. Nothing is installed, and the network is not used;
# - or else a new environment in ENVIRONMENT, from a package index, or from a folder of wheels:
#   PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER benchmarks/gpu.sh
#
# OUT is the folder for the results. Options for `benchmarks/router_latency.py` may follow. On a
# machine without a GPU, this tests the script:
#
#   DEVICE=cpu PYTHON=.venv/bin/python benchmarks/gpu.sh --batches 1 --tokens 64 --cell-s 1
set -euo pipefail
cd "$(dirname "$0")/.."
device=${DEVICE:-cuda}
environment=${ENVIRONMENT:-/tmp/switchcraft-gpu}
out=${OUT:-runs/gpu}

if [ "$device" = cuda ] && ! nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv; then
  echo "no GPU: \`nvidia-smi\` does not work here, so nothing was measured (DEVICE=cpu tests the script)" >&2
  exit 1
fi

python=${PYTHON:-$environment/bin/python}
if [ -z "${PYTHON:-}" ] && [ ! -x "$python" ]; then
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet -e '.[train]'
  # `onnxruntime` and `onnxruntime-gpu` share a folder, so only one of them may be there.
  "$environment/bin/pip" uninstall --quiet --yes onnxruntime
  "$environment/bin/pip" install --quiet -e '.[gpu]'
fi

mkdir -p "$out"
export PYTHONPATH=.:training${PYTHONPATH:+:$PYTHONPATH}
status=0
"$python" benchmarks/gpu.py --device "$device" --out "$out" |
  tee "$out/artifact-$device.md" || status=$?
[ "$status" != 2 ] || exit 2 # no usable GPU
"$python" benchmarks/router_latency.py \
  --device "$device" --student --cell-s 2 --out "$out/router_latency-$device.json" "$@" |
  tee "$out/router_latency-$device.txt" || status=$?
echo "results are in $out" >&2
exit "$status"
