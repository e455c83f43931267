"""Export of a trained model to a package for `inference`: an ONNX graph, its INT8 form, and evidence for both."""
