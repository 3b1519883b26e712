"""Histories: gateways, workers and follower as steps of one thread, in an order that a seed decides.

A history is a plan (plan.py), which is run (history.py) by a scheduler that has the clocks (clock.py), with an
in-process Redis (server.py, scripts.py, wire.py), a disk (disk.py) and the real processes (processes.py). What was sent
is in a book, and check.py compares it with what was stored. The same seed gives the same history, byte for byte.
"""
