"""What clients speak: each protocol is a file that parses what they send, asks a model, and shapes its answer.

`operation`   one path, and the call that it is handed
`dialects`    a protocol: its paths and its words for errors
`table`       every protocol that is spoken here
`reading`     from bytes to a body; `fields`: what bodies are made of
`endpoint`    one path at work
`openapi`     the document
`house/`      the paths of the house, a file for each kind of model; other protocols ask through them
"""
