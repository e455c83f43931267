"""Stage `export`: a trained model becomes an ONNX package, quantized as far as an exam on real texts allows."""
