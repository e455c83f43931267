"""What a training will cost, told before it is begun, and which one to choose."""
