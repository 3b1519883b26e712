"""The kinds of views, a file each: how a kind is declared, reduced from rows, written, read and checked."""
