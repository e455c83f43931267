"""Inference with an exported model: tokenizer, ONNX session, batching. Needs neither torch nor transformers.

from clozeline.inference.package import load

encoder = load(Path("dist/encoder"))
encoder.fill(["The capital of France is [MASK]."], top_k=5)
"""
