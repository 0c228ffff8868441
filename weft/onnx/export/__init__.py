"""Export: the graph of a weft function as an ONNX model."""
