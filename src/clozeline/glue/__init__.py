"""GLUE: nine tasks of language understanding (Wang et al. 2018), fine-tuned from the encoder on the user's own copy."""
