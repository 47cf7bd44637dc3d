"""Makes what the gateway needs: labels, an encoder, a cost profile and a report."""

import router_service  # noqa: F401 - before ONNX Runtime, whose telemetry it turns off
