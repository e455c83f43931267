"""The training loop, its optimizers, its checkpoints and the devices that it runs on."""
