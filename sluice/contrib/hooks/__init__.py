"""Webhooks of any sender: the stream `hooks`, the paths below /hooks, and the file of INGEST_HOOKS."""
