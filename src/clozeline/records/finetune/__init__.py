"""Records of fine-tuned tasks, and the statistics behind their figures."""
