"""A trained model becomes a package that `inference` opens: an ONNX graph, its INT8 form, and the proof of both."""
