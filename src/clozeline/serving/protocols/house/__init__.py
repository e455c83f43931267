"""Clozeline's own paths, a file for each kind of model. Other protocols ask models through their functions.

Names are those of Hugging Face's tasks: `inputs`, `parameters`, `truncate`; `score`, `token`, `token_str`, `sequence`;
`label`, `score`. Errors are `{"error": {code, message, param, given, expected, do}}`.
"""
