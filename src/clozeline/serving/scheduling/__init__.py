"""Scheduling: which texts run together, and when.

`work` tickets and micro-batches · `window` which lengths run together · `line` the order · `pace` the measured speed ·
`admission` which requests may wait · `scheduler` the five under one lock · `workers` the threads around it ·
`asking`, `tokenizing`, `waiting` the way of a request from its handler to the scheduler and back.
The first six get the time from their callers and start no thread.
"""
