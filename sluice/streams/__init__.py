"""Wire formats, one file each, on the worker's side of the list: pure functions from bytes to records."""
