"""The wire formats, a file each; `registry` lists them."""
