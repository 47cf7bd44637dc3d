"""The router's model: features, packing, the ONNX graph, calibration, familiarity."""
