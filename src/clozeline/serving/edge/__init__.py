"""Middleware that every request passes before a protocol reads it.

`open_requests` bound on open requests · `access` API keys · `hosts` host names · `body_limit` bounds for bodies ·
`faults` answers to exceptions · `request_log` the log.
"""
