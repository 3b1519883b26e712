"""Streams: routes, record types and decoders, one file per wire format. A decoder is a pure function."""
