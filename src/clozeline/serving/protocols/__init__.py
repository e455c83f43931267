"""Protocols: each is a file that parses requests, runs a model, and formats the answers.

`operation`   one path, and the `Call` that it gets
`dialects`    a protocol: its paths and its error format
`table`       every protocol of the server
`reading`     from bytes to a body; `fields`: types that bodies share
`endpoint`    one path at work
`openapi`     the document
`house/`      Clozeline's own paths, a file for each kind of model; other protocols ask through their functions
"""
