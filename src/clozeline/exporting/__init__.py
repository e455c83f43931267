"""From a trained model to ONNX and INT8, each graph proven against the original."""
