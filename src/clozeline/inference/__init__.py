"""An exported model, answering: tokenizer, ONNX session, batching. Needs no torch and no transformers.

from clozeline.inference.package import load

encoder = load(Path("dist/encoder"))
encoder.fill(["The capital of France is [MASK]."], top_k=5)
"""
