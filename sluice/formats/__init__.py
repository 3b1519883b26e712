"""The wire formats, a file each."""
