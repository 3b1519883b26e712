"""What is optional, a folder each; see `sluice.registry`. Any of them can be deleted."""
