"""What fp32 and INT8 of a model are both asked before INT8 may answer: for each task its own questions."""
