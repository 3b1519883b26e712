"""Streams: record types, and the decoders of plain bodies."""
