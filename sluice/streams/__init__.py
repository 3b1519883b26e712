"""Streams: the gateway's routes, and the worker's record types and decoders, one file per wire format."""
