"""Published speed of GPUs."""

PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L4": 121e12, "A10": 125e12, "RTX 4090": 165e12}
"""Dense bf16 peak by a part of the driver's device name (NVIDIA's data sheets)."""
