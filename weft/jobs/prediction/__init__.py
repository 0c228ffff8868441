"""Predicting with a run, a saved program or an ONNX model."""
