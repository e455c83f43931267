"""Packages served over HTTP on CPUs, in six dialects. Needs neither torch nor transformers."""
