"""What is optional, a folder each; see `sluice.registry`. Any of them can be deleted.

What several folders use, and the core does not, is a file beside them.
"""
