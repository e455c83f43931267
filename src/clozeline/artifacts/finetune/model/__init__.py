"""Files and facts that `finetune` saves with a model, and `export` reads."""
