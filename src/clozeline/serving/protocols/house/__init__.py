"""The paths of the house, a file for each kind of model: what it is asked, by its own path and by other protocols.

Names are those of Hugging Face's tasks: `inputs`, `parameters`, `truncate`; `score`, `token`, `token_str`, `sequence`;
`label`, `score`. Errors are `{"error": {code, message, param, given, expected, do}}`.
"""
