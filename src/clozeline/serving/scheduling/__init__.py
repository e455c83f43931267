"""When which text runs with which others.

`work` what waits · `window` which lengths run together · `line` whose turn it is · `pace` how fast it goes ·
`admission` who may wait · `scheduler` the five under one lock · `workers` the threads around it.
All but the last are told the time and start no thread.
"""
